"""Buddy cell allocation of HiveD (OSDI 2020, section 3.2). Pure.

A cell is taken from the smallest free cell that has one, which is split on the way down. A cell that comes back is
merged with its buddies as soon as all of them are free. So large cells stay whole as long as they can. In a uniform
hierarchy this never fails for tenants that stay within cells that once fitted together (HiveD, theorem 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from .tree import Cell, Path


class Buddy:
    """Not thread-safe. All `cells` are free at first."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._parents: dict[Path, Cell] = {
            part.path: cell for root in cells for cell in root.walk() for part in cell.parts
        }
        self._free: dict[Path, Cell] = {cell.path: cell for cell in cells}
        """Free cells that are in no larger free cell."""

    @property
    def free(self) -> list[Cell]:
        """Free cells as large as they are, in the order of their paths."""
        return [cell for _, cell in sorted(self._free.items())]

    def take(self, level: int, nodes: int = 0) -> Cell | None:
        """A free cell of this level (with so many nodes, 0 for any number), None if there is none."""
        found = [(cell, best) for cell in self.free if (best := _smallest(cell, level, nodes)) is not None]
        if not found:
            return None
        _, cell = min(found, key=lambda pair: (-pair[0].level, len(pair[0].nodes), len(pair[1].nodes), pair[1].path))
        self._split(cell)
        return cell

    def claim(self, cell: Cell) -> bool:
        """Take this very cell; False if it, or a part of it, is taken."""
        if not any(free.path == cell.path[: len(free.path)] for free in self._free.values()):
            return False
        self._split(cell)
        return True

    def give(self, cell: Cell) -> None:
        """A cell that was taken comes back. Raises ValueError: it is free already."""
        if any(free.path == cell.path[: len(free.path)] for free in self._free.values()):
            raise ValueError(f"cell {'/'.join(cell.path)} is free already")
        self._free[cell.path] = cell
        parent = self._parents.get(cell.path)
        if parent is not None and all(part.path in self._free for part in parent.parts):
            for part in parent.parts:
                del self._free[part.path]
            self.give(parent)

    def _split(self, cell: Cell) -> None:
        """Take `cell` out of the free cell that it is in."""
        length = next(n for n in range(len(cell.path), 0, -1) if cell.path[:n] in self._free)
        whole = self._free.pop(cell.path[:length])
        while whole.path != cell.path:
            inside = next(part for part in whole.parts if part.path == cell.path[: len(part.path)])
            self._free.update({part.path: part for part in whole.parts if part.path != inside.path})
            whole = inside


def _smallest(cell: Cell, level: int, nodes: int) -> Cell | None:
    """The first cell of this level and size in `cell`, of the part with the fewest nodes."""
    if cell.level == level:
        return cell if nodes in (0, len(cell.nodes)) else None
    found = [best for part in cell.parts if (best := _smallest(part, level, nodes)) is not None]
    return min(found, key=lambda best: (len(best.nodes), best.path), default=None)
