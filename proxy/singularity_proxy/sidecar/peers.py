"""Messages between the sidecars of one attempt: a follower posts its PodReport, the leader answers with a Directive.

    POST /v1/exchange?seen=VERSION&hold=SECONDS   PodReport -> Directive      (leader's MESH_PORT, signed: see `signed`)

Both are states, not events: a lost or repeated message changes nothing. The leader holds the answer while the follower
has seen the current directive already, at most `hold` seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..protocol.decode import Seconds
from ..protocol.manifest import RankImage
from ..protocol.messages import AnyId, Gpus, Occupied, SaveCause, Through, Weight
from ..protocol.outputs import LeftOut, OutputFile
from ..protocol.phases import SavePhases, StartPhases

Op = Literal["run", "barrier", "save", "stop", "exit", "finish"]


@dataclass(frozen=True)
class RankWords:
    """The page's words of one rank. A rank that has failed has STATE_FINISHED here."""

    rank: int
    count: int
    blocked: int
    state: int


@dataclass(frozen=True)
class Tried:
    """How the trial of `generation` has ended in a pod; "": it can be saved."""

    generation: int
    problem: str = ""
    cause: SaveCause = ""


@dataclass(frozen=True)
class Unstored:
    """Why outputs were not stored, and with which code the pods end for it."""

    why: str
    exit_code: int


@dataclass(frozen=True)
class PodOutputs:
    """How far a pod has come with what its ranks wrote to `$OUTPUTS`."""

    listed: bool = False
    files: list[OutputFile] | None = None
    """As long as the leader has not said which of them count."""
    left_out: list[LeftOut] = field(default_factory=list)
    stored: bool = False
    unstored: Unstored | None = None
    """It was given up."""
    failing: str = ""
    """Why it has not succeeded yet."""
    bytes_done: int = 0
    bytes_total: int = 0


@dataclass(frozen=True)
class PodReport:
    """What a pod has done so far. Generations: 0 = none."""

    index: int
    ranks: list[RankWords]
    address: str = ""
    """Of this pod."""
    started: bool = False
    """The launcher has started or restored the ranks."""
    first_step_ago_s: Seconds | None = None
    """Seconds since the last rank of this pod completed its first step of the attempt."""
    done: bool = False
    """Every rank of this pod has ended with 0; its launcher waits for the ranks of the other pods."""
    broken: str = ""
    """A rank of this pod has ended in another way: which rank, and how."""
    terminating_in_s: Seconds | None = None
    """Seconds within which a checkpoint must be committed, because this pod was asked to end."""
    dumped: int = 0
    uploaded: int = 0
    """Generation whose images of this pod's ranks are in the store."""
    bytes_stored: int = 0
    """Bytes that the upload for `uploaded` had to write."""
    bytes_done: int = 0
    bytes_total: int = 0
    """Bytes of its images that the store has, and bytes in all; 0 of 0 before the upload begins."""
    failed: int = 0
    message: str = ""
    """Why `failed` failed."""
    cause: SaveCause = ""
    """... and what kind of reason that is."""
    tried: Tried | None = None
    """The last trial here."""
    weight: Weight | None = None
    """What the ranks hold, once the leader has asked."""
    occupied: list[Occupied] = field(default_factory=list)
    """Of generation `dumped`: what the ranks hold of this pod's addresses."""
    apart: bool = False
    """The ranks of this pod that run can go on without those that have ended."""
    images: list[RankImage] | None = None
    """Images of generation `uploaded`; sent until the leader has answered once."""
    gpus: Gpus | None = None
    """What this pod's GPUs have done in this attempt."""
    start: StartPhases | None = None
    """How the ranks of this pod came to run; None also beside ranks of a sidecar that is gone."""
    save: SavePhases | None = None
    """How generation `uploaded` was saved here."""
    through: Through | None = None
    """Engine `both`, before a restore: what this pod can go on from."""
    why: str = ""
    """... why not from the processes."""
    outputs: PodOutputs | None = None
    """None: the job has none."""


@dataclass(frozen=True)
class Stop:
    """A stop that is over and whose barrier was reached: all ranks freeze for it and go on."""

    generation: int
    stop_at: int = 0
    anywhere: bool = False
    checkpoint_id: AnyId = ""
    ended: list[int] = field(default_factory=list)
    """Ranks that had ended by then: the others go on without them."""


@dataclass(frozen=True)
class Directive:
    """What all pods have to do now.

    `run`: there is no stop request; ranks frozen for `generation` (if `acquired`) go on. `barrier`: stop at `stop_at`.
    `save`: the barrier is acquired; dump and upload. `stop`: the checkpoint is committed; end when asked to. `exit`:
    end now. `finish`: every rank of the world has ended with 0, all pods end as complete.
    """

    op: Op
    generation: int = 0
    stop_at: int = 0
    acquired: bool = False
    anywhere: bool = False
    """`save`: the launchers stop the ranks wherever they are."""
    checkpoint_id: AnyId = ""
    remaining_s: Seconds = 0.0
    """Of the checkpoint under way, counted from the time of sending. A change of it does not count as new."""
    ahead: bool = False
    """`save`: pages go to the upload while the ranks are dumped, and none to the pod's disk. Not where the ranks go on
    after the dump: they would wait for the store."""
    background: bool = False
    """`save`: the ranks go on as soon as their state is copied."""
    released: bool = False
    """`save`: the ranks of all pods are dumped, and go on from `over`. What is dumped is still to be stored."""
    trial: bool = False
    """`save`: nothing is kept. A directive for the same generation without it wants the images after all."""
    weigh: bool = False
    """Report what the ranks hold in memory."""
    addresses: list[str] = field(default_factory=list)
    """Of all pods, by index; empty until all have been heard."""
    ended: list[int] = field(default_factory=list)
    """`barrier`: ranks that have ended."""
    over: Stop | None = None
    """`run`, `barrier`: the newest such stop. A pod that has missed its end, or even its barrier, catches up."""
    unsaved: list[int] = field(default_factory=list)
    """Indices of pods that were asked to end and whose last checkpoint failed: they have nothing to wait for."""
    broken: str = ""
    """Why this world cannot end well any more: pods that wait for its end leave, without counting as complete."""
    through: Through | None = None
    """Engine `both`: what all pods of this attempt go on from; None until each has said what it can."""
    outputs: list[LeftOut] | None = None
    """What of the ranks' outputs is not stored. All else is, once this is there."""
    unstored: Unstored | None = None
    """`run`: the ranks have ended well, and their outputs were not stored. All pods end."""
    version: int = 0
