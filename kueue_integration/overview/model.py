"""What `report` gets: queues, cohorts, Workloads and training jobs as values. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ..contract.record_types import AttemptRecord
from ..contract.saveable import Saveable
from ..jobs.queue_position import Position
from ..planner import quota

Key = tuple[str, str]
"""(flavor, resource)."""
Amounts = Mapping[Key, Fraction]


@dataclass(frozen=True)
class Limit:
    """The quota of one resource in one flavor; a limit that is None is not set."""

    nominal: Fraction
    borrowing: Fraction | None = None
    """How much more than nominal it may use."""
    lending: Fraction | None = None
    """How much of nominal others may use."""


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue."""

    name: str
    cohort: str = ""
    limits: Mapping[Key, Limit] = field(default_factory=dict)
    reported: Amounts = field(default_factory=dict)
    """What Kueue says is reserved."""
    trouble: str = ""
    """Why it admits nothing, "" while it does."""


@dataclass(frozen=True)
class Cohort:
    """A Cohort object: quota of its own, or a cohort above it."""

    name: str
    parent: str = ""
    limits: Mapping[Key, Limit] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A Workload that holds quota, waits for it, or is deactivated."""

    namespace: str
    name: str
    owner: str
    """Its job, as `singularityctl` calls it; for other owners their name."""
    kind: str
    """Of the owner: Job, JobSet, RayCluster, ..."""
    training: bool
    """Its owner is a training job of ours."""
    uid: str
    """Of the owner, "" where Kueue has not noted it."""
    local_queue: str
    cluster_queue: str
    """The one that gives it quota; while it waits "", for its LocalQueue says."""
    priority: int
    pods: int
    phase: str
    reason: str
    message: str
    """All that is known about it, in words: those of ours,"""
    said: str = ""
    raw: str = ""
    """and Kueue's own, "" where it says nothing."""
    needs: str = ""
    """What is missing in which flavor, in words."""
    holds: Amounts | None = None
    """None: it has no quota."""
    asks: Mapping[str, Fraction] = field(default_factory=dict)
    """resource -> amount, at least, while it has no quota."""
    since: float | None = None
    """When it got its quota, or began to wait."""
    active: bool = True
    devices_per_pod: int = 1
    """With those that each pod claims (DRA), which only the Workload tells."""


@dataclass(frozen=True)
class Training:
    """A training job with its records."""

    namespace: str
    name: str
    uid: str
    local_queue: str
    workers: int
    attempts: Sequence[AttemptRecord] = ()
    stepless: bool = False
    """Its program makes no steps, as far as is known."""
    lost: Mapping[int, float] = field(default_factory=dict)
    """Attempt -> seconds of its training that a later one started without."""
    saveable: Saveable | None = None
    """As its last checkpoint or trial has shown, of whatever attempt."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Of the annotations that the reader was asked to keep, those that the Job has."""
    created: float = 0.0
    ended: float | None = None
    """When it was done or had failed; None while it has not ended."""
    priority_class: str = ""
    pod_asks: Mapping[str, Fraction] = field(default_factory=dict)
    """resource -> amount of one pod."""
    required_topology: str = ""
    """Node label of which all of its pods need the same value."""

    @property
    def devices_per_pod(self) -> int:
        """Without claims."""
        return quota.devices(self.pod_asks)


@dataclass(frozen=True)
class Promises:
    """What the platform promises (chart value `planner.slaTiers`)."""

    tiers: Mapping[str, float] = field(default_factory=dict)
    """WorkloadPriorityClass -> share of the device time that its jobs ask for, 0 to 1."""
    window_s: float = 3600.0
    unknown: str = ""
    """Why nobody can tell what is promised, "" if it is known."""


@dataclass(frozen=True)
class Unreadable:
    """A part of an object that could not be read; the rest was shown without it."""

    kind: str
    name: str
    """`namespace/name`, or the name alone of what has no namespace."""
    part: str
    """The annotation, or "" for the whole object."""
    why: str


@dataclass(frozen=True)
class Step:
    """What the planner has done to a job, or would have done: an Event, which the API server keeps for an hour."""

    at: float
    namespace: str
    job: str
    uid: str
    kind: str
    policy: str
    action: str
    done: bool
    """False: a dry run."""
    message: str
    """What, and why."""


@dataclass(frozen=True)
class Cluster:
    """One look at the cluster."""

    at: float
    namespace: str | None = None
    """Only Workloads and jobs of this one were asked for."""
    queues: Sequence[Queue] | None = None
    """None: they may not be read, likewise below."""
    cohorts: Sequence[Cohort] = ()
    local_queues: Mapping[tuple[str, str], str] | None = None
    """(namespace, LocalQueue) -> ClusterQueue."""
    claims: Sequence[Claim] | None = None
    trainings: Sequence[Training] | None = None
    places: Mapping[tuple[str, str], Position] = field(default_factory=dict)
    """(namespace, Workload) -> place in the queue."""
    steps: Sequence[Step] = ()
    promises: Promises = Promises()
    notes: Sequence[str] = ()
    """What could not be asked, and which right is missing."""
    unreadable: Sequence[Unreadable] = ()
