"""Messages between launcher, sidecar and controller: frozen dataclasses with a strict JSON form.

Every message is one JSON object. `decode` refuses unknown and missing fields and wrong types by name, so that two
versions that do not understand each other say so instead of guessing.

Launcher -> sidecar (HTTP over the unix socket RUN_DIR/sidecar.sock; the launcher is the client)

    GET  /v1/plan                 200 Plan           blocks until images are on disk; 425 while not ready: ask again
                                  422 there will be none | 424 nor now, but the next attempt may get one
    GET  /v1/commands?after=SEQ   200 LauncherCommand | 204   long poll, at most 20 s
    POST /v1/events               200                LauncherEvent

Sidecar -> controller (HTTPS, bearer = projected service-account token with audience TOKEN_AUDIENCE)

    POST /v1/hello                200 HelloReply | 202 leader not known yet: ask again | 409 attempt is not current
                                  202 with "ended": true: the attempt has stopped with a checkpoint
    GET  /v1/commands?namespace=&job=&attempt=&after=SEQ      200 Command | 204   long poll, at most 20 s; leader only
    POST /v1/progress             200                Progress
    POST /v1/commit               200 | 409 CommitRequest: attempt is not current, nothing was written
    POST /v1/failure              200                CheckpointFailure

Errors are `{"error": "sentence"}` with a 4xx or 5xx status.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")


TIME_HEADER: Final = "Singularity-Time"
"""Of the controller's answers: Unix seconds of the clock that its deadlines are in."""


class MessageError(ValueError):
    """A message is not valid JSON, lacks a field, has an unknown one, or one of the wrong type."""


@dataclass(frozen=True)
class Needs:
    """What a node must have for a checkpoint's process images to run there, in the words of node labels."""

    architecture: str
    """As in the label kubernetes.io/arch; "" when unknown."""
    cpu: list[str] = field(default_factory=list)
    """Instruction set extensions, as node feature discovery names them in feature.node.kubernetes.io/cpu-cpuid.*"""


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint as in the Job's annotation. `url` is the store's, the manifest is found by id."""

    id: str
    generation: int
    attempt: int
    step: int
    """Step boundaries passed: the next step to run has this number (steps are numbered from 0)."""
    world_size: int
    url: str
    bytes: int
    bytes_stored: int
    created_at: float
    """Unix seconds."""
    needs: Needs | None = None
    """None: not known."""


@dataclass(frozen=True)
class Preemptor:
    """Who took a job's quota, as it was then: it may be gone when somebody asks."""

    workload: str
    namespace: str = ""
    kind: str = ""
    """Of its owner: Job, JobSet, ..."""
    job: str = ""
    queue: str = ""
    """Its LocalQueue."""
    priority: int = 0


@dataclass(frozen=True)
class AttemptRecord:
    """One admission of a job, as kept in the Job's history annotation and shown to users. Times are Unix seconds."""

    attempt: int
    reservation: str
    """Identifies the quota reservation (workload uid + transition time): makes answering the fence idempotent."""
    flavor: str
    pods: int
    ranks: int
    admitted_at: float
    queued_at: float | None = None
    first_step: int | None = None
    """Number of the first step this attempt runs (steps are numbered from 0)."""
    first_step_at: float | None = None
    last_step: int | None = None
    """Number of the last step this attempt completed."""
    ended_by: str | None = None
    """Kueue's eviction reason, `Finished`, `Failed`, `Deleted` (broken off), or `OutOfMemory`; None while it runs."""
    preempted_by: str | None = None
    """Name of the preemptor's Workload, or its UID when it could not be resolved."""
    preemptor: Preemptor | None = None
    evicted_at: float | None = None
    barrier_at: float | None = None
    committed_at: float | None = None
    released_at: float | None = None
    finished_at: float | None = None
    checkpoint: str | None = None
    """Id of the checkpoint that ended this attempt."""
    restored_from: str | None = None
    note: str | None = None
    """What a user should read about how it ended, if anything is unusual."""
    held: bool = False
    """Its hold was armed at the start."""
    cluster: str | None = None
    """The worker cluster that it ran in, as MultiKueue calls it; None: the cluster of the Job itself."""


# --- user -> controller, in annotations of the Job ----------------------------------------------------------------
RequestOp = Literal["resize", "migrate", "checkpoint", "pause", "resume"]


@dataclass(frozen=True)
class NodeRequirement:
    """One expression of a node selector term, as Kubernetes has it."""

    key: str
    operator: Literal["In", "NotIn"]
    values: list[str]


