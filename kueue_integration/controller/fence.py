"""The fence: an attempt starts only when no pod of an earlier one can still write. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, CheckpointRef, Skipped

from ..contract import job_names
from ..kube.resources import Object, annotation, is_true
from . import attempt_history, origins, views
from .actions import Action, AnswerReady, Decision, RequestReadmission, Wait, Withdraw
from .errors import BadAnnotationError

STUCK_S = 30.0
"""A pod that still exists this long after its grace period is on a node that does not answer."""
UNMANAGED = AnswerReady(message="not a managed Job: nothing to wait for")


def asks(workload: Object, check_name: str) -> bool:
    """Whether the Workload waits for our answer.

    Not while Evicted is True. Kueue resets the check to Pending while the *old* admission still stands in the status.
    An answer at that moment would give the old worker count and flavor to the next attempt.
    """
    state = views.check(workload, check_name)
    return (
        state is not None
        and state.get("state") == "Pending"
        and views.reservation(workload) is not None
        and not is_true(workload, "Evicted")
        and not is_true(workload, "Finished")
        and not workload["metadata"].get("deletionTimestamp")
    )


def asks_ahead(workload: Object, check_name: str) -> bool:
    """Whether the Workload, none of ours, waits in its queue with our check Pending: the fence may set it to Ready in
    advance.

    Kueue writes the check when the Workload is queued. If every check is Ready by then, its scheduler admits in the
    same write that reserves quota (v0.19.2: prepareWorkload, SyncAdmittedCondition). So a Workload that is not fenced
    holds no quota during a round trip. An eviction makes the check Pending again, and then this is True again. Never
    True for our pods, whoever owns the Workload now: their answer names an attempt and where it has quota.
    """
    state = views.check(workload, check_name)
    return (
        state is not None
        and state.get("state") == "Pending"
        and views.reservation(workload) is None
        and not is_true(workload, "Finished")
        and not workload["metadata"].get("deletionTimestamp")
        and not views.has_our_pods(workload)
        and not views.copied(workload)
    )


def withdrawal(job: Object, workload: Object, check_name: str) -> Action | None:
    """For a Job that became managed after its Workload's check had been set to Ready; None: there is nothing to take
    back."""
    state = views.check(workload, check_name)
    if state is None or state.get("state") != "Ready" or state.get("podSetUpdates") or views.copied(workload):
        return None
    if is_true(workload, "Evicted") or is_true(workload, "Finished"):
        return None
    if views.reservation(workload) is None:
        return Withdraw(message="managed since: answered when it has quota")
    if views.our_template(job) and not annotation(job, job_names.ANN_HISTORY) and is_true(workload, "Admitted"):
        # Kueue's scheduler reserved quota at the same moment and wrote the check with its old value.
        return RequestReadmission(message="admitted before it was managed: its pods have no attempt number")
    return None


def decide(job: Object, workload: Object, pods: Sequence[Object], preemptor: str | None, now: float) -> Decision:
    """The Workload has quota and waits for us: answer, or say what we wait for."""
    if not views.managed(job):
        return Decision(UNMANAGED)
    if not views.suspended(job):
        return Decision(Wait(message="the Job is not suspended yet"))
    writers = [p for p in pods if views.can_write(p)]
    if writers:
        shown = ", ".join(sorted(p["metadata"]["name"] for p in writers)[:4])
        more = f" and {len(writers) - 4} more" if len(writers) > 4 else ""
        waiting = f"waiting for the pods of the attempt before to end: {shown}{more}"
        stuck, look_at = _stuck(writers, now)
        return Decision(Wait(message=f"{waiting}{stuck}"), wake_at=look_at)
    try:
        return Decision(answer(job, workload, preemptor, now))
    except BadAnnotationError as error:
        return Decision(Wait(message=str(error)))


def _stuck(pods: Sequence[Object], now: float) -> tuple[str, float | None]:
    """Words for the first pod that should have ended long ago, and when to look again if there is none yet.

    Only its node could tell that nothing of it runs any more. So only a person, or a program that removes lost nodes,
    may say so in the node's place.
    """
    due = []
    for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
        meta = pod["metadata"]
        gone_at = views.gone_at(pod)
        node = (pod.get("spec") or {}).get("nodeName")
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
    job: Object, workload: Object, preemptor: str | None, now: float, cluster: str | None = None
) -> AnswerReady:
    """The next attempt of `job` on the reservation of `workload`, which is `cluster`'s if it is in another one.

    Raises BadAnnotationError.
    """
    given, reservation = views.admission(workload), views.reservation(workload)
    assert given is not None and reservation is not None  # `asks` saw them
    history, checkpoint = views.history(job), views.checkpoint(job)
    origins.require_known(job)
    if checkpoint is not None and not views.of_store(job, checkpoint):
        store = annotation(job, job_names.ANN_STORE)
        problem = f"its url is not the Job's store {store!r} (annotation {job_names.ANN_STORE})"
        raise BadAnnotationError(names.ANN_CHECKPOINT, f"url {checkpoint.url}", problem)
    skipped = attempt_history.skipped(views.checkpoints(job), checkpoint)
    before = attempt_history.last(history)
    change: dict[str, str | None] = {}
    if before is not None and before.reservation == reservation and _untouched(before):
        number = before.attempt  # we died between the Job's patch and the Workload's: same reservation, same attempt
    else:
        number = max(views.attempt(job), before.attempt if before else 0) + 1
        if before is not None and _untouched(before) and views.never_started(job):
            # Our copy of the Workload was old: that answer had no effect, and its number starts no other attempt.
            number, history = before.attempt, history[:-1]
            before = attempt_history.last(history)
        if before is not None:
            before = attempt_history.closed(before, workload, preemptor, now)
            history = attempt_history.with_last(history, before)
        record = AttemptRecord(
            attempt=number,
            reservation=reservation,
            flavor=given.flavor,
            pods=given.count,
            ranks=views.world_size(job, default=given.count),
            admitted_at=now,
            queued_at=_queued_at(workload, before),
            restored_from=checkpoint.id if checkpoint else None,
            skipped=skipped,
            held=views.hold(job) is not None,
            cluster=cluster,
        )
        change = {job_names.ANN_ATTEMPT: str(number), job_names.ANN_HOLD_DEADLINE: None}
        if views.hold(job) is not None:
            change[job_names.ANN_HOLD] = job_names.HOLD_ARMED
        change.update(attempt_history.stored([*history, record]))
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
    )


def _start(checkpoint: CheckpointRef | None, skipped: Sequence[Skipped]) -> str:
    start = f"continues from checkpoint {checkpoint.id}" if checkpoint else "starts from the beginning"
    return "; ".join([start, *(f"checkpoint {other.id} cannot be restored: {other.why}" for other in skipped)])


def _untouched(record: AttemptRecord) -> bool:
    """Conditions have whole seconds: a second reservation in the same second must not pass for the first."""
    ended = record.evicted_at is not None or record.ended_by is not None
    return not ended and record.first_step is None and record.committed_at is None


def _queued_at(workload: Object, before: AttemptRecord | None) -> float | None:
    """Since when the attempt waited for quota; None when that was not seen."""
    return before.released_at if before is not None else views.created(workload)
