"""The arbiter: which proposals are carried out now, and why the others are not.

Its limits hold whatever policies propose. A job moves only after it has trained for a useful time, and only if the
gain exceeds what the move costs. It moves at most so many times an hour. A tenant has a budget of moves an hour. One
move of a job is under way at most, none beside a request, and one move starts in a cohort per look.

Two clocks count. The records of a job have the API server's time; they outlive this process. A move that is on its way
is on record too: by its request, or by the mark of a priority. What was done since this process started is also kept by
a monotonic clock, so a clock that jumps opens no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from proxy.protocol.messages import AttemptRecord

from . import measure
from .model import ClusterSnapshot, Job, JobKey
from .proposals import Proposal, moves

SETTLE_S: Final = 60.0
"""Seconds after a move was asked for in which the same attempt is not asked again: our copies may be behind."""
ASK_AGAIN_S: Final = 60.0
"""Seconds after a request of the planner has failed before the next one of the same kind."""


_STOPS: Final = ("migrate", "resize", "pause")
"""Requests of the planner for which a job stops."""
_Move = tuple[str, int]
"""UID of a job, and the attempt that ended by it."""


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    min_run_s: float = 300.0
    """A job has trained so long since its last start before it is moved."""
    moves_per_hour: int | None = 4
    """Of one job. Moves that users have asked for count."""
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


@dataclass(frozen=True)
class _Done:
    """A move that this process has begun."""

    key: JobKey
    uid: str
    attempt: int
    clock: float


class Arbiter:
    """`terms` by policy; policies that come first win against later ones. Not thread-safe."""

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self._terms = terms
        self._rank = {policy: number for number, policy in enumerate(terms)}
        self._done: list[_Done] = []
        self._since: dict[tuple[str, int], float] = {}
        """(UID, attempt) -> since when it trains, by the monotonic clock."""
        self._looked = False

    def rule(self, snapshot: ClusterSnapshot, proposals: Iterable[Proposal], clock: float) -> list[Ruling]:
        """One ruling for each of `proposals`, which make sense. `clock`: monotonic seconds.

        What is allowed counts as done; `undo` takes that back.
        """
        self._observe(snapshot, clock)
        asked = sorted(proposals, key=lambda p: (self._rank[p.policy], not p.asked))
        moved = self._moves(snapshot) if asked else {}
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
                self._done.append(_Done(proposal.job, job.uid, job.attempt, clock))
                moved.setdefault(job.key[0], set()).add((job.uid, job.attempt))
            rulings.append(ruling)
        return rulings

    def undo(self, ruling: Ruling) -> None:
        """What was allowed could not be done: it does not count."""
        found = [done for done in self._done if done.key == ruling.proposal.job]
        if ruling.counted and found:
            self._done.remove(found[-1])

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
        other = pools.get(_pool(snapshot, job)) if moves(proposal, job) else None
        if other is not None:
            where = f"{_pool(snapshot, job)} has one move at a time: {'/'.join(other.job)} ({other.policy}) is first"
            return Ruling(proposal, False, where)
        return None

    # --- limits ---------------------------------------------------------------------------------------------------
    def _ruled(
        self, proposal: Proposal, job: Job, snapshot: ClusterSnapshot, moved: Mapping[str, set[_Move]], clock: float
    ) -> Ruling:
        terms = self._terms[proposal.policy]
        busy = job.busy
        if busy is not None and not (proposal.asked and busy is job.change):
            by = f" by {busy.by}" if busy.by else ""
            return Ruling(proposal, False, f"a request{by} is under way: {busy.op}")
        early = proposal.not_before - snapshot.now
        if early > 0:
            return Ruling(proposal, False, f"the policy waits {early:.0f} s", early)
        failed = _failed_before(proposal, job, snapshot.now)
        if failed is not None:
            return failed
        stops = moves(proposal, job)
        if (stops or proposal.action == "checkpoint") and not _movable(job):
            return Ruling(proposal, False, "it does not train now")
        if not stops:
            return Ruling(proposal, True, "nothing has to stop for it")
        return self._weighed(proposal, job, terms, snapshot.now, moved.get(job.key[0], set()), clock)

    def _weighed(
        self, proposal: Proposal, job: Job, terms: Terms, now: float, moved: set[_Move], clock: float
    ) -> Ruling:
        """`moved`: the moves of its tenant within an hour."""
        again = self._settles(job, now, clock)
        if again > 0:
            return Ruling(proposal, False, f"attempt {job.attempt} was asked to move already", again)
        limits = terms.limits
        if terms.only_held and not job.held:
            return Ruling(proposal, False, "its hold is off: it would lose steps")
        short = 0.0 if proposal.asked else limits.min_run_s - self._trained(job, now, clock)
        if short > 0:
            return Ruling(proposal, False, f"has to train {limits.min_run_s:g} s before it is moved", short)
        own = sum(uid == job.uid for uid, _ in moved)
        if limits.moves_per_hour is not None and own >= limits.moves_per_hour:
            return Ruling(proposal, False, f"was moved {own} times within an hour, the limit", SETTLE_S)
        if limits.tenant_moves_per_hour is not None and len(moved) >= limits.tenant_moves_per_hour:
            why = f"jobs of namespace {job.key[0]} were moved {len(moved)} times within an hour, the budget"
            return Ruling(proposal, False, why, SETTLE_S)
        price = measure.cost(job)
        if terms.weigh and proposal.gain_device_seconds <= price:
            why = f"costs {price:.0f} device-seconds, and gains {proposal.gain_device_seconds:.0f}"
            return Ruling(proposal, False, why)
        return Ruling(proposal, True, f"costs about {price:.0f} device-seconds")

    def _settles(self, job: Job, now: float, clock: float) -> float:
        """Seconds left of SETTLE_S since this attempt was last asked to move, maybe by the process before this one."""
        ages = [clock - d.clock for d in self._done if (d.uid, d.attempt) == (job.uid, job.attempt)]
        ages += [max(0.0, now - job.lowered_at)] if job.lowered == job.attempt and job.attempt else []
        return SETTLE_S - min(ages, default=SETTLE_S)

    def _trained(self, job: Job, now: float, clock: float) -> float:
        """Seconds since the current attempt trains; as far as this process has seen it, by its own clock."""
        since = self._since.get((job.uid, job.attempt))
        if since is not None:
            return clock - since
        return now - (now if job.runs_since is None else job.runs_since)

    def _moves(self, snapshot: ClusterSnapshot) -> dict[str, set[_Move]]:
        """By namespace: moves within an hour by either clock, out of records and of what this process has begun."""
        found: dict[str, set[_Move]] = {}
        for done in self._done:
            found.setdefault(done.key[0], set()).add((done.uid, done.attempt))
        for job in snapshot.jobs.values():
            recent = {(job.uid, attempt) for attempt in _begun(job, snapshot.now)}
            if recent:
                found.setdefault(job.key[0], set()).update(recent)
        for ended in snapshot.ended:
            recent = {(ended.uid, r.attempt) for r in ended.attempts if recently_moved(r, snapshot.now)}
            if recent:
                found.setdefault(ended.namespace, set()).update(recent)
        return found

    def _observe(self, snapshot: ClusterSnapshot, clock: float) -> None:
        """Remember what trains since when, and forget what is over.

        Only at its first look has this process to believe the other clock. Later, what it sees for the first time has
        begun since the look before: it counts from now.
        """
        self._done = [d for d in self._done if clock - d.clock < measure.HOUR_S]
        seen = {}
        for job in snapshot.jobs.values():
            if job.runs_since is not None:
                key, age = (job.uid, job.attempt), max(0.0, snapshot.now - job.runs_since)
                seen[key] = self._since.get(key, clock if self._looked else clock - age)
        self._since, self._looked = seen, True


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


def recently_moved(record: AttemptRecord, now: float) -> bool:
    """Whether an attempt has ended within an hour because somebody wanted so. A time in the future counts."""
    ended = record.evicted_at if record.evicted_at is not None else record.admitted_at
    wanted = record.ended_by in measure.DELIBERATE or record.lowered_by is not None
    return wanted and ended > now - measure.HOUR_S


def _begun(job: Job, now: float) -> set[int]:
    """Attempts that a move has ended within an hour, or is about to end: another process may have begun it."""
    found = {record.attempt for record in job.attempts if recently_moved(record, now)}
    if job.change is not None and job.change.under_way and job.change.policy and job.change.op in _STOPS:
        found.add(job.change.attempt or job.attempt)
    if job.lowered and job.lowered_at > now - measure.HOUR_S:
        found.add(job.lowered)
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.readmitted_for == "regrow" and last.ended_by is None:
        found.add(last.attempt)
    return found


def _pool(snapshot: ClusterSnapshot, job: Job) -> str:
    queue = snapshot.queue_of(job)
    return f"namespace {job.key[0]}" if queue is None else queue.pool
