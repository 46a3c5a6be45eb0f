"""The records that stand on a Job and that no pod reads: its attempts, and what users ask of it. Pure.

`job.records` says which annotation has which of them, and how they may change. What pods and the controller tell each
other, checkpoints among it, is in `singularity_proxy.protocol.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from singularity_proxy.protocol.decode import Count, Grows, Record, Seconds, UnixTime, Within
from singularity_proxy.protocol.messages import AnyId, Gpus

# --- attempts, written by the controller ----------------------------------------------------------------------------
Readmission = Annotated[Literal["request", "regrow", "machines", "evicted", "broken"], Grows(None)]
"""Why the controller asks Kueue for another admission. It is a user's change, free quota for what the job wants, or
nodes that cannot continue the checkpoint. Or it is an eviction by the manager of MultiKueue, or an attempt that cannot
go on."""

Unsaved = Annotated[Literal["", "unreadable", "no-pods", "deadline", "failed", "ending"], Grows("failed")]
"""Why an attempt ended without a checkpoint, though it was asked for one. `unreadable`: its records; `no-pods`: not all
of its pods ran; `deadline`: that came first; `failed`: the pods said that they cannot. `ending`: some ranks have ended
and the others may follow, so nothing is decided. "": it has one, or nobody asked."""



@dataclass(frozen=True)
class Skipped(Record):
    """A committed checkpoint that cannot be restored: an attempt started from an older one, or from the beginning."""

    id: str
    step: Count
    why: str


@dataclass(frozen=True, slots=True)
class Preemptor(Record):
    """The workload that took a job's quota, recorded at that time: it may be gone later."""

    workload: str
    namespace: str = ""
    kind: str = ""
    """Of its owner: Job, JobSet, ..."""
    job: str = ""
    queue: str = ""
    """Its LocalQueue."""
    priority: int = 0


@dataclass(frozen=True)
class Earlier(Record):
    """Attempts that are kept as numbers only: a Job has no room for all of them."""

    attempts: Count
    since: UnixTime
    """Admission of the first one."""
    ran_s: Seconds = 0.0
    """In which their programs ran."""
    steps_lost: Count = 0
    """Steps that were run again, by them or by the attempt after the last of them."""
    committed: Count = 0
    """How many ended with a checkpoint."""
    ended_by: dict[str, Count] = field(default_factory=dict)
    """How many ended so."""


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """One admission of a job, as kept in the Job's history annotation and shown to users. Times are Unix seconds."""

    attempt: Count
    reservation: str
    """Identifies the quota reservation (workload uid + transition time): makes answering the fence idempotent."""
    flavor: str
    pods: Count
    ranks: Count
    admitted_at: UnixTime
    queued_at: UnixTime | None = None
    reserved_at: UnixTime | None = None
    """Since when it had the quota with which the fence has let it in; within a second."""
    running_at: UnixTime | None = None
    """Time from which all of its programs run: they were started, or were restored and have met. By the controller's
    clock."""
    first_step: int | None = None
    """Number of the first step this attempt runs (steps are numbered from 0)."""
    first_step_at: UnixTime | None = None
    """None also of a program that makes no steps."""
    last_step: int | None = None
    """Number of the last step this attempt completed, None before any."""
    ended_by: str | None = None
    """Kueue's eviction reason; `Migrated`, `Resized`, `Paused`, `Rewound` where somebody has asked for it; `Regrown`
    where the planner has; `Finished`, `Failed`; `Deleted` (broken off) or `OutOfMemory`. None while it runs."""
    preempted_by: str | None = None
    """Name of the preemptor's Workload, or its UID when it could not be resolved."""
    preemptor: Preemptor | None = None
    lowered_by: str | None = None
    """The policy of the planner that had lowered its priority when Kueue preempted it, None for none."""
    evicted_at: UnixTime | None = None
    barrier_at: UnixTime | None = None
    committed_at: UnixTime | None = None
    pods_gone_at: UnixTime | None = None
    """From then on no pod of it could write. None also of one that was not evicted, or ran in another cluster."""
    released_at: UnixTime | None = None
    finished_at: UnixTime | None = None
    checkpoint: str | None = None
    """Id of the checkpoint that ended this attempt."""
    restored_from: str | None = None
    skipped: list[Skipped] = field(default_factory=list)
    """Newer checkpoints than that one, which cannot be restored; newest first, the first few."""
    note: str | None = None
    """A sentence for the user about its end, if anything is unusual. No code depends on it."""
    cause: Unsaved = ""
    held: bool = False
    """Its hold was armed at the start."""
    readmitted_for: Readmission | None = None
    """Why the controller has asked Kueue to admit the job again, None if it has not."""
    cluster: str | None = None
    """The worker cluster that it ran in, as MultiKueue calls it; None: the cluster of the Job itself."""
    gpus: Gpus | None = None
    """None: it has no GPUs, or no pod has reported them."""
    price: Annotated[float, Within(0, 1e9)] | None = None
    """Of one pod for an hour, as the chart's prices were at the admission; None: the flavor had none."""
    earlier: Earlier | None = None
    """The attempts before this one, where it is the oldest record that is kept whole."""

    @property
    def runs_since(self) -> float | None:
        """Unix seconds since which its programs have run, with or without steps."""
        return self.running_at if self.running_at is not None else self.first_step_at


