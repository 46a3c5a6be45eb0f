"""One look at one Job: which single action, if any, is due now? Pure; the order below is the order of importance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from proxy.protocol.messages import AttemptRecord

from ..contract import job_names
from ..kube.resources import Object, is_true
from ..requests import periodic_checkpoints
from . import attempt_history, fence, hold, reactivation, repair, request_status, reshape, retry_budget, rewind, views
from .actions import (
    Action,
    AnswerReady,
    AnswerRequest,
    AskCheckpoint,
    Decision,
    GiveUp,
    KeepRecords,
    RecordHistory,
    RequestReadmission,
    Revive,
    Wait,
)
from .errors import BadAnnotationError
from .fit import checkpoint_fit
from .hold import Settings

NameOf = Callable[[str], "str | None"]
"""Name of the Workload with this UID, or of the Workload of the Job with this UID."""
STUCK_S = 15.0
"""A pod that is still there so long after its grace period has no kubelet that could end it."""
LONGEST_PAUSE_S = 300


def _unknown(job: Object) -> Sequence[str] | None:
    return None


def decide(
    job: Object,
    workload: Object | None,
    pods: Sequence[Object],
    now: float,
    settings: Settings,
    name_of: NameOf,
    flavors_of: request_status.FlavorsOf = _unknown,
    machines_of: checkpoint_fit.MachinesOf = checkpoint_fit.unknown,
    seen_at: float | None = None,
) -> Decision:
    """`pods` are all pods of the Job, whatever their attempt, including pods that were seen to go away (phase Failed).

    `seen_at`: when Kueue was first seen to want the Job suspended, Unix seconds; None: now.

    `workload` None: the API server has none. Never raises because of text that a user can write into objects.
    """
    preemptor = _preemptor(workload, name_of)
    ours = views.managed(job) and not job["metadata"].get("deletionTimestamp")
    if ours and views.copied(job) and not views.kept(job):
        return Decision(KeepRecords())
    running = not views.suspended(job) and not views.failing(job)
    # A Workload that is gone without a trace (its finalizer was removed by hand): Kueue suspends such a Job as well.
    leaves = workload is None or views.leaves(workload)
    if ours and running and leaves and views.hold(job) == job_names.HOLD_ARMED:
        back = _take_up(job, workload, flavors_of, now) if request_status.rewinds(job) else None
        if back is not None:
            return Decision(back)  # what the hold would save is not wanted
        return hold.decide(job, workload, pods, preemptor, now, settings, seen_at)
    if ours and not views.finished(job):
        missing = repair.due(job, workload, pods)
        if missing is not None:
            return Decision(missing)
    answer = _take_up(job, workload, flavors_of, now)
    if answer is not None:
        return Decision(answer)
    # The manager numbers the attempts of a copied Workload, and lets them in.
    if workload is not None and not views.copied(workload) and fence.asks(workload, settings.check_name):
        sent_back = _before_start(job, workload, settings.check_name)
        if sent_back:
            return Decision(sent_back)
        said = fence.decide(job, workload, pods, preemptor, now)
        # Last, as it may have to ask the API server for nodes.
        if ours and isinstance(said.action, AnswerReady):
            try:
                sent_back = checkpoint_fit.sent_back(job, workload, settings.check_name, flavors_of, machines_of)
            except BadAnnotationError as error:
                return Decision(Wait(message=str(error)))
        return Decision(sent_back) if sent_back else said
    if not ours:
        ahead = workload is not None and not views.managed(job) and fence.asks_ahead(workload, settings.check_name)
        return Decision(fence.UNMANAGED if ahead else None)
    taken_back = fence.withdrawal(job, workload, settings.check_name) if workload is not None else None
    if taken_back is not None:
        return Decision(taken_back)
    try:
        changed = _bookkeeping(job, workload, pods, preemptor, now)
        if changed is not None:
            return Decision(changed)
        given_up = rewind.leave(job, workload, settings.check_name) if workload and running and not leaves else None
        if given_up is not None:
            return Decision(given_up)
        idle = workload is not None and not running and not views.copied(workload)
        revived = reactivation.due(workload, now) if workload is not None and idle else None
        if revived is not None:
            return Decision(Revive(status=revived))
        answer, wake = request_status.follow(job, workload, pods, settings.check_name, now)
        if answer is not None or workload is None:
            return Decision(answer, wake)
        broken = _broken(job, workload, pods, settings, now) if running and not leaves else Decision()
        action = broken.action or reshape.lever(job, workload, pods, settings.check_name)
        due_at = None
        if action is None and broken.wake_at is None:
            action, due_at = _periodic(job, workload, settings, now)
        return Decision(action, min((at for at in (wake, broken.wake_at, due_at) if at is not None), default=None))
    except BadAnnotationError:
        pass  # said at the fence, where it stops something
    return Decision()


def _take_up(
    job: Object, workload: Object | None, flavors_of: request_status.FlavorsOf, now: float
) -> AnswerRequest | None:
    try:
        return request_status.take_up(job, workload, flavors_of, now) if views.managed(job) else None
    except BadAnnotationError:
        return None


def _before_start(job: Object, workload: Object, check_name: str) -> Action | None:
    """A request that makes this admission useless, however new the admission is."""
    try:
        ours = views.managed(job) and views.suspended(job)
        return reshape.at_fence(job, workload, check_name) if ours else None
    except BadAnnotationError:
        return None  # the fence says so


def _preemptor(workload: Object | None, name_of: NameOf) -> str | None:
    uids = views.preemptor_uids(workload) if workload is not None else []
    return next((name for name in map(name_of, uids) if name), uids[0] if uids else None)


def _bookkeeping(
    job: Object, workload: Object | None, pods: Sequence[Object], preemptor: str | None, now: float
) -> Action | None:
    history = views.history(job)
    record = attempt_history.last(history)
    if record is None:
        return None
    seen = attempt_history.observe(record, job, workload, preemptor, now)
    seen = attempt_history.explained(seen, views.ends_of(views.of_attempt(pods, record.attempt)))
    change = attempt_history.roster(job, seen, pods)
    if seen != record:
        change.update(attempt_history.stored(attempt_history.with_last(history, seen)))
    return RecordHistory(change) if change else None


def _broken(job: Object, workload: Object, pods: Sequence[Object], settings: Settings, now: float) -> Decision:
    """A training attempt runs and ends as a whole. If pods are gone and Kueue has not ended the attempt, ask Kueue to
    end it."""
    state = views.check(workload, settings.check_name)
    history = views.history(job)
    record = attempt_history.last(history)
    if record is None or state is None or state.get("state") != "Ready" or not is_true(workload, "Admitted"):
        return Decision()
    own = views.of_attempt(pods, record.attempt)
    if views.ranks_ended(job, own):
        return Decision()  # the pods that are made in place of lost ones hear so, and end (`reports.hello`)
    cause, wake_at = _damaged(job, record), None
    if cause is None:
        cause, wake_at = _cause(own, record, views.roster(job, record.attempt), now)
    if cause is None:
        return Decision(wake_at=wake_at)
    count, change = retry_budget.counted(job, record)
    over = retry_budget.used_up(job, count)
    message = f"{cause}; {over or attempt_history.restart_point(views.checkpoint(job))}"
    seen = attempt_history.noted(replace(record, ended_by=record.ended_by or "Deleted"), message)
    seen = attempt_history.explained(seen, views.ends_of(own))
    change.update(attempt_history.stored(attempt_history.with_last(history, seen)))
    if views.hold(job) is not None:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if over is not None:
        return Decision(GiveUp(annotations=change, message=message))
    return Decision(RequestReadmission(change, message=message, requeue_after_s=_pause(history)))


def _damaged(job: Object, record: AttemptRecord) -> str | None:
    """A pod has found that it cannot restore the attempt's checkpoint: then no pod of the attempt needs to go on."""
    given = next((ref for ref in views.checkpoints(job) if ref.id == record.restored_from and ref.unusable), None)
    return None if given is None else f"checkpoint {given.id} cannot be restored: {given.unusable}"


