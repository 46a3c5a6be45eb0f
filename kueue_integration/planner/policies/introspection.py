"""Introspection: a job that a cheaper flavor serves as well goes there. Pure.

Source: Gandiva (Xiao et al., OSDI 2018). A job is watched while it runs, moved on trial, and moved back where that has
not helped. What Gandiva does for throughput is done here for money: each flavor has a price for an hour of a device.

Steps per second are known for each size and flavor that a job has run with. A flavor that makes a step for less money
and loses little speed is better. A flavor that was never tried is tried only by a job whose GPUs have little to do, as
NVML tells. If the trial was slower than promised, the job goes back.

A job stays on the flavor that was chosen for it. While it waits for quota it may go everywhere again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .. import free as quotas
from .. import measure
from ..free import Room
from ..job import Job
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE
from ..settings import Introspection

NAME = "introspection"


@dataclass(frozen=True)
class _Here:
    """A job that trains on a flavor with a price, at a measured speed."""

    job: Job
    flavor: str
    price: float
    step_s: float
    elsewhere: Mapping[str, float]
    """Other flavor -> seconds of a step there, at this size."""
    steps: float
    """Left."""


def propose(snapshot: ClusterSnapshot, prices: Mapping[str, float], settings: Introspection) -> list[Proposal]:
    """:param prices: of a device for an hour, by flavor; jobs on flavors without one, and these flavors, are left out

    Moves are sorted by what they gain. The arbiter starts one in a cohort: all of them count on the same quota.
    """
    found, moves = list[Proposal](), list[Proposal]()
    rooms: dict[str, Room | None] = {}
    for job in sorted(snapshot.jobs.values(), key=lambda j: j.key):
        queue = snapshot.queue_of(job)
        if queue is None:
            continue
        if job.pinned_by == NAME and job.workload is not None and job.workload.waits:
            why = f"it waits for quota, and need not wait for {job.flavors[0]}"
            found.append(Proposal("unpin", job.key, why, 0.0, NAME))
        stays = job.workload is None or snapshot.stopped(job.workload)
        here = None if stays else _here(job, prices)
        if here is not None and queue.name not in rooms:
            rooms[queue.name] = _room(snapshot, queue)
        free = rooms.get(queue.name)
        move = _move(queue, here, free, prices, settings) if here is not None and free is not None else None
        if move is not None:
            moves.append(move)
    return [*found, *sorted(moves, key=lambda move: -move.gain_device_seconds)]


def unpriced(snapshot: ClusterSnapshot, prices: Mapping[str, float]) -> list[str]:
    """Flavors of the queues of our jobs that have no price: no job goes there, or leaves."""
    queues = {q.name: q for job in snapshot.jobs.values() if (q := snapshot.queue_of(job)) is not None}
    known = {flavor for queue in queues.values() for group in queue.groups for flavor in group.flavors}
    return sorted(known - {*prices})


def _here(job: Job, prices: Mapping[str, float]) -> _Here | None:
    given = job.given
    if not job.trains or given is None or given.flavor not in prices or job.topology or job.node_selector:
        return None
    if not job.held or job.busy is not None:
        return None
    if given.count != job.wanted or (job.flavors and job.pinned_by != NAME):
        return None  # it is to grow first, or somebody has said where it runs
    speeds = {s.flavor: s.seconds / s.steps for s in measure.speeds(job) if s.workers == given.count}
    if given.flavor not in speeds:
        return None
    # Of a program that does not print its length, as many steps as it has made are expected: Gandiva's jobs, too, are
    # judged by what they did.
    steps = measure.steps_left(job)
    steps = float(job.steps_done or 0) if steps is None else steps
    elsewhere = {flavor: step_s for flavor, step_s in speeds.items() if flavor != given.flavor}
    return _Here(job, given.flavor, prices[given.flavor], speeds[given.flavor], elsewhere, steps)


def _room(snapshot: ClusterSnapshot, queue: Queue) -> Room | None:
    """Free quota of a queue; None: what is free, or would become free, belongs to those who wait."""
    if any(quotas.entitled(snapshot, w) for w in quotas.waiting(snapshot, queue)):
        return None
    return quotas.placeable(snapshot, quotas.room(snapshot, queue))


def _move(
    queue: Queue, here: _Here, free: Room, prices: Mapping[str, float], settings: Introspection
) -> Proposal | None:
    there = [f for f in _alternatives(queue, here) if f in prices and _has_room(free, here.job, f)]
    back = _back(here, there, prices, settings)
    if back is not None:
        return back
    measured = [f for f in there if f in here.elsewhere and here.step_s / here.elsewhere[f] >= settings.min_speed]
    best = min(measured, key=lambda f: (here.elsewhere[f] * prices[f], f), default=None)
    if best is not None and here.elsewhere[best] * prices[best] < here.step_s * here.price:
        return _proposal(here, best, here.elsewhere[best], prices[best], "")
    last = here.job.attempts[-1].gpus
    if last is None or last.utilisation is None or last.utilisation >= settings.try_below_percent:
        return None
    new = min((f for f in there if f not in here.elsewhere), key=lambda f: (prices[f], f), default=None)
    if new is None or prices[new] >= here.price:
        return None
    return _proposal(here, new, here.step_s, prices[new], f"a trial: its GPUs are busy for {last.utilisation:.0f} %")


def _back(here: _Here, there: list[str], prices: Mapping[str, float], settings: Introspection) -> Proposal | None:
    """To the flavor that it came from, where that was faster than a cheaper one may lose."""
    before = here.job.attempts[-2] if len(here.job.attempts) > 1 else None
    if here.job.pinned_by != NAME or before is None or before.flavor not in there:
        return None
    was = here.elsewhere.get(before.flavor)
    if was is None or was / here.step_s >= settings.min_speed:
        return None
    reason = f"{was / here.step_s:.0%} of the speed that it had on {before.flavor}: it goes back"
    gain = here.steps * (here.step_s - was) * here.job.devices
    return Proposal("migrate", here.job.key, reason, gain, NAME, flavor=before.flavor)


def _proposal(here: _Here, flavor: str, step_s: float, price: float, why: str) -> Proposal:
    """The money saved is given in device-seconds of the present flavor: that is what a move costs."""
    saved = (here.step_s * here.price - step_s * price) / here.price
    devices = here.job.devices
    now, then = (each * devices / 3600 for each in (here.step_s * here.price, step_s * price))
    speed = why or f"{here.step_s / step_s:.0%} of the speed"
    reason = f"{here.flavor} -> {flavor}: {then:.3g} instead of {now:.3g} for a step; {speed}"
    return Proposal("migrate", here.job.key, reason[:290], here.steps * saved * devices, NAME, flavor=flavor)


def _alternatives(queue: Queue, here: _Here) -> list[str]:
    """Flavors that cover all that the job uses, of the resource groups that gave it its present one."""
    used = here.job.given.usage if here.job.given is not None else {}
    for group in queue.groups:
        if here.flavor in group.flavors and {*used} <= {*group.covered}:
            return [flavor for flavor in group.flavors if flavor != here.flavor]
    return []


def _has_room(free: Room, job: Job, flavor: str) -> bool:
    assert job.given is not None
    need: dict[tuple[str, str], Fraction] = {(flavor, r): amount for r, amount in job.given.usage.items()}
    return all(amount <= free.get(key, NONE) for key, amount in need.items())
