"""What policies see: one typed look at the cluster. Times are Unix seconds of the API server's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

from . import quota
from .job import Ended, Job, JobKey, Workload
from .quota import Amounts, Group, Room


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue."""

    name: str
    cohort: str = ""
    groups: Sequence[Group] = ()
    reported: Amounts = field(default_factory=dict)
    """What Kueue says is reserved; it may know a Workload that we have not seen yet."""
    stopped: bool = field(default=False, kw_only=True)
    """Kueue admits nobody there (stopPolicy, or it is not active): whoever leaves does not come back."""
    preempts: str = field(default="LowerPriority", kw_only=True)
    """Whom of its own jobs those who wait may preempt: Kueue's `withinClusterQueue`."""
    reclaims: str = field(default="Any", kw_only=True)
    """Whom they may preempt of queues that have borrowed: Kueue's `reclaimWithinCohort`."""

    @cached_property
    def nominal(self) -> Amounts:
        return {key: amount for group in self.groups for key, amount in group.nominal.items()}

    @cached_property
    def unlent(self) -> Amounts:
        """Nominal quota that the queue lends to nobody, by its lendingLimit; without one it lends all."""
        limits = {key: limit for group in self.groups for key, limit in group.most_lent.items()}
        return {key: max(quota.NONE, self.nominal.get(key, quota.NONE) - limit) for key, limit in limits.items()}

    def shares(self, key: tuple[str, str], used: Fraction) -> Fraction:
        """Of `used`, what comes from the quota that the cohort has in common."""
        return max(quota.NONE, used - self.unlent.get(key, quota.NONE))

    def available(self, shared: Amounts, used: Amounts) -> Room:
        """What Kueue would still admit, with quota that the queue may borrow.

        `available` in pkg/cache/scheduler/resource_node.go of Kueue v0.19, for a cohort without a parent. Quota of
        Cohort objects is not counted.

        :param shared: what is free of the quota that its cohort has in common (`in_common`)
        :param used: by the queue itself
        """
        limits = {key: limit for group in self.groups for key, limit in group.most_borrowed.items()}
        found: Room = {}
        for key, nominal in self.nominal.items():
            kept, own, more = self.unlent.get(key, quota.NONE), used.get(key, quota.NONE), shared[key]
            if key in limits:
                more = min(more, nominal - kept - self.shares(key, own) + limits[key])
            found[key] = max(quota.NONE, kept - own) + more
        return found

    @cached_property
    def pool(self) -> str:
        """Queues of one pool give each other quota: the cohort, or the queue alone."""
        return f"cohort {self.cohort}" if self.cohort else f"queue {self.name}"


@dataclass(frozen=True)
class Node:
    """`leaving`: why jobs should leave it while it still works, "" for a node that is as it should be."""

    name: str
    leaving: str = ""
    ending: bool = field(default=False, kw_only=True)
    """It is gone within minutes: no save comes before the move, and no job waits for another's."""
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    free: Mapping[str, Fraction] = field(default_factory=dict, kw_only=True)
    """resource -> what no pod asks for. Empty: nobody has asked for it, or the node takes no pods."""
    ready: bool = True
    conditions: frozenset[str] = frozenset()
    """Types of those that are True."""
    marked: bool = False
    """It has our taint."""
    marked_at: float = 0.0
    """When it got that the last time, whether it has it still or not."""


