"""Regrowth: is there quota for more workers, or on an earlier flavor, for a job that was shrunk or moved? Pure.

Kueue never moves an admitted Workload to a better place. A request to evict and admit again costs a checkpoint and a
restart. So it is proposed only when, as far as quotas tell, the better admission is certain. Also nobody else may
wait for that quota, and no move may have failed just before.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ...contract.record_types import AttemptRecord
from .. import free as quotas
from .. import measure, quota
from ..free import Room
from ..job import Job, Workload
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE
from . import defragmentation

NAME = "regrow"
NOTE = "quota is free again"
"""Every message and note of a regrowth starts with this."""
FRUITLESS_BACKOFF_S = 60.0
FRUITLESS_MAX_S = 3600.0


def propose(snapshot: ClusterSnapshot, enabled: bool, min_run_s: float) -> list[Proposal]:
    """`enabled` False: only for jobs whose owners have asked for another size or place, and wait for it.

    :param min_run_s: the useful minimum, seconds; at least what a move of the job takes. It grows with every move in
        vain
    """
    by_queue: dict[str, list[Job]] = {}
    for job in snapshot.jobs.values():
        if job.kind == "Job" and job.given is not None and (enabled or job.asks_for_change):
            queue = snapshot.queue_of(job)
            if queue is not None and job.workload is not None and not snapshot.stopped(job.workload):
                by_queue.setdefault(queue.name, []).append(job)
    found: list[Proposal] = []
    for name in sorted(by_queue):
        found += _of_queue(snapshot, snapshot.queues[name], by_queue[name], min_run_s)
    return found


def _of_queue(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job], min_run_s: float) -> list[Proposal]:
    if any(w.leaves for w in quotas.holders(snapshot, queue)):
        return []  # quota is about to change hands
    if any(_about_to_take(job) for job in snapshot.changing.get(queue.pool, ())):
        return []
    free = quotas.placeable(snapshot, quotas.room(snapshot, queue))
    goals = [(job, goal) for job in sorted(jobs, key=_rank) if job.trains and (goal := _goal(queue, free, job))]
    if not goals:
        return []  # as it is nearly always: who waits need not be looked at
    pending = [w for w in quotas.waiting(snapshot, queue) if quotas.served_one_day(snapshot, w)]
    found = []
    for job, goal in goals:
        if any(_competes(snapshot, w, job) for w in pending):
            continue
        # A user who asks for more does not wait for the useful minimum. But after moves in vain, users wait, too.
        useful = 0.0 if job.asks_for_change else max(min_run_s, measure.move_s(job))
        patience = _patience(job.attempts, useful)
        assert job.runs_since is not None
        found.append(
            Proposal(
                "readmit", job.key, f"{NOTE}: {goal}", _gain(job, snapshot.now), NAME,
                not_before=job.runs_since + patience, asked=job.asks_for_change,
            )
        )  # fmt: skip
    return found


def _gain(job: Job, now: float) -> float:
    """Device-seconds, at its present size, that the move is worth.

    More workers are expected to share the work that is left evenly. How much faster an earlier flavor is nobody has
    said: the platform prefers it for all the time that is left.
    """
    assert job.given is not None
    saved = 1.0 - job.given.count / job.wanted if job.given.count < job.wanted else 1.0
    return measure.left_s(job, now) * saved * job.devices


def _about_to_take(job: Job) -> bool:
    """Whether it is about to stop, and to come back with quota that still looks free."""
    given, change = job.given, job.change
    if not job.on_the_move or given is None or change is None:
        return False
    elsewhere = bool(job.flavors) and given.flavor not in job.flavors
    return change.state == "asked" or given.count < job.wanted or elsewhere


def _rank(job: Job) -> tuple[int, float, str]:
    assert job.workload is not None
    return -job.workload.priority, job.workload.created, job.workload.name


def _patience(history: Sequence[AttemptRecord], min_run_s: float) -> float:
    """Seconds to run before a move; doubles with every move after which the job came back where it was."""
    current, vain = history[-1], 0
    for earlier in reversed(history[:-1]):
        moved = earlier.readmitted_for == "regrow"
        if not moved or (earlier.pods, earlier.flavor) != (current.pods, current.flavor):
            break
        vain += 1
    if vain == 0:
        return min_run_s
    longer = max(min_run_s, FRUITLESS_BACKOFF_S) * 2.0 ** min(vain - 1, 30)
    return min(longer, max(FRUITLESS_MAX_S, min_run_s))


def _goal(queue: Queue, free: Room, job: Job) -> str | None:
    """Words for the better admission that Kueue would give now, None if there is none."""
    given = job.given
    if given is None or given.count < 1 or job.workload is None:
        return None
    if job.topology and not job.asks_for_change:
        return None
    bound = job.node_selector and not job.asks_for_change
    if given.count >= job.wanted and all(
        given.flavors.get(r) in group.flavors[:1] for group in queue.groups for r in group.covered if r in given.usage
    ):
        return None  # all of it on the flavors that come first, as nearly every job has it
    own = job.workload.holds or {}
    earlier, names = False, []
    for group in queue.groups:
        used = [r for r in group.covered if r in given.usage]
        if not used:
            continue
        current = given.flavors.get(used[0], "")
        if current not in group.flavors:
            return None
        place = group.flavors.index(current)
        for flavor in group.flavors[: place + 1]:
            if (job.flavors and flavor not in job.flavors) or (bound and flavor != current):
                continue
            need = {(flavor, r): given.usage[r] * Fraction(job.wanted, given.count) for r in used}
            if all(amount <= free.get(key, NONE) + own.get(key, NONE) for key, amount in need.items()):
                earlier = earlier or flavor != current
                names.append(flavor)
                break
        else:
            return None
    if not names or not (given.count < job.wanted or earlier):
        return None
    return f"{given.count} -> {job.wanted} workers on {', '.join(dict.fromkeys(names))}"


def _competes(snapshot: ClusterSnapshot, pending: Workload, job: Job) -> bool:
    """Whether a waiting Workload would take the quota that the job gives up or hopes for.

    One that is entitled to it comes first, unless its priority is lower; likewise one that the job may have made room
    for. Any other counts only if Kueue would admit it during the move.
    """
    assert job.workload is not None
    if pending.priority >= job.workload.priority and (_made_room(job) or quotas.entitled(snapshot, pending)):
        return True
    groups = snapshot.queues[pending.queue].groups
    return quota.fits(pending.asks, groups, quotas.with_own(snapshot.spare[pending.queue], job.workload.holds or {}))


def _made_room(job: Job) -> bool:
    """Whether it was moved last so that others find room where it was."""
    return job.change is not None and job.change.policy == defragmentation.NAME
