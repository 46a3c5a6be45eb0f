"""How users' requests are carried out through Kueue: the shape of a suspended Job, the Workload's activity, a
readmission. Pure.

Shape = number of workers, fewest workers, placement. It stands in the Job's annotations. Kueue gets it while the Job is
suspended and its Workload has no quota. Only then can Kueue take over a change without a new start. So an attempt that
has to change its shape leaves by deactivation (`spec.active: false`), one eviction that is held like any other. The
Workload gets its shape outside the queue, and comes back. Retry would not do: Kueue looks again in the same moment in
which it takes the quota away, with or without a delay, and admits the old shape. If an admission still has an old shape
(the request came while it waited), the fence sends it out of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.protocol.decode import Unreadable
from proxy.protocol.messages import AttemptRecord, JobRequest, Placement

from ..contract import job_names, kinds
from ..kube.resources import Object, annotation, condition, is_true
from ..manifests.job_manifests import COMPLETIONS_EQUAL_PARALLELISM, MIN_PARALLELISM
from ..requests import placement, user_requests
from . import attempt_history, reactivation, views
from .actions import Action, PatchWorkload, RequestReadmission, Reshape
from .errors import BadAnnotationError

STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue puts its template back as it was."""
NOTE = "as asked for"
"""Every message and note of an eviction that a user's request needs starts with this."""
SENT_BACK_S = 5
"""Seconds before Kueue looks again at an admission that the fence does not want."""


def active(workload: Object) -> bool:
    return (workload.get("spec") or {}).get("active", True) is not False


def where(job: Object) -> Placement:
    """Raises BadAnnotationError."""
    found = placement.of(job)
    if isinstance(found, Unreadable):
        raise BadAnnotationError(job_names.ANN_PLACEMENT, annotation(job, job_names.ANN_PLACEMENT) or "", found.why)
    return found


def goal(where_to: Placement | None) -> str:
    """Words for a placement."""
    if where_to is None or not where_to.terms:
        return "anywhere in its queue"
    parts = [f"to {' or '.join(where_to.flavors)}"] if where_to.flavors else []
    parts += [f"away from node {', '.join(where_to.avoid_nodes)}"] if where_to.avoid_nodes else []
    return " ".join(parts)


def lever(job: Object, workload: Object, pods: Sequence[Object], check_name: str) -> Action | None:
    """What a request needs next, outside the fence and the hold. Raises BadAnnotationError."""
    found = user_requests.running(job, user_requests.CHANGE)
    op = found[0].op if found else ""
    if found is not None and op == "pause" and active(workload):
        return PatchWorkload(body=_paused(found[0]), why=op)
    if op == "resume" and not active(workload) and ours(workload):
        return PatchWorkload(body=_activity(workload, True), why=op)
    if op != "pause" and active(workload) and annotation(workload, job_names.ANN_PAUSED) is not None:
        # Somebody else has resumed it: from here on a deactivation is not ours.
        return PatchWorkload(body={"metadata": {"annotations": {job_names.ANN_PAUSED: None}}}, why="resumed by others")
    shaped = reshape(job, workload)
    if shaped is not None:
        return shaped
    if reshaping(workload) and op != "pause" and _in_new_shape(job, workload):
        return PatchWorkload(body=_activity(workload, True), why="reshaped")
    record = attempt_history.last(views.history(job))
    state = views.check(workload, check_name)
    runs = not views.suspended(job) and is_true(workload, "Admitted") and not is_true(workload, "Evicted")
    if op not in ("resize", "migrate") or record is None or not runs or record.ended_by or not active(workload):
        return None
    problem = unfit(job, workload, pods, record)
    if not problem or state is None or state.get("state") != "Ready":
        return None
    by = f" by {found[0].by}" if found is not None and found[0].by else ""
    message = f"{NOTE}{by}: {problem}"
    history = attempt_history.stored(
        attempt_history.with_last(views.history(job), attempt_history.readmitted(record, "request", message))
    )
    if _stale(job, workload):
        return PatchWorkload(history, body=_out_of_the_queue(problem), why="reshape")
    return RequestReadmission(history, message=message, cause="request")


