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

from ..contract import job_names, kinds
from ..contract.record_types import AttemptRecord, JobRequest, Placement
from ..planner.job import policy_of
from ..requests import placement
from . import attempt_history, reactivation
from .actions import Action, PatchWorkload, RequestReadmission, Reshape
from .snapshot import Job, Pod, Snapshot, Workload, of_attempt, required

NOTE = "as asked for"
"""Every message and note of an eviction that a user's request needs starts with this."""
SENT_BACK_S = 2
"""Seconds before Kueue looks again at an admission that the fence does not want. In truth 1 to 2: Kueue counts from a
time that is cut to whole seconds. With 1 there might be no pause, and Kueue would admit the old shape at once.
"""
LONGEST_BACK_S = 300
FORMER_S = 5
"""The same where a Workload of the job is about to go: Kueue must have seen that it is gone."""


def goal(where_to: Placement | None) -> str:
    """Words for a placement."""
    if where_to is None or not where_to.terms:
        return "anywhere in its queue"
    parts = [f"to {' or '.join(where_to.flavors)}"] if where_to.flavors else []
    parts += [f"away from node {', '.join(where_to.avoid_nodes)}"] if where_to.avoid_nodes else []
    return " ".join(parts)


def decide(snapshot: Snapshot, workload: Workload, check_name: str) -> Action | None:
    """What a request needs next, outside the fence and the hold. Raises BadAnnotationError."""
    job = snapshot.job
    found = job.changing
    op = found[0].op if found else ""
    if found is not None and op == "pause" and (workload.active or paused_by_another(found[0], workload)):
        return PatchWorkload(body=_paused(found[0]), why=op)
    if op == "resume" and not workload.active and ours(workload):
        return PatchWorkload(body=_activity(workload, True), why=op)
    if op != "pause" and workload.active and workload.paused:
        # Somebody else has resumed it: from here on a deactivation is not ours.
        return PatchWorkload(body={"metadata": {"annotations": {job_names.ANN_PAUSED: None}}}, why="resumed by others")
    shaped = reshape(job, workload)
    if shaped is not None:
        return shaped
    if reshaping(workload) and op != "pause" and _in_new_shape(job, workload):
        return PatchWorkload(body=_activity(workload, True), why="reshaped")
    past = required(job.history)
    record = attempt_history.last(past)
    runs = not job.suspended and workload.is_true("Admitted") and not workload.is_true("Evicted")
    if op not in ("resize", "migrate") or record is None or not runs or record.ended_by or not workload.active:
        return None
    problem = unfit(job, workload, snapshot.pods, record) or _grows(job, workload, record)
    if not problem or workload.state_of(check_name) != "Ready":
        return None
    by = f" by {found[0].by}" if found is not None and found[0].by else ""
    message = f"{NOTE}{by}: {problem}"
    history = attempt_history.stored(
        attempt_history.with_last(past, attempt_history.readmitted(record, "request", message)), snapshot.preemption
    )
    if _stale(job, workload):
        return PatchWorkload(history, body=_out_of_the_queue(problem), why="reshape")
    return RequestReadmission(history, message=message, cause="request")


def at_fence(job: Job, workload: Workload, check_name: str) -> Action | None:
    """What has to happen before the fence may let an attempt start, None for a good admission."""
    found = job.changing
    if found is not None and found[0].op == "pause":
        return PatchWorkload(body=_paused(found[0]), why="pause")
    wrong = _wrong_admission(job, workload)
    problem = wrong or _beside_its_former(job, workload, check_name)
    if not problem:
        return None
    if _stale(job, workload):
        return PatchWorkload(body=_out_of_the_queue(problem), why="reshape")
    pause = doubled(SENT_BACK_S, workload, check_name) if wrong else FORMER_S
    return RequestReadmission(message=f"{NOTE}: {problem}", requeue_after_s=pause, cause="request")


def doubled(first_s: int, workload: Workload, check_name: str) -> int:
    """Seconds for which an admission that was sent back waits: longer each time, from `first_s` on."""
    retries = int(workload.checks.get(check_name, {}).get("retryCount") or 0)
    pause: int = min(first_s * 2 ** min(retries, 10), LONGEST_BACK_S)
    return pause


def _out_of_the_queue(problem: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {job_names.ANN_RESHAPE: problem}}, "spec": {"active": False}}


def reshaping(workload: Workload) -> bool:
    """Whether the Workload is out of the queue only until it has its new shape."""
    return not workload.active and workload.reshape_reason is not None


def ours(workload: Workload) -> bool:
    """Whether `resume` may activate the inactive Workload: `pause`, a reshape or Kueue itself has deactivated it.

    A Workload that an administrator has deactivated stays inactive. The condition `Requeued` marks Kueue's own
    deactivations; it changes as soon as somebody activates the Workload again.
    """
    if reshaping(workload) or workload.paused:
        return True
    requeued = workload.condition("Requeued")
    told = workload.is_true("Evicted") and requeued.get("status") == "False"
    return told and str(requeued.get("reason", "")).startswith(reactivation.BY_KUEUE)


def _paused(request: JobRequest) -> dict[str, Any]:
    """With the policy that asks: it queues the job again, whatever is asked of the job meanwhile."""
    mark = f"{request.id} {policy_of(request.by)}".strip()
    return {"metadata": {"annotations": {job_names.ANN_PAUSED: mark}}, "spec": {"active": False}}


def paused_by_another(request: JobRequest, workload: Workload) -> bool:
    """Whether a policy has paused it before its owner asks for that, or the other way round."""
    return workload.paused and workload.paused_by != policy_of(request.by)


