"""The jobs that wait in each queue, by what they ask for, and who is looked at next."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from .active import Active

Key = tuple[int, float, int]
Shape = tuple[int, int, int, bool, str, frozenset[str]]


def key(active: Active) -> Key:
    """The order in a queue: priority, then time of creation."""
    return -active.priority, active.job.arrival_s, active.job.id


def shape(active: Active) -> Shape:
    """Two waiting jobs of one queue and one shape fit both or neither (Kueue's scheduling hash)."""
    job = active.job
    return active.priority, active.goal, job.least, job.one_node, active.pinned, active.avoid


class Waiting:
    """The jobs of one ClusterQueue that wait. `failed` has the shapes that fit nowhere, until something is free."""

    def __init__(self) -> None:
        self.failed: set[Shape] = set()
        self._rows: dict[Shape, list[tuple[Key, Active]]] = {}

    def __iter__(self) -> Iterator[Active]:
        return (active for row in self._rows.values() for _, active in row)

    def add(self, active: Active) -> None:
        insort(self._rows.setdefault(shape(active), []), (key(active), active))

    def remove(self, active: Active) -> None:
        """Before anything of its shape changes, too."""
        mine = self._rows[shape(active)]
        mine.remove((key(active), active))
        if not mine:
            del self._rows[shape(active)]

    def fail(self, active: Active) -> None:
        """It fits nowhere, and nobody of its shape is looked at until `failed` is cleared.

        :raises RuntimeError: its shape changed while it waited; without this error it would be looked at for ever
        """
        if shape(active) not in self._rows:
            raise RuntimeError(f"job {active.job.id} has changed in its queue: take it out before, and put it in after")
        self.failed.add(shape(active))

    def first(self) -> Active | None:
        """In the order of the queue; None where it cannot be admitted: StrictFIFO."""
        found = _least(self._rows.values())
        return None if found is None or shape(found) in self.failed else found

    def first_open(self) -> Active | None:
        """Of those that have not failed: BestEffortFIFO."""
        # Sets are fast, and their order does not matter: no two keys are equal.
        return _least(self._rows[looks] for looks in self._rows.keys() - self.failed)


def _least(rows: Iterable[list[tuple[Key, Active]]]) -> Active | None:
    return min((row[0] for row in rows), default=(None, None))[1]