def at_fence(job: Object, workload: Object, check_name: str) -> Action | None:
    """What has to happen before the fence may let an attempt start, None for a good admission."""
    found = user_requests.running(job, user_requests.CHANGE)
    if found is not None and found[0].op == "pause":
        return PatchWorkload(body=_paused(found[0]), why="pause")
    problem = _wrong_admission(job, workload) or _beside_its_former(job, workload, check_name)
    if not problem:
        return None
    if _stale(job, workload):
        return PatchWorkload(body=_out_of_the_queue(problem), why="reshape")
    return RequestReadmission(message=f"{NOTE}: {problem}", requeue_after_s=SENT_BACK_S, cause="request")


def _out_of_the_queue(problem: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {job_names.ANN_RESHAPE: problem}}, "spec": {"active": False}}


def reshaping(workload: Object) -> bool:
    """Whether the Workload is out of the queue only until it has its new shape."""
    return not active(workload) and annotation(workload, job_names.ANN_RESHAPE) is not None


def ours(workload: Object) -> bool:
    """Whether `resume` may activate the inactive Workload: `pause`, a reshape or Kueue itself has deactivated it.

    A Workload that an administrator has deactivated stays inactive. The condition `Requeued` marks Kueue's own
    deactivations; it changes as soon as somebody activates the Workload again.
    """
    if reshaping(workload) or annotation(workload, job_names.ANN_PAUSED) is not None:
        return True
    requeued = condition(workload, "Requeued") or {}
    told = is_true(workload, "Evicted") and requeued.get("status") == "False"
    return told and str(requeued.get("reason", "")).startswith(reactivation.BY_KUEUE)


def _paused(request: JobRequest) -> dict[str, Any]:
    return {"metadata": {"annotations": {job_names.ANN_PAUSED: request.id}}, "spec": {"active": False}}


def _activity(workload: Object, on: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"spec": {"active": on}}
    set_by_us = [n for n in (job_names.ANN_RESHAPE, job_names.ANN_PAUSED) if annotation(workload, n) is not None]
    if set_by_us:
        body["metadata"] = {"annotations": dict.fromkeys(set_by_us)}
    return body


def _in_new_shape(job: Object, workload: Object) -> bool:
    return views.suspended(job) and views.reservation(workload) is None and not _stale(job, workload)


def _stale(job: Object, workload: Object) -> bool:
    """Whether the Job or the Workload does not have the requested shape yet."""
    return bool(_job_change(job)) or _stale_podset(job, workload)


def unfit(job: Object, workload: Object, pods: Sequence[Object], record: AttemptRecord) -> str:
    """Why a running attempt cannot stay as it is, "" if it can. Raises BadAnnotationError."""
    given = views.admission(workload)
    if given is None:
        return ""
    workers, fewest, target = views.workers_wanted(job), views.fewest_workers(job), where(job)
    if given.count > workers or given.count < fewest:
        return f"{given.count} -> {workers} workers"
    if target.flavors and given.flavor not in target.flavors:
        return f"{given.flavor} -> {' or '.join(target.flavors)}"
    nodes = {str((p.get("spec") or {}).get("nodeName")) for p in views.of_attempt(pods, record.attempt)}
    leave = sorted(nodes & set(target.avoid_nodes))
    return f"away from node {', '.join(leave)}" if leave else ""


def _wrong_admission(job: Object, workload: Object) -> str:
    given = views.admission(workload)
    assert given is not None  # the fence has seen it
    target = where(job)
    if target.flavors and given.flavor not in target.flavors:
        return f"not on {given.flavor}, only on {' or '.join(target.flavors)}"
    return "admitted in its old shape" if _stale(job, workload) else ""


