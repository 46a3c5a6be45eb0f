"""One look at one Job: which single action, if any, is due now? Pure; the order below is the order of importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.protocol import names

from ..resources import Object, is_true
from . import fence, hold, records, views
from .actions import Action, Decision, RecordHistory, RequestReadmission
from .errors import BadAnnotationError
from .hold import Settings

NameOf = Callable[[str], "str | None"]
"""Name of the Workload with this UID, or of the Workload of the Job with this UID."""


def decide(
    job: Object, workload: Object | None, pods: Sequence[Object], now: float, settings: Settings, name_of: NameOf
) -> Decision:
    """`pods` are all pods of the Job, whatever their attempt, those included that were seen to go away (phase Failed).

    `workload` None: the API server has none. Never raises for what a user can write into objects.
    """
    preemptor = _preemptor(workload, name_of)
    if workload is not None and fence.asks(workload, settings.check_name):
        return fence.decide(job, workload, pods, preemptor, now)
    if not views.managed(job) or job["metadata"].get("deletionTimestamp"):
        return Decision()
    running = not views.suspended(job) and not views.failing(job)
    # Kueue suspends the Job of a deleted Workload too, and keeps its quota until that succeeds.
    leaves = workload is not None and (is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"])
    # A Workload that is gone without a trace (its finalizer was removed by hand): Kueue suspends such a Job as well.
    leaves = leaves or workload is None
    if running and leaves and views.hold(job) == names.HOLD_ARMED:
        return hold.decide(job, workload, pods, preemptor, now, settings)
    try:
        changed = _bookkeeping(job, workload, pods, preemptor, now)
        if changed is not None:
            return Decision(changed)
        if workload is not None and running and not leaves:
            return Decision(_broken(job, workload, pods, settings))
    except BadAnnotationError:
        pass  # said at the fence, where it stops something
    return Decision()


def _preemptor(workload: Object | None, name_of: NameOf) -> str | None:
    uids = views.preemptor_uids(workload) if workload is not None else []
    return next((name for name in map(name_of, uids) if name), uids[0] if uids else None)


def _bookkeeping(
    job: Object, workload: Object | None, pods: Sequence[Object], preemptor: str | None, now: float
) -> Action | None:
    history = views.history(job)
    record = records.last(history)
    if record is None:
        return None
    seen = records.observe(record, job, workload, preemptor, now)
    change = records.roster(job, seen, pods)
    if seen != record:
        change.update(records.stored(records.with_last(history, seen)))
    return RecordHistory(change) if change else None


def _broken(job: Object, workload: Object, pods: Sequence[Object], settings: Settings) -> Action | None:
    """A training attempt lives and dies as a whole. When Kueue has not ended it but pods are gone, ask Kueue to."""
    state = views.check(workload, settings.check_name)
    history = views.history(job)
    record = records.last(history)
    if record is None or state is None or state.get("state") != "Ready" or not is_true(workload, "Admitted"):
        return None
    cause = None
    own = views.of_attempt(pods, record.attempt)
    roster = views.roster(job, record.attempt)
    firsts: dict[int | None, Object] = {}
    for pod in sorted(own, key=views.created, reverse=True):
        firsts[views.pod_index(pod)] = pod
    if record.checkpoint is not None:
        cause = f"attempt {record.attempt} stopped with checkpoint {record.checkpoint}, not on Kueue's request"
    for pod in own if cause is None else ():
        name = pod["metadata"]["name"]
        counted = views.TRACKING_FINALIZER not in (pod["metadata"].get("finalizers") or ())
        # Until the Job controller has counted a failed pod, it may still decide that the whole Job has failed.
        if views.phase(pod) == "Failed" and counted:
            cause = f"pod {name} of attempt {record.attempt} was lost"
        elif firsts[views.pod_index(pod)] is not pod or (roster is not None and views.short_uid(pod) not in roster):
            cause = f"pod {name} replaces a lost one of attempt {record.attempt}"
    if cause is None:
        return None
    message = f"{cause}; {records.restart_point(views.checkpoint(job))}"
    seen = records.noted(replace(record, ended_by=record.ended_by or "Deleted"), message)
    change = records.stored(records.with_last(history, seen))
    if views.hold(job) is not None:
        change[names.ANN_HOLD] = names.HOLD_RELEASED
    return RequestReadmission(change, message=message)
