"""A job while it is queued, runs and moves, and the book about its devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.planner.job import Request

from .model import Costs, Job
from .nodes import Placement


class State(Enum):
    """What a job does. It holds devices in STARTING, RUNNING and LEAVING; PARKED is out of its queue."""

    WAITING = "waiting"
    BACKOFF = "backoff"
    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    PARKED = "parked"
    DONE = "done"


HOLDING = (State.STARTING, State.RUNNING, State.LEAVING)


@dataclass(slots=True, eq=False)
class Active:
    """All times are seconds since the beginning; work is in seconds alone on the workers asked for.

    :param goal: devices that it is to have
    :param own_priority: without the planner; `boosted_by` is the policy that has changed it
    :param pinned: the flavor that it was asked to go to and stay on, "" for none
    :param avoid: nodes, as the planner calls them, that it was asked to leave
    :param version: of its next event; an event of an older version is void
    :param stamp: grows with each change that a policy could see
    :param records: its attempts as the controller keeps them, times in Unix seconds
    :param change: the planner's last request
    :param done_s: work that is done, up to `since`
    :param kept_s: work that survives an eviction without a hold
    :param held_s: seconds with devices, training or not
    :param run_device_s: device seconds spent training, `redone_device_s` of them in vain
    :param over_device_s: device seconds held while coming and leaving
    """

    job: Job
    goal: int
    state: State = State.WAITING
    priority: int = 0
    own_priority: int = 0
    boosted_by: str = ""
    version: int = 0
    stamp: int = 0
    flavor: str = ""
    pinned: str = ""
    avoid: frozenset[str] = frozenset()
    placement: Placement = field(default_factory=dict)
    devices: int = 0
    packed: bool = True
    rate: float = 0.0
    since: float = 0.0
    done_s: float = 0.0
    kept_s: float = 0.0
    began_s: float = 0.0
    run_since: float = 0.0
    admitted_at: float = 0.0
    first_admitted: float | None = None
    queued_since: float = 0.0
    waited_s: float = 0.0
    finished_at: float | None = None
    attempts: int = 0
    failures: int = 0
    preempted: int = 0
    moves: list[float] = field(default_factory=list)
    ran_s: float = 0.0
    held_s: float = 0.0
    run_device_s: float = 0.0
    redone_device_s: float = 0.0
    over_device_s: float = 0.0
    dollars: float = 0.0
    records: list[AttemptRecord] = field(default_factory=list)
    change: Request | None = None

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    @property
    def left_s(self) -> float:
        return self.job.work_s - self.done_s

    def account(self, now: float, price: float) -> None:
        """Enter what has happened since `since`; `price` is of a device second."""
        spent = (now - self.since) * self.devices
        if self.state is State.RUNNING:
            self.done_s = min(self.done_s + self.rate * (now - self.since), self.job.work_s)
            self.run_device_s += spent
            self.ran_s += now - self.since
        elif self.holds:
            self.over_device_s += spent
        if self.holds:
            self.held_s += now - self.since
            self.dollars += spent * price
        self.since = now

    def lose(self, now: float, costs: Costs) -> None:
        """Forget what an eviction without a hold loses: everything since the script's last checkpoint."""
        if costs.hold:
            return
        if costs.save_every_s:
            saves = (now - self.run_since) // costs.save_every_s
            self.kept_s = self.began_s + saves * costs.save_every_s * self.rate
        # The devices were those of this attempt; with no saves at all earlier attempts have left nothing to lose.
        lost = max(0.0, self.done_s - self.kept_s)
        self.redone_device_s += lost / self.rate * self.devices if self.rate else 0.0
        self.done_s = min(self.done_s, self.kept_s)
