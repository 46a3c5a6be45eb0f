"""Messages between launcher, sidecar and controller: frozen dataclasses with a JSON form.

Every message is one JSON object. `decode` refuses missing fields and wrong types by name, and ignores fields that it
does not know. Fields at their default are not written. So a release can add a field with a default, and both the
release before and the one after read its messages. No default and no meaning of a field ever changes.

Launcher -> sidecar (HTTP over the unix socket RUN_DIR/launcher/sidecar.sock; the launcher is the client)

    GET  /v1/plan                 200 Plan           blocks until images are on disk; 425 while not ready: ask again
                                  422 Refusal: there will be none in this attempt
    GET  /v1/commands?after=SEQ   200 LauncherCommand | 204   long poll, at most 20 s
    POST /v1/events               200                LauncherEvent

Sidecar -> controller (HTTPS, bearer = projected service-account token with audience TOKEN_AUDIENCE)

    POST /v1/hello?wait_s=N&trial=1&version=V
                                  200 HelloReply | 202 leader not known yet: ask again | 409 attempt is not current
                                  202 with "ended": true: the attempt has stopped with a checkpoint
                                  `version`: the sidecar's release. Not in Hello, which 0.1.0 reads strictly
    GET  /v1/commands?namespace=&job=&attempt=&after=SEQ      200 Command | 204   long poll, at most 20 s; leader only
    POST /v1/progress             200 ProgressReply  Progress
    POST /v1/commit               200 | 409 CommitRequest: attempt is not current, nothing was written
    POST /v1/failure              200                CheckpointFailure
    POST /v1/damage               200                DamageReport: of any pod; the next attempt gets an older checkpoint
    POST /v1/trial                200                TrialReport
    POST /v1/outputs?namespace=&job=&attempt=        200   StoredOutputs: all that the ranks left behind is at its URL
    POST /v1/result?namespace=&job=&attempt=         200   the JSON object that rank 0 has left (`names.ENV_RESULT`)

Errors are `{"error": "sentence"}` with a 4xx or 5xx status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from .decode import (
    MAX_BYTES,
    AnyFloat,
    Count,
    Grows,
    Record,
    Seconds,
    Spelled,
    UnixTime,
    Unreadable,
    Within,
    fields_of,
    message,
)  # fmt: skip
from .phases import SavePhases, StartPhases

T = TypeVar("T")


CHECKPOINT_ID: Final = r"[a-z0-9][a-z0-9-]{0,62}"
"""It becomes part of paths and URLs."""
AnyId = Annotated[str, Spelled(rf"(?:{CHECKPOINT_ID})?", "a checkpoint id")]
"""Of a checkpoint, or "" for none."""


RESULT_BYTES: Final = 48_000
"""Limit of what rank 0 leaves behind: it is kept on the Job, and copied by everybody who watches it."""


class MessageError(ValueError):
    """A message is not valid JSON, lacks a field, has an unknown one, or one of the wrong type."""


Engine = Literal["process", "state", "both"]
Through = Literal["process", "state"]
"""What of a checkpoint ranks go on from."""
"""As `names.ENGINES`."""


@dataclass(frozen=True)
class Needs(Record):
    """What a node must have for a checkpoint's process images to run there, in the words of node labels."""

    architecture: str
    """As in the label kubernetes.io/arch; "" when unknown."""
    cpu: list[str] = field(default_factory=list)
    """Instruction set extensions, as node feature discovery names them in feature.node.kubernetes.io/cpu-cpuid.*"""


RESTORES: Final = 3
"""How many restores of one checkpoint may fail in a row before the job goes back to the one before."""


@dataclass(frozen=True)
class FailedRestore(Record):
    """An attempt that could not be restored from a checkpoint which is whole."""

    attempt: Count
    why: str
    passes: bool = False
    """What was missing may come back, such as a file of a volume."""
    node: str = ""
    """On which a pod failed first, as the controller knows it."""


