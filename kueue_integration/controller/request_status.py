"""The status of users' requests: taken up, refused, or done. Pure; `reshape` carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from singularity_proxy.protocol.messages import to_json

from ..contract import branches, job_names, leaves, saveable
from ..contract.record_types import AttemptRecord, JobRequest, RequestStatus
from ..requests import user_requests
from . import attempt_history, leave, reshape, rewind
from .actions import AnswerRequest
from .leave import SILENCE_S
from .snapshot import Job, Pod, Snapshot, Workload, required


def take_up(snapshot: Snapshot, now: float) -> AnswerRequest | None:
    """The answer to a request that has none yet. Raises BadAnnotationError."""
    job, workload = snapshot.job, snapshot.workload
    for slot in user_requests.SLOTS:
        request, answered = job.exchange(slot).request, job.exchange(slot).answer
        if request is None or answered is not None:
            continue
        status = RequestStatus(request.id, request.op, "running", "", now, required(job.attempt))
        flavors = snapshot.around.flavors_of(job.raw) if request.op == "migrate" else None
        problem = user_requests.problem(job.raw, request, flavors)
        if problem is not None:
            field, value, text = problem
            return _answer(user_requests.ended(status, "failed", f"{field} = {value!r}: {text}", now))
        barred = _barred(request, workload)
        if barred:
            return _answer(user_requests.ended(status, "failed", barred, now))
        return _accept(job, workload, request, status)
    return None


def rewinds(job: Job) -> bool:
    """Whether a rewind waits to be taken up: the one request that does not wait until an eviction is over."""
    request = job.change.request
    return request is not None and request.op == "rewind" and job.change.answer is None


def _barred(request: JobRequest, workload: Workload | None) -> str:
    """Why the job's owner may not make a request, "" if the owner may."""
    if request.op != "resume" or workload is None or workload.active or reshape.ours(workload):
        return ""
    name = workload.name
    return f"not paused by `pause`: somebody has set spec.active of Workload {name} to false, and has to set it to true"


def _accept(job: Job, workload: Workload | None, request: JobRequest, status: RequestStatus) -> AnswerRequest:
    change: dict[str, str | None] = {}
    given = workload.admission if workload is not None else None
    message = "taken up"
    if request.op == "resize":
        assert request.workers is not None  # `problem` has seen to it
        least = required(job.fewest_asked) if request.min_workers is None else request.min_workers
        fewest = min(least, request.workers)
        change = {job_names.ANN_WORKERS: str(request.workers), job_names.ANN_MIN_WORKERS: str(fewest)}
        if given is not None and fewest <= given.count < request.workers and not request.at_once:
            message = f"grows to {request.workers} workers as soon as their quota is free; has {given.count} now"
        elif given is not None and given.count != request.workers:
            message = f"goes from {given.count} to {request.workers} workers"
        else:
            message = f"{request.workers} workers"
    elif request.op == "migrate":
        where = request.placement
        change = {job_names.ANN_PLACEMENT: to_json(where)}
        message = f"moves {reshape.goal(where)}"
    elif request.op == "rewind":
        ref = user_requests.committed(job.raw, request.checkpoint)[0]
        assert ref is not None  # `problem` has seen to it
        change, made = rewind.taken_up(job, request, ref, status.at)
        status, message = replace(status, checkpoint=ref.id, step=ref.step), branches.sentence(made)
    elif request.op == "checkpoint":
        status = _with_deadline(status, request)
        message = "the ranks are asked to stop, save and go on"
    if request.op in ("resize", "migrate"):
        change.update(leaves.kept(job.raw, change))
    return _answer(replace(status, message=message), change)


def _with_deadline(status: RequestStatus, request: JobRequest) -> RequestStatus:
    seconds = request.timeout_s if request.timeout_s is not None else user_requests.DEFAULT_CHECKPOINT_S
    return replace(status, deadline=round(status.at + seconds, 3))


def _answer(status: RequestStatus, change: dict[str, str | None] | None = None) -> AnswerRequest:
    return AnswerRequest({**user_requests.stored(status), **(change or {})}, status=status)


def _final(job: Job, status: RequestStatus, state: str, message: str, now: float) -> AnswerRequest:
    """The last word on a request. One that has failed has changed nothing: the job has the shape of before."""
    change = leaves.over(job.raw, back=state == "failed") if status.op in ("resize", "migrate") else {}
    return _answer(user_requests.ended(status, state, message, now), change)


