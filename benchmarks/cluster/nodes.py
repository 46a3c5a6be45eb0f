"""Which devices of which node are free, and where a gang fits: Kueue's topology-aware placement, best fit first."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .model import DEVICES_PER_NODE

Placement = Mapping[int, int]
"""Node -> devices."""


class Nodes:
    """The nodes of one flavor.

    :param count: of nodes, each with `DEVICES_PER_NODE` devices
    """

    def __init__(self, count: int) -> None:
        self.free = [DEVICES_PER_NODE] * count
        self.total_free = count * DEVICES_PER_NODE
        self.closed: dict[int, int] = {}
        """Node -> the job that it is kept for, while its victims leave."""
        # Nodes by number of free devices. A dictionary keeps an order that a seed repeats, which a set does not.
        self._with: list[dict[int, None]] = [{} for _ in range(DEVICES_PER_NODE + 1)]
        self._with[DEVICES_PER_NODE] = dict.fromkeys(range(count))

    def find(self, devices: int, one_node: bool, job: int, avoid: Collection[int] = ()) -> Placement | None:
        """Where `devices` fit now; None where they do not. As few nodes as possible, and the fullest that will do."""
        if devices > self.total_free:
            return None
        if devices <= DEVICES_PER_NODE:
            best = self._fullest(devices, job, avoid)
            if best is not None or one_node:
                return None if best is None else {best: devices}
        found: dict[int, int] = {}
        left = devices
        for free in range(DEVICES_PER_NODE, 0, -1):
            for node in self._with[free]:
                if left < free:
                    break
                if self.closed.get(node, job) == job and node not in avoid:
                    found[node] = free
                    left -= free
            if left == 0:
                return found
            rest = self._fullest(left, job, {*found, *avoid}) if left < free else None
            if rest is not None:
                found[rest] = left
                return found
        return None  # the rest is on nodes that are kept for others

    def widest(self, job: int) -> int:
        """Free devices of the emptiest node."""
        for free in range(DEVICES_PER_NODE, 0, -1):
            if any(self.closed.get(node, job) == job for node in self._with[free]):
                return free
        return 0

    def fits_with(self, devices: int, one_node: bool, job: int, more: Mapping[int, int]) -> bool:
        """Whether they fit once `more` devices (node -> devices) are free, too."""
        if not one_node:
            return self.total_free + sum(more.values()) >= devices
        return self.widest(job) >= devices or self.room_for(devices, job, more) is not None

    def room_for(self, devices: int, job: int, more: Mapping[int, int]) -> int | None:
        """A node that has room for all of them once `more` is free, too."""
        open_to = (node for node in more if self.closed.get(node, job) == job)
        return next((node for node in open_to if self.free[node] + more[node] >= devices), None)

    def take(self, placement: Placement) -> None:
        for node, devices in placement.items():
            self._change(node, -devices)

    def give(self, placement: Placement) -> None:
        for node, devices in placement.items():
            self._change(node, devices)

    def _fullest(self, devices: int, job: int, but: Collection[int]) -> int | None:
        for free in range(devices, DEVICES_PER_NODE + 1):
            for node in self._with[free]:
                if self.closed.get(node, job) == job and node not in but:
                    return node
        return None

    def _change(self, node: int, by: int) -> None:
        del self._with[self.free[node]][node]
        self.free[node] += by
        self.total_free += by
        self._with[self.free[node]][node] = None


def name_of(flavor: str, node: int) -> str:
    return f"{flavor}-{node}"


def packed(placement: Placement) -> bool:
    """Whether there are no more nodes in it than its devices need."""
    return len(placement) == -(-sum(placement.values()) // DEVICES_PER_NODE)
