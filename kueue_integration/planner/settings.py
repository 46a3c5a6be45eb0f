"""What the chart says about the planner: which policies are on, and the numbers of the arbiter and of each policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from singularity_proxy.protocol.decode import Within

from .arbiter import Limits

Mode = Literal["none", "propose", "act"]
"""`none`: off. `propose`: a dry run, which only tells. `act`: what the arbiter allows is done."""
Interval = Annotated[float, Within(1, 1e7)]
Share = Annotated[float, Within(0, 1)]
Price = Annotated[float, Within(0, 1e6)]
Moves = Annotated[int, Within(1, 10_000)]


@dataclass(frozen=True)
class MoveLimits:
    """Of all policies. Regrowth has its own least run time."""

    min_run_s: Annotated[float, Within(0, 1e7)] = 300.0
    moves_per_hour: Moves = 4
    tenant_moves_per_hour: Moves = 20


ENDING = (
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
    "node.cloudprovider.kubernetes.io/shutdown",
    "remediation.medik8s.io/on-going",
)
"""Taints, of whatever effect, of a node that is about to be taken away: by Karpenter, Cluster Autoscaler, GKE, EKS'
node termination handler, a cloud provider, Medik8s."""


@dataclass(frozen=True)
class Cordon:
    mode: Mode = "none"
    conditions: list[str] = field(default_factory=list)
    """Types of node conditions that count like a cordon while they are True."""
    taints: list[str] = field(default_factory=lambda: [*ENDING])
    """Keys of taints of nodes that are about to go: nothing waits there, whatever the effect of the taint."""
    disruption_budgets: bool = True
    """Whether the Eviction API waits until a job has left its node."""


@dataclass(frozen=True)
class AttainedService:
    mode: Mode = "none"
    thresholds: list[Annotated[float, Within(1, 1e12)]] = field(default_factory=lambda: [3600.0, 36000.0])
    """Device-seconds at which a job falls into the next queue."""
    promote_after: Annotated[float, Within(1, 1e6)] = 8.0
    """A job that has waited so many times as long as it has run goes back to the first queue."""
    history: list[Annotated[float, Within(0, 1e12)]] = field(default_factory=list)
    """Device-seconds that earlier jobs needed, as quantiles at equal steps: orders the queues by the Gittins index."""


@dataclass(frozen=True)
class Defragmentation:
    mode: Mode = "none"
    most_moves: Annotated[int, Within(1, 64)] = 4
    """So many jobs at most move for one that waits."""


@dataclass(frozen=True)
class Lending:
    mode: Mode = "none"
    expect_s: Interval = 1800.0
    """Seconds for which spare quota is expected to stay spare."""


@dataclass(frozen=True)
class Health:
    mode: Mode = "none"
    taint: bool = False
    """Sick nodes get a taint that keeps new pods away, while the mode is `act`."""
    failures: Annotated[int, Within(1, 1000)] = 3
    """Attempts that a node alone has lost within the window, after which it counts as sick."""
    window_s: Interval = 86400.0
    throttled_percent: Annotated[float, Within(1, 100)] = 50.0
    """Of the samples of an attempt: GPUs that heat or power has slowed down for longer are sick."""
    conditions: list[str] = field(default_factory=list)
    """Types of node conditions that make a node sick while they are True."""


@dataclass(frozen=True)
class Introspection:
    mode: Mode = "none"
    min_speed: Share = 0.9
    """A cheaper flavor has to reach this share of the speed that a job has now."""
    try_below_percent: Annotated[float, Within(0, 100)] = 30.0
    """GPUs that are busy for less try a cheaper flavor that their job has never run on. 0: none is tried."""


@dataclass(frozen=True)
class MarginalGain:
    mode: Mode = "none"


@dataclass(frozen=True)
class SlaTiers:
    mode: Mode = "none"
    tiers: dict[str, Share] = field(default_factory=dict)
    """WorkloadPriorityClass -> promised share of the device time that its jobs ask for."""
    window_s: Interval = 3600.0


@dataclass(frozen=True)
class TimeSharing:
    mode: Mode = "none"
    quantum_s: Interval = 1800.0


@dataclass(frozen=True)
class PlannerSettings:
    every_s: Interval = 30.0
    limits: MoveLimits = field(default_factory=MoveLimits)
    prices: dict[str, Price] = field(default_factory=dict)
    """Flavor -> price of one device for an hour; a pod without devices counts as one."""
    cordon: Cordon = field(default_factory=Cordon)
    health: Health = field(default_factory=Health)
    introspection: Introspection = field(default_factory=Introspection)
    attained_service: AttainedService = field(default_factory=AttainedService)
    defragmentation: Defragmentation = field(default_factory=Defragmentation)
    lending: Lending = field(default_factory=Lending)
    marginal_gain: MarginalGain = field(default_factory=MarginalGain)
    sla_tiers: SlaTiers = field(default_factory=SlaTiers)
    time_sharing: TimeSharing = field(default_factory=TimeSharing)

    @property
    def arbiter(self) -> Limits:
        limits = self.limits
        return Limits(limits.min_run_s, limits.moves_per_hour, limits.tenant_moves_per_hour)


def problem(settings: PlannerSettings) -> str:
    """What is wrong with settings whose parts are each well formed, "" if nothing is."""
    steps = settings.attained_service.thresholds
    if not steps or sorted(set(steps)) != steps:
        return f"attained_service.thresholds = {steps}: must be one or more numbers that grow"
    history = settings.attained_service.history
    if history and (len(history) < 2 or sorted(set(history)) != history):
        return f"attained_service.history = {history}: must be two or more numbers that grow, or none"
    if settings.sla_tiers.mode != "none" and not settings.sla_tiers.tiers:
        return "sla_tiers.tiers is empty: name a WorkloadPriorityClass and its share, such as {high: 0.9}"
    if settings.attained_service.mode != "none" and settings.sla_tiers.mode != "none":
        return "attained_service and sla_tiers both set priorities: switch one of them off (mode none)"
    lending = settings.lending
    if lending.mode != "none" and lending.expect_s < settings.limits.min_run_s:
        return (
            f"lending.expect_s = {lending.expect_s:g}: must be at least limits.min_run_s, "
            f"{settings.limits.min_run_s:g}, before which no job is moved again"
        )
    if settings.introspection.mode != "none" and not settings.prices:
        return "prices is empty: introspection compares prices, so name flavors with theirs, such as {spot: 0.9}"
    sharing = settings.time_sharing
    if sharing.mode != "none" and sharing.quantum_s < settings.limits.min_run_s:
        return (
            f"time_sharing.quantum_s = {sharing.quantum_s:g}: must be at least limits.min_run_s, "
            f"{settings.limits.min_run_s:g}, before which no job is moved"
        )
    return ""
