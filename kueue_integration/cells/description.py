"""What a platform team writes: levels of the topology, and the cells of each tenant. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import yaml

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Spelled, Within

from ..errors import SpecError

HOSTNAME: Final = "kubernetes.io/hostname"
MOST_TENANTS: Final = 62
"""Kueue takes 64 flavors in a resource group: those of all tenants and the spare one."""
EXAMPLE: Final = "see docs/policies/affinity-cells.md"

Name = Annotated[str, Spelled("[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", "a DNS label of at most 30 characters")]
Count = Annotated[int, Within(1, 100_000)]


@dataclass(frozen=True)
class Level:
    """`label`: the node label of which all nodes of a cell have the same value."""

    name: Name
    label: str


@dataclass(frozen=True)
class Wanted:
    """`count` cells of a level; `nodes` chooses those with so many nodes, where there are several sizes."""

    level: str
    count: Count = 1
    nodes: Annotated[int, Within(0, 100_000)] = 0


@dataclass(frozen=True)
class Tenant:
    name: Name
    cells: list[Wanted]
    namespaces: list[str] = field(default_factory=list)
    """Namespaces that may use its queue, each gets a LocalQueue; none: all may, and make their own."""


@dataclass(frozen=True)
class Description:
    """`name` begins the names of all objects."""

    name: Name
    levels: list[Level]
    """The largest first, the last one single nodes."""
    tenants: list[Tenant]
    resources: list[str] = field(default_factory=lambda: ["cpu", "memory"])
    """What has a quota: what the nodes of the cells can allocate."""
    lend: bool = True
    """Idle cells serve other tenants until their own jobs want them back."""

    def level(self, name: str) -> int:
        """0 for the largest. Raises LookupError."""
        return next(number for number, level in enumerate(self.levels) if level.name == name)

    @property
    def labels(self) -> list[str]:
        return [level.label for level in self.levels]


def read(text: str) -> Description:
    """Of a YAML file. Raises SpecError that names field, value and fix."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError([("file", text[:40], f"is not YAML: {error}; {EXAMPLE}")]) from error
    found = decode.typed(Description, data, "cells", strict=True)
    if isinstance(found, decode.Unreadable):
        raise SpecError([("file", text[:40], f"{found.why}; {EXAMPLE}")])
    problems = _problems(found)
    if problems:
        raise SpecError(problems)
    return found


def _problems(said: Description) -> list[tuple[str, object, str]]:
    names, tenants = [level.name for level in said.levels], [tenant.name for tenant in said.tenants]
    found: list[tuple[str, object, str]] = []
    if not names or said.labels[-1] != HOSTNAME:
        what = f"the last level must have the label {HOSTNAME}: Kueue looks at single nodes only then"
        found.append(("levels", said.labels, what))
    for field_name, values in (("levels", names), ("levels.label", said.labels), ("tenants", tenants)):
        if len(set(values)) < len(values):
            found.append((field_name, values, "has the same one twice; give each its own"))
    if not said.resources or len(set(said.resources)) < len(said.resources):
        found.append(("resources", said.resources, "name each resource once, such as [cpu, memory, nvidia.com/gpu]"))
    if not 1 <= len(tenants) <= MOST_TENANTS:
        found.append(("tenants", len(tenants), f"name from 1 to {MOST_TENANTS} tenants"))
    if "spare" in tenants:
        found.append(("tenants", "spare", "is the name for cells of nobody; choose another one"))
    for tenant in said.tenants:
        if not tenant.cells:
            found.append(
                (f"tenants.{tenant.name}.cells", [], "name one cell at least, such as {level: node, count: 1}")
            )
        found += [
            (f"tenants.{tenant.name}.cells.level", wanted.level, f"is no level; choose one of {', '.join(names)}")
            for wanted in tenant.cells
            if wanted.level not in names
        ]
    return found