@dataclass(frozen=True)
class Placement:
    """Where a job may run. Survives attempts, until a later migration changes it."""

    flavors: list[str] = field(default_factory=list)
    """ResourceFlavors that it may be admitted on; empty: every one of its queue."""
    avoid_nodes: list[str] = field(default_factory=list)
    """Names of nodes that its pods keep away from."""
    terms: list[list[NodeRequirement]] = field(default_factory=list)
    """The same for Kueue and the scheduler: node selector terms, of which one has to match."""


@dataclass(frozen=True)
class JobRequest:
    """What somebody asks of a job that is there already. Unused fields are None."""

    id: str
    """Unique: the same request twice is carried out once."""
    op: RequestOp
    at: float
    """Unix seconds, by the clock of whoever asks; only shown."""
    by: str = ""
    """Who asks, for people."""
    workers: int | None = None
    min_workers: int | None = None
    placement: Placement | None = None
    flavor: str | None = None
    """migrate: the flavor that was named; `placement` says what that means for this queue."""
    node: str | None = None
    """migrate: the node that was named."""
    timeout_s: float | None = None
    """checkpoint: give it up when it is not committed so many seconds after the controller took notice."""


@dataclass(frozen=True)
class RequestStatus:
    """How far the request with this id is. `done` and `failed` are final; `message` is a sentence for people."""

    id: str
    op: RequestOp
    state: Literal["running", "done", "failed"]
    message: str
    at: float
    """Unix seconds, by the controller's clock, at which the request was taken up."""
    attempt: int = 0
    """Attempt that was current then."""
    finished_at: float | None = None
    checkpoint: str | None = None
    """Id of the checkpoint that answers it."""
    step: int | None = None
    deadline: float | None = None
    """checkpoint: Unix seconds at which it is given up."""


# --- launcher <-> sidecar -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plan:
    """What the launcher has to do at its start."""

    mode: Literal["fresh", "restore"]
    attempt: int
    world_size: int
    ranks: list[int]
    """Global ranks that live in this pod, ascending."""
    master_addr: str
    master_port: int
    generation: int = 0
    """restore: the generation at which the ranks were frozen."""
    checkpoint_id: str = ""
    """restore: images lie in IMAGE_DIR/<checkpoint id>/rank-<r>/."""


@dataclass(frozen=True)
class LauncherCommand:
    """`dump`: every rank of the pod is (about to be) frozen for `generation`; images go to IMAGE_DIR/<checkpoint_id>.
    `resume`: ranks frozen for `generation` go on in place (cancelled or periodic checkpoint). `exit`: end now.
    `finish`: every rank of the world has ended with 0, and so does the launcher."""

    seq: int
    op: Literal["dump", "resume", "exit", "finish"]
    generation: int = 0
    checkpoint_id: str = ""
    leave_running: bool = False
    anywhere: bool = False
    """`dump`: no rank waits for another: they are stopped where they are instead of freezing at a boundary."""
    deadline: float = 0.0
    """Unix seconds; a dump that cannot end before it is given up."""
    job: list[str] = field(default_factory=list)
    """`dump`: addresses of all pods of the job. A connection to one of them is one between ranks."""
    master_addr: str = ""
    master_port: int = 0
    exit_code: int = 0


