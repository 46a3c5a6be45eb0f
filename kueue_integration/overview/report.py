"""`overview`: one look at the cluster as a report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..errors import RequestRefusedError
from ..jobs.queue_position import Position
from . import goodput, moves, quota
from . import shares as device_time
from .goodput import Goodput
from .model import Claim, Cluster, Key, Step, Training, Unreadable

UNKNOWN = ""
"""ClusterQueue of what waits in a LocalQueue that may not be read, or is not there."""


@dataclass(frozen=True)
class QueueLine:
    """A ClusterQueue: Workloads that hold its quota, and those that wait for it."""

    name: str
    cohort: str
    trouble: str
    holds: int
    waits: int
    goodput: Goodput


@dataclass(frozen=True)
class Tenant:
    """A namespace, likewise, and the quota that it holds in all queues."""

    namespace: str
    holds: int
    waits: int
    quota: Mapping[Key, Fraction]
    goodput: Goodput


@dataclass(frozen=True)
class Holder:
    """A Workload that holds quota."""

    claim: Claim
    held_s: float | None
    gpu_utilisation: float | None
    """Percent, of its current attempt; None where that has not recorded it."""
    attempt: int | None = None
    """Number of its current attempt; None where no record is, as of Workloads that are not ours."""


@dataclass(frozen=True)
class Waiter:
    """A Workload that waits for quota, or for somebody to activate it."""

    claim: Claim
    cluster_queue: str
    place: Position | None
    waited_s: float | None


@dataclass(frozen=True)
class Unsaveable:
    """A job whose last checkpoint or trial has failed: who stops it now loses its work."""

    namespace: str
    job: str
    attempt: int
    at: float | None
    cause: str
    why: str


@dataclass(frozen=True)
class Overview:
    """The report. Amounts are exact; seconds of `Goodput` are pod-seconds."""

    at: float
    lines: Sequence[quota.Line]
    queues: Sequence[QueueLine]
    tenants: Sequence[Tenant]
    holders: Sequence[Holder]
    waiters: Sequence[Waiter]
    goodput: Goodput
    shares: device_time.Shares
    """Promised and delivered, within the platform's window."""
    unsaveable: Sequence[Unsaveable]
    """Live jobs, the longest known first."""
    preemptions: Sequence[moves.Preemption]
    """Of the last day, the newest first."""
    steps: Sequence[Step]
    """Of the planner, newest first."""
    notes: Sequence[str]
    """What could not be asked, and which right is missing."""
    unreadable: Sequence[Unreadable]


def overview(cluster: Cluster, queue: str | None = None) -> Overview:
    """`queue` restricts it to a ClusterQueue, or to a LocalQueue and its ClusterQueue.

    Raises RequestRefusedError: there is no such queue.
    """
    chosen = _chosen(cluster, queue)
    claims = [c for c in cluster.claims or () if _in(queue, c.local_queue, _queue_of(cluster, c))]
    holding = sorted((c for c in claims if c.holds is not None), key=_order)
    waiting = [_waiter(cluster, c) for c in claims if c.holds is None]
    waiting.sort(key=lambda w: (w.cluster_queue, *_turn(w)))
    spent = _spent(cluster, queue)
    lines = quota.lines(cluster.queues or (), cluster.cohorts, _usage(cluster))
    shown = [job for job, _, _ in spent]
    return Overview(
        at=cluster.at,
        lines=lines if chosen is None else _with_cohorts(lines, chosen),
        queues=_queues(cluster, chosen, holding, waiting, spent),
        tenants=_tenants(holding, waiting, spent),
        holders=_holders(cluster, holding),
        waiters=waiting,
        goodput=_sum(done for _, _, done in spent),
        shares=device_time.shares(cluster, only=shown),
        unsaveable=_unsaveable(shown),
        preemptions=moves.preemptions(shown, cluster.at),
        steps=sorted(_steps(cluster, queue, claims), key=lambda step: (-step.at, step.namespace, step.job)),
        notes=cluster.notes,
        unreadable=cluster.unreadable,
    )


