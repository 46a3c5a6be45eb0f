"""One look at one Job: which single action, if any, is due now? Pure; the order below is the order of importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord

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
    """`pods` are all pods of the Job, whatever their attempt. Never raises for what a user can write into objects."""
    preemptor = _preemptor(workload, name_of)
    if workload is not None and fence.asks(workload, settings.check_name):
        return fence.decide(job, workload, pods, preemptor, now)
    if not views.managed(job) or job["metadata"].get("deletionTimestamp"):
        return Decision()
    running = not views.suspended(job) and not views.failing(job)
    # Kueue suspends the Job of a deleted Workload too, and keeps its quota until that succeeds.
    leaves = workload is not None and (is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"])
    if workload is not None and running and leaves and views.hold(job) == names.HOLD_ARMED:
        return hold.decide(job, workload, pods, preemptor, now, settings)
    try:
        changed = _bookkeeping(job, workload, preemptor, now)
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


def _bookkeeping(job: Object, workload: Object | None, preemptor: str | None, now: float) -> Action | None:
    history = views.history(job)
    record = records.last(history)
    if record is None:
        return None
    seen = records.observe(record, job, workload, preemptor, now)
    return None if seen == record else RecordHistory(records.stored(records.with_last(history, seen)))


def _broken(job: Object, workload: Object, pods: Sequence[Object], settings: Settings) -> Action | None:
    """A training attempt lives and dies as a whole. When Kueue has not ended it but pods are gone, ask Kueue to."""
    state = views.check(workload, settings.check_name)
    history = views.history(job)
    record = records.last(history)
    if record is None or state is None or state.get("state") != "Ready" or not is_true(workload, "Admitted"):
        return None
    cause = None
    own = views.of_attempt(pods, record.attempt)
    latest = _latest_start(own, record)
    if record.checkpoint is not None:
        cause = f"attempt {record.attempt} stopped with checkpoint {record.checkpoint}, not on Kueue's request"
    for pod in own if cause is None else ():
        name = pod["metadata"]["name"]
        counted = views.TRACKING_FINALIZER not in (pod["metadata"].get("finalizers") or ())
        # Until the Job controller has counted a failed pod, it may still decide that the whole Job has failed.
        if views.phase(pod) == "Failed" and counted:
            cause = f"pod {name} of attempt {record.attempt} was lost"
        elif views.created(pod) > latest:
            cause = f"pod {name} replaces a lost one of attempt {record.attempt}"
    if cause is None:
        return None
    message = f"{cause}; {records.restart_point(views.checkpoint(job))}"
    seen = records.noted(replace(record, ended_by=record.ended_by or "Deleted"), message)
    change = records.stored(records.with_last(history, seen))
    if views.hold(job) is not None:
        change[names.ANN_HOLD] = names.HOLD_RELEASED
    return RequestReadmission(change, message=message)


def _latest_start(pods: Sequence[Object], record: AttemptRecord) -> float:
    """Unix seconds until which a pod of the attempt can have been created at its start: later ones are replacements.

    The Job controller makes all pods in one go, some 20 a second. Creation times have whole seconds.
    """
    together = min(map(views.created, pods), default=record.admitted_at) + 5 + record.pods / 10
    return together if record.first_step_at is None else min(together, record.first_step_at + 1)
