"""Cells out of nodes: a cell is a domain of the topology, with the cells of the next level in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Path = tuple[str, ...]
"""Values of the node labels from the largest level down to this one: no two cells have the same."""


@dataclass(frozen=True)
class Cell:
    """`parts` are the cells of the next level; a node has none."""

    level: int
    """0 for the largest."""
    path: Path
    parts: tuple[Cell, ...] = ()
    node: str = ""
    """Name of the node, of the smallest level only."""

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes in it."""
        return tuple(name for part in self.parts for name in part.nodes) if self.parts else (self.node,)

    def walk(self) -> Iterator[Cell]:
        """The cell and all cells in it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def grown(nodes: Mapping[str, Mapping[str, str]], levels: Sequence[str]) -> tuple[list[Cell], dict[str, str]]:
    """(cells of the largest level, why nodes are in none).

    :param nodes: name of a node -> its labels
    :param levels: node labels, the largest level first; the last one tells single nodes
    """
    placed: dict[str, Path] = {}
    left: dict[str, str] = {}
    for name, labels in sorted(nodes.items()):
        missing = [label for label in levels if not labels.get(label)]
        if missing:
            left[name] = f"it has no label {missing[0]}"
        else:
            placed[name] = tuple(labels[label] for label in levels)
    return _cells(placed, (), len(levels)), left


def _cells(placed: Mapping[str, Path], above: Path, depth: int) -> list[Cell]:
    level = len(above)
    inside = {name: path for name, path in placed.items() if path[:level] == above}
    if level == depth - 1:
        return [Cell(level, path, node=name) for name, path in sorted(inside.items(), key=lambda item: item[1])]
    groups = sorted({path[: level + 1] for path in inside.values()})
    return [Cell(level, path, tuple(_cells(inside, path, depth))) for path in groups]
