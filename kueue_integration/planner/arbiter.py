"""The arbiter: which proposals are carried out now, and why the others are not.

Its limits hold whatever policies propose. A job moves only after it has trained for a useful time, and only if the
gain exceeds what the move costs. It moves at most so many times an hour. A tenant has a budget of moves an hour. One
move of a job is under way at most, none beside a request, and one move starts in a cohort per look, unless what the
jobs run on is about to go.

What counts as a move, and by which clock, is in `recent_moves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from . import free, measure
from .job import Job, JobKey
from .model import ClusterSnapshot
from .proposals import Proposal, moves
from .recent_moves import SETTLE_S, Move, RecentMoves

ASK_AGAIN_S: Final = 60.0
"""Seconds after a request of the planner has failed before the next one of the same kind."""


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    min_run_s: float = 300.0
    """A job has trained so long since its last start before it is moved."""
    moves_per_hour: int | None = 4
    """Of one job. Moves that users have asked for count, and wait for no limit."""
    tenant_moves_per_hour: int | None = 20
    """Of all jobs of one namespace together."""


@dataclass(frozen=True)
class Terms:
    """What holds for the proposals of one policy."""

    limits: Limits = field(default_factory=Limits)
    weigh: bool = True
    """A move has to gain more device-seconds than it costs."""
    only_held: bool = True
    """Jobs whose hold is off are left alone: a move could lose steps."""


@dataclass(frozen=True)
class Ruling:
    """What the arbiter says to a proposal."""

    proposal: Proposal
    allowed: bool
    why: str
    """For people: what it costs, or why it is not done now."""
    wait_s: float | None = None
    """Seconds until another look is worthwhile though nothing has changed."""
    counted: bool = False
    """It counts as a move of the job."""
    settles: bool = False
    """The job was asked to move a moment ago, and what the snapshot shows may be from before."""
    quiet: bool = False
    """There is nothing to tell: another job of the same policy is first, or the policy itself waits."""


class Arbiter:
    """`terms` by policy; policies that come first win against later ones. Not thread-safe."""

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self._terms = terms
        self._rank = {policy: number for number, policy in enumerate(terms)}
        self._recent = RecentMoves()

    def rule(self, snapshot: ClusterSnapshot, proposals: Iterable[Proposal], clock: float) -> list[Ruling]:
        """One ruling for each of `proposals`, which make sense. `clock`: monotonic seconds.

        What is allowed counts as done; `undo` takes that back.
        """
        self._recent.observe(snapshot, clock)
        asked = sorted(proposals, key=lambda p: (self._rank[p.policy], not p.asked))
        moved = self._recent.moves(snapshot) if asked else {}
        rulings: list[Ruling] = []
        first: dict[JobKey, Proposal] = {}
        pools: dict[str, Proposal] = {}
        for proposal in asked:
            job = snapshot.jobs[proposal.job]
            ruling = self._lost(proposal, job, first, pools, snapshot)
            ruling = ruling or self._ruled(proposal, job, snapshot, moved, clock)
            if ruling.allowed:
                first[proposal.job] = proposal
            if ruling.allowed and moves(proposal, job):
                ruling = replace(ruling, counted=True)
                pools[_pool(snapshot, job)] = proposal
                self._recent.enter(job, clock)
                moved.setdefault(job.key[0], set()).add((job.uid, job.attempt))
            if ruling.settles:  # what it takes looks free still: nobody else may count on that
                pools.setdefault(_pool(snapshot, job), proposal)
            rulings.append(ruling)
        return rulings

    def undo(self, ruling: Ruling) -> None:
        """What was allowed could not be done: it does not count."""
        if ruling.counted:
            self._recent.strike(ruling.proposal.job)

    # --- what comes first -----------------------------------------------------------------------------------------
    @staticmethod
    def _lost(
        proposal: Proposal,
        job: Job,
        first: Mapping[JobKey, Proposal],
        pools: Mapping[str, Proposal],
        snapshot: ClusterSnapshot,
    ) -> Ruling | None:
        """Another proposal was allowed in its place."""
        winner = first.get(proposal.job)
        if winner is not None:
            return Ruling(proposal, False, f"policy {winner.policy} comes first for this job ({winner.action})")
        waits = moves(proposal, job) and not proposal.urgent
        other = pools.get(_pool(snapshot, job)) if waits else None
        if other is not None:
            where = f"{_pool(snapshot, job)} has one move at a time: {'/'.join(other.job)} ({other.policy}) is first"
            return Ruling(proposal, False, where, quiet=other.policy == proposal.policy)
        return None

    # --- limits ---------------------------------------------------------------------------------------------------
    def _ruled(
        self, proposal: Proposal, job: Job, snapshot: ClusterSnapshot, moved: Mapping[str, set[Move]], clock: float
    ) -> Ruling:
        terms = self._terms[proposal.policy]
        busy = job.busy
        if busy is not None and not (proposal.asked and busy is job.change):
            by = f" by {busy.by}" if busy.by else ""
            return Ruling(proposal, False, f"a request{by} is under way: {busy.op}")
        early = proposal.not_before - snapshot.now
        if early > 0:
            return Ruling(proposal, False, f"the policy waits {early:.0f} s", early, quiet=True)
        failed = _failed_before(proposal, job, snapshot.now)
        if failed is not None:
            return failed
        stops = moves(proposal, job)
        if (stops or proposal.action == "checkpoint") and not _movable(job):
            return Ruling(proposal, False, "it does not train now")
        if not stops:
            return Ruling(proposal, True, "nothing has to stop for it")
        if job.workload is not None and snapshot.stopped(job.workload):
            return Ruling(proposal, False, "its queue is stopped: it would not come back")
        held_back = self._held_back(proposal, job, terms, snapshot.now, moved, clock)
        if held_back is not None:
            return held_back
        idle = self._in_vain(proposal, job, snapshot, clock) if terms.weigh and not proposal.asked else ""
        if idle:
            return Ruling(proposal, False, idle)
        price = measure.cost(job)
        if terms.weigh and not proposal.asked and proposal.gain_device_seconds <= price:
            why = f"costs {price:.0f} device-seconds, and gains {proposal.gain_device_seconds:.0f}"
            return Ruling(proposal, False, why)
        if proposal.helps is not None:
            in_vain = self._held_back(proposal, snapshot.jobs[proposal.helps], terms, snapshot.now, moved, clock)
            if in_vain is not None:
                return replace(in_vain, why=f"is for {'/'.join(proposal.helps)}: {in_vain.why}", settles=False)
        return Ruling(proposal, True, f"costs about {price:.0f} device-seconds")

    def _in_vain(self, proposal: Proposal, job: Job, snapshot: ClusterSnapshot, clock: float) -> str:
        """Why nobody gains by a move of the job, "" if somebody may. What a tree of cohorts holds is not known.

        A lower priority stops nobody by itself, so when the job ends does not count for that.
        """
        queue = snapshot.queue_of(job)
        ends_s = measure.ends_s(job) if proposal.action != "priority" else None
        if queue is not None and queue.cohort not in snapshot.nested:
            assert job.workload is not None
            if not free.served_one_day(snapshot, job.workload):
                return f"it would not come back: ClusterQueue {queue.name} can never hold what it asks for"
        if ends_s is not None and ends_s <= measure.back_s(job) and self._recent.believes(job, ends_s, clock):
            return f"it ends by itself in about {ends_s:.0f} s, before it would be back"
        return ""

    def _held_back(
        self, proposal: Proposal, job: Job, terms: Terms, now: float, moved: Mapping[str, set[Move]], clock: float
    ) -> Ruling | None:
        """By the limits of `job`. `moved`: by namespace, the moves within an hour."""
        again = self._recent.settles(job, now, clock)
        if again > 0:
            return Ruling(proposal, False, f"attempt {job.attempt} was asked to move already", again, settles=True)
        if job.leaving:
            return Ruling(proposal, False, f"is about to leave already: {job.leaving}", settles=True)
        # What somebody has asked for is tried: whoever asks gets the reason.
        if job.unsaved and not proposal.asked:
            return Ruling(proposal, False, f"is left alone until it could be saved: {job.unsaved}")
        limits = terms.limits
        if terms.only_held and not job.held:
            return Ruling(proposal, False, "its hold is off: it would lose steps")
        short = 0.0 if proposal.asked else limits.min_run_s - self._recent.trained(job, now, clock)
        if short > 0:
            return Ruling(proposal, False, f"has to train {limits.min_run_s:g} s before it is moved", short)
        of_tenant = moved.get(job.key[0], set())
        own = sum(uid == job.uid for uid, _ in of_tenant)
        if proposal.asked:  # it counts for the others, and waits for no budget
            limits = Limits(0.0, None, None)
        if limits.moves_per_hour is not None and own >= limits.moves_per_hour:
            return Ruling(proposal, False, f"was moved {own} times within an hour, the limit", SETTLE_S)
        if limits.tenant_moves_per_hour is not None and len(of_tenant) >= limits.tenant_moves_per_hour:
            why = f"jobs of namespace {job.key[0]} were moved {len(of_tenant)} times within an hour, the budget"
            return Ruling(proposal, False, why, SETTLE_S)
        return None


def _movable(job: Job) -> bool:
    return job.trains and job.workload is not None and not job.workload.leaves


def _failed_before(proposal: Proposal, job: Job, now: float) -> Ruling | None:
    """A request of the planner that has just failed is not made again at once."""
    for request in (job.change, job.save):
        if request is None or request.state != "failed" or request.op != proposal.action or not request.policy:
            continue
        left = request.at + ASK_AGAIN_S - now
        if 0 < left <= ASK_AGAIN_S:
            return Ruling(proposal, False, f"its last request failed: {request.op}", left)
    return None


def _pool(snapshot: ClusterSnapshot, job: Job) -> str:
    queue = snapshot.queue_of(job)
    return f"namespace {job.key[0]}" if queue is None else queue.pool
