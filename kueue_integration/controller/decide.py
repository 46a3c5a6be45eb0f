"""One look at one Job: which single action, if any, is due now? Pure; the order below is the order of importance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from singularity_proxy.protocol.messages import RESTORES, CheckpointRef

from ..contract import job_names
from ..contract.record_types import AttemptRecord
from ..errors import BadAnnotationError
from ..requests import periodic_checkpoints
from . import (
    attempt_history,
    checkpoint_fit,
    failed_restores,
    fence,
    hold,
    leave,
    reactivation,
    repair,
    request_status,
    reshape,
    retry_budget,
    rewind,
)
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
from .hold import Settings
from .snapshot import Job, Pod, Snapshot, Workload, ends_of, of_attempt, ranks_ended, required

STUCK_S = 15.0
"""A pod that is still there so long after its grace period has no kubelet that could end it."""
LONGEST_PAUSE_S = 300
AWAY_S = (60, LONGEST_PAUSE_S)


def decide(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
    """Never raises because of text that a user can write into objects. `now`: Unix seconds."""
    job, workload, check_name = snapshot.job, snapshot.workload, settings.check_name
    ours = job.managed and not job.deleting
    if ours and job.copied and not job.kept:
        return Decision(KeepRecords())
    running = not job.suspended and not job.failing
    # A Workload that is gone without a trace (its finalizer was removed by hand): Kueue suspends such a Job as well.
    leaves = workload is None or workload.leaves
    if ours and running and leaves and job.armed:
        back = _take_up(snapshot, now) if request_status.rewinds(job) else None
        if back is not None:
            return Decision(back)  # what the hold would save is not wanted
        return hold.decide(snapshot, settings, now)
    if ours and job.end is None:
        missing = repair.due(snapshot)
        if missing is not None:
            return Decision(missing)
    answer = _take_up(snapshot, now)
    if answer is not None:
        return Decision(answer)
    # The manager numbers the attempts of a copied Workload, and lets them in.
    if workload is not None and not workload.copied and fence.asks(workload, check_name):
        return _at_fence(snapshot, workload, ours, settings, now)
    if not ours:
        ahead = workload is not None and not job.managed and fence.asks_ahead(workload, check_name)
        return Decision(fence.UNMANAGED if ahead else None)
    taken_back = fence.withdrawal(job, workload, check_name) if workload is not None else None
    if taken_back is not None:
        return Decision(taken_back)
    try:
        changed = _bookkeeping(snapshot, now)
        if changed is not None:
            return Decision(changed)
        given_up = rewind.leave(job, workload, check_name) if workload and running and not leaves else None
        if given_up is not None:
            return Decision(given_up)
        idle = workload is not None and not running and not workload.copied
        revived = reactivation.due(workload, now) if workload is not None and idle else None
        if revived is not None:
            return Decision(Revive(status=revived))
        answer, wake = request_status.follow(snapshot, check_name, now)
        if answer is not None or workload is None:
            return Decision(answer, wake)
        broken = _broken(snapshot, workload, check_name, now) if running and not leaves else Decision()
        said = Decision(broken.action) if broken.action else _changed(snapshot, workload, settings, now)
        if said.action is None and said.wake_at is None and broken.wake_at is None:
            said = Decision(*_periodic(job, workload, check_name, now))
        times = (wake, broken.wake_at, said.wake_at)
        return Decision(said.action, min((at for at in times if at is not None), default=None))
    except BadAnnotationError:
        pass  # the fence says it, where it stops something
    return Decision()


def _changed(snapshot: Snapshot, workload: Workload, settings: Settings, now: float) -> Decision:
    """What a request needs next. An attempt that runs is saved before it is stopped."""
    most_s = settings.max_budget_s
    action = reshape.decide(snapshot, workload, settings.check_name)
    wanted = action is not None and leave.stops(action)
    if action is not None:
        return leave.first(snapshot, workload, action, most_s, now) if wanted else Decision(action)
    stays = workload.state_of(settings.check_name) == "Ready"
    return leave.follow(snapshot, workload, most_s, now) if stays else Decision()


def _take_up(snapshot: Snapshot, now: float) -> AnswerRequest | None:
    try:
        return request_status.take_up(snapshot, now) if snapshot.job.managed else None
    except BadAnnotationError:
        return None


def _at_fence(snapshot: Snapshot, workload: Workload, ours: bool, settings: Settings, now: float) -> Decision:
    """The Workload has quota and waits for us."""
    check_name = settings.check_name
    sent_back = _before_start(snapshot.job, workload, check_name)
    if sent_back:
        return Decision(sent_back)
    said = fence.decide(snapshot, workload, now, settings.planner.prices)
    # Last, as it may have to ask the API server for nodes.
    if ours and isinstance(said.action, AnswerReady):
        try:
            sent_back = checkpoint_fit.sent_back(snapshot, workload, check_name)
            sent_back = sent_back or checkpoint_fit.elsewhere(snapshot)
        except BadAnnotationError as error:
            return Decision(Wait(message=str(error)))
    return Decision(sent_back) if sent_back else said


def _before_start(job: Job, workload: Workload, check_name: str) -> Action | None:
    """A request that makes this admission useless, however new the admission is."""
    try:
        return reshape.at_fence(job, workload, check_name) if job.managed and job.suspended else None
    except BadAnnotationError:
        return None  # the fence says so


def _bookkeeping(snapshot: Snapshot, now: float) -> Action | None:
    job, by = snapshot.job, snapshot.preemption
    history = required(job.history)
    record = attempt_history.last(history)
    if record is None:
        return None
    seen = attempt_history.observe(record, job, snapshot.workload, by.name, now)
    seen = attempt_history.emptied(seen, snapshot.pods, now)
    seen = attempt_history.explained(seen, ends_of(of_attempt(snapshot.pods, record.attempt)))
    change = attempt_history.roster(job, seen, snapshot.pods)
    change.update(failed_restores.killed(job, record, of_attempt(snapshot.pods, record.attempt)) or {})
    if seen != record:
        change.update(attempt_history.stored(attempt_history.with_last(history, seen), by))
    return RecordHistory(change) if change else None


def _broken(snapshot: Snapshot, workload: Workload, check_name: str, now: float) -> Decision:
    """A training attempt runs and ends as a whole. If pods are gone and Kueue has not ended the attempt, ask Kueue to
    end it."""
    job = snapshot.job
    history = required(job.history)
    record = attempt_history.last(history)
    if record is None or workload.state_of(check_name) != "Ready" or not workload.is_true("Admitted"):
        return Decision()
    own = of_attempt(snapshot.pods, record.attempt)
    if ranks_ended(job, own):
        return Decision()  # the pods that are made in place of lost ones hear so, and end (`reports.hello`)
    unrestored, wake_at = attempt_history.failed_in(job.checkpoints, record), None
    if unrestored is None:
        cause, wake_at = _cause(own, record, job.roster_of(record.attempt), now)
    else:
        cause = _not_restored(unrestored)
    if cause is None:
        return Decision(wake_at=wake_at)
    # Restores that fail have a limit of their own.
    count, change = retry_budget.counted(job, record) if unrestored is None else (0, {})
    over = retry_budget.used_up(job, count) if unrestored is None else None
    message = f"{cause}; {over or attempt_history.restart_point(required(job.checkpoint))}"
    seen = attempt_history.noted(replace(record, ended_by=record.ended_by or "Deleted"), message)
    seen = attempt_history.explained(seen, ends_of(own))
    change.update(attempt_history.stored(attempt_history.with_last(history, seen), snapshot.preemption))
    if job.hold is not None:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if over is not None:
        return Decision(GiveUp(annotations=change, message=message))
    pause = max(_pause(history), 0 if unrestored is None else _away(unrestored))
    return Decision(RequestReadmission(change, message=message, requeue_after_s=pause))


def _not_restored(ref: CheckpointRef) -> str:
    """A pod has not restored the attempt's checkpoint: then no pod of the attempt needs to go on."""
    if ref.passed_over:
        return f"checkpoint {ref.id} cannot be restored: {ref.passed_over}"
    last = ref.failed[-1]
    where = f" on node {last.node}" if last.node else ""
    return f"checkpoint {ref.id} was not restored{where}, try {len(ref.failed)} of {RESTORES}: {last.why}"