def trainings(cluster: Cluster, queue: str | None = None) -> list[Training]:
    """Training jobs in the filter, as `overview` has it. Raises RequestRefusedError: there is no such queue."""
    _chosen(cluster, queue)
    return [job for job, _, _ in _spent(cluster, queue)]


# --- filters --------------------------------------------------------------------------------------------------------
def _chosen(cluster: Cluster, queue: str | None) -> set[str] | None:
    """Names of the ClusterQueues that are shown, None for all."""
    if queue is None:
        return None
    local = {target for (_, name), target in (cluster.local_queues or {}).items() if name == queue}
    own = {q.name for q in cluster.queues or ()}
    found = local | ({queue} & own)
    if not found and cluster.queues is not None and cluster.local_queues is not None:
        there = sorted(own | {name for _, name in cluster.local_queues})
        some = ", ".join(there[:10]) + (" and more" if len(there) > 10 else "")
        problem = f"there is no ClusterQueue and no LocalQueue of this name; there are {some or 'none at all'}"
        raise RequestRefusedError(("queue", queue, problem))
    return found or {queue}


def _in(queue: str | None, local: str, cluster_queue: str) -> bool:
    return queue is None or queue in (local, cluster_queue)


def _with_cohorts(lines: Sequence[quota.Line], chosen: set[str]) -> list[quota.Line]:
    """Lines of the chosen queues and of the cohorts above them, in these flavors and resources."""
    above = {(line.scope, line.name): line.cohort for line in lines}
    shown: set[tuple[str, str, str, str]] = set()
    for line in lines:
        if line.scope == "queue" and line.name in chosen:
            shown.add(("queue", line.name, line.flavor, line.resource))
            cohort = line.cohort
            while cohort:
                shown.add(("cohort", cohort, line.flavor, line.resource))
                cohort = above.get(("cohort", cohort), "")
    return [line for line in lines if (line.scope, line.name, line.flavor, line.resource) in shown]


def _steps(cluster: Cluster, queue: str | None, claims: Sequence[Claim]) -> list[Step]:
    """With a queue those of its jobs only."""
    jobs = {(claim.namespace, claim.owner) for claim in claims}
    return [step for step in cluster.steps if queue is None or (step.namespace, step.job) in jobs]


# --- who holds, who waits -------------------------------------------------------------------------------------------
def _queue_of(cluster: Cluster, claim: Claim) -> str:
    return claim.cluster_queue or (cluster.local_queues or {}).get((claim.namespace, claim.local_queue), UNKNOWN)


def _order(claim: Claim) -> tuple[str, int, str, str]:
    return claim.cluster_queue, -claim.priority, claim.namespace, claim.owner


def _turn(waiter: Waiter) -> tuple[bool, int, int, float, str]:
    """In the order of the queue as Kueue tells it, else as it would be without evictions; inactive ones last."""
    claim, place = waiter.claim, waiter.place
    first = place.cluster_queue_place if place else 10**9
    return not claim.active, first, -claim.priority, -(waiter.waited_s or 0.0), claim.name


def _waiter(cluster: Cluster, claim: Claim) -> Waiter:
    place = cluster.places.get((claim.namespace, claim.name))
    return Waiter(claim, _queue_of(cluster, claim), place, _ago(cluster, claim))


def _holders(cluster: Cluster, holding: Sequence[Claim]) -> list[Holder]:
    last = {job.uid: job.attempts[-1] for job in cluster.trainings or () if job.attempts}
    found = []
    for claim in holding:
        record = last.get(claim.uid) if claim.training else None
        busy = record.gpus.utilisation if record is not None and record.gpus is not None else None
        found.append(Holder(claim, _ago(cluster, claim), busy, None if record is None else record.attempt))
    return found


def _unsaveable(jobs: Iterable[Training]) -> list[Unsaveable]:
    found = [
        Unsaveable(job.namespace, job.name, seen.attempt, seen.at, seen.cause, seen.why)
        for job in jobs
        if job.ended is None and (seen := job.saveable) is not None and seen.verdict == "no"
    ]
    return sorted(found, key=lambda one: (one.at or 0.0, one.namespace, one.job))


