"""The promise, checked from history: when would each job have got its quota in its tenant's private cells? Pure.

All requests of one tenant are played out again on its own nodes alone, in the order in which they were queued. A later
one may pass where it fits, as in Kueue's BestEffortFIFO. Each keeps its nodes as long as it did. Priorities are not on
record, and play no part. A request that still holds its nodes, or still waits, is taken to keep them for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from ..errors import SpecError


@dataclass(frozen=True)
class Request:
    """One wait for quota: an attempt, or the wait of now. Times are Unix seconds."""

    job: str
    queued: float
    admitted: float | None
    """None: it waits."""
    ended: float | None
    """When it gave its nodes back, None while it has them."""
    pods: int
    asks: Mapping[str, Fraction] = field(default_factory=dict)
    """resource -> amount of one pod."""
    level: str = ""
    """Node label of which all pods need the same value; "": any place will do."""


@dataclass(frozen=True)
class Verdict:
    """Of one request that is bound to a topology."""

    request: Request
    private: float | None
    """When it would have got its nodes in private cells; None: it would wait still, or for ever."""
    later_s: float
    """Seconds that it waited longer than in private cells, at least 0."""
    fits: bool
    """Whether it fits into the empty private cells: a job that does not has no promise."""


@dataclass(frozen=True)
class Machine:
    """A node of the tenant. `domains`: node label -> value."""

    name: str
    domains: Mapping[str, str]
    capacity: Mapping[str, Fraction]


def verdicts(
    requests: Sequence[Request], machines: Sequence[Machine], levels: Sequence[str], now: float
) -> list[Verdict]:
    """Of the requests with a level, in the order in which they were queued.

    :param requests: all of one tenant: those without a level take nodes too
    :param levels: node labels, the largest level first
    :raises SpecError: a request names a label that is no level
    """
    unknown = sorted({r.level for r in requests if r.level and r.level not in levels})
    if unknown:
        raise SpecError([("level", unknown[0], f"is no level of the cells; these are {', '.join(levels)}")])
    private = _played(requests, machines, levels)
    found = []
    for request in sorted(requests, key=lambda r: r.queued):
        if request.level:
            fits = _placed(request, machines, {}, levels) is not None
            got, at = private.get(id(request)), request.admitted if request.admitted is not None else now
            found.append(Verdict(request, got, 0.0 if got is None else max(0.0, at - got), fits))
    return found


def _played(requests: Sequence[Request], machines: Sequence[Machine], levels: Sequence[str]) -> dict[int, float]:
    """id of a request -> when it is admitted in private."""
    earlier = _predecessors(requests)
    admitted: dict[int, float] = {}
    running: list[tuple[float, Mapping[str, int], Request]] = []
    """(end, pods on each node, request)."""
    waiting = sorted(requests, key=lambda r: r.queued)
    times = sorted({r.queued for r in requests})
    while times:
        at = times.pop(0)
        running = [entry for entry in running if entry[0] > at]
        for request in [r for r in waiting if r.queued <= at]:
            before = earlier.get(id(request))
            if before is not None and (id(before) not in admitted or admitted[id(before)] + _held(before) > at):
                continue
            place = _placed(request, machines, _used(running), levels)
            if place is not None:
                waiting.remove(request)
                admitted[id(request)] = at
                end = at + _held(request)
                running.append((end, place, request))
                if end != float("inf") and end not in times:
                    times = sorted([*times, end])
    return admitted


def _predecessors(requests: Sequence[Request]) -> dict[int, Request]:
    """The attempt before, of the same job: no job runs twice at once."""
    of_job: dict[str, list[Request]] = {}
    for request in sorted(requests, key=lambda r: r.queued):
        of_job.setdefault(request.job, []).append(request)
    return {id(after): before for same in of_job.values() for before, after in pairwise(same)}


def _held(request: Request) -> float:
    if request.admitted is None or request.ended is None:
        return float("inf")
    return max(0.0, request.ended - request.admitted)


def _used(running: Sequence[tuple[float, Mapping[str, int], Request]]) -> dict[str, dict[str, Fraction]]:
    """Node -> resource -> amount in use."""
    used: dict[str, dict[str, Fraction]] = {}
    for _, place, request in running:
        for name, pods in place.items():
            on = used.setdefault(name, {})
            for resource, amount in request.asks.items():
                on[resource] = on.get(resource, Fraction(0)) + amount * pods
    return used


def _placed(
    request: Request, machines: Sequence[Machine], used: Mapping[str, Mapping[str, Fraction]], levels: Sequence[str]
) -> dict[str, int] | None:
    """Pods on each node: in the domain with the least room that has enough, on few nodes. None: there is no room."""
    domains: dict[tuple[str, ...], list[tuple[int, Machine]]] = {}
    for machine in machines:
        above = levels[: levels.index(request.level) + 1] if request.level else ()
        key = tuple(machine.domains.get(label, "") for label in above)
        domains.setdefault(key, []).append((_slots(request, machine, used.get(machine.name, {})), machine))
    enough = [parts for _, parts in sorted(domains.items()) if sum(slots for slots, _ in parts) >= request.pods]
    if not enough:
        return None
    left, place = request.pods, dict[str, int]()
    tightest = min(enough, key=lambda parts: sum(slots for slots, _ in parts))
    for slots, machine in sorted(tightest, key=lambda part: (-part[0], part[1].name)):
        if left and slots:
            place[machine.name] = min(left, slots)
            left -= place[machine.name]
    return place


def _slots(request: Request, machine: Machine, used: Mapping[str, Fraction]) -> int:
    """Pods of the request that the node has room for."""
    rooms = [
        int((machine.capacity.get(resource, Fraction(0)) - used.get(resource, Fraction(0))) // amount)
        for resource, amount in request.asks.items()
        if amount > 0
    ]
    return max(0, min(rooms, default=request.pods))
