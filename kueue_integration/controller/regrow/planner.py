"""Regrowth: is there quota for more workers, or on an earlier flavor, for a Job that was shrunk or moved? Pure.

Kueue never moves an admitted Workload to a better place. A request to evict and admit again costs a checkpoint and a
restart. So the planner makes it only when, as far as quotas tell, the better admission is certain. Also nobody else may
wait for that quota, and no move may have failed just before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.protocol.messages import AttemptRecord

from ...contract import attempt_records as job_records
from ...kube import quantities
from ...kube.resources import Object, is_true
from ...manifests.pod_placement import asks_for_topology
from .. import attempt_history
from ..actions import BOTH, RequestReadmission
from ..snapshot import Job, Pod, Workload, of_attempt, required
from . import quota

NOTE = "quota is free again"
"""Every message and note of a regrowth starts with this."""
FRUITLESS_BACKOFF_S = 60.0
FRUITLESS_MAX_S = 3600.0


@dataclass(frozen=True)
class Candidate:
    """A managed Job that runs and might run better."""

    job: Job
    workload: Workload
    pods: Sequence[Pod]

    @property
    def history(self) -> Sequence[AttemptRecord]:
        """Raises BadAnnotationError."""
        return required(self.job.history)


@dataclass(frozen=True)
class Plan:
    candidate: Candidate | None = None
    action: RequestReadmission | None = None
    wake_at: float | None = None
    """Unix seconds at which another look is worthwhile though nothing changed."""


def plan(queues: quota.Queues, candidates: Sequence[Candidate], now: float, min_run_s: float) -> Plan:
    """At most one readmission for the whole cohort: two at once would count the same free quota twice."""
    wake: list[float] = []
    if any(_leaves(w) for w in queues.reserved):
        return Plan()  # quota is about to change hands
    free = quota.free(queues)
    for candidate in sorted(candidates, key=_rank):
        record = attempt_history.last(candidate.history)
        goal = _goal(queues.queue, free, candidate)
        since = job_records.trains_since(candidate.job.raw, record) if record is not None else None
        if record is None or since is None or goal is None or not _runs(candidate, record):
            continue
        if any(_competes(w, candidate, queues.queue, free) for w in queues.pending):
            continue
        # A user who asks for more does not wait for the useful minimum. But after moves in vain, users wait, too.
        patience = _patience(candidate.history, 0.0 if asked_to_grow(candidate) else min_run_s)
        due = since + patience
        if now < due:
            wake.append(due)
            continue
        message = f"{NOTE}: {goal}"
        history = attempt_history.with_last(candidate.history, attempt_history.readmitted(record, "regrow", message))
        action = RequestReadmission(attempt_history.stored(history), message=message, cause="regrow", guard=BOTH)
        return Plan(candidate, action)
    return Plan(wake_at=min(wake, default=None))


def asked_to_grow(candidate: Candidate) -> bool:
    """Whether a user has asked for another size or place, and waits for it."""
    found = candidate.job.changing
    return found is not None and found[0].op in ("resize", "migrate")


def _leaves(workload: Object) -> bool:
    """Whether the Workload is evicted, or about to be: a check says Retry and Kueue has not acted on it yet."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return is_true(workload, "Evicted") or any(c.get("state") in ("Retry", "Rejected") for c in checks)


def _priority(workload: Object) -> int:
    return int((workload.get("spec") or {}).get("priority") or 0)


def _rank(candidate: Candidate) -> tuple[int, float, str]:
    workload = candidate.workload
    return -_priority(workload.raw), workload.created, workload.name


def _runs(candidate: Candidate, record: AttemptRecord) -> bool:
    """All pods run and train: then the cost of a move is known, and we never interrupt a start."""
    running = [pod for pod in of_attempt(candidate.pods, record.attempt) if pod.phase == "Running"]
    alive = all(not pod.deleting for pod in running)
    return record.ended_by is None and alive and len(running) == record.pods


def _patience(history: Sequence[AttemptRecord], min_run_s: float) -> float:
    """Seconds to run before a move; doubles with every move after which the Job came back where it was."""
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


def _goal(queue: Object, free: quota.Amounts, candidate: Candidate) -> str | None:
    """Words for the better admission that Kueue would give now, None if there is none."""
    given = candidate.workload.admission
    if given is None or given.count < 1:
        return None
    wanted = required(candidate.job.workers_wanted)
    own = quota.usage(candidate.workload.raw)
    allowed = required(candidate.job.placement).flavors
    template = (candidate.workload.podset or {}).get("template") or {}
    asked = asked_to_grow(candidate)
    if asks_for_topology(template) and not asked:
        return None  # quotas do not tell whether a domain has room
    bound = bool((template.get("spec") or {}).get("nodeSelector")) and not asked
    earlier, names = False, []
    for group in quota.groups(queue):
        used = [r for r in group.covered if r in given.usage]
        if not used:
            continue
        current = given.flavors.get(used[0], "")
        if current not in group.flavors:
            return None
        place = group.flavors.index(current)
        for flavor in group.flavors[: place + 1]:
            if (allowed and flavor not in allowed) or (bound and flavor != current):
                continue
            need = {(flavor, r): quantities.parse(given.usage[r]) / given.count * wanted for r in used}
            if all(amount <= free.get(key, quota.NONE) + own.get(key, quota.NONE) for key, amount in need.items()):
                earlier = earlier or flavor != current
                names.append(flavor)
                break
        else:
            return None
    if not names or not (given.count < wanted or earlier):
        return None
    return f"{given.count} -> {wanted} workers on {', '.join(dict.fromkeys(names))}"


def _competes(pending: Object, candidate: Candidate, queue: Object, free: quota.Amounts) -> bool:
    """Whether a waiting Workload would take the quota that the candidate gives up or hopes for.

    A Workload that could never fit does not count: it would keep all jobs small for ever. A Workload of lower priority
    counts only if it fits into the quota that is free during the move.
    """
    wanted = quota.requests(pending)
    if not quota.fits(wanted, queue, quota.nominal(queue)):
        return False
    if _priority(pending) >= _priority(candidate.workload.raw):
        return True
    own = quota.usage(candidate.workload.raw)
    keys = set(free) | set(own)
    room = {key: free.get(key, quota.NONE) + own.get(key, quota.NONE) for key in keys}
    return quota.fits(wanted, queue, room)
