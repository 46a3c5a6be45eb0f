"""A training job as policies see it: its Workload, what it was given, what it was asked for. Times are Unix seconds of
the API server's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from ..contract.record_types import AttemptRecord
from . import quota
from .quota import Amounts

JobKey = tuple[str, str]
"""Namespace, and what the job is called (`kinds.job_key`)."""
BY: Final = "policy/"
"""The planner signs its requests with this, the policy's name, a colon and the reason."""


def policy_of(by: str) -> str:
    """The policy that has signed a request so, "" for anybody else."""
    who, _, _ = by.partition(":")
    return who.removeprefix(BY) if who.startswith(BY) else ""


@dataclass(frozen=True)
class Workload:
    """A Workload of Kueue that is not finished, whoever owns it."""

    namespace: str
    name: str
    uid: str
    queue: str
    """Its ClusterQueue, "" where that is not known."""
    priority: int
    created: float
    holds: Amounts | None = None
    """None: it has no quota."""
    asks: Mapping[str, Fraction] = field(default_factory=dict)
    """resource -> amount, at least, over all of its pods."""
    waits: bool = False
    """It waits for quota: it is in its queue, or out of it only until it has its new shape."""
    leaves: bool = False
    """It is evicted, or about to be: a check says so and Kueue has not acted on it yet."""
    pods: int = 0
    """At least, and what each of them asks for; 0: its pods are not all alike."""
    per_pod: Mapping[str, Fraction] = field(default_factory=dict)
    level: str = ""
    """The topology level (a node label) of which its pods require one domain, "" for none."""
    devices_per_pod: int = 0
    """With those that each pod claims (DRA); 0: by `per_pod`."""
    stopped: bool = field(default=False, kw_only=True)
    """Its LocalQueue admits nobody. Others may use the same ClusterQueue. See `ClusterSnapshot.stopped`."""

    @property
    def devices(self) -> int:
        """Devices that it asks for, at least; a pod without any counts as one."""
        return max(1, self.pods) * (self.devices_per_pod or quota.devices(self.per_pod))


@dataclass(frozen=True)
class Given:
    """What Kueue has admitted a job with."""

    count: int
    """Pods."""
    flavor: str
    """The flavor to show: its devices', else the CPU's."""
    flavors: Mapping[str, str]
    """resource -> flavor."""
    usage: Mapping[str, Fraction]
    """resource -> amount, all pods together."""


@dataclass(frozen=True)
class Request:
    """A request about a job, whoever made it."""

    op: str
    by: str
    state: str
    """`asked`: nobody has taken it up; `running`, `done` or `failed`."""
    attempt: int = 0
    """That was current when it was taken up."""
    at: float = 0.0
    """When it was done or taken up, else 0."""

    @property
    def under_way(self) -> bool:
        return self.state in ("asked", "running")

    pins: bool = False
    """migrate: it names the flavor to stay on."""
    frees: bool = False
    """migrate: it only says that the job may go to other places at its next start. Nothing stops for it."""
    memory: tuple[str, ...] = ()
    """What the policy that made it wanted to find again."""

    @property
    def moves(self) -> bool:
        """Whether it is under way and may stop the job for another size or place."""
        return self.under_way and self.op in ("resize", "migrate") and not self.frees

    @property
    def policy(self) -> str:
        """The policy that made it, "" for anybody else."""
        return policy_of(self.by)


