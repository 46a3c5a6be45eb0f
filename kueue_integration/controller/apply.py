"""Carries an Action out: the Job first, then the Workload, each with the version that the decision was made on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..contract import attempt_records, job_names, kinds
from ..errors import Conflict, KubeError
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import JOB, WORKLOAD, Kind, Object, kind_of, selector
from . import leave, retry_budget
from .actions import (
    Action,
    Annotations,
    AnswerReady,
    AnswerRequest,
    AskCheckpoint,
    BeginFrom,
    GiveUp,
    KeepRecords,
    NoteLeave,
    PatchWorkload,
    Reject,
    ReleaseHold,
    Repair,
    RequestReadmission,
    Reshape,
    Revive,
    StartCheckpoint,
    Wait,
    Withdraw,
)
from .metrics import Metrics
from .snapshot import Job, required

log = logging.getLogger(__name__)


def patch_annotations(kube: Kube, job: Object, change: Annotations) -> Object:
    """Write annotations of the Job if it is still as `job` shows it. Raises Conflict, KubeError.

    With a history it gets the number of its format; a newer release's stays.
    """
    written = dict(change)
    if job_names.ANN_HISTORY in written and attempt_records.schema(job) < attempt_records.SCHEMA:
        written[job_names.ANN_SCHEMA] = str(attempt_records.SCHEMA)
    return _patch(kube, kind_of(job), job, {"metadata": {"annotations": written}})


def drop_finalizer(kube: Kube, job: Object) -> Object:
    """Let a deletion of the Job go through, if it is still as `job` shows it. Raises Conflict, KubeError."""
    left = [name for name in job["metadata"].get("finalizers") or () if name != job_names.FINALIZER_RECORDS]
    return _patch_finalizers(kube, job, left)


def _patch_finalizers(kube: Kube, job: Object, finalizers: list[str]) -> Object:
    return _patch(kube, kind_of(job), job, {"metadata": {"finalizers": finalizers}})


def _patch(kube: Kube, kind: Kind, obj: Object, body: Mapping[str, Any], subresource: str | None = None) -> Object:
    """Change `obj` if it is still the version that was decided on. Raises Conflict, KubeError."""
    meta = obj["metadata"]
    return kube.patch(kind, meta["namespace"], meta["name"], body, meta["resourceVersion"], subresource)


def perform(
    kube: Kube, action: Action, job: Object, workload: Object | None, check_name: str, metrics: Metrics, now: float
) -> list[tuple[Object, Object]]:
    """Each written object as it was at the decision, and as it is now.

    Raises Conflict when the objects have changed since the decision: decide again. Raises KubeError.
    Raises AssertionError for a voluntary stop of a running attempt that has not passed `leave.first`.
    """
    leave.require(action, job, workload)
    written: list[tuple[Object, Object]] = []
    if isinstance(action, ReleaseHold) and action.nudge and workload is not None:
        written += _nudge(kube, workload, now)
    if action.job_annotations:
        try:
            written.append((job, patch_annotations(kube, job, action.job_annotations)))
        except Conflict:
            raise
        except KubeError:
            if isinstance(action, ReleaseHold) and workload is not None and not written:
                _nudge(kube, workload, now)  # the Lease lets it go
            raise
    if isinstance(action, KeepRecords):
        finalizers = [*(job["metadata"].get("finalizers") or ()), job_names.FINALIZER_RECORDS]
        written.append((job, _patch_finalizers(kube, job, finalizers)))
    if isinstance(action, Reshape):
        written.append((job, _patch(kube, JOB, job, action.body)))
    if isinstance(action, GiveUp):
        written.append((job, _fail(kube, job, action)))
    if workload is not None and isinstance(action, PatchWorkload):
        written.append((workload, _patch(kube, WORKLOAD, workload, action.body)))
    if workload is not None and isinstance(action, (AnswerReady, Wait, Reject, Withdraw, RequestReadmission)):
        change = _check_change(action, workload, now)
        written.append((workload, _patch_check(kube, workload, check_name, change)))
    if workload is not None and isinstance(action, Revive):
        body = {"status": dict(action.status)}
        written.append((workload, _patch(kube, WORKLOAD, workload, body, "status")))
    _tell(action, job, metrics)
    return written


def _nudge(kube: Kube, workload: Object, now: float) -> list[tuple[Object, Object]]:
    """Make Kueue ask again now: its own next try may take as long again as the time since its first try.

    Not if the Workload has changed since it was read. Kueue looks at each change; and a copy of ours that is behind
    would have us change it again and again. Raises KubeError.
    """
    meta = workload["metadata"]
    body = {"metadata": {"annotations": {job_names.ANN_OVERDUE: server_time.to_text(now)}}}
    try:
        written = [(workload, _patch(kube, WORKLOAD, workload, body))]
    except Conflict:
        return []
    log.warning("the hold is over and the Job still runs: Kueue is made to ask again", extra={"workload": meta["name"]})
    return written


def _fail(kube: Kube, job: Object, action: GiveUp) -> Object:
    """A JobSet and a TrainJob have no deadline: they fail with the Job that was made for them. Raises as `perform`."""
    meta = job["metadata"]
    notes = {"metadata": {"annotations": dict(action.annotations)}}
    body = {**notes, "spec": dict(retry_budget.END)} if kinds.is_job(job) else notes
    failed = _patch(kube, kind_of(job), job, body)
    if not kinds.is_job(job):
        for made in kube.list(JOB, meta["namespace"], selector({kinds.JOBSET_NAME_LABEL: meta["name"]})):
            kube.patch_job(meta["namespace"], made["metadata"]["name"], {"spec": dict(retry_budget.END)})
    return failed


def _check_change(action: Action, workload: Object, now: float) -> Mapping[str, Any]:
    """The fields of our admission check that `action` changes."""
    if isinstance(action, Wait):
        return {"message": action.message}
    if isinstance(action, (Withdraw, Reject)):
        state = "Pending" if isinstance(action, Withdraw) else "Rejected"
        return {"state": state, "message": action.message, "lastTransitionTime": server_time.to_whole(now)}
    if isinstance(action, AnswerReady):
        podsets = [podset["name"] for podset in (workload.get("spec") or {}).get("podSets") or ()]
        change: dict[str, Any] = {"state": "Ready", "message": action.message}
        if action.pod_annotations:
            change["podSetUpdates"] = [{"name": n, "annotations": dict(action.pod_annotations)} for n in podsets]
        return {**change, "lastTransitionTime": server_time.to_whole(now)}
    assert isinstance(action, RequestReadmission)
    return {
        "state": "Retry",
        "message": action.message,
        "requeueAfterSeconds": action.requeue_after_s,
        "lastTransitionTime": server_time.to_whole(now),
    }


def _patch_check(kube: Kube, workload: Object, check_name: str, change: Mapping[str, Any]) -> Object:
    # A merge patch replaces lists: other controllers' checks are sent back as they were, and the version guards them.
    checks = [dict(item) for item in workload["status"].get("admissionChecks") or ()]
    changed = [{**item, **change} if item.get("name") == check_name else item for item in checks]
    return _patch(kube, WORKLOAD, workload, {"status": {"admissionChecks": changed}}, "status")


def _tell(action: Action, job: Object, metrics: Metrics) -> None:
    meta = job["metadata"]
    fields: dict[str, object] = {"job": f"{meta['namespace']}/{meta['name']}"}
    if isinstance(action, AnswerReady):
        metrics.add("singularity_fence_answers_total")
        # There may be thousands of Workloads of others.
        level = logging.INFO if action.attempt else logging.DEBUG
        log.log(level, "fence: %s", action.message, extra={**fields, **dict(action.pod_annotations)})
    elif isinstance(action, (Wait, Reject, Withdraw)):
        log.info("fence: %s", action.message, extra=fields)
    elif isinstance(action, StartCheckpoint):
        metrics.add("singularity_checkpoints_requested_total")
        fields.update(reason=action.reason, preemptor=action.preemptor, deadline=server_time.to_text(action.deadline))
        log.info("hold: checkpoint asked for", extra=fields)
    elif isinstance(action, ReleaseHold):
        metrics.add("singularity_holds_released_total", action.why)
        if action.why in ("deadline", "overdue"):
            metrics.add("singularity_holds_expired_total")
        log.warning("hold released: %s", action.message, extra=fields)
    elif isinstance(action, RequestReadmission):
        metrics.add("singularity_readmissions_total", action.cause)
        log.info("readmission: %s", action.message, extra=fields)
    elif isinstance(action, GiveUp):
        metrics.add("singularity_jobs_given_up_total")
        log.warning("given up: %s", action.message, extra=fields)
    elif isinstance(action, Revive):
        log.info("Kueue's deactivation of the Workload completed", extra={**fields, "changed": sorted(action.status)})
    elif isinstance(action, Repair):
        metrics.add("singularity_repairs_total", action.what)
        log.warning("put back what was changed by hand, %s: %s", action.what, action.message, extra=fields)
    elif isinstance(action, AnswerRequest):
        assert action.status is not None
        metrics.add("singularity_requests_total", f"{action.status.op} {action.status.state}")
        fields.update(request=action.status.id, op=action.status.op, state=action.status.state)
        log.info("request: %s", action.status.message, extra=fields)
    elif isinstance(action, BeginFrom):
        log.info("fork: %s", action.message, extra=fields)
    elif isinstance(action, AskCheckpoint):
        log.info("periodic checkpoint: %s", action.message, extra=fields)
    elif isinstance(action, (Reshape, PatchWorkload)):
        what = "Job" if isinstance(action, Reshape) else f"Workload ({action.why})"
        log.info("request: %s changed", what, extra={**fields, "change": dict(action.body)})
    elif isinstance(action, NoteLeave):
        log.info("leave: %s", action.message, extra=fields)
    elif isinstance(action, KeepRecords):
        log.info("copied here by MultiKueue: its records are kept until the manager has them", extra=fields)
    else:
        log.debug("history of attempt %d updated", required(Job.parse(job).history)[-1].attempt, extra=fields)
