"""The quota of ClusterQueues and cohorts by flavor and resource: nominal, borrowed, used, free, available. Pure.

For every line used + free = nominal + borrowed. Free quota of a queue may be lent to its cohort. So `available` is what
the queue can still be given without a preemption. That is Kueue's own rule, as function `available` in
pkg/cache/scheduler/resource_node.go of Kueue 0.19 has it. Lending limits keep quota at home, and borrowing limits cap
what comes from above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from .model import Amounts, Cohort, Key, Limit, Queue

NONE = Fraction(0)


@dataclass(frozen=True)
class Usage:
    """What Workloads hold of one ClusterQueue; `unseen` is reserved by Kueue's account, but by no Workload we saw."""

    training: Fraction = NONE
    other: Fraction = NONE
    unseen: Fraction = NONE

    @property
    def total(self) -> Fraction:
        return self.training + self.other + self.unseen

    def __add__(self, more: Usage) -> Usage:
        return Usage(self.training + more.training, self.other + more.other, self.unseen + more.unseen)


@dataclass(frozen=True)
class Line:
    """One resource in one flavor of a ClusterQueue, or of a cohort with all that is below it."""

    scope: Literal["cohort", "queue"]
    name: str
    cohort: str
    """The cohort above, "" for none."""
    depth: int
    """Cohorts above."""
    flavor: str
    resource: str
    nominal: Fraction
    borrowed: Fraction
    """Used beyond nominal; of a cohort: from the cohort above it."""
    used: Fraction
    free: Fraction
    """Nominal that neither the queue itself (the cohort's queues) uses; others of the cohort may."""
    available: Fraction
    """What it can be given now, borrowing included and nobody preempted."""
    usage: Usage


@dataclass(eq=False)
class _Node:
    """A queue or a cohort in the tree, with its sums."""

    scope: Literal["cohort", "queue"]
    name: str
    limits: Mapping[Key, Limit] = field(default_factory=dict)
    usage: Mapping[Key, Usage] = field(default_factory=dict)
    parent: _Node | None = None
    below: list[_Node] = field(default_factory=list)
    stopped: bool = False
    """It admits nothing, whatever there is."""
    known: dict[tuple[str, Key], Fraction] = field(default_factory=dict)
    """Sums that were made already: each queue asks all of its cohort."""

    def cells(self) -> list[Key]:
        found = dict.fromkeys([*self.limits, *self.usage])
        for child in self.below:
            found.update(dict.fromkeys(child.cells()))
        return list(found)

    def admits(self, key: Key) -> bool:
        """A queue gives quota only in the flavors that it names."""
        return self.scope == "cohort" or (key in self.limits and not self.stopped)

    def total(self, key: Key) -> Fraction:
        """Nominal quota, of all that is below."""
        return self._nominal(key) + sum((child.total(key) for child in self.below), NONE)

    def held(self, key: Key) -> Usage:
        return sum((child.held(key) for child in self.below), self.usage.get(key, Usage()))

    def _nominal(self, key: Key) -> Fraction:
        return self.limits[key].nominal if key in self.limits else NONE

    def _quota(self, key: Key) -> Fraction:
        """Its own, and what those below lend."""
        lent = (child._quota(key) - child._kept(key) for child in self.below)
        return self._once("quota", key, self._nominal(key), lent)

    def _kept(self, key: Key) -> Fraction:
        """Quota that its lending limit keeps for itself."""
        limit = self.limits.get(key)
        return NONE if limit is None or limit.lending is None else max(NONE, self._quota(key) - limit.lending)

    def _taken(self, key: Key) -> Fraction:
        """Used by itself, and by those below beyond what they keep."""
        own = self.usage[key].total if key in self.usage else NONE
        return self._once(
            "taken", key, own, (max(NONE, child._taken(key) - child._kept(key)) for child in self.below)
        )

    def available(self, key: Key) -> Fraction:
        """May be negative, where more was admitted than there is now."""
        if self.parent is None:
            return self._quota(key) - self._taken(key)
        kept, taken = self._kept(key), self._taken(key)
        above, limit = self.parent.available(key), self.limits.get(key)
        if limit is not None and limit.borrowing is not None:
            above = min(above, self._quota(key) - kept - max(NONE, taken - kept) + limit.borrowing)
        return max(NONE, kept - taken) + above

    def _once(self, name: str, key: Key, own: Fraction, parts: Iterable[Fraction]) -> Fraction:
        if (name, key) not in self.known:
            self.known[name, key] = sum(parts, own)
        return self.known[name, key]


def lines(
    queues: Sequence[Queue], cohorts: Sequence[Cohort], usage: Mapping[str, Mapping[Key, Usage]]
) -> list[Line]:
    """Cohorts with their queues below them, then queues without a cohort; `usage` is by ClusterQueue."""
    found: list[Line] = []
    for root in _roots(queues, cohorts, usage):
        found += _lines(root, 0)
    return found


def used(reported: Amounts, training: Amounts, other: Amounts, complete: bool) -> dict[Key, Usage]:
    """The usage of one queue from its Workloads, and from Kueue's own account where not all of them were seen.

    :param complete: all Workloads of the cluster were read: Kueue's account, which lags behind, is not needed
    """
    found = {}
    for key in dict.fromkeys([*training, *other, *(() if complete else reported)]):
        ours, others = training.get(key, NONE), other.get(key, NONE)
        unseen = NONE if complete else max(NONE, reported.get(key, NONE) - ours - others)
        found[key] = Usage(ours, others, unseen)
    return found


def _lines(node: _Node, depth: int) -> Iterable[Line]:
    parent = node.parent.name if node.parent else ""
    for flavor, resource in node.cells():
        key = (flavor, resource)
        nominal, usage = node.total(key), node.held(key)
        yield Line(
            scope=node.scope, name=node.name, cohort=parent, depth=depth, flavor=flavor, resource=resource,
            nominal=nominal, used=usage.total, usage=usage, borrowed=max(NONE, usage.total - nominal),
            free=max(NONE, nominal - usage.total),
            available=max(NONE, node.available(key)) if node.admits(key) else NONE,
        )  # fmt: skip
    for child in node.below:
        yield from _lines(child, depth + 1)


def _roots(
    queues: Sequence[Queue], cohorts: Sequence[Cohort], usage: Mapping[str, Mapping[Key, Usage]]
) -> list[_Node]:
    """A cohort that is its own ancestor is cut loose from the one above: Kueue admits nothing in it."""
    nodes = {cohort.name: _Node("cohort", cohort.name, cohort.limits) for cohort in cohorts}
    for name in (*(c.parent for c in cohorts), *(q.cohort for q in queues)):
        if name and name not in nodes:
            nodes[name] = _Node("cohort", name)
    for cohort in cohorts:
        above = nodes.get(cohort.parent)
        if above is not None and not _is_below(above, nodes[cohort.name]):
            nodes[cohort.name].parent = above
            above.below.append(nodes[cohort.name])
    alone: list[_Node] = []
    for queue in sorted(queues, key=lambda queue: queue.name):
        node = _Node("queue", queue.name, queue.limits, usage.get(queue.name, {}), nodes.get(queue.cohort))
        node.stopped = bool(queue.trouble)
        (alone if node.parent is None else node.parent.below).append(node)
    roots = [node for _, node in sorted(nodes.items()) if node.parent is None]
    return [*roots, *alone]


def _is_below(node: _Node | None, other: _Node) -> bool:
    while node is not None:
        if node is other:
            return True
        node = node.parent
    return False
