"""Which devices of which node are free, and where a gang fits: Kueue's topology-aware placement, best fit first."""

from __future__ import annotations

from collections.abc import Mapping

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
        # Nodes by number of free devices. A dictionary keeps an order that a seed repeats, which a set does not.
        self._with: list[dict[int, None]] = [{} for _ in range(DEVICES_PER_NODE + 1)]
        self._with[DEVICES_PER_NODE] = dict.fromkeys(range(count))

    def find(self, devices: int, one_node: bool, hint: int | None = None) -> Placement | None:
        """Where `devices` fit now; None where they do not. As few nodes as possible, and the fullest that will do."""
        if devices > self.total_free:
            return None
        if hint is not None and self.free[hint] >= devices:
            return {hint: devices}
        if devices <= DEVICES_PER_NODE:
            best = self._fullest(devices)
            if best is not None or one_node:
                return None if best is None else {best: devices}
        found: dict[int, int] = {}
        left = devices
        for free in range(DEVICES_PER_NODE, 0, -1):
            for node in self._with[free]:
                if left < free:
                    break
                found[node] = free
                left -= free
            if left == 0:
                return found
            rest = self._fullest(left, found) if left < free else None
            if rest is not None:
                found[rest] = left
                return found
        return None  # not reached: the devices are free, and the loop takes all of them

    def widest(self) -> int:
        """Free devices of the emptiest node."""
        return next((free for free in range(DEVICES_PER_NODE, 0, -1) if self._with[free]), 0)

    def fits_with(self, devices: int, one_node: bool, more: Mapping[int, int]) -> bool:
        """Whether they fit once `more` devices (node -> devices) are free, too."""
        if not one_node:
            return self.total_free + sum(more.values()) >= devices
        return self.widest() >= devices or any(self.free[node] + freed >= devices for node, freed in more.items())

    def take(self, placement: Placement) -> None:
        for node, devices in placement.items():
            self._change(node, -devices)

    def give(self, placement: Placement) -> None:
        for node, devices in placement.items():
            self._change(node, devices)

    def _fullest(self, devices: int, but: Mapping[int, int] | None = None) -> int | None:
        for free in range(devices, DEVICES_PER_NODE + 1):
            for node in self._with[free]:
                if but is None or node not in but:
                    return node
        return None

    def _change(self, node: int, by: int) -> None:
        del self._with[self.free[node]][node]
        self.free[node] += by
        self.total_free += by
        self._with[self.free[node]][node] = None


def packed(placement: Placement) -> bool:
    """Whether there are no more nodes in it than its devices need."""
    return len(placement) == -(-sum(placement.values()) // DEVICES_PER_NODE)
