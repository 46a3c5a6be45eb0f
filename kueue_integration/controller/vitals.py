"""Numbers of the controller itself, for whoever is on call: Lease, copies, queue, its tasks, and the API server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "singularity_api_errors_total": (
        "Requests that the API server did not answer, or refused as too many or with an error of its own.", ("verb",)),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "singularity_holds_void": ("1 while this replica sees that the Lease, and every hold with it, has run out.", ()),
    "singularity_lease_age_seconds": ("Seconds since this replica saw that the Lease was renewed.", ()),
    "singularity_canary_age_seconds": ("Seconds since a worker took the task that is due every second.", ()),
    "singularity_queue_depth": ("Tasks that are due and that no worker has taken yet.", ("queue",)),
    "singularity_informer_age_seconds": ("Seconds since the API server last answered for a kind.", ("kind",)),
}
_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TASK = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
HISTOGRAMS: Mapping[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "singularity_task_seconds": ("Time of a worker on a task: job (one look), plan, check, ...", ("task",), _TASK),
    "singularity_api_request_seconds": ("Until the API server answered a request, by verb.", ("verb",), _FAST),
}  # fmt: skip

Series = dict[tuple[str, ...], float]


class _Silent(Protocol):
    def silent_for(self) -> float: ...


class _Counts(Protocol):
    def add(self, name: str, label: str = "", amount: float = 1.0) -> None: ...

    def observe(self, name: str, label: str, seconds: float) -> None: ...


def of_requests(metrics: _Counts) -> Callable[[str, float, bool], None]:
    """Return what a client tells of each request: its verb, the seconds until the answer, and whether it failed."""

    def told(verb: str, seconds: float, failed: bool) -> None:
        metrics.observe("singularity_api_request_seconds", verb, seconds)
        if failed:
            metrics.add("singularity_api_errors_total", verb)

    return told


def of_lease(age_s: Callable[[], float], duration_s: float) -> Callable[[], Iterator[tuple[str, Series]]]:
    """Return the gauges of the Lease. `age_s`: seconds since it was seen to be renewed."""

    def gauges() -> Iterator[tuple[str, Series]]:
        age = age_s()
        yield "singularity_lease_age_seconds", {(): round(age, 2)}
        yield "singularity_holds_void", {(): float(age > duration_s)}

    return gauges


def of_work(
    canary_age_s: float, due: Mapping[str, int], informers: Mapping[str, _Silent]
) -> Iterator[tuple[str, Series]]:
    """Return the gauges of queues and copies. `due`: tasks by queue, `informers`: the copies by kind."""
    yield "singularity_canary_age_seconds", {(): round(canary_age_s, 2)}
    yield "singularity_queue_depth", {(name,): float(count) for name, count in due.items()}
    ages = {(kind,): one.silent_for() for kind, one in informers.items()}
    yield "singularity_informer_age_seconds", {key: math.ceil(age * 10) / 10 for key, age in ages.items()}
