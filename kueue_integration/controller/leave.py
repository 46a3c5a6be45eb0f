"""A voluntary stop saves first: whatever stops a running attempt that Kueue has not evicted passes `first`. Pure.

The sidecars are asked for a checkpoint after which the ranks stay stopped (`reports.command`). Once it is committed,
the Workload is deactivated or readmitted. The hold that follows asks them to end; they end with that same checkpoint,
and no second save. If the save fails, the ranks train on, nothing is stopped, and the request fails.

What was saved counts for USED_S. The ranks stay stopped for longer, by the leader's clock, and go on by themselves if
nobody comes: a crash of the controller in between costs that time and no work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from singularity_proxy.protocol.messages import CheckpointRef, SaveCause

from ..contract import attempt_records, leaves, saveable
from ..contract.leaves import Leave
from ..contract.record_types import JobRequest
from ..kube.resources import Object
from ..requests import user_requests
from . import attempt_history
from .actions import Action, Decision, NoteLeave, PatchWorkload, RequestReadmission
from .snapshot import Job, Snapshot, Workload, of_attempt, readable_or

STAY_S = 60.0
"""Seconds for which ranks stay stopped after their checkpoint if nothing comes."""
USED_S = 30.0
"""Seconds after the commit within which the attempt is stopped. The rest is for clocks, and for Kueue."""
SILENCE_S = 15.0
"""Seconds after its deadline at which we abandon a save if the pods report nothing."""
TRIES = 2
"""So often the pods are asked that give no answer, or are saved and then cannot be stopped."""
LOSE_WORK = "`--lose-work` stops it all the same"
VOLUNTARY = ("request", "regrow")
"""Causes of a readmission that somebody wants. The others are for attempts that cannot go on."""


@dataclass(frozen=True)
class Verdict:
    """Whether an attempt may be stopped now. One of the fields is set; none: wait until `wake_at`."""

    go: str = ""
    """Why no work is lost with it."""
    failed: str = ""
    """Why it cannot be saved."""
    note: Leave | None = None
    """To be written: it is saved first, or cannot be."""
    cause: SaveCause = ""
    """Why it cannot be, as far as only we know that."""
    wake_at: float | None = None


def stops(action: Action) -> bool:
    """Whether the action stops an attempt of its own accord, if one runs."""
    if isinstance(action, PatchWorkload):
        return (action.body.get("spec") or {}).get("active") is False
    return isinstance(action, RequestReadmission) and action.cause in VOLUNTARY


def runs(job: Job, workload: Workload) -> bool:
    """Whether pods of the job run that Kueue does not evict."""
    leaves_already = workload.leaves or not workload.active
    return not (job.suspended or job.failing or leaves_already) and workload.is_true("Admitted")


def require(action: Action, job: Object, workload: Object | None) -> None:
    """Raises AssertionError for a voluntary stop of a running attempt that nobody has found to be without loss."""
    if workload is None or not stops(action) or not runs(Job.parse(job), Workload.parse(workload)):
        return
    assert isinstance(action, (PatchWorkload, RequestReadmission))
    assert action.safe, f"{action} would stop a running attempt that was not saved"


def verdict(
    snapshot: Snapshot, workload: Workload, request: JobRequest | None, why: str, max_budget_s: float, now: float
) -> Verdict:
    """Whether the running attempt may be stopped for `request` (None: for the planner). `why`: for people."""
    job = snapshot.job
    nothing = _nothing_to_save(snapshot, workload)
    if nothing:
        return Verdict(go=nothing)
    if request is not None and request.lose_work:
        return Verdict(go="whoever asks does not mind the loss")
    record = job.last
    assert record is not None  # else there is nothing to save
    known = job.leave_of(record)
    named = "" if request is None else request.id
    begun = begin(job, why, max_budget_s, now, request=named)
    if known is None or known.state == "off":
        return Verdict(note=begun)
    if known.state == "failed":
        return Verdict(failed=known.message) if known.request == named else Verdict(note=begun)
    if known.state == "saving":
        silent_at = known.deadline + SILENCE_S
        if now < silent_at:
            return Verdict(wake_at=silent_at)
        if known.tries < TRIES:  # it may be we who were away
            return Verdict(note=replace(begun, tries=known.tries + 1))
        return Verdict(note=failed(known, f"the pods gave no answer, asked {TRIES} times", now), cause="pods")
    workers = None if request is None else request.workers
    few = "" if workers is None else user_requests.crowded(_saved(job, known), workers)
    if few:
        return Verdict(note=failed(known, few, now))
    if known.since <= now < known.since + USED_S:
        return Verdict(go=f"saved as {known.checkpoint}" if known.checkpoint else known.message)
    if known.tries >= TRIES:
        return Verdict(note=failed(known, f"it was saved {TRIES} times, and could not be stopped in time", now))
    return Verdict(note=replace(begun, tries=known.tries + 1))


def _saved(job: Job, known: Leave) -> CheckpointRef | None:
    return next((ref for ref in job.checkpoints if ref.id == known.checkpoint), None)


def _nothing_to_save(snapshot: Snapshot, workload: Workload) -> str:
    """Why no work is lost if the attempt is stopped as it is, "" if some may be."""
    job, record = snapshot.job, snapshot.job.last
    if not runs(job, workload):
        return "nothing runs"
    if record is None or record.ended_by is not None or record.checkpoint is not None:
        return "its attempt is over"
    if record.runs_since is None:
        return "its programs do not run yet"
    if not any(pod.can_write for pod in of_attempt(snapshot.pods, record.attempt)):
        return "it has no pods"
    shown = attempt_records.progress(job.raw)
    done = shown is not None and shown.attempt == record.attempt and shown.phase == "finished"
    return "its programs have ended" if done else ""


def begin(job: Job, why: str, max_budget_s: float, now: float, request: str = "", readmit: str = "") -> Leave:
    """The present attempt is to be saved, and then to leave. `now`: Unix seconds."""
    before, record = job.leave, job.last
    # Numbers of commands grow.
    at = round(now if before is None else max(now, before.at + 0.001, before.since + 0.001), 3)
    attempt, deadline = 0 if record is None else record.attempt, round(at + job.budget(max_budget_s), 3)
    return Leave(attempt, "saving", at, deadline, at, leaves.cut(why), request, leaves.cut(readmit))


def failed(leave: Leave, why: str, now: float) -> Leave:
    """The attempt could not be saved: it goes on."""
    return replace(leave, state="failed", since=max(leave.at, round(now, 3)), message=leaves.cut(why.rstrip(". ")))


def saved(leave: Leave, checkpoint: str, now: float, message: str = "") -> Leave:
    """The attempt is saved, and its ranks stay stopped. Without a checkpoint: why there is nothing to save."""
    return replace(
        leave, state="saved", since=max(leave.at, round(now, 3)), checkpoint=checkpoint, message=leaves.cut(message)
    )


def first(snapshot: Snapshot, workload: Workload, action: Action, max_budget_s: float, now: float) -> Decision:
    """`action`, where no work is lost with it; else what has to come before it. Only `stops` actions come here."""
    found = snapshot.job.changing
    request = None if found is None else found[0]
    by = f" by {request.by}" if request is not None and request.by else ""
    why = "the planner" if request is None else f"{request.op}, as asked for{by}"
    return _decision(snapshot.job, verdict(snapshot, workload, request, why, max_budget_s, now), action, now)


def _decision(job: Job, seen: Verdict, action: Action, now: float) -> Decision:
    if seen.note is not None:
        told = note(seen.note)
        if not seen.cause:
            return Decision(told)
        known = saveable.failed(job.raw, seen.note.attempt, now, seen.cause, seen.note.message)
        return Decision(replace(told, job_annotations={**told.job_annotations, **known}))
    if seen.go and isinstance(action, (PatchWorkload, RequestReadmission)):
        return Decision(replace(action, safe=seen.go))
    return Decision(wake_at=seen.wake_at)


def note(leave: Leave) -> NoteLeave:
    """The action that writes it."""
    words = {
        "saving": f"saved before it is stopped: {leave.why}",
        "failed": f"cannot be saved, and goes on: {leave.message}",
        "off": f"nobody stops it any more ({leave.why}): it goes on",
        "saved": f"saved: {leave.why}",
    }
    return NoteLeave(leaves.stored(leave), message=words[leave.state])


def follow(snapshot: Snapshot, workload: Workload, max_budget_s: float, now: float) -> Decision:
    """What becomes of a save that was begun, where no request stops the attempt any more: the planner's readmission
    follows it, or it is called off."""
    job, record = snapshot.job, snapshot.job.last
    known = job.leave_of(record)
    if known is None or not known.live or not runs(job, workload):
        return Decision()
    if known.readmit:
        history = readable_or(job.history, ())
        told = attempt_history.readmitted(history[-1], "regrow", known.readmit)
        stored = attempt_history.stored(attempt_history.with_last(history, told))
        action = RequestReadmission(stored, message=known.readmit, cause="regrow")
        seen = verdict(snapshot, workload, None, known.why, max_budget_s, now)
        if seen.note is not None and seen.note.state == "saving":
            seen = replace(seen, note=replace(seen.note, readmit=known.readmit, request=known.request))
        return _decision(job, seen, action, now)
    if known.state == "saved" and now >= known.since + STAY_S:
        return Decision()  # its ranks have gone on by themselves
    return Decision(note(replace(known, state="off", since=max(known.at + 0.001, round(now, 3)))))


def failure_of(job: Job, request: JobRequest) -> str:
    """Why `request` cannot be carried out: what it was to stop cannot be saved. "" if nothing is known against it."""
    record = job.last
    known = job.leave_of(record)
    if known is None or known.state != "failed" or known.request != request.id or request.lose_work:
        return ""
    return f"not stopped, it goes on ({LOSE_WORK}): {attempt_history.NO_CHECKPOINT}: {known.message}"
