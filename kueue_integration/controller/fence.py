"""The fence: an attempt starts only when no pod of an earlier one can still write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef

from ..contract import job_names
from ..contract.record_types import AttemptRecord, Skipped
from ..errors import BadAnnotationError
from ..job import states
from ..kube import server_time
from ..planner import quota
from . import attempt_history, origins
from .actions import BOTH, Action, AnswerReady, Decision, Guard, Reject, RequestReadmission, Wait, Withdraw
from .snapshot import Job, Pod, Preemption, Snapshot, Workload, readable_or, required

STUCK_S = 30.0
"""A pod that still exists this long after its grace period is on a node that does not answer."""
FOREIGN = Reject(
    message="its pods are those of a training job, which no Job, JobSet or TrainJob owns here: nothing would number its"
    " attempts or restore a checkpoint. Submit it as one of these, without Kueue's ConcurrentAdmission"
)
"""To a Workload of our pods that another Workload (a variant) or another kind (an AppWrapper) owns."""
UNMANAGED = AnswerReady(message="not a managed Job: nothing to wait for", guard=Guard.WORKLOAD_VERSION)
"""Nothing is fenced: the Job has just been read, and its Workload's version guards the answer."""


def asks(workload: Workload, check_name: str) -> bool:
    """Whether the Workload waits for our answer.

    Not while Evicted is True. Kueue resets the check to Pending while the *old* admission still stands in the status.
    An answer at that moment would give the old worker count and flavor to the next attempt.
    """
    return (
        workload.state_of(check_name) == "Pending"
        and workload.reservation is not None
        and not workload.is_true("Evicted")
        and not workload.is_true("Finished")
        and not workload.deleting
    )


def asks_ahead(workload: Workload, check_name: str) -> bool:
    """Whether the Workload, none of ours, waits in its queue with our check Pending: the fence may set it to Ready in
    advance.

    Kueue writes the check when the Workload is queued. If every check is Ready by then, its scheduler admits in the
    same write that reserves quota (v0.19.2: prepareWorkload, SyncAdmittedCondition). So a Workload that is not fenced
    holds no quota during a round trip. An eviction makes the check Pending again, and then this is True again. Never
    True for our pods, whoever owns the Workload now: their answer names an attempt and where it has quota.
    """
    return (
        workload.state_of(check_name) == "Pending"
        and workload.reservation is None
        and not workload.is_true("Finished")
        and not workload.deleting
        and not workload.has_our_pods
        and not workload.copied
    )


def withdrawal(job: Job, workload: Workload, check_name: str) -> Action | None:
    """For a check that is Ready without an answer of ours to this reservation; None: there is nothing to take back.

    Kueue writes the checks as its copy of the Workload has them. So a value that should be reset can stay or come
    back. It is of a Job that was not managed yet, or it is our answer to the reservation before an eviction.
    """
    if workload.state_of(check_name) != "Ready" or workload.copied:
        return None
    if workload.checks[check_name].get("podSetUpdates"):
        return _of_another_reservation(job, workload)
    if workload.is_true("Evicted") or workload.is_true("Finished"):
        return None
    if workload.reservation is None:
        return Withdraw(message="managed since: answered when it has quota")
    if states.our_template(job.raw) and not job.text(job_names.ANN_HISTORY) and workload.is_true("Admitted"):
        # Kueue's scheduler reserved quota at the same moment and wrote the check with its old value.
        return RequestReadmission(message="admitted before it was managed: its pods have no attempt number")
    return None


def _of_another_reservation(job: Job, workload: Workload) -> Action | None:
    """With such an answer Kueue starts pods with attempt, checkpoint and workers of an attempt that is over."""
    last = attempt_history.last(readable_or(job.history, ()))
    if last is None or workload.reservation == last.reservation or workload.is_true("Finished") or workload.deleting:
        return None
    message = f"the answer was for attempt {last.attempt}, which is over"
    if workload.reservation is None:
        return Withdraw(message=message)
    if workload.is_true("Evicted"):
        return None  # Kueue is about to take the quota away
    return RequestReadmission(message=message) if workload.is_true("Admitted") else Withdraw(message=message)


def decide(snapshot: Snapshot, workload: Workload, now: float, prices: Mapping[str, float] | None = None) -> Decision:
    """The Workload has quota and waits for us: answer, or say what we wait for. `prices`: as in `answer`."""
    job, pods = snapshot.job, snapshot.pods
    if not job.managed:
        return Decision(UNMANAGED)
    if not job.suspended:
        return Decision(Wait(message="the Job is not suspended yet"))
    writers = [p for p in pods if p.can_write]
    if writers:
        shown = ", ".join(sorted(p.name for p in writers)[:4])
        more = f" and {len(writers) - 4} more" if len(writers) > 4 else ""
        waiting = f"waiting for the pods of the attempt before to end: {shown}{more}"
        stuck, look_at = _stuck(writers, now)
        return Decision(Wait(message=f"{waiting}{stuck}"), wake_at=look_at)
    try:
        return Decision(answer(job, workload, snapshot.preemption, now, prices=prices))
    except BadAnnotationError as error:
        return Decision(Wait(message=str(error)))