# --- wishes, written by users and by policies -----------------------------------------------------------------------
RequestOp = Literal["resize", "migrate", "checkpoint", "pause", "resume", "rewind"]



@dataclass(frozen=True)
class NodeRequirement:
    """One expression of a node selector term, as Kubernetes has it."""

    key: str
    operator: Literal["In", "NotIn"]
    values: list[str]


@dataclass(frozen=True)
class Placement(Record):
    """Where a job may run. Survives attempts, until a later migration changes it."""

    flavors: list[str] = field(default_factory=list)
    """ResourceFlavors that it may be admitted on; empty: every one of its queue."""
    avoid_nodes: list[str] = field(default_factory=list)
    """Names of nodes that its pods keep away from."""
    terms: list[list[NodeRequirement]] = field(default_factory=list)
    """The same for Kueue and the scheduler: node selector terms, of which one has to match."""
    shuns: list[str] = field(default_factory=list)
    """Names of nodes that its pods rather keep away from: a checkpoint was not restored there."""


@dataclass(frozen=True)
class JobRequest(Record):
    """A user's request about an existing job. Unused fields are None."""

    id: str
    """Unique: the same request twice is carried out once."""
    op: RequestOp
    at: UnixTime
    """Unix seconds, by the requester's clock; only shown."""
    by: str = ""
    """The requester, for people."""
    workers: int | None = None
    min_workers: int | None = None
    placement: Placement | None = None
    flavor: str | None = None
    """migrate: the flavor that was named; `placement` says what that means for this queue."""
    node: str | None = None
    """migrate: the node that was named."""
    timeout_s: float | None = None
    """checkpoint: abandon it if it is not committed this many seconds after the controller has seen it."""
    checkpoint: AnyId | None = None
    """rewind: the committed checkpoint that the job goes on from."""
    at_once: bool | None = None
    """resize: to more workers now, without a wait for their quota; whoever asks has seen that it is free."""
    lose_work: bool | None = None
    """pause, migrate, resize: stop a running attempt also if it cannot be saved."""
    memory: list[str] = field(default_factory=list)
    """For the policy that asks: what it wants to know when it looks at its own request later."""


@dataclass(frozen=True)
class RequestStatus(Record):
    """How far the request with this id is. `done` and `failed` are final; `message` is a sentence for people."""

    id: str
    op: RequestOp
    state: Literal["running", "done", "failed"]
    message: str
    at: UnixTime
    """Unix seconds, by the controller's clock, at which the request was taken up."""
    attempt: Count = 0
    """Attempt that was current then."""
    finished_at: UnixTime | None = None
    checkpoint: str | None = None
    """Id of the checkpoint that answers it."""
    step: Count | None = None
    deadline: UnixTime | None = None
    """checkpoint: Unix seconds at which it is given up."""


@dataclass(frozen=True)
class CheckpointMemory:
    """What was known when the last periodic checkpoint was asked for."""

    cost_s: Annotated[float, Within(0, 1e9)] | None = None
    failures: Count = 0
