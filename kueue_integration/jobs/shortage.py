"""Read Kueue's account of why a Workload does not fit: what is missing in which flavor. Pure.

The sentences are those of Kueue's flavor assigner (pkg/scheduler/flavorassigner, 0.15 to 0.20); what is not understood
is left to the original message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..kube import quantities


@dataclass(frozen=True)
class Shortage:
    """Why a flavor that Kueue tried does not do. `resource` and `amount` (a quantity): "" where it is not quota."""

    flavor: str
    resource: str = ""
    amount: str = ""
    cause: str = "unused"
    """`unused`: quota is there but taken; `maximum`: more than the queue can ever give; `taint`; `affinity`.

    `topology`: the flavor has no topology, or not the level; `no-topology`: it takes only jobs that ask for one.
    """


_UNUSED = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
_BORROW = re.compile(r"insufficient (?:unused )?quota in cohort for (\S+) in flavor (\S+), (\S+) more needed")
_MAXIMUM = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+), (?:previously considered podsets requests \((\S+)\) \+ current "
    r"podset request \((\S+)\)|request) > maximum capacity \((\S+)\)"
)
_TAINT = re.compile(r"untolerated taint .+? in flavor ([^\s,;]*[^\s,;.])")
_AFFINITY = re.compile(r"flavor (\S+) doesn't match node affinity")
_TOPOLOGY = re.compile(r'Flavor "([^"]+)" does not (?:support TopologyAwareScheduling|contain the requested level)')
_NO_TOPOLOGY = re.compile(r'Flavor "([^"]+)" supports only TopologyAwareScheduling')


def parse(message: str) -> list[Shortage]:
    """What Kueue says is missing, flavors in the order in which it names them, each fact once."""
    found: list[tuple[int, Shortage]] = []
    for pattern in (_UNUSED, _BORROW):
        found += [(m.start(), Shortage(m[2], m[1], m[3].rstrip(","))) for m in pattern.finditer(message)]
    for m in _MAXIMUM.finditer(message):
        found.append((m.start(), Shortage(m[2], m[1], _excess(m[3], m[4], m[5]), "maximum")))
    found += [(m.start(), Shortage(m[1], cause="taint")) for m in _TAINT.finditer(message)]
    found += [(m.start(), Shortage(m[1], cause="affinity")) for m in _AFFINITY.finditer(message)]
    for pattern, cause in ((_TOPOLOGY, "topology"), (_NO_TOPOLOGY, "no-topology")):
        found += [(m.start(), Shortage(m[1], cause=cause)) for m in pattern.finditer(message)]
    return list(dict.fromkeys(shortage for _, shortage in sorted(found, key=lambda item: item[0])))


def _excess(before: str | None, wanted: str | None, maximum: str) -> str:
    """How much more than the maximum is asked for, "" when it is not known."""
    try:
        over = quantities.parse(before or "0") + quantities.parse(wanted or "") - quantities.parse(maximum)
    except ValueError:
        return ""
    return str(over) if over.denominator == 1 else f"{float(over) * 1000:.0f}m"


def sentence(shortages: Sequence[Shortage]) -> str:
    """`needs 500m cpu more in flavor spot; flavor a100 has a taint that the pods do not tolerate`, "" for none."""
    return "; ".join(_words(shortage) for shortage in shortages)


def _words(item: Shortage) -> str:
    if item.cause == "taint":
        return f"flavor {item.flavor} has a taint that the pods do not tolerate"
    if item.cause == "affinity":
        return f"flavor {item.flavor} does not match the pods' node affinity"
    if item.cause == "topology":
        return f"flavor {item.flavor} does not have the topology that the job asks for"
    if item.cause == "no-topology":
        return f"flavor {item.flavor} takes only jobs that ask for a topology"
    amount = f"{item.amount} {item.resource} more" if item.amount else f"more {item.resource}"
    ever = " than the queue can ever give" if item.cause == "maximum" else ""
    return f"{'asks for' if ever else 'needs'} {amount}{ever} in flavor {item.flavor}"