def _stuck(pods: Sequence[Pod], now: float) -> tuple[str, float | None]:
    """Words for the first pod that should have ended long ago, and when to look again if there is none yet.

    Only its node could tell that nothing of it runs any more. So only a person, or a program that removes lost nodes,
    may say so in the node's place.
    """
    due = []
    for pod in sorted(pods, key=lambda p: p.name):
        meta, gone_at, node = pod.raw["metadata"], pod.gone_at, pod.node
        if gone_at is None or not node:
            continue
        late = gone_at + STUCK_S
        if now >= late:
            return (
                f"; pod {meta['name']} should have ended at {meta['deletionTimestamp']}, but its node {node} does not "
                f"say so. If the node "
                f"is off: kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or "
                f"kubectl delete node {node}; if only the pod hangs and nothing of it runs: "
                f"kubectl delete pod {meta['name']} -n {meta['namespace']} --force --grace-period=0"
            ), None
        due.append(late)
    return "", min(due, default=None)


def answer(
    job: Job,
    workload: Workload,
    by: Preemption,
    now: float,
    cluster: str | None = None,
    prices: Mapping[str, float] | None = None,
) -> AnswerReady:
    """The next attempt of `job` on the reservation of `workload`, which is `cluster`'s if it is in another one.

    :param prices: of one device for an hour, by flavor
    Raises BadAnnotationError.
    """
    given, reservation = workload.admission, workload.reservation
    assert given is not None and reservation is not None  # `asks` saw them
    past, checkpoint = required(job.history), required(job.checkpoint)
    origins.require_known(job)
    if checkpoint is not None and not job.of_store(checkpoint):
        problem = f"its url is not the Job's store {job.store!r} (annotation {job_names.ANN_STORE})"
        raise BadAnnotationError(names.ANN_CHECKPOINT, f"url {checkpoint.url}", problem)
    skipped = attempt_history.skipped(job.checkpoints, checkpoint)
    history: attempt_history.History = past
    before = attempt_history.last(history)
    change: dict[str, str | None] = {}
    if before is not None and before.reservation == reservation and _untouched(before):
        number = before.attempt  # we died between the Job's patch and the Workload's: same reservation, same attempt
    else:
        number = max(required(job.attempt), before.attempt if before else 0) + 1
        if before is not None and _untouched(before) and job.never_started:
            # Our copy of the Workload was old: that answer had no effect, and its number starts no other attempt.
            number, history = before.attempt, history[:-1]
            before = attempt_history.last(history)
        if before is not None:
            before = attempt_history.closed(before, workload, by.name, now)
            history = attempt_history.with_last(history, before)
        record = AttemptRecord(
            attempt=number,
            reservation=reservation,
            flavor=given.flavor,
            pods=given.count,
            ranks=given.count if (ranks := job.ranks(given.count)) is None else required(ranks),
            admitted_at=now,
            queued_at=_queued_at(job, workload, before),
            reserved_at=server_time.observed(workload.condition("QuotaReserved"), now),
            restored_from=checkpoint.id if checkpoint else None,
            skipped=skipped,
            held=job.hold is not None,
            cluster=cluster,
            price=_price(prices or {}, given.flavor, workload),
        )
        change = {job_names.ANN_ATTEMPT: str(number), job_names.ANN_HOLD_DEADLINE: None}
        if job.hold is not None:
            change[job_names.ANN_HOLD] = job_names.HOLD_ARMED
        change.update(attempt_history.stored([*history, record], by))
    return AnswerReady(
        change,
        attempt=number,
        pod_annotations={
            job_names.ANN_ATTEMPT: str(number),
            names.ANN_CHECKPOINT: checkpoint.id if checkpoint else "",
            job_names.ANN_WORKERS: str(given.count),
            job_names.ANN_FLAVOR: given.flavor,
        },
        message=f"attempt {number}: {_start(checkpoint, skipped)}",
        guard=_guard(job, bool(change)),
    )


def _price(prices: Mapping[str, float], flavor: str, workload: Workload) -> float | None:
    """Of one pod for an hour."""
    return prices[flavor] * quota.devices_of(workload.raw) if flavor in prices else None


def _guard(job: Job, writes: bool) -> Guard:
    """`writes`: the answer starts with a patch of the Job, which the version of our copy guards."""
    if not writes:
        return BOTH | Guard.FRESH_READS
    if job.never_started:
        # Most admissions are first ones. There are no pods to list, and the versions of our copies guard the rest. An
        # answer that fails half-way is given again under the same number.
        return BOTH
    return BOTH | Guard.FRESH_PODS | Guard.FRESH_WORKLOAD


def _start(checkpoint: CheckpointRef | None, skipped: Sequence[Skipped]) -> str:
    start = f"continues from checkpoint {checkpoint.id}" if checkpoint else "starts from the beginning"
    return "; ".join([start, *(f"checkpoint {other.id} cannot be restored: {other.why}" for other in skipped)])


def _untouched(record: AttemptRecord) -> bool:
    """Conditions have whole seconds: a second reservation in the same second must not pass for the first."""
    ended = record.evicted_at is not None or record.ended_by is not None
    return not ended and record.first_step is None and record.committed_at is None


def _queued_at(job: Job, workload: Workload, before: AttemptRecord | None) -> float | None:
    """Since when the attempt waited for quota; None when that was not seen. The time of a pause is no waiting."""
    left_at = before.released_at if before is not None else workload.created
    request, answer = job.change.request, job.change.answer
    if left_at is None or request is None or answer is None or request.op != "resume":
        return left_at
    return max(left_at, answer.at if answer.finished_at is None else answer.finished_at)