def follow(snapshot: Snapshot, check_name: str, now: float) -> tuple[AnswerRequest | None, float | None]:
    """The final word on a request, if it is due, and when to look again. Raises BadAnnotationError."""
    job, workload = snapshot.job, snapshot.workload
    record = attempt_history.last(required(job.history))
    wake: float | None = None
    for slot in user_requests.SLOTS:
        found = job.exchange(slot).running
        if found is None:
            continue
        request, status = found
        end = job.end
        if end is not None and not (request.op == "checkpoint" and record is not None and record.finished_at is None):
            complete = end.get("type") == "Complete"
            if record is not None and _was_changed(job, record, request):
                text = f"attempt {record.attempt} ran with {record.pods} workers on {record.flavor}"
                text += f"; the job has {'finished' if complete else 'failed'} since"
                return _final(job, status, "done", text, now), None
            text = f"the job has ended ({'Finished' if complete else 'Failed'})"
            return _final(job, status, "failed", text, now), None
        if request.op == "checkpoint":
            problem, said = _no_checkpoint(job, workload, record, status, now)
            if problem:
                text = f"{attempt_history.NO_CHECKPOINT}: {problem}"
                return _answer(user_requests.ended(status, "failed", text, now), said), None
            wake = (status.deadline or now) + SILENCE_S
            continue
        barred = _barred(request, workload) or leave.failure_of(job, request)
        if barred:
            return _final(job, status, "failed", barred, now), None
        done = _done(job, workload, snapshot.pods, record, request, status, check_name)
        if done:
            return _final(job, status, "done", done, now), None
    return None, wake


def _no_checkpoint(
    job: Job, workload: Workload | None, record: AttemptRecord | None, status: RequestStatus, now: float
) -> tuple[str, dict[str, str | None]]:
    """Why it is given up, "" if it is not, and what that says about the job."""
    if record is None or record.attempt != status.attempt:
        return f"attempt {status.attempt} ended before", {}
    if job.suspended and (workload is None or workload.reservation is None):
        return f"attempt {status.attempt} ended before ({record.ended_by or 'Evicted'})", {}
    if status.deadline is not None and now >= status.deadline + SILENCE_S:
        text = f"the pods gave no answer within {now - status.at:.0f} s"
        return text, saveable.failed(job.raw, record.attempt, now, "pods", text)
    return "", {}


def _done(
    job: Job,
    workload: Workload | None,
    pods: Sequence[Pod],
    record: AttemptRecord | None,
    request: JobRequest,
    status: RequestStatus,
    check_name: str,
) -> str:
    """What a user reads when the request has been carried out, "" while it has not."""
    if workload is None or workload.deleting:
        return ""
    active, given = workload.active, workload.admission
    if request.op == "pause":
        if active or given is not None or not job.suspended or reshape.paused_by_another(request, workload):
            return ""
        return f"paused; {attempt_history.restart_point(required(job.checkpoint))} when it is resumed"
    if not active:
        if reshape.reshaping(workload):
            return ""
        waits = request.op != "resume" and given is None and reshape.reshape(job, workload) is None
        return "set; takes effect when the job is resumed" if waits else ""
    if given is None or record is None or not _trains(workload, record, check_name):
        return ""
    if reshape.unfit(job, workload, pods, record):
        return ""
    if request.op == "rewind":
        if record.attempt <= status.attempt:
            return ""  # the one that is given up
        goes_on = f"attempt {record.attempt} goes on from checkpoint {record.restored_from} with step"
        return f"{goes_on} {record.first_step if record.first_step is not None else status.step}"
    wanted = required(job.workers_wanted)
    if request.op == "resize" and given.count != wanted and record.attempt <= status.attempt:
        return ""  # still the size of before
    return f"attempt {record.attempt} runs with {given.count} workers on {given.flavor}"


def _was_changed(job: Job, record: AttemptRecord, request: JobRequest) -> bool:
    """Whether `record`, the last attempt of a job that has ended, ran as `request` asked for."""
    if record.runs_since is None:
        return False
    if request.op == "resize":
        return record.pods == request.workers
    if request.op == "rewind":
        return record.restored_from == request.checkpoint
    return request.op == "migrate" and bool(where := required(job.placement).flavors) and record.flavor in where


def _trains(workload: Workload, record: AttemptRecord, check_name: str) -> bool:
    leaves = workload.is_true("Evicted") or workload.state_of(check_name) != "Ready"
    return not leaves and workload.is_true("Admitted") and record.runs_since is not None and not record.ended_by
