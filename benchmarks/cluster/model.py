"""What a study is about: jobs, clusters, and what a move costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

DEVICES_PER_NODE = 8
"""8 of 10 GPUs of Alibaba's cluster-trace-gpu-v2023 are in nodes of 8 (4,936 of 6,212)."""


PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
"""Dollars per device and hour: list prices of one cloud (Google, on demand, 2020), which Gavel's authors used."""


class Tier(Enum):
    """Promised fraction of the device time that a job asks for, as in Singularity's tiers (arXiv 2202.07848, 2.2).

    Basic is best effort there; a quarter is our assumption, so that neglect can be counted.
    """

    BASIC = 0.25
    STANDARD = 0.7
    PREMIUM = 0.95

    @property
    def rank(self) -> int:
        return list(Tier).index(self)

    @property
    def priority(self) -> int:
        """Of its WorkloadPriorityClass; further apart than the levels of a policy."""
        return 100 * self.rank


@dataclass(frozen=True)
class Job:
    """One training job.

    :param arrival_s: seconds since the beginning
    :param workers: devices that it asks for
    :param least: fewer than these are never given; equal to `workers` where the job is not elastic
    :param most: more than these are never given
    :param work_s: seconds alone on `workers` devices of the reference model in as few nodes as possible
    :param alpha: speed grows as devices^alpha
    :param spread: speed on more nodes than needed, relative to as few as possible
    :param speeds: of one device by flavor, relative to the reference
    :param gb: state of one worker, in GB
    :param one_node: all workers have to be in one node (required topology); for at most a node's devices
    :param misjudged: what is left of the job times this is what a policy believes is left
    """

    id: int
    tenant: int
    arrival_s: float
    workers: int
    least: int
    most: int
    family: str
    work_s: float
    alpha: float
    spread: float
    speeds: Mapping[str, float]
    gb: float
    one_node: bool = False
    tier: Tier = Tier.STANDARD
    misjudged: float = 1.0

    @property
    def elastic(self) -> bool:
        return self.least < self.workers or self.most > self.workers

    def rate(self, devices: int, flavor: str, packed: bool) -> float:
        """Seconds of work done per second."""
        speed = float((devices / self.workers) ** self.alpha) * self.speeds[flavor]
        return speed if packed else speed * self.spread


@dataclass(frozen=True)
class Flavor:
    """:param price: dollars per device and hour"""

    name: str
    nodes: int
    price: float

    @property
    def devices(self) -> int:
        return self.nodes * DEVICES_PER_NODE


@dataclass(frozen=True)
class Cluster:
    """A cohort with a ClusterQueue for each tenant.

    :param flavors: in the order in which Kueue tries them
    :param shares: of the tenants, summing to 1: nominal quota of each flavor
    :param strict: StrictFIFO; otherwise BestEffortFIFO, Kueue's default
    :param borrow: largest share of the other tenants' quota that one may borrow
    """

    flavors: Sequence[Flavor]
    shares: Sequence[float]
    strict: bool = False
    borrow: float = 1.0

    @property
    def devices(self) -> int:
        return sum(flavor.devices for flavor in self.flavors)

    def nominal(self, flavor: Flavor) -> list[int]:
        """By tenant; sums to the flavor's devices: the largest remainders get one more."""
        exact = [share * flavor.devices for share in self.shares]
        given = [int(one) for one in exact]
        order = sorted(range(len(exact)), key=lambda tenant: (given[tenant] - exact[tenant], tenant))
        for tenant in order[: flavor.devices - sum(given)]:
            given[tenant] += 1
        return given


@dataclass(frozen=True)
class Costs:
    """What leaving and coming cost a job that is held until its state is saved, and one that is not.

    Seconds follow the GB of the fullest pod, because pods save and restore at the same time. The figures were measured
    on two cores without a GPU (docs/benchmarks.md). A job of 0.22 GB left in 5.0 s and came in 3.6 s. One of 6.2 GB
    left in 17 s and came in 18 s (2.0 and 2.4 s per GB). Kueue and Kubernetes need 1 s and 5 s more.

    :param evict_s: of a job that is not held: from the eviction to free devices
    :param start_s: of an attempt that restores nothing, or only what the script has saved
    :param save_every_s: between two checkpoints of a script that saves; 0: it never saves
    :param save_s_per_gb: that such a save stops the training (`periodic_stall_s_per_gb`)
    :param fails: share of the attempts that never become ready (an assumption)
    :param ready_s: Kueue's waitForPodsReady, then the job waits `backoff_s`, doubling, at most `backoff_most_s`
    """

    hold: bool = True
    leave_s: float = 6.0
    leave_s_per_gb: float = 2.0
    come_s: float = 8.0
    come_s_per_gb: float = 2.4
    evict_s: float = 5.0
    start_s: float = 8.0
    save_every_s: float = 0.0
    save_s_per_gb: float = 1.15
    fails: float = 0.002
    ready_s: float = 1800.0
    backoff_s: float = 60.0
    backoff_most_s: float = 3600.0

    def leaving(self, job: Job, devices: int) -> float:
        return self.leave_s + self.leave_s_per_gb * self.pod_gb(job, devices) if self.hold else self.evict_s

    def coming(self, job: Job, devices: int, first: bool) -> float:
        if first or not self.hold:
            return self.start_s
        return self.come_s + self.come_s_per_gb * self.pod_gb(job, devices)

    def pod_gb(self, job: Job, devices: int) -> float:
        """Of the fullest pod. With fewer devices than workers each device carries several workers' state."""
        pods = -(-devices // DEVICES_PER_NODE)
        return job.gb * max(job.workers, devices) / pods

    def slowdown(self, job: Job) -> float:
        """Share of the time in which a script that saves for itself does train."""
        if self.hold or not self.save_every_s:
            return 1.0
        return self.save_every_s / (self.save_every_s + self.save_s_per_gb * job.gb)


PLAIN = Costs(hold=False)
SAVES = Costs(hold=False, save_every_s=1800.0)
HELD = Costs()


@dataclass(frozen=True)
class Setting:
    """One thing to try.

    :param classes: each tier has a WorkloadPriorityClass; otherwise all jobs have one priority
    :param ranked: a higher tier's class has a higher value; otherwise a class only names the promise
    :param requeue_s: after something is free Kueue looks again at what it could not admit (its requeue batch period)
    :param report_s: between two reports of a job's progress
    """

    costs: Costs = HELD
    classes: bool = False
    ranked: bool = True
    requeue_s: float = 1.0
    report_s: float = 600.0