def _away(ref: CheckpointRef) -> int:
    """Seconds for what a restore lacked to come back, such as a volume whose server starts again."""
    if ref.passed_over or not ref.failed[-1].passes:
        return 0
    return AWAY_S[min(len(ref.failed), len(AWAY_S)) - 1]


def _periodic(job: Job, workload: Workload, check_name: str, now: float) -> tuple[Action | None, float | None]:
    """A checkpoint that is due by the job's own policy, or when to look again. Only while Kueue does not evict the
    job."""
    stays = workload.is_true("Admitted") and workload.state_of(check_name) == "Ready"
    if job.save_interval is None or job.suspended or job.failing or not stays or workload.leaves or not workload.active:
        return None, None
    request, at = periodic_checkpoints.due(job.raw, now)
    if request is None:
        return None, at
    seen = periodic_checkpoints.memory(job.raw)
    cost = "nothing known of its cost" if seen.cost_s is None else f"the last one took {seen.cost_s:.1f} s"
    return AskCheckpoint(
        periodic_checkpoints.asking(job.raw, request), message=f"due; {cost}, {seen.failures} failed in a row"
    ), None


def _cause(
    own: Sequence[Pod], record: AttemptRecord, roster: Collection[str] | None, now: float
) -> tuple[str | None, float | None]:
    """Why the attempt cannot go on, None if it can; and when to look again at a pod that should have ended."""
    if record.checkpoint is not None:
        return f"attempt {record.attempt} stopped with checkpoint {record.checkpoint}, not on Kueue's request", None
    wake_at = None
    firsts: dict[int | None, Pod] = {}
    for pod in sorted(own, key=lambda pod: pod.created, reverse=True):
        firsts[pod.index] = pod
    for pod in own:
        # Until the Job controller has counted a failed pod, it may still decide that the whole Job has failed.
        if pod.phase == "Failed" and pod.counted:
            how = f": {pod.end.text}" if pod.end else ""
            return f"pod {pod.name} of attempt {record.attempt} was lost{how}", None
        if firsts[pod.index] is not pod or (roster is not None and pod.short_uid not in roster):
            return f"pod {pod.name} replaces a lost one of attempt {record.attempt}", None
        gone_at = pod.gone_at
        if gone_at is not None and now >= gone_at + STUCK_S:
            return f"pod {pod.name} of attempt {record.attempt} does not end: its node does not answer", None
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
