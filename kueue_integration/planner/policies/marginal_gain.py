"""Marginal gain: the next workers go to the job whose completion they shorten most. Pure.

Source: Optimus (Peng et al., EuroSys 2018). The speed of each job is fitted against its workers (`speed_model`), which
predicts the time until it is done. Workers are given one step at a time to the job with the largest marginal gain.
Elastic sizes here are those that divide the ranks evenly.

Free quota goes to the job that gains most per device, when nobody waits or is on the move who could use it. Workers
that a user has asked for are kept free. Without free quota a job gives its last workers to another one. That has to
shorten the sum of the completions by more than both moves cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .. import free as quotas
from .. import measure, speed_model
from ..free import Room
from ..job import Job
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE

NAME = "marginalGain"


@dataclass(frozen=True)
class _Known:
    """A job whose completion can be predicted at every size."""

    job: Job
    model: speed_model.Model
    steps: float
    """Left."""

    @property
    def count(self) -> int:
        assert self.job.given is not None
        return self.job.given.count

    def left_s(self, workers: int) -> float:
        return self.steps * self.model.step_s(workers)

    def gain(self, workers: int) -> float:
        """Device-seconds, at its present size, by which it is done earlier; negative: later."""
        return (self.left_s(self.count) - self.left_s(workers)) * self.job.devices

    def size(self, step: int) -> int | None:
        """The next size up (1) or down (-1), None where there is none."""
        sizes = [w for w in range(1, self.job.ranks + 1) if self.job.ranks % w == 0]
        allowed = [w for w in sizes if (w > self.count if step > 0 else self.job.fewest <= w < self.count)]
        return min(allowed, key=lambda w: abs(w - self.count), default=None)


def propose(snapshot: ClusterSnapshot) -> list[Proposal]:
    """Best first. The arbiter starts one in a cohort: all of them count on the same quota."""
    by_queue: dict[str, list[_Known]] = {}
    for job in snapshot.jobs.values():
        known = _known(job)
        if known is not None and job.workload is not None and not snapshot.stopped(job.workload):
            by_queue.setdefault(job.workload.queue, []).append(known)
    found: list[Proposal] = []
    for name, jobs in sorted(by_queue.items()):
        queue = snapshot.queues.get(name)
        if queue is not None:
            found += _of_queue(snapshot, queue, jobs)
    return found


def _known(job: Job) -> _Known | None:
    if not job.trains or not job.resizable or not job.held or job.busy is not None:
        return None
    if job.given is None or job.given.count != job.wanted:
        return None  # one that has less than it asks for waits for that: regrowth brings it there
    steps = measure.steps_left(job)
    measured = {s.workers: s.seconds / s.steps for s in measure.speeds(job) if s.flavor == job.given.flavor}
    model = speed_model.fit(measured)
    if steps is None or steps < 1 or model is None:
        return None
    return _Known(job, model, steps)


def _of_queue(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[_Known]) -> list[Proposal]:
    if any(quotas.entitled(snapshot, w) for w in quotas.waiting(snapshot, queue)):
        return []  # what is free, or would become free, belongs to those who wait
    if quotas.promised(snapshot, queue, queue.nominal):
        return []
    wishes = quotas.wished(snapshot, queue.pool, lambda q: q.nominal)
    free = quotas.placeable(snapshot, quotas.room(snapshot, queue, wishes))
    growing = [(each, size) for each in jobs if (size := each.size(+1)) is not None]
    growing.sort(key=lambda g: (-g[0].gain(g[1]) / (g[1] - g[0].count), g[0].job.key))
    found, trades = list[Proposal](), list[Proposal | None]()
    for each, size in growing:
        if not _has_room(free, each.job, size - each.count):
            trades.append(_trade(free, jobs, each, size))
        elif each.gain(size) > 0:
            found.append(_resize(each, size, each.gain(size), "free quota"))
    return [*found, *(trade for trade in trades if trade is not None)]


def _trade(free: Room, jobs: Sequence[_Known], receiver: _Known, size: int) -> Proposal | None:
    """The job that loses least when it gives `receiver` the workers up to `size`."""
    hoped = receiver.gain(size) - measure.cost(receiver.job)
    best: tuple[float, _Known, int] | None = None
    for donor in jobs:
        less = donor.size(-1)
        if donor is receiver or less is None or hoped <= 0:
            continue
        back = {key: amount * (donor.count - less) for key, amount in _per_pod(donor.job).items()}
        if not _has_room(quotas.with_own(free, back), receiver.job, size - receiver.count):
            continue
        gain = hoped + donor.gain(less)
        if best is None or gain > best[0]:
            best = gain, donor, less
    if best is None or best[0] <= measure.cost(best[1].job):
        return None
    gain, donor, less = best
    trade = _resize(donor, less, gain, f"{'/'.join(receiver.job.key)} gains more by {size} workers")
    return replace(trade, helps=receiver.job.key)


def _per_pod(job: Job) -> dict[tuple[str, str], Fraction]:
    assert job.given is not None
    return {(job.given.flavors.get(r, ""), r): amount / job.given.count for r, amount in job.given.usage.items()}


def _has_room(free: Room, job: Job, more: int) -> bool:
    return all(amount * more <= free.get(key, NONE) for key, amount in _per_pod(job).items())


def _resize(known: _Known, size: int, gain: float, why: str) -> Proposal:
    before, after = known.left_s(known.count), known.left_s(size)
    reason = f"{known.count} -> {size} workers: done in {after:.0f} s instead of {before:.0f} s; {why}"
    return Proposal("resize", known.job.key, reason[:290], max(0.0, gain), NAME, workers=size)