def _periodic(job: Object, workload: Object, settings: Settings, now: float) -> tuple[Action | None, float | None]:
    """A checkpoint that is due by the job's own policy, or when to look again. Only while Kueue does not evict the
    job."""
    state = views.check(workload, settings.check_name)
    stays = is_true(workload, "Admitted") and state is not None and state.get("state") == "Ready"
    if (
        views.suspended(job)
        or views.failing(job)
        or not stays
        or views.leaves(workload)
        or not reshape.active(workload)
    ):
        return None, None
    request, at = periodic_checkpoints.due(job, now)
    if request is None:
        return None, at
    seen = periodic_checkpoints.memory(job)
    cost = "nothing known of its cost" if seen.cost_s is None else f"the last one took {seen.cost_s:.1f} s"
    return AskCheckpoint(
        periodic_checkpoints.asking(job, request), message=f"due; {cost}, {seen.failures} failed in a row"
    ), None


def _cause(
    own: Sequence[Object], record: AttemptRecord, roster: Collection[str] | None, now: float
) -> tuple[str | None, float | None]:
    """Why the attempt cannot go on, None if it can; and when to look again at a pod that should have ended."""
    if record.checkpoint is not None:
        return f"attempt {record.attempt} stopped with checkpoint {record.checkpoint}, not on Kueue's request", None
    wake_at = None
    firsts: dict[int | None, Object] = {}
    for pod in sorted(own, key=views.created, reverse=True):
        firsts[views.pod_index(pod)] = pod
    for pod in own:
        name = pod["metadata"]["name"]
        counted = views.TRACKING_FINALIZER not in (pod["metadata"].get("finalizers") or ())
        # Until the Job controller has counted a failed pod, it may still decide that the whole Job has failed.
        if views.phase(pod) == "Failed" and counted:
            how = views.end_of(pod)
            return f"pod {name} of attempt {record.attempt} was lost" + (f": {how}" if how else ""), None
        if firsts[views.pod_index(pod)] is not pod or (roster is not None and views.short_uid(pod) not in roster):
            return f"pod {name} replaces a lost one of attempt {record.attempt}", None
        gone_at = views.gone_at(pod)
        if gone_at is not None and now >= gone_at + STUCK_S:
            return f"pod {name} of attempt {record.attempt} does not end: its node does not answer", None
        if gone_at is not None:
            wake_at = gone_at + STUCK_S
    return None, wake_at


def _pause(history: Sequence[AttemptRecord]) -> int:
    """Seconds to wait before the next try: more for each broken attempt in a row that brought no new checkpoint."""
    fruitless = 0
    for record in reversed(history[:-1]):
        if record.ended_by not in attempt_history.BROKEN or record.checkpoint is not None:
            break
        fruitless += 1
    return int(min(2**fruitless, LONGEST_PAUSE_S))