@dataclass(frozen=True)
class CheckpointRef(Record):
    """A committed checkpoint as in the Job's annotation. `url` is the store's, the manifest is found by id."""

    id: str
    generation: Count
    attempt: Count
    step: Count
    """Step boundaries passed: the next step to run has this number (steps are numbered from 0)."""
    world_size: Count
    url: str
    bytes: Count
    bytes_stored: Count
    created_at: UnixTime
    """Unix seconds."""
    sha256: str
    """Digest of the manifest's bytes. A restore compares it before it uses any field of the manifest."""
    needs: Needs | None = None
    """None: not known, or none, as with the state engine."""
    engine: Engine = "process"
    """That has made it, and that it needs."""
    unusable: str = ""
    """Why nobody can restore it: the store's copy is damaged. Only the controller writes this field and the next."""
    failed: list[FailedRestore] = field(default_factory=list)
    """Restores of it that failed since the last one that succeeded, oldest first."""
    fewest: Count = 0
    """Its ranks have no room in fewer pods: they hold the same ports. 0 where that is not known."""
    crowded: str = ""
    """... which ranks and ports these are."""

    @property
    def passed_over(self) -> str:
        """Why the job does not go on from it by itself, "" if it does."""
        if self.unusable or len(self.failed) < RESTORES:
            return self.unusable
        last = self.failed[-1]
        return f"{len(self.failed)} restores failed, the last one in attempt {last.attempt}: {last.why}"