def _ago(cluster: Cluster, claim: Claim) -> float | None:
    return None if claim.since is None else max(0.0, cluster.at - claim.since)


# --- sums -----------------------------------------------------------------------------------------------------------
def _usage(cluster: Cluster) -> dict[str, dict[Key, quota.Usage]]:
    """By ClusterQueue. Kueue's own account fills in for Workloads that were not asked for."""
    held: dict[tuple[str, bool], dict[Key, Fraction]] = {}
    for claim in cluster.claims or ():
        sums = held.setdefault((claim.cluster_queue, claim.training), {})
        for key, amount in (claim.holds or {}).items():
            sums[key] = sums.get(key, quota.NONE) + amount
    complete = cluster.claims is not None and cluster.namespace is None
    return {
        q.name: quota.used(q.reported, held.get((q.name, True), {}), held.get((q.name, False), {}), complete)
        for q in cluster.queues or ()
    }


def _spent(cluster: Cluster, queue: str | None) -> list[tuple[Training, str, Goodput]]:
    """(job, ClusterQueue, goodput) of each training job in the filter."""
    by_uid = {claim.uid: claim for claim in cluster.claims or () if claim.training}
    found = []
    for job in cluster.trainings or ():
        claim = by_uid.get(job.uid)
        place = (cluster.local_queues or {}).get((job.namespace, job.local_queue), UNKNOWN)
        where = (claim.cluster_queue if claim else "") or place
        if _in(queue, job.local_queue, where):
            found.append((job, where, _of_job(cluster, job, claim)))
    return found


def _of_job(cluster: Cluster, job: Training, claim: Claim | None) -> Goodput:
    last = job.attempts[-1] if job.attempts else None
    # Without the right to see Workloads the record alone says whether the attempt has ended.
    holds = last is not None and last.ended_by is None if cluster.claims is None else bool(claim and claim.holds)
    done = goodput.of_history(job.attempts, cluster.at, holds, job.stepless, job.lost)
    waits = claim is not None and claim.holds is None and claim.active
    now = (_ago(cluster, claim) or 0.0) if claim is not None and waits else 0.0
    return done + Goodput(waited_s=now * max(1, job.workers))


def _sum(parts: Iterable[Goodput]) -> Goodput:
    return sum(parts, Goodput())


def _queues(
    cluster: Cluster,
    chosen: set[str] | None,
    holding: Sequence[Claim],
    waiting: Sequence[Waiter],
    spent: Sequence[tuple[Training, str, Goodput]],
) -> list[QueueLine]:
    known = {q.name: q for q in cluster.queues or ()}
    holds, waits = Counter(c.cluster_queue for c in holding), Counter(w.cluster_queue for w in waiting)
    done = _by((where, each) for _, where, each in spent)
    return [
        QueueLine(
            name=name,
            cohort=known[name].cohort if name in known else "",
            trouble=known[name].trouble if name in known else "",
            holds=holds[name],
            waits=waits[name],
            goodput=done.get(name, Goodput()),
        )
        for name in sorted({*known, *holds, *waits, *done})
        if chosen is None or name in chosen
    ]


def _tenants(
    holding: Sequence[Claim], waiting: Sequence[Waiter], spent: Sequence[tuple[Training, str, Goodput]]
) -> list[Tenant]:
    holds, waits = Counter(c.namespace for c in holding), Counter(w.claim.namespace for w in waiting)
    done = _by((job.namespace, each) for job, _, each in spent)
    held: dict[str, dict[Key, Fraction]] = {}
    for claim in holding:
        sums = held.setdefault(claim.namespace, {})
        for key, amount in (claim.holds or {}).items():
            sums[key] = sums.get(key, quota.NONE) + amount
    return [
        Tenant(name, holds[name], waits[name], held.get(name, {}), done.get(name, Goodput()))
        for name in sorted({*holds, *waits, *done})
    ]


def _by(parts: Iterable[tuple[str, Goodput]]) -> dict[str, Goodput]:
    found: dict[str, Goodput] = {}
    for name, done in parts:
        found[name] = found.get(name, Goodput()) + done
    return found
