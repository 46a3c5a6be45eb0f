"""Which cells are whose: each tenant gets its cells, the largest first, and keeps those that it has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from singularity_proxy.protocol import names

from ..errors import SpecError
from .buddy import Buddy
from .description import Description, Wanted
from .tree import Cell, grown

LABEL: Final = f"{names.DOMAIN}/cells-of"
"""Node label: whose cell the node is in, as `owner` spells it. The ResourceFlavors choose nodes by it."""
SPARE: Final = "spare"


@dataclass(frozen=True)
class Binding:
    cells: Mapping[str, Sequence[Cell]]
    """Tenant -> its cells."""
    spare: Sequence[Cell]
    """Cells of nobody, as large as they are."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it is in no cell."""

    @property
    def nodes(self) -> dict[str, Sequence[str]]:
        """Tenant, and SPARE, -> names of its nodes."""
        owned = {tenant: [n for cell in cells for n in cell.nodes] for tenant, cells in self.cells.items()}
        return {**owned, SPARE: [n for cell in self.spare for n in cell.nodes]}


def owner(said: Description, tenant: str) -> str:
    """Value of LABEL; also the name of the tenant's flavor and ClusterQueue."""
    return f"{said.name}-{tenant}"


def bound(said: Description, nodes: Mapping[str, Mapping[str, str]], broken: Mapping[str, str]) -> Binding:
    """Cells for all tenants; a cell that is bound already stays.

    :param nodes: name -> labels, of all nodes
    :param broken: nodes that no cell may have, and why
    :raises SpecError: there are not so many cells, or the cells of a level have several sizes and none is chosen
    """
    roots, left_out = grown(nodes, said.labels)
    every = [cell for root in roots for cell in root.walk()]
    free = Buddy(roots)
    for cell in every:
        if cell.node in broken and not cell.parts:
            free.claim(cell)
            left_out[cell.node] = broken[cell.node]
    asked = [(tenant.name, wanted, _size(said, wanted, every, tenant.name)) for tenant in said.tenants
             for wanted in tenant.cells]  # fmt: skip
    asked.sort(key=lambda ask: (said.level(ask[1].level), -ask[2]))
    found: dict[str, list[Cell]] = {tenant.name: [] for tenant in said.tenants}
    missing: list[tuple[str, Wanted, int, int]] = []
    for tenant, wanted, size in asked:
        alike = [c for c in every if c.level == said.level(wanted.level) and len(c.nodes) == size]
        own = [c for c in alike if all(nodes[name].get(LABEL) == owner(said, tenant) for name in c.nodes)]
        # Some are taken: they are broken, or part of a cell that the tenant has been given already.
        kept = list(islice((cell for cell in own if free.claim(cell)), wanted.count))
        found[tenant] += kept
        missing.append((tenant, wanted, size, wanted.count - len(kept)))
    for tenant, wanted, size, count in missing:
        for number in range(count):
            new = free.take(said.level(wanted.level), size)
            if new is None:
                raise SpecError([_too_few(said, tenant, wanted, count - number, free)])
            found[tenant].append(new)
    return Binding(found, free.free, left_out)


def _size(said: Description, wanted: Wanted, every: Sequence[Cell], tenant: str) -> int:
    """Nodes of the cells that are meant. Raises SpecError."""
    sizes = sorted({len(cell.nodes) for cell in every if cell.level == said.level(wanted.level)})
    where = f"tenants.{tenant}.cells.nodes"
    if wanted.nodes and wanted.nodes not in sizes:
        there = f"no {wanted.level} has so many nodes; there are {sizes or 'none at all'}"
        raise SpecError([(where, wanted.nodes, there)])
    if not wanted.nodes and len(sizes) > 1:
        raise SpecError([(where, 0, f"cells of level {wanted.level} have {sizes} nodes; say which are meant")])
    return wanted.nodes or (sizes[0] if sizes else 0)


def _too_few(said: Description, tenant: str, wanted: Wanted, missing: int, free: Buddy) -> tuple[str, object, str]:
    left = ", ".join(f"{said.levels[cell.level].name} {'/'.join(cell.path)}" for cell in free.free[:10]) or "nothing"
    fix = f"{missing} more {wanted.level} needed than there are; left: {left}. Ask for fewer, or add nodes"
    return f"tenants.{tenant}.cells", f"{wanted.count} {wanted.level}", fix