@dataclass(frozen=True)
class Symptom:
    """Something that went wrong on a node under a training job: a pod that failed, or what NVML told of its GPUs."""

    node: str
    at: float
    job: JobKey
    attempt: int
    kind: Literal["program", "memory", "machine", "gpu"]
    """`program` ended with an error; `memory`: there was too little for it; `machine`: killed, or the pod could not
    work; `gpu`: an error of the hardware."""
    words: str
    """For people. The same error has the same words, but for numbers."""
    beside: frozenset[str] = frozenset()
    """Other nodes that had pods of this attempt."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """One look. Objects that cannot be read are not in it."""

    now: float
    queues: Mapping[str, Queue] = field(default_factory=dict)
    workloads: Sequence[Workload] = ()
    jobs: Mapping[JobKey, Job] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    flavors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """ResourceFlavor -> the labels of its nodes; only where somebody has asked for the room on nodes."""
    usable: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)
    """ResourceFlavor -> resource -> what its nodes can hold, where some of them take no pods; others have no limit."""
    symptoms: Sequence[Symptom] = ()
    """Those that are remembered, oldest first; empty unless a policy asks for them."""
    ended: Sequence[Ended] = ()
    nested: frozenset[str] = frozenset()
    """Cohorts that share quota with others above or below them, or that have some of their own."""

    def queue_of(self, job: Job) -> Queue | None:
        return self.queues.get(job.workload.queue) if job.workload is not None else None

    def stopped(self, workload: Workload) -> bool:
        """Whether Kueue admits it nowhere now: its LocalQueue or its ClusterQueue is stopped."""
        queue = self.queues.get(workload.queue)
        return workload.stopped or (queue is not None and queue.stopped)

    def around(self, queue: Queue) -> Sequence[Queue]:
        """All queues of the cohort, this one included."""
        return self._pools.get(queue.pool, ())

    # Each is made once for a snapshot, because policies ask for every queue. A sum over the cohort for each of its
    # queues would grow with the square of the cohort.
    @cached_property
    def _pools(self) -> Mapping[str, Sequence[Queue]]:
        found: dict[str, list[Queue]] = {}
        for queue in self.queues.values():
            found.setdefault(queue.pool, []).append(queue)
        return found

    @cached_property
    def changing(self) -> Mapping[str, Sequence[Job]]:
        """By pool: jobs that have been asked for another size or place, and do not have it yet."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            queue, change = self.queue_of(job), job.change
            if queue is not None and change is not None and change.moves:
                found.setdefault(queue.pool, []).append(job)
        return found

    @cached_property
    def parked(self) -> frozenset[str]:
        """UIDs of Workloads without quota that a policy has paused: it queues them again."""
        found = (job.workload for job in self.jobs.values() if job.parked_by)
        return frozenset(w.uid for w in found if w is not None and w.holds is None)

    @cached_property
    def by_queue(self) -> Mapping[str, Sequence[Workload]]:
        """Workloads by the name of their ClusterQueue."""
        found: dict[str, list[Workload]] = {}
        for workload in self.workloads:
            found.setdefault(workload.queue, []).append(workload)
        return found

    @cached_property
    def covered(self) -> frozenset[str]:
        """Resources that some ClusterQueue has a quota for."""
        return frozenset(r for queue in self.queues.values() for group in queue.groups for r in group.covered)

    @cached_property
    def held(self) -> Mapping[str, Amounts]:
        """What the Workloads of each ClusterQueue hold."""
        return {
            name: quota.added(w.holds for w in found if w.holds is not None) for name, found in self.by_queue.items()
        }

    @cached_property
    def borrows(self) -> frozenset[str]:
        """Queues that hold more than their nominal quota: others of the cohort may take that back."""
        return frozenset(
            name
            for name, queue in self.queues.items()
            if any(amount > queue.nominal.get(key, quota.NONE) for key, amount in self.used[name].items())
        )

    @cached_property
    def in_all(self) -> Amounts:
        """What all Workloads hold together."""
        return quota.added(self.held.values())

    @cached_property
    def used(self) -> Mapping[str, Room]:
        """By queue: what its Workloads hold, by our copies or by what Kueue reports, whichever is more."""
        found: dict[str, Room] = {}
        for name, queue in self.queues.items():
            held = self.held.get(name, {})
            more = {key: max(held.get(key, quota.NONE), amount) for key, amount in queue.reported.items()}
            found[name] = {**held, **more}
        return found

    @cached_property
    def common(self) -> Mapping[str, Amounts]:
        """By pool: what is free of the quota that its queues have in common."""
        return {pool: in_common(queues, self.held) for pool, queues in self._pools.items()}

    @cached_property
    def spare(self) -> Mapping[str, Room]:
        """By queue: what Kueue would still admit there, with quota that it may borrow in its cohort."""
        return self._available(self.used)

    @cached_property
    def most(self) -> Mapping[str, Room]:
        """By queue: what it could hold if it were alone in its cohort (`potentialAvailable` in Kueue)."""
        return self._available({})

    def _available(self, used: Mapping[str, Amounts]) -> Mapping[str, Room]:
        found: dict[str, Room] = {}
        for queues in self._pools.values():
            shared = in_common(queues, used)
            found.update((queue.name, queue.available(shared, used.get(queue.name, {}))) for queue in queues)
        return found


def in_common(queues: Sequence[Queue], used: Mapping[str, Amounts]) -> Room:
    """What is free of the quota that `queues`, all of one cohort, have in common. `used`: by queue."""
    free: Room = {}
    for queue in queues:
        own = used.get(queue.name, {})
        for key in {*queue.nominal, *own}:
            lends = queue.nominal.get(key, quota.NONE) - queue.unlent.get(key, quota.NONE)
            free[key] = free.get(key, quota.NONE) + lends - queue.shares(key, own.get(key, quota.NONE))
    return free
