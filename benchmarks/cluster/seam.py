"""What a policy sees, and what it may propose: the seam between policies and the simulator.

A policy is a pure function `View -> Sequence[Action]`. It is asked every `Setting.tick_s` seconds. The arbiter in
`arbiter.py` refuses what goes beyond the limits, and the simulator carries out the rest.

A policy of the controller's planner fits here with an adapter of two functions. One makes the planner's snapshot of a
`View`: jobs become attempts, `left_s` and `alpha` the fitted speed, `coming_s` and `leaving_s` the measured times. The
other one makes an `Action` of each proposal. A priority or boost becomes `Priority`, a resize `Resize`, a migration to
a flavor or node `Move`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .model import DEVICES_PER_NODE, Tier


class Seen(NamedTuple):
    """A job that waits or runs; one that comes or leaves is not shown.

    Seconds of work are alone on `workers` devices of the reference. Estimates are as wrong as `Mix.misjudged` says.

    :param left_s: estimated work that is left
    :param attained_device_s: device seconds that it has trained
    :param attained_s: seconds that it has trained
    :param since_s: seconds that it has been in its present state
    :param delivered: fraction of the device time asked for that it was given since its arrival
    :param devices: that it has; 0 while it waits
    :param goal: that it will be given when it is admitted
    :param placement: node of its flavor -> devices; empty while it waits
    :param speeds: of one device by flavor, relative to the reference
    """

    id: int
    tenant: int
    tier: Tier
    running: bool
    arrival_s: float
    workers: int
    least: int
    most: int
    one_node: bool
    priority: int
    goal: int
    devices: int
    flavor: str
    placement: Mapping[int, int]
    packed: bool
    left_s: float
    attained_device_s: float
    attained_s: float
    since_s: float
    delivered: float
    alpha: float
    speeds: Mapping[str, float]
    leaving_s: float
    coming_s: float

    @property
    def move_s(self) -> float:
        return self.leaving_s + self.coming_s

    def rate(self, devices: int, flavor: str = "") -> float:
        """Work per second on `devices` of one node or as few as possible."""
        at = flavor or self.flavor
        return float((devices / self.workers) ** self.alpha) * (self.speeds[at] if at else 1.0)


@dataclass(frozen=True)
class View:
    """:param free: free devices of each node, by flavor
    :param prices: dollars per device and hour, by flavor, in the order in which Kueue tries them
    :param quota: nominal devices of each tenant, all flavors together
    """

    now: float
    jobs: Sequence[Seen]
    free: Mapping[str, Sequence[int]]
    prices: Mapping[str, float]
    devices: Mapping[str, int]
    quota: Sequence[int]

    def packed(self, job: Seen, devices: int) -> bool:
        """Whether a running job would find `devices` in as few nodes as possible, were its own free, too."""
        rooms = [free + job.placement.get(node, 0) for node, free in enumerate(self.free[job.flavor])]
        whole, rest = divmod(devices, DEVICES_PER_NODE)
        full = sum(room == DEVICES_PER_NODE for room in rooms)
        return full >= whole and (not rest or full > whole or any(rest <= room < DEVICES_PER_NODE for room in rooms))

    def running(self) -> list[Seen]:
        return [job for job in self.jobs if job.running]

    def waiting(self) -> list[Seen]:
        """In the order of their queues: priority, then arrival."""
        return sorted((job for job in self.jobs if not job.running), key=lambda j: (-j.priority, j.arrival_s, j.id))


@dataclass(frozen=True)
class Priority:
    """Kueue's own preemption acts on it. Costs nothing by itself."""

    id: int
    value: int
    reason: str


@dataclass(frozen=True)
class Resize:
    """A running job leaves and comes back with another number of devices. One that waits is only given another goal."""

    id: int
    devices: int
    reason: str


@dataclass(frozen=True)
class Move:
    """A running job leaves and is admitted again, if possible to this flavor and node."""

    id: int
    flavor: str
    node: int | None
    reason: str


Action = Priority | Resize | Move
Policy = Callable[[View], Sequence[Action]]


def nobody(view: View) -> Sequence[Action]:
    """Propose nothing: Kueue alone."""
    return ()