@dataclass(frozen=True)
class Job:
    """A training job of this platform that has not ended. Jobs that another cluster runs are left out."""

    key: JobKey
    uid: str
    created: float
    kind: str = "Job"
    workload: Workload | None = None
    given: Given | None = None
    """None: it has no quota."""
    priority_class: str = ""
    own_priority: int = 0
    """As it would be without the planner."""
    boosted_by: str = ""
    """The policy that has changed its priority, "" for none."""
    lowered: int = 0
    """The attempt whose priority the planner has lowered while it held quota, 0 for none; and when that was."""
    lowered_at: float = 0.0
    wanted: int = 1
    """Workers, as its owner or a request has it; likewise the fewest."""
    fewest: int = 1
    ranks: int = 1
    resizable: bool = False
    topology: bool = False
    """Its pods ask for a topology. Quotas do not tell whether a domain has room for more."""
    node_selector: bool = False
    """Whether another flavor has such nodes is not known."""
    held: bool = True
    """Kueue's preemption waits for its checkpoint; without that a move may lose steps."""
    flavors: Sequence[str] = ()
    """Flavors that it may be admitted on; empty: all of its queue."""
    devices_per_pod: int = 1
    attempts: Sequence[AttemptRecord] = ()
    """Oldest first."""
    runs_since: float | None = None
    """Since when its current attempt trains (which may lie in the future), None while it does not."""
    whole: bool = False
    """All pods of the current attempt run, and none of them is being deleted."""
    nodes: frozenset[str] = frozenset()
    """Nodes of its pods that have not ended."""
    unplaced: int = 0
    """Pods that have quota, and that no node has room for."""
    change: Request | None = None
    """The last request that changes the job, and the last for a checkpoint."""
    save: Request | None = None
    paused: bool = False
    """Out of its queue because of a request to pause."""
    paused_by: str = ""
    """The policy that has made that request, "" for anybody else. Later requests do not change it, but for a pause."""
    saved_at: float | None = None
    """When its newest checkpoint was made."""
    saved_bytes: int | None = None
    """What that holds, of all pods together."""
    steps_done: int | None = None
    """Step boundaries that the current attempt has passed, counted over the whole job, and when that was seen."""
    steps_seen_at: float | None = None
    steps_total: int | None = None
    """How many steps it will make, as its program prints them."""
    steps_printed: int | None = None
    """How many of these it has made."""
    leaving: str = ""
    """Its attempt is being saved, or was, and is about to be stopped for that: why. "" for nothing."""
    unsaved: str = ""
    """Why its last save failed, "" if none has since one has worked."""

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return self.attempts[-1].attempt if self.attempts else 0

    @property
    def devices(self) -> int:
        """Devices that it holds; of those it asks for while it holds none."""
        return max(1, self.given.count if self.given is not None else self.wanted) * self.devices_per_pod

    @property
    def busy(self) -> Request | None:
        """A request that is under way."""
        return next((r for r in (self.change, self.save) if r is not None and r.under_way), None)

    @property
    def asks_for_change(self) -> bool:
        """Whether somebody has asked for another size or place, and waits for it."""
        return self.change is not None and self.change.state == "running" and self.change.op in ("resize", "migrate")

    @property
    def on_the_move(self) -> bool:
        """Whether it is about to stop for another size or place that was asked for, or has stopped and has no quota.

        A user's wish for more workers does not stop it: it trains on until they are free.
        """
        change = self.change
        if change is None or not change.moves:
            return False
        if change.state == "asked" or self.given is None:
            return True
        at_once = change.op == "migrate" or bool(change.policy) or self.given.count > self.wanted
        return at_once and self.attempt <= change.attempt

    @property
    def trains(self) -> bool:
        """Whether it could be moved now: it has quota, all pods run, and no step has to be repeated for a start."""
        return self.given is not None and self.whole and self.runs_since is not None and bool(self.attempts)

    @property
    def pinned_by(self) -> str:
        """The policy that has sent it to its one flavor, "" while it is not bound to one, or somebody else has."""
        return self.change.policy if len(self.flavors) == 1 and self.change is not None and self.change.pins else ""

    @property
    def parked_by(self) -> str:
        """The policy that has paused it, "" while it is not paused, or somebody else has paused it."""
        if not self.paused:
            return ""
        return self.change.policy if self.change is not None and self.change.op == "pause" else self.paused_by


@dataclass(frozen=True)
class Ended:
    """A job that has ended within the hour: its moves still count for its tenant."""

    namespace: str
    uid: str
    attempts: Sequence[AttemptRecord] = ()