@dataclass(frozen=True)
class Reading:
    """What rank 0's output says about its progress, in the script's own counting; None for what it does not say."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None


@dataclass(frozen=True)
class LauncherEvent:
    """`started`/`restored`: all ranks of the pod run. `dumped`: images of all ranks lie in IMAGE_DIR/<checkpoint_id>.
    `dump_failed`/`restore_failed`: `message` says why. `exited`: `rank` ended by itself with `code`.
    `finished`: every rank of the pod has ended with 0, and the launcher waits for `finish`; said again until it comes.
    `terminating`: SIGTERM came, `grace_s` seconds are left. `reading`: rank 0 has printed something new."""

    kind: Literal[
        "started", "restored", "dumped", "dump_failed", "restore_failed", "exited", "finished", "terminating", "reading"
    ]
    generation: int = 0
    rank: int = -1
    code: int = 0
    grace_s: float = 0.0
    message: str = ""
    seconds: float = 0.0
    reading: Reading | None = None


# --- sidecar <-> controller ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Hello:
    namespace: str
    job: str
    attempt: int
    index: int
    pod: str
    pod_ip: str


@dataclass(frozen=True)
class HelloReply:
    peer_key: str
    """Bearer secret of the mesh between the sidecars of this attempt."""
    leader_ip: str
    checkpoint: CheckpointRef | None = None
    """What to restore; None for a fresh start."""


@dataclass(frozen=True)
class Command:
    """Controller -> leader. `then="stop"`: the ranks end with the dump; `continue`: they go on."""

    seq: int
    """Grows from command to command of an attempt."""
    op: Literal["checkpoint"]
    reason: str
    deadline: float
    then: Literal["stop", "continue"] = "stop"


@dataclass(frozen=True)
class Progress:
    """Leader -> controller, once a second while the step moves, and at once when the phase changes."""

    namespace: str
    job: str
    attempt: int
    phase: Literal["starting", "restoring", "running", "barrier", "dumping", "uploading", "finished"]
    step: int
    """Step boundaries passed by the slowest rank."""
    first_step: int | None = None
    first_step_at: float | None = None
    """Unix seconds at which the first step of this attempt was completed."""
    barrier_at: float | None = None
    """Unix seconds at which all ranks stood still for a checkpoint that ends the attempt."""
    reading: Reading | None = None
    bytes_done: int | None = None
    bytes_total: int | None = None
    """While `uploading`: how much of the images of all pods the store has, and how much there is."""


@dataclass(frozen=True)
class CommitRequest:
    namespace: str
    job: str
    attempt: int
    checkpoint: CheckpointRef
    barrier_at: float
    last_step: int
    goes_on: bool = False
    """The attempt goes on after this checkpoint. Sent again without it if the attempt has to end there after all."""


@dataclass(frozen=True)
class CheckpointFailure:
    """A checkpoint was asked for and cannot be had. `step` is the highest counter seen."""

    namespace: str
    job: str
    attempt: int
    message: str
    step: int = 0
    goes_on: bool = False
    """The checkpoint was asked for while the job goes on, and so the job does."""
    finishing: bool = False
    """Some ranks have ended by themselves: a part of the world cannot be saved, but the job may be about to end."""


# --- JSON ---------------------------------------------------------------------------------------------------------
def to_json(message: Any) -> str:
    """JSON text of a message dataclass (or of a list of them)."""
    if isinstance(message, list):
        return json.dumps([dataclasses.asdict(m) for m in message], separators=(",", ":"))
    return json.dumps(dataclasses.asdict(message), separators=(",", ":"))


def from_json(cls: type[T], text: str | bytes) -> T:
    """Parse `text` as a `cls`. Raises MessageError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MessageError(f"{cls.__name__}: not valid JSON: {error}") from None
    return decode(cls, data)


def list_from_json(cls: type[T], text: str | bytes) -> list[T]:
    """Parse `text` as a JSON list of `cls`. Raises MessageError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MessageError(f"list of {cls.__name__}: not valid JSON: {error}") from None
    if not isinstance(data, list):
        raise MessageError(f"list of {cls.__name__}: expected a JSON list, got {type(data).__name__}")
    return [decode(cls, item) for item in data]


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """Build a `cls` from decoded JSON. Raises MessageError; `where` names a nested message by its path."""
    where = where or cls.__name__
    if not isinstance(data, dict):
        raise MessageError(f"{where}: expected a JSON object, got {type(data).__name__}")
    hints, fields = _shape(cls)  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise MessageError(f"{where}: unknown field {unknown[0]!r}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _value(f"{where}.{name}", hints[name], data[name])
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise MessageError(f"{where}: field {name!r} is missing")
    return cls(**values)


@functools.cache
def _shape(cls: type[Any]) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Types and fields by name. Finding them takes a hundred times as long as reading a message with them."""
    return typing.get_type_hints(cls), {f.name: f for f in dataclasses.fields(cls)}


def _value(where: str, hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        rest = [o for o in options if o is not type(None)]
        return _value(where, rest[0], value)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise MessageError(f"{where}: {value!r} is not one of {', '.join(map(repr, typing.get_args(hint)))}")
        return value
    if origin is list:
        if not isinstance(value, list):
            raise MessageError(f"{where}: expected a list, got {type(value).__name__}")
        (item,) = typing.get_args(hint)
        return [_value(f"{where}[{i}]", item, v) for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise MessageError(f"{where}: expected an object, got {type(value).__name__}")
        _, item = typing.get_args(hint)
        return {k: _value(f"{where}[{k!r}]", item, v) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(Any, hint), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise MessageError(f"{where}: expected {hint.__name__}, got {type(value).__name__}")
    return value
