"""Who holds devices, in the order in which Kueue would take them away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .active import Active, State


@dataclass(frozen=True)
class Row:
    """Jobs of one queue on one flavor.

    :param jobs: leaving already, lower priority, most recently admitted
    :param devices: of all of them
    :param widest: devices of the largest
    """

    jobs: Sequence[Active]
    devices: int
    widest: int

    def at_most(self, over: int) -> int:
        """Devices that can be reclaimed: nobody is taken from a queue that borrows no more."""
        return min(self.devices, over + self.widest - 1)


class Holders:
    """Of one ClusterQueue. A row is sorted once; `touch` has to be called when the state of a job has changed."""

    def __init__(self) -> None:
        self._jobs: dict[int, Active] = {}
        self._rows: dict[str, Row] = {}

    def add(self, active: Active) -> None:
        self._jobs[active.job.id] = active
        self.touch()

    def remove(self, active: Active) -> None:
        del self._jobs[active.job.id]
        self.touch()

    def touch(self) -> None:
        """A job leaves, or has another priority."""
        self._rows.clear()

    def on(self, flavor: str) -> Row:
        found = self._rows.get(flavor)
        if found is None:
            jobs = sorted((one for one in self._jobs.values() if one.flavor == flavor), key=order)
            sizes = [one.devices for one in jobs]
            found = self._rows[flavor] = Row(jobs, sum(sizes), max(sizes, default=0))
        return found


def order(one: Active) -> tuple[bool, int, float, int]:
    return one.state is not State.LEAVING, one.priority, -one.admitted_at, one.job.id