def _activity(workload: Workload, on: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"spec": {"active": on}}
    marks = {job_names.ANN_RESHAPE: workload.reshape_reason is not None, job_names.ANN_PAUSED: workload.paused}
    set_by_us = [name for name, stands in marks.items() if stands]
    if set_by_us:
        body["metadata"] = {"annotations": dict.fromkeys(set_by_us)}
    return body


def _in_new_shape(job: Job, workload: Workload) -> bool:
    return job.suspended and workload.reservation is None and not _stale(job, workload)


def _stale(job: Job, workload: Workload) -> bool:
    """Whether the Job or the Workload does not have the requested shape yet."""
    return bool(_job_change(job)) or _stale_podset(job, workload)


def unfit(job: Job, workload: Workload, pods: Sequence[Pod], record: AttemptRecord) -> str:
    """Why a running attempt cannot stay as it is, "" if it can. Raises BadAnnotationError."""
    given = workload.admission
    if given is None:
        return ""
    workers, fewest = required(job.workers_wanted), required(job.fewest_workers)
    target = required(job.placement)
    if given.count > workers or given.count < fewest:
        return f"{given.count} -> {workers} workers"
    if target.flavors and given.flavor not in target.flavors:
        return f"{given.flavor} -> {' or '.join(target.flavors)}"
    nodes = {str(pod.node) for pod in of_attempt(pods, record.attempt)}
    leave = sorted(nodes & set(target.avoid_nodes))
    return f"away from node {', '.join(leave)}" if leave else ""


def _grows(job: Job, workload: Workload, record: AttemptRecord) -> str:
    """Why an attempt makes way for a larger one at once, "" if it does not. Raises BadAnnotationError."""
    found, given = job.changing, workload.admission
    if found is None or not found[0].at_once or given is None or record.attempt > found[1].attempt:
        return ""
    wanted = required(job.workers_wanted)
    return f"{given.count} -> {wanted} workers" if given.count < wanted else ""


def _wrong_admission(job: Job, workload: Workload) -> str:
    given = workload.admission
    assert given is not None  # the fence has seen it
    target = required(job.placement)
    if target.flavors and given.flavor not in target.flavors:
        return f"not on {given.flavor}, only on {' or '.join(target.flavors)}"
    return "admitted in its old shape" if _stale(job, workload) else ""


def _beside_its_former(job: Job, workload: Workload, check_name: str) -> str:
    """Why Kueue may have given fewer workers than it has, "" if it may not. Once for each Workload.

    Kueue replaces a Workload that it believes to have quota when its Job changes its shape. Its view may be older than
    ours. The new Workload is then admitted partially, beside the quota of the one that is about to go.
    """
    given, before = workload.admission, attempt_history.last(required(job.history))
    if given is None or before is None or before.reservation.startswith(f"{workload.uid}/"):
        return ""
    wanted = required(job.workers_wanted)
    if given.count >= wanted or workload.checks.get(check_name, {}).get("retryCount"):
        return ""
    return f"{given.count} of {wanted} workers, while the Workload before this one still counted"


def _stale_podset(job: Job, workload: Workload) -> bool:
    """Whether Kueue still plans with the old shape."""
    podset = workload.podset
    if podset is None:
        return False
    if job.tied and job.workers is not None and podset.get("count") != required(job.workers):
        return True
    # Without a minCount the Workload asks for all or nothing: we cannot make Kueue admit it partially.
    least = podset.get("minCount")
    bounded = job.tied and least is not None and job.min_workers is not None
    if bounded and least != required(job.fewest_workers):
        return True
    return job.placed and _affinity(podset) != placement.affinity(required(job.placement))


def reshape(job: Job, workload: Workload) -> Action | None:
    """Give a Job that waits without quota the shape that its annotations ask for. Raises BadAnnotationError."""
    if not job.suspended or workload.reservation is not None or job.failing:
        return None
    if job.stopping or job.began:
        return None  # Kueue is not done with putting the Job back
    change = _job_change(job)
    if change is not None:
        return Reshape(body=change)
    podset, wanted = workload.podset, placement.affinity(required(job.placement))
    if podset is None or not job.placed or _affinity(podset) == wanted:
        return None
    # Kueue takes sizes over from the Job, but does not look at its affinity again.
    spec = {**podset["template"]["spec"]}
    spec.pop("affinity", None)
    if wanted is not None:
        spec["affinity"] = wanted
    changed = {**podset, "template": {**podset["template"], "spec": spec}}
    return PatchWorkload(body={"spec": {"podSets": [changed, *workload.raw["spec"]["podSets"][1:]]}}, why="placement")


def _job_change(job: Job) -> dict[str, Any] | None:
    """The patch that gives the Job its shape, None when it has it."""
    spec: dict[str, Any] = {}
    notes: dict[str, str | None] = {}
    stands = job.raw["spec"]
    if job.workers is not None and job.tied:
        workers = required(job.workers)
        if (stands.get("parallelism"), stands.get("completions")) != (workers, workers):
            spec = {"parallelism": workers, "completions": workers}
        if job.min_workers is not None:
            fewest = required(job.fewest_workers)
            least = str(fewest) if fewest < workers else None
            if job.min_parallelism != least:
                notes[job_names.MIN_PARALLELISM] = least
    wanted = placement.affinity(required(job.placement))
    # The pods of the other kinds keep their affinity (JobSet's webhook): Kueue's choice of the flavor is all they need.
    if kinds.is_job(job.raw) and job.placed and _affinity(stands) != wanted:
        spec["template"] = {"spec": {"affinity": wanted}}
    if not spec and not notes:
        return None
    return {**({"metadata": {"annotations": notes}} if notes else {}), **({"spec": spec} if spec else {})}


def _affinity(owner: Mapping[str, Any]) -> Any:
    """Affinity of the pods of a podset or a Job's spec."""
    return ((owner.get("template") or {}).get("spec") or {}).get("affinity") or None