def _beside_its_former(job: Object, workload: Object, check_name: str) -> str:
    """Why Kueue may have given fewer workers than it has, "" if it may not. Once for each Workload.

    Kueue replaces a Workload that it believes to have quota when its Job changes its shape. Its view may be older than
    ours. The new Workload is then admitted partially, beside the quota of the one that is about to go.
    """
    given, before = views.admission(workload), attempt_history.last(views.history(job))
    if given is None or before is None or before.reservation.startswith(f"{workload['metadata']['uid']}/"):
        return ""
    wanted = views.workers_wanted(job)
    if given.count >= wanted or (views.check(workload, check_name) or {}).get("retryCount"):
        return ""
    return f"{given.count} of {wanted} workers, while the Workload before this one still counted"


def _stale_podset(job: Object, workload: Object) -> bool:
    """Whether Kueue still plans with the old shape."""
    podset = _podset(workload)
    if podset is None:
        return False
    tied = annotation(job, COMPLETIONS_EQUAL_PARALLELISM) == "true"
    if tied and annotation(job, job_names.ANN_WORKERS) is not None and podset.get("count") != views.workers_wanted(job):
        return True
    # Without a minCount the Workload asks for all or nothing: we cannot make Kueue admit it partially.
    least = podset.get("minCount")
    bounded = tied and least is not None and annotation(job, job_names.ANN_MIN_WORKERS) is not None
    if bounded and least != views.fewest_workers(job):
        return True
    return annotation(job, job_names.ANN_PLACEMENT) is not None and _affinity(podset) != placement.affinity(where(job))


def reshape(job: Object, workload: Object) -> Action | None:
    """Give a Job that waits without quota the shape that its annotations ask for. Raises BadAnnotationError."""
    if not views.suspended(job) or views.reservation(workload) is not None or views.failing(job):
        return None
    if annotation(job, STOPPING) is not None or (job.get("status") or {}).get("startTime"):
        return None  # Kueue is not done with putting the Job back
    change = _job_change(job)
    if change is not None:
        return Reshape(body=change)
    podset, wanted = _podset(workload), placement.affinity(where(job))
    if podset is None or annotation(job, job_names.ANN_PLACEMENT) is None or _affinity(podset) == wanted:
        return None
    # Kueue takes sizes over from the Job, but does not look at its affinity again.
    spec = {**podset["template"]["spec"]}
    spec.pop("affinity", None)
    if wanted is not None:
        spec["affinity"] = wanted
    changed = {**podset, "template": {**podset["template"], "spec": spec}}
    return PatchWorkload(body={"spec": {"podSets": [changed, *workload["spec"]["podSets"][1:]]}}, why="placement")


def _job_change(job: Object) -> dict[str, Any] | None:
    """The patch that gives the Job its shape, None when it has it."""
    spec: dict[str, Any] = {}
    notes: dict[str, str | None] = {}
    tied = annotation(job, COMPLETIONS_EQUAL_PARALLELISM) == "true"
    if annotation(job, job_names.ANN_WORKERS) is not None and tied:
        workers = views.workers_wanted(job)
        if (job["spec"].get("parallelism"), job["spec"].get("completions")) != (workers, workers):
            spec = {"parallelism": workers, "completions": workers}
        if annotation(job, job_names.ANN_MIN_WORKERS) is not None:
            fewest = views.fewest_workers(job)
            least = str(fewest) if fewest < workers else None
            if annotation(job, MIN_PARALLELISM) != least:
                notes[MIN_PARALLELISM] = least
    wanted = placement.affinity(where(job))
    # The pods of the other kinds keep their affinity (JobSet's webhook): Kueue's choice of the flavor is all they need.
    if kinds.is_job(job) and annotation(job, job_names.ANN_PLACEMENT) is not None and _affinity(job["spec"]) != wanted:
        spec["template"] = {"spec": {"affinity": wanted}}
    if not spec and not notes:
        return None
    return {**({"metadata": {"annotations": notes}} if notes else {}), **({"spec": spec} if spec else {})}


def _podset(workload: Object) -> dict[str, Any] | None:
    podsets = (workload.get("spec") or {}).get("podSets") or ()
    return dict(podsets[0]) if podsets else None


def _affinity(owner: Mapping[str, Any]) -> Any:
    """Affinity of the pods of a podset or a Job's spec."""
    return ((owner.get("template") or {}).get("spec") or {}).get("affinity") or None
