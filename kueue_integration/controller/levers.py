"""Kueue's levers for what users ask: the shape of a suspended Job, the Workload's activity, a readmission. Pure.

Shape = number of workers, fewest workers, placement. It stands in the Job's annotations and is given to Kueue while
the Job is suspended and its Workload has no quota: only then does Kueue take a change over without starting anew. An
admission that came faster than that is stopped at the fence: the Workload leaves the queue (`spec.active: false`), gets
its shape in peace and comes back. Sending it back with Retry would not do: Kueue looks again in the same moment in
which it takes the quota away, with or without a delay, and admits the old shape for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, MessageError, Placement

from .. import kinds, placement, requests
from ..manifests import COMPLETIONS_EQUAL_PARALLELISM, MIN_PARALLELISM
from ..resources import Object, annotation, is_true
from . import records, views
from .actions import Action, PatchWorkload, RequestReadmission, Reshape
from .errors import BadAnnotationError

STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue puts its template back as it was."""
NOTE = "as asked for"
"""Every message and note of a readmission that a user's request needs starts with this."""
SENT_BACK_S = 5
"""Seconds before Kueue looks again at an admission that the fence does not want."""


def active(workload: Object) -> bool:
    return (workload.get("spec") or {}).get("active", True) is not False


def where(job: Object) -> Placement:
    """Raises BadAnnotationError."""
    try:
        return placement.of(job)
    except MessageError as error:
        raise BadAnnotationError(names.ANN_PLACEMENT, annotation(job, names.ANN_PLACEMENT) or "", str(error)) from None


def goal(where_to: Placement | None) -> str:
    """Words for a placement."""
    if where_to is None or not where_to.terms:
        return "anywhere in its queue"
    parts = [f"to {' or '.join(where_to.flavors)}"] if where_to.flavors else []
    parts += [f"away from node {', '.join(where_to.avoid_nodes)}"] if where_to.avoid_nodes else []
    return " ".join(parts)


def lever(job: Object, workload: Object, pods: Sequence[Object], check_name: str) -> Action | None:
    """What a request needs next, outside the fence and the hold. Raises BadAnnotationError."""
    found = requests.running(job, requests.CHANGE)
    op = found[0].op if found else ""
    if op in ("pause", "resume") and active(workload) == (op == "pause"):
        return PatchWorkload(body=_activity(workload, op == "resume"), why=op)
    shaped = reshape(job, workload)
    if shaped is not None:
        return shaped
    if reshaping(workload) and op != "pause" and _in_new_shape(job, workload):
        return PatchWorkload(body=_activity(workload, True), why="reshaped")
    record = records.last(views.history(job))
    state = views.check(workload, check_name)
    runs = not views.suspended(job) and is_true(workload, "Admitted") and not is_true(workload, "Evicted")
    if op not in ("resize", "migrate") or record is None or not runs or record.ended_by:
        return None
    problem = unfit(job, workload, pods, record)
    if not problem or state is None or state.get("state") != "Ready":
        return None
    message = f"{NOTE}: {problem}"
    history = records.with_last(views.history(job), records.noted(record, message))
    return RequestReadmission(records.stored(history), message=message)


def at_fence(job: Object, workload: Object) -> Action | None:
    """What has to happen before the fence may let an attempt start, None for a good admission."""
    found = requests.running(job, requests.CHANGE)
    if found is not None and found[0].op == "pause":
        return PatchWorkload(body={"spec": {"active": False}}, why="pause")
    problem = _wrong_admission(job, workload)
    if not problem:
        return None
    if _stale(job, workload):
        out = {"metadata": {"annotations": {names.ANN_RESHAPE: problem}}, "spec": {"active": False}}
        return PatchWorkload(body=out, why="reshape")
    return RequestReadmission(message=f"{NOTE}: {problem}", requeue_after_s=SENT_BACK_S)


def reshaping(workload: Object) -> bool:
    """Whether the Workload is out of the queue only until it has its new shape."""
    return not active(workload) and annotation(workload, names.ANN_RESHAPE) is not None


def _activity(workload: Object, on: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"spec": {"active": on}}
    if annotation(workload, names.ANN_RESHAPE) is not None:
        body["metadata"] = {"annotations": {names.ANN_RESHAPE: None}}
    return body


def _in_new_shape(job: Object, workload: Object) -> bool:
    return views.suspended(job) and views.reservation(workload) is None and not _stale(job, workload)


def _stale(job: Object, workload: Object) -> bool:
    """Whether Job or Workload do not have the shape yet that was asked for."""
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


def _stale_podset(job: Object, workload: Object) -> bool:
    """Whether Kueue still plans with the shape of before."""
    podset = _podset(workload)
    if podset is None:
        return False
    tied = annotation(job, COMPLETIONS_EQUAL_PARALLELISM) == "true"
    if tied and annotation(job, names.ANN_WORKERS) is not None and podset.get("count") != views.workers_wanted(job):
        return True
    # Without a minCount the Workload asks for all or nothing: that Kueue cannot admit partially is not ours to fix.
    least = podset.get("minCount")
    bounded = tied and least is not None and annotation(job, names.ANN_MIN_WORKERS) is not None
    if bounded and least != views.fewest_workers(job):
        return True
    return annotation(job, names.ANN_PLACEMENT) is not None and _affinity(podset) != placement.affinity(where(job))


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
    if podset is None or annotation(job, names.ANN_PLACEMENT) is None or _affinity(podset) == wanted:
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
    if annotation(job, names.ANN_WORKERS) is not None and tied:
        workers = views.workers_wanted(job)
        if (job["spec"].get("parallelism"), job["spec"].get("completions")) != (workers, workers):
            spec = {"parallelism": workers, "completions": workers}
        if annotation(job, names.ANN_MIN_WORKERS) is not None:
            fewest = views.fewest_workers(job)
            least = str(fewest) if fewest < workers else None
            if annotation(job, MIN_PARALLELISM) != least:
                notes[MIN_PARALLELISM] = least
    wanted = placement.affinity(where(job))
    # The pods of the other kinds keep their affinity (JobSet's webhook): Kueue's choice of the flavor is all they need.
    if kinds.is_job(job) and annotation(job, names.ANN_PLACEMENT) is not None and _affinity(job["spec"]) != wanted:
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