@dataclass(frozen=True)
class GpuFault(Record):
    """An Xid that a GPU's driver has reported, and how many times."""

    gpu: Annotated[str, Spelled(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,60}", "the UUID of a GPU")]
    xid: Annotated[int, Within(0, 100_000)]
    count: Count


@dataclass(frozen=True)
class PodGpus(Record):
    """What was wrong with the GPUs of one pod: the controller knows on which node that is."""

    index: Count
    """Of the pod."""
    xids: list[Annotated[int, Within(0, 100_000)]] = field(default_factory=list)
    ecc_uncorrected: Count = 0
    throttled: Annotated[float, Within(0, 100)] = 0.0
    """As in `Gpus`."""


@dataclass(frozen=True, slots=True)
class Gpus(Record):
    """What NVML tells of the GPUs of an attempt, of one pod or of all, from its start until now (`protocol.gpus`)."""

    count: Annotated[int, Within(1, 1_000_000)]
    """GPUs."""
    utilisation: Annotated[float, Within(0, 100)] | None = None
    """Percent of the time in which they had work, their mean; None where NVML does not tell."""
    memory_peak: Count = 0
    """Bytes in use on the GPU that had most, when it had most,"""
    memory_total: Count = 0
    """and of how many."""
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    """Memory errors of the attempt; None where the GPUs do not count them."""
    faults: list[GpuFault] = field(default_factory=list)
    """The first few kinds on the first few GPUs."""
    faults_more: Count = 0
    """Events that are not among them."""
    throttled: Annotated[float, Within(0, 100)] | None = None
    """Percent of the samples in which heat or power made the hardware slow its clocks down, the mean of all GPUs; None
    where NVML does not tell."""
    pods: list[PodGpus] = field(default_factory=list)
    """The first few pods whose GPUs had something wrong."""


EndCause = Annotated[Literal["", "memory", "program", "platform"], Grows("")]
"""What has ended a container. `memory`: the kernel, because a limit or the node had no room; `program`: a rank ended by
itself; `platform`: the launcher gave up, its exit code says at what. "": nobody has said."""


# --- launcher <-> sidecar -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plan:
    """What the launcher has to do at its start."""

    mode: Literal["fresh", "restore", "finished"]
    """`finished`: every rank of the job has ended well; this pod replaces one lost on its way out, and ends."""
    attempt: Count
    world_size: Count
    ranks: list[int]
    """Global ranks that live in this pod, ascending."""
    master_addr: str
    master_port: int
    generation: Count = 0
    """restore: the generation at which the ranks were frozen."""
    checkpoint_id: AnyId = ""
    """restore: images lie in IMAGE_DIR/<checkpoint id>/rank-<r>/."""
    through: Through = "process"
    """restore, engine `both`: all pods of an attempt have the same one."""
    why: str = ""
    """... why not the processes, which go first."""
    ended: list[int] = field(default_factory=list)
    """restore: ranks of the world that had ended when the others were saved."""
    outputs: bool = False
    """The ranks get ENV_OUTPUTS. The launcher ends with 0 only when it is told to `finish`."""


@dataclass(frozen=True)
class Refusal:
    """Instead of a plan: why there is none, and the code (`protocol.exit_codes`) that the container has to end with."""

    error: str
    exit_code: int


@dataclass(frozen=True)
class LauncherCommand:
    """`dump`: every rank of the pod is (about to be) frozen for `generation`; images go to IMAGE_DIR/<checkpoint_id>.
    `resume`: ranks frozen for `generation` go on in place (cancelled or periodic checkpoint). `weigh`: say what the
    ranks hold in memory. `exit`: end now. `finish`: every rank of the world has ended with 0, and so does the launcher.
    """

    seq: int
    op: Literal["dump", "resume", "weigh", "exit", "finish"]
    generation: Count = 0
    checkpoint_id: AnyId = ""
    anywhere: bool = False
    """`dump`: no rank waits for another: they are stopped where they are instead of freezing at a boundary."""
    remaining_s: Seconds | None = None
    """Seconds from when the launcher gets this; a dump that cannot end within them is given up."""
    job: list[str] = field(default_factory=list)
    """`dump`: addresses of all pods of the job. A connection to one of them is one between ranks."""
    dump: str = ""
    """`dump`: drawn by the sidecar that asks. The event that answers it repeats it."""
    stream: bool = False
    """`dump`: the sidecar takes the ranks' pages at its socket while they are dumped (`page_frames`)."""
    memory: Count = 0
    """`stream`: bytes that the sidecar has memory for. Of ranks that hold more, all goes to the disk. 0: any number, as
    the ranks wait for the store anyway."""
    trial: bool = False
    """`dump`: only to see whether it works. No image is kept. It gives way to a dump of the same generation that is
    none, and to `resume`."""
    master_addr: str = ""
    master_port: int = 0
    ended: list[int] = field(default_factory=list)
    """`resume`: ranks of the world that have ended, so the others do not wait for them."""
    exit_code: int = 0
    message: str = ""
    """`exit`: why, for people."""


PARTS_BYTES: Final = 16 << 20
"""Limit of a PartsRequest."""


@dataclass(frozen=True)
class FileRange:
    """Bytes `begin` to `end`, without `end`, of a file of a checkpoint."""

    path: str
    begin: Count
    end: Count


@dataclass(frozen=True)
class PartsRequest:
    """Rank -> sidecar: parts of the checkpoint that the job begins with, to be laid below `names.STATE_FROM`."""

    ranges: list[FileRange]


@dataclass(frozen=True)
class Reading:
    """Progress as read from rank 0's output, in the script's own counting; None for missing values."""

    step: Count | None = None
    total: int | None = None
    loss: AnyFloat | None = None


@dataclass(frozen=True)
class Weight:
    """What the ranks of a pod hold in memory, in bytes, and what their container may hold; None: any amount."""

    memory: Count
    limit: Count | None = None


@dataclass(frozen=True)
class Occupied:
    """What a rank holds of the addresses of its pod (`protocol.addresses`)."""

    rank: Count
    addresses: list[str]


@dataclass(frozen=True)
class LauncherEvent:
    """`started`/`restored`: all ranks of the pod run. `dumped`: images of all ranks lie in IMAGE_DIR/<checkpoint_id>.
    `dump_failed`/`restore_failed`: `message` says why; the container ends with `code` after the latter. `exited`:
    `rank` ended by itself with `code`. `finished`: every rank of the pod has ended with 0, and the launcher waits for
    `finish`; repeated until it comes. `terminating`: SIGTERM came, `grace_s` seconds are left. `reading`: rank 0 has
    printed something new. `gpus`: the statistics of the pod's GPUs since the launcher's start; sent repeatedly.
    `weighed`: what the ranks of the pod hold."""

    kind: Literal[
        "started", "restored", "dumped", "dump_failed", "restore_failed", "exited", "finished", "terminating",
        "reading", "gpus", "weighed",
    ]  # fmt: skip
    generation: Count = 0
    rank: int = -1
    code: int = 0
    grace_s: float = 0.0
    message: str = ""
    seconds: float = 0.0
    reading: Reading | None = None
    gpus: Gpus | None = None
    dump: str = ""
    """`dumped`, `dump_failed`: what the command said, empty where no command was carried out."""
    save: SavePhases | None = None
    """`dumped`: as far as the launcher knows them."""
    occupied: list[Occupied] = field(default_factory=list)
    """`dumped`: of the ranks that hold any."""
    start: StartPhases | None = None
    """`started`, `restored`: likewise."""
    late: bool = False
    """`dump_failed`: its time was over, or it came at a bad moment. So it says nothing about the next one."""
    apart: bool = False
    """`restore_failed`: its ranks were restored, and did not meet those of the other pods."""
    weight: Weight | None = None


# --- sidecar <-> controller ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Hello:
    namespace: str
    job: str
    attempt: Count
    index: Count
    pod: str
    pod_ip: str


@dataclass(frozen=True)
class Origin(Record):
    """The checkpoint that a forked job began with. It stays in the folder of the job that has made it."""

    job: str
    """In the same namespace."""
    checkpoint: AnyId


@dataclass(frozen=True)
class HelloReply:
    peer_key: str
    """The key that signs the messages between the sidecars of this attempt."""
    leader_ip: str
    checkpoint: CheckpointRef | None = None
    """What to restore; None for a fresh start."""
    committed: list[CheckpointRef] = field(default_factory=list)
    """All known committed checkpoints, newest first: the candidates if `checkpoint` is damaged."""
    finished: bool = False
    """Every rank of the job has ended well: nothing is left to do. The other fields are empty then."""
    origin: Origin | None = None
    """Of a job that was forked from another one."""
    trial_after_s: Seconds | None = None
    """Seconds of training after which the attempt finds out whether it can be saved; None: it does not."""
    outputs: str = ""
    """URL to which what the ranks write to ENV_OUTPUTS is stored; "": the job has none."""
    outputs_refused: str = ""
    """Why nothing may be stored where the job asks for it."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Name -> URL of what the ranks find below ENV_INPUTS."""
    inputs_refused: str = ""
    """Why the job may not read there."""


Then = Literal["continue", "stay", "stop"]
"""What follows a checkpoint, from the least to the most: of requests that meet, the last one here counts."""


@dataclass(frozen=True)
class Command:
    """Controller -> leader.

    `checkpoint`: what follows it is `then`. `stop`: the ranks end with the dump. `continue`: they go on. `stay`: they
    stay stopped for `stay_s` seconds, because somebody is about to end the attempt; then they go on. A command with
    `stop` that comes meanwhile needs no second save. `resume`: nobody is about to end it any more.
    """

    seq: int
    """Grows from command to command of an attempt."""
    op: Literal["checkpoint", "resume"]
    reason: str
    remaining_s: Seconds
    """Seconds left for it, counted from the moment when the leader gets this."""
    then: Then = "stop"
    stay_s: Seconds = 0.0


@dataclass(frozen=True)
class Progress:
    """Leader -> controller, every few seconds while the step moves, and at once when the phase changes."""

    namespace: str
    job: str
    attempt: Count
    phase: Literal["starting", "restoring", "running", "barrier", "dumping", "uploading", "finished"]
    step: Count
    """Step boundaries passed by the slowest rank."""
    first_step: int | None = None
    first_step_ago_s: Seconds | None = None
    """Seconds since the first step of this attempt was completed."""
    free: bool = False
    """No rank has made a step in this attempt, and none waits for another: the program may be one without steps."""
    barrier_ago_s: Seconds | None = None
    """Seconds since all ranks stood still for a checkpoint that ends the attempt."""
    reading: Reading | None = None
    bytes_done: Count | None = None
    bytes_total: Count | None = None
    """While `uploading`: how much of the images of all pods the store has, and how much there is."""
    gpus: Gpus | None = None
    """Of all pods that have reported theirs."""
    start: StartPhases | None = None
    """How all programs of this attempt came to run."""
    why_state: str = ""
    """Engine `both`: why it began with the state of its checkpoint, and not with the processes."""


@dataclass(frozen=True)
class ProgressReply:
    every_s: Seconds = 1.0
    """The next report, unless it is urgent, after so long: many jobs report less often each."""


@dataclass(frozen=True)
class CommitRequest:
    namespace: str
    job: str
    attempt: Count
    checkpoint: CheckpointRef
    barrier_ago_s: Seconds
    last_step: int
    goes_on: bool = False
    """The attempt goes on after this checkpoint. Sent again without it if the attempt has to end there after all."""
    stays: bool = False
    """With `goes_on`: its ranks stay stopped in just this state, until they are ended or their time is over."""
    save: SavePhases | None = None


SaveCause = Annotated[Literal["", "program", "store", "time", "pods", "ended", "early"], Grows("")]
"""What kind of reason keeps a job from being saved. `program`: its processes or its state could not be saved where they
ran; `store`: the images did not come to the store, or the commit failed; `time`: a deadline came first; `pods`: a pod
was silent; `ended`: some ranks have ended by themselves; `early`: no rank ran yet. "": nobody has said."""


@dataclass(frozen=True)
class CheckpointFailure:
    """A requested checkpoint is not possible. `step` is the highest counter seen."""

    namespace: str
    job: str
    attempt: Count
    message: str
    step: Count = 0
    goes_on: bool = False
    """The request was for a checkpoint after which the job goes on, and the job does go on."""
    finishing: bool = False
    """Some ranks have ended by themselves: a part of the world cannot be saved, but the job may be about to end."""
    cause: SaveCause = ""
    why: str = ""
    """The first reason alone, with its pod and rank; "": `message` is all that there is."""


Verdict = Literal["not tried", "yes", "no"]
"""Whether an attempt can be saved."""
NOT_TRIED: Final = "not tried"


@dataclass(frozen=True)
class TrialReport:
    """The end of the attempt's trial, or why there is none: a dump that nobody keeps."""

    namespace: str
    job: str
    attempt: Count
    verdict: Verdict
    cause: SaveCause = ""
    why: str = ""
    """As in `CheckpointFailure`; of `not tried` a sentence."""


@dataclass(frozen=True)
class Damage:
    """A checkpoint was not restored. Without `tried`, the store's copy differs from what was committed."""

    id: str
    problem: str
    tried: bool = False
    """It is whole: another pod, or the same one later, may restore it."""
    passes: bool = False
    """As in `FailedRestore`."""


@dataclass(frozen=True)
class DamageReport:
    """The checkpoint that this attempt was given was not restored; `damaged` has it, and older ones that cannot be
    either."""

    namespace: str
    job: str
    attempt: int
    damaged: list[Damage]


# --- launcher -> controller, in the pod's status ------------------------------------------------------------------
LAST_WORDS_BYTES: Final = 4096
"""Limit of a termination message, which the kubelet cuts."""


@dataclass(frozen=True)
class LastWords:
    """How the training container has ended: its termination message."""

    text: str
    """For people, with the user's program's own words: no code depends on it."""
    cause: EndCause = ""


def last_words(text: str, cause: EndCause) -> str:
    """JSON of LastWords, which fits: of a long text the end is missing."""
    while len((found := to_json(LastWords(text, cause))).encode()) > LAST_WORDS_BYTES:
        text = text[: len(text) * 9 // 10]
    return found


# --- launcher -> `singularityctl doctor` --------------------------------------------------------------------------
@dataclass(frozen=True)
class GpuProbe:
    """The findings of a launcher that runs as a probe (`names.ENV_PROBE`): a line of its pod's log."""

    gpus: list[str] = field(default_factory=list)
    """Their names."""
    driver: str = ""
    torch: str = ""
    problems: list[str] = field(default_factory=list)
    """Sentences: what will not work there."""
    size: Count = 0
    """Bytes of a process that were moved off the GPU and back, 0 if that was not done:"""
    checkpoint_s: float = 0.0
    restore_s: float = 0.0
    wrong: Count = 0
    """words of them that were not what they had been."""
    error: str = ""
    """Why it was not done, or not to its end."""


# --- JSON ---------------------------------------------------------------------------------------------------------
def to_json(message: Any) -> str:
    """JSON text of a message dataclass (or of a list of them), without defaults. A character takes its own bytes, not
    the six of an escape: limits of what is stored count bytes."""
    text = json.dumps(message, default=fields_of, ensure_ascii=False, separators=(",", ":"))
    # Half a character, out of a file's name say, could not be read.
    return text if text.isascii() else text.encode(errors="replace").decode()


def from_json(cls: type[T], text: str | bytes, most_bytes: int = MAX_BYTES) -> T:
    """Parse `text` as a `cls`. Raises MessageError; where an error is no way out, `decode.message` returns it."""
    found = message(cls, text, most_bytes)
    if isinstance(found, Unreadable):
        raise MessageError(found.why)
    return found
