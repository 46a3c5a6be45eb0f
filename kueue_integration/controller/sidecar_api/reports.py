"""The effect of a training pod's message on its Job: pure functions from (Job, message) to annotations.

The API server decides between two writers. Every change is written with the Job's resourceVersion as precondition. If
that fails, the change is computed again from the newer Job.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from singularity_proxy.protocol import decode, gpus, manifest, names, page
from singularity_proxy.protocol import inputs as input_names
from singularity_proxy.protocol.messages import (
    RESULT_BYTES,
    CheckpointFailure,
    CheckpointRef,
    Command,
    CommitRequest,
    DamageReport,
    Hello,
    HelloReply,
    Needs,
    Progress,
    Reading,
    TrialReport,
    to_json,
)
from singularity_proxy.protocol.outputs import StoredOutputs

from ...contract import attempt_phases, branches, job_names, leaves, saveable
from ...contract.attempt_records import progress as shown_progress
from ...contract.attempt_records import stored_last
from ...contract.record_types import AttemptRecord
from ...job import states
from ...job.unreadable import UnreadableAnnotation, readable_or
from ...jobs import loss_curve
from ...kube.resources import Object
from ...requests import user_requests
from .. import attempt_history, failed_restores, leave
from ..actions import Annotations
from ..errors import RefusedError
from ..snapshot import Job, Pod, of_attempt, ranks_ended, required, roster_text

NOT_RUNNING = ("starting", "restoring")
"""Phases of an attempt in which not all of its programs run yet."""
GOING = "the job is being deleted: its pods have nothing more to save"
SAME_S = 2.0
"""Two reports of an event's age mean the same event if the computed times differ by no more than this: reports have a
delay."""
MAX_CROWDED = 240
MAX_NEEDS = 32
"""Features that a checkpoint may need, and letters of a name: it is kept in annotations of limited size."""


def require_current(job: Object, attempt: int) -> None:
    """Raises RefusedError 409 unless `attempt` is the Job's current one, and the Job is to stay."""
    _require_current(Job.parse(job), attempt)


def _require_current(job: Job, attempt: int) -> None:
    if job.going:
        raise RefusedError(409, GOING)
    current = required(job.attempt)
    if attempt != current:
        raise RefusedError(409, _not_current(attempt, current))


def _not_current(attempt: int, current: int) -> str:
    return f"attempt {attempt} is not current, the job is at {current}; nothing was written"


def _require_wanted(job: Job, attempt: int) -> None:
    """Raises RefusedError 409 also for an attempt that was given up: its ranks end, and nothing of it is kept.

    Not at a pod's start. The Job makes pods in place of those that have ended, and one that is refused would fail it.
    """
    _require_current(job, attempt)
    back = branches.given_up(job.rewinds, attempt)
    if back is not None:
        raise RefusedError(409, _given_up(attempt, back))


def _given_up(attempt: int, back: branches.Rewind) -> str:
    return f"attempt {attempt} was given up: {branches.sentence(back)}; nothing was written"


def peer_key(secret: bytes, job_uid: str, attempt: int) -> str:
    """Secret that the sidecars of one attempt share."""
    return hmac.new(secret, f"{job_uid}/{attempt}".encode(), hashlib.sha256).hexdigest()


def _current(job: Job, attempt: int) -> tuple[attempt_history.History, AttemptRecord | None]:
    history = required(job.history)
    record = attempt_history.last(history)
    return history, record if record is not None and record.attempt == attempt else None


def ended(job: Object, attempt: int) -> bool:
    """Whether the Job's current attempt `attempt` has stopped with a checkpoint, or was given up."""
    seen = Job.parse(job)
    _, record = _current(seen, attempt)
    saved = record is not None and record.checkpoint is not None
    return saved or branches.given_up(seen.rewinds, attempt) is not None


def hello(job: Object, pods: Sequence[Object], message: Hello, secret: bytes) -> HelloReply | None:
    """The answer, None while the pod has to ask again. Raises RefusedError 409 for an attempt that is over."""
    seen, shown = Job.parse(job), [Pod.parse(pod) for pod in pods]
    _require_current(seen, message.attempt)
    if ranks_ended(seen, shown):
        return HelloReply(peer_key="", leader_ip="", finished=True)
    _, record = _current(seen, message.attempt)
    over = record is not None and (
        record.checkpoint is not None or (record.ended_by in attempt_history.BROKEN and not seen.armed)
    )
    if over or branches.given_up(seen.rewinds, message.attempt) is not None:
        return None  # this pod is a replacement that Kueue is about to remove, or has ranks that may end
    leader_ip = None
    for pod in of_attempt(shown, message.attempt):
        if pod.index == 0 and pod.can_write and not pod.deleting:
            leader_ip = (pod.raw.get("status") or {}).get("podIP")
    if not leader_ip:
        return None
    key = peer_key(secret, str(job["metadata"]["uid"]), message.attempt)
    # Of the branch that the job is on: nothing goes on from another one by itself.
    branch = {ref.id for ref in branches.line(job)}
    committed = [ref for ref in branches.known(job)[::-1] if ref.id in branch or ref.passed_over]
    return HelloReply(key, str(leader_ip), _given(seen, record), committed, origin=branches.origin(job))


def _given(job: Job, record: AttemptRecord | None) -> CheckpointRef | None:
    """The checkpoint with which the attempt was let in: all of its pods restore the same checkpoint, or the attempt
    does not start.

    The annotation of the Job names the checkpoint of the next attempt: an older one as soon as a pod has found damage.
    """
    now = required(job.checkpoint)
    if record is None or record.restored_from is None or (now is not None and now.id == record.restored_from):
        return now
    return next((ref for ref in job.checkpoints if ref.id == record.restored_from), now)


def command(job: Object, now: float) -> Command | None:
    """The present command for the leader. It is derived from the annotations, so a new controller goes on where the old
    controller stopped.

    The number of an eviction is its deadline; the number of a requested checkpoint is the time when it was taken up,
    both in milliseconds. It identifies the command across restarts, and a later command has a higher number.
    Raises RefusedError 409 if the attempt was given up.
    """
    if states.suspended(job):
        return None
    seen = Job.parse(job)
    _require_wanted(seen, required(seen.attempt))
    record = attempt_history.last(required(seen.history))
    deadline = required(seen.hold_deadline)
    if seen.armed and deadline is not None:
        reason = (record.ended_by if record else None) or "Evicted"
        return Command(_number(deadline), "checkpoint", reason, max(0.0, deadline - now), then="stop")
    if record is None or record.checkpoint is not None or record.evicted_at is not None:
        return None
    leaving = leaves.of_attempt(job, record.attempt)
    if leaving is not None and leaving.state == "saving":  # its checkpoint answers the other request, too
        left = leaving.deadline - now
        if left <= 0:
            return None  # this controller was away: a look of it gives the next one
        return Command(_number(leaving.at), "checkpoint", leaving.why, left, then="stay", stay_s=leave.STAY_S)
    over = None
    if leaving is not None and leaving.state in ("failed", "off"):
        over = Command(_number(leaving.since), "resume", leaving.why, 0.0)
    asked = seen.checkpoint_request.running
    if asked is None or asked[1].attempt != record.attempt or asked[1].deadline is None:
        return over
    request, status = asked
    seq, left = _number(status.at), max(0.0, asked[1].deadline - now)
    if over is not None and over.seq > seq:
        return over
    return Command(seq, "checkpoint", f"asked for by {request.by or 'a user'}", left, then="continue")


def _number(moment: float) -> int:
    """Of the command that was given at this time, Unix seconds."""
    return round(moment * 1000)


def note(job: Object, message: Progress, now: float) -> str:
    """What the job's progress object is to say: all of `message` that need not be on the Job now."""
    seen, told = shown_progress(job), _noted(job, message, now)
    known = seen.gpus if seen is not None and seen.attempt == message.attempt else None
    found = known if message.gpus is None else gpus.bounded(message.gpus)
    if found is not None:
        told["gpus"] = found
    curve = loss_curve.noted_with(seen, message.reading or Reading())
    return to_json({**told, "curve": curve} if curve else told)


def _noted(job: Object, message: Progress, now: float) -> dict[str, object]:
    shown: dict[str, object] = {"attempt": message.attempt, "step": message.step, "phase": message.phase}
    shown["at"] = round(now, 3)
    if message.free:
        shown["free"] = True
    if message.bytes_total:
        shown |= {"bytes_done": message.bytes_done, "bytes_total": message.bytes_total}
    printed = loss_curve.printed(job, message.reading or Reading())
    return shown | {name: value for name, value in printed.items() if value is not None}


def progress(job: Object, message: Progress, now: float, pods: Sequence[Object] = ()) -> Annotations:
    """What to write on the Job; `pods` are the Job's, as far as known. Raises RefusedError 409."""
    seen_job = Job.parse(job)
    _require_wanted(seen_job, message.attempt)
    change: dict[str, str | None] = loss_curve.extended(job, message.reading or Reading())
    change[job_names.ANN_PROGRESS] = json.dumps(_noted(job, message, now), separators=(",", ":"))
    change.update(attempt_phases.told(job, message.attempt, start=message.start))
    history, record = _current(seen_job, message.attempt)
    if record is None:
        return change
    first = record.first_step if record.first_step is not None else message.first_step
    moved = first is not None and message.step > first and record.checkpoint is None
    seen = replace(
        record,
        running_at=record.running_at or (None if message.phase in NOT_RUNNING else now),
        first_step=first,
        first_step_at=_when(record.first_step_at, message.first_step_ago_s, now, once=True),
        last_step=max(message.step - 1, record.last_step or 0) if moved else record.last_step,
        barrier_at=_when(record.barrier_at, message.barrier_ago_s, now),
        gpus=record.gpus if message.gpus is None else gpus.bounded(message.gpus),
    )
    if message.why_state:
        seen = attempt_history.noted(seen, f"began from the state in its checkpoint: {message.why_state}")
    change.update(attempt_history.roster(seen_job, seen, [Pod.parse(pod) for pod in pods]))
    if seen != record or seen != stored_last(job):
        change.update(attempt_history.stored(attempt_history.with_last(history, seen)))
    return change


def _when(known: float | None, ago_s: float | None, now: float, once: bool = False) -> float | None:
    """Unix seconds, by our clock, of what happened so long ago; what is known of the same moment stays."""
    if ago_s is None or (known is not None and (once or abs(now - ago_s - known) < SAME_S)):
        return known
    return round(now - ago_s, 3)


@dataclass(frozen=True)
class Standing:
    """What a report of progress is compared with, found once for each version of a Job: a history may be long."""

    attempt: int
    going: bool
    given_up: branches.Rewind | None
    """Somebody has given the current attempt up."""
    record: AttemptRecord | None
    """Of the current attempt, as it stands on the Job."""
    started: bool
    """It is known how the programs of the attempt came to run."""
    roster: bool
    """It is known which pods it trains with."""

    @classmethod
    def of(cls, job: Object) -> Standing:
        """Raises BadAnnotationError."""
        seen = Job.parse(job)
        attempt = required(seen.attempt)
        _, record = _current(seen, attempt)
        back = branches.given_up(seen.rewinds, attempt)
        told = any(each.attempt == attempt and each.start is not None for each in attempt_phases.of_job(job))
        return cls(attempt, seen.going, back, record, told, seen.roster_of(attempt) is not None)

    def require_wanted(self, attempt: int) -> None:
        """Raises RefusedError 409, as `_require_wanted` does."""
        if self.going:
            raise RefusedError(409, GOING)
        if attempt != self.attempt:
            raise RefusedError(409, _not_current(attempt, self.attempt))
        if self.given_up is not None:
            raise RefusedError(409, _given_up(attempt, self.given_up))

    def is_news(self, shown: Object, message: Progress, now: float, pods: Sequence[Object] = ()) -> bool:
        """Whether `message` says something for the Job itself. `shown`: the Job with its newest progress."""
        last, record = shown_progress(shown), self.record
        if record is None:
            return False
        if last is None or last.attempt != message.attempt or last.phase != message.phase:
            return True
        return (
            (record.first_step is None and message.first_step is not None)
            or (record.running_at is None and message.phase not in NOT_RUNNING)
            or (record.first_step_at is None and message.first_step_ago_s is not None)
            or _when(record.barrier_at, message.barrier_ago_s, now) != record.barrier_at
            or (message.start is not None and not self.started)
            or (bool(message.why_state) and message.why_state not in (record.note or ""))
            or (not self.roster and self._knows(record, pods))
        )

    def _knows(self, record: AttemptRecord, pods: Sequence[Object]) -> bool:
        """Whether all pods of an attempt that trains are there to be named."""
        if record.runs_since is None:
            return False
        return roster_text([Pod.parse(pod) for pod in pods], record.attempt, record.pods) is not None


def last_phase(job: Object) -> str | None:
    """Phase that the leader of the current attempt reported last."""
    return _last_phase(Job.parse(job))


def _last_phase(job: Job) -> str | None:
    shown = shown_progress(job.raw)
    return shown.phase if shown is not None and shown.attempt == required(job.attempt) else None


def commit(job: Object, message: CommitRequest, now: float) -> Annotations | None:
    """What to write; None when this very checkpoint stands there already. Raises RefusedError 409 or 400.

    A checkpoint after which the attempt goes on leaves its record alone: a later end is recorded as ever.
    """
    seen = Job.parse(job)
    _require_wanted(seen, message.attempt)
    new = message.checkpoint
    if new.attempt != message.attempt:
        raise RefusedError(400, f"CommitRequest.checkpoint.attempt: {new.attempt} is not the attempt {message.attempt}")
    _require_fit(seen, new)
    known = required(seen.checkpoint)
    history, record = _current(seen, message.attempt)
    asked = seen.checkpoint_request.running
    answers = dict[str, str | None]()
    if asked is not None and asked[1].attempt == message.attempt:
        answers.update(user_requests.stored(user_requests.checkpointed(asked[1], new, now)))
    leaving = leaves.of_attempt(job, message.attempt)
    if message.stays and leaving is not None and leaving.live:
        answers.update(leaves.stored(leave.saved(leaving, new.id, now)))
    if known is not None and known.id == new.id and (message.goes_on or record is None or record.checkpoint == new.id):
        return (answers if message.goes_on else None) or None
    if known is not None and known.id != new.id and new.generation <= known.generation:
        raise RefusedError(409, f"generation {new.generation} is not newer than the committed {known.generation}")
    # Dated by our clock: the pods' clocks differ, and the time of the next checkpoint is counted from it.
    again = known is not None and known.id == new.id
    new = replace(new, unusable="", failed=[], created_at=known.created_at if known is not None and again else now)
    text = to_json(new)
    change: dict[str, str | None] = {names.ANN_CHECKPOINT: text, job_names.ANN_CHECKPOINT_COPY: text}
    change.update(answers)
    # An empty annotation is a user's wish, or the end of a list of damaged checkpoints: never return to older ones.
    before = () if seen.starts_over else seen.checkpoints
    change[job_names.ANN_CHECKPOINTS] = attempt_history.listed([*(ref for ref in before if ref.id != new.id), new])
    change.update(saveable.saved(job, message.attempt, now))
    if message.goes_on:
        return change
    if seen.hold is not None:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if record is not None:
        note = record.note
        if note and attempt_history.unsaved(record):
            note = attempt_history.cut(f"{note.split(';')[0]}; a checkpoint was taken within the pods' grace period")
        made_none = record.first_step is not None and message.last_step < record.first_step
        done = replace(
            record,
            barrier_at=_when(record.barrier_at, message.barrier_ago_s, now),
            committed_at=new.created_at,  # what was saved before the eviction was committed before it
            last_step=None if made_none else message.last_step,
            checkpoint=new.id,
            note=note,
            cause="",
        )
        change.update(attempt_history.stored(attempt_history.with_last(history, done)))
        change.update(attempt_phases.told(job, message.attempt, save=message.save))
    return change


def with_places(reply: HelloReply, job: Object, may_store: Callable[[str, str], str]) -> HelloReply:
    """With the places for inputs and outputs of a job that has them. `may_store` says why it may not have one."""
    seen, namespace = Job.parse(job), str(job["metadata"]["namespace"])
    inputs = seen.inputs or {}
    if isinstance(inputs, UnreadableAnnotation):
        return replace(reply, inputs_refused=str(inputs))
    for name, url in inputs.items():
        unfit = "" if input_names.NAME.fullmatch(name) else "the name cannot be that of a folder"
        if refused := unfit or may_store(namespace, url):
            return replace(reply, inputs_refused=f"annotation {job_names.ANN_INPUTS}, {name} = {url}: {refused}")
    reply = replace(reply, inputs=dict(inputs))
    if not seen.outputs:
        return reply
    if refused := may_store(namespace, seen.outputs):
        return replace(reply, outputs_refused=f"annotation {job_names.ANN_OUTPUTS} = {seen.outputs}: {refused}")
    return replace(reply, outputs=seen.outputs)


def outputs(job: Object, attempt: int, told: StoredOutputs, now: float) -> Annotations | None:
    """What to write of outputs that are complete; None when it stands there already. Raises RefusedError 409 or 400."""
    seen = Job.parse(job)
    _require_wanted(seen, attempt)
    if told.url != seen.outputs:
        raise RefusedError(400, f"url = {told.url!r}: the outputs of the job belong to {seen.outputs or 'no place'}")
    known = readable_or(seen.outputs_stored, None)
    if known is not None and replace(known, stored_at=0.0) == replace(told, stored_at=0.0):
        return None
    return {job_names.ANN_OUTPUTS_STORED: to_json(replace(told, stored_at=round(now, 3)))}


def result(job: Object, attempt: int, text: str) -> Annotations | None:
    """What to write of what rank 0 has returned; None when it stands there already. Raises RefusedError 409 or 400."""
    seen = Job.parse(job)
    _require_wanted(seen, attempt)
    found = decode.json_value(text, RESULT_BYTES)
    if isinstance(found, decode.Unreadable) or not isinstance(found, dict):
        why = found.why if isinstance(found, decode.Unreadable) else "no JSON object"
        raise RefusedError(400, f"what rank 0 has returned is {why}")
    return None if seen.text(job_names.ANN_RESULT) == text else {job_names.ANN_RESULT: text}


def _world(job: Job, attempt: int) -> int | None:
    """Ranks of the attempt; None: nobody says how many."""
    _, record = _current(job, attempt)
    ranks = job.ranks(0 if record is None else record.pods)
    return None if ranks is None or (record is None and job.ranks_per_worker is not None) else required(ranks)


def _require_fit(job: Job, new: CheckpointRef) -> None:
    """Raises RefusedError 400 for a checkpoint that is none of this Job's: its next attempt could not start from it."""
    world = _world(job, new.attempt)
    if world is not None and new.world_size != world:
        raise RefusedError(400, f"CommitRequest.checkpoint.world_size: {new.world_size}, the Job's is {world}")
    if new.generation // page.GENERATIONS_PER_ATTEMPT != new.attempt:
        text = f"{new.generation} is not one of attempt {new.attempt}"
        raise RefusedError(400, f"CommitRequest.checkpoint.generation: {text}")
    if not manifest.is_id(new.id):
        raise RefusedError(400, f"CommitRequest.checkpoint.id: {new.id!r} is not a checkpoint id")
    if not manifest.is_digest(new.sha256):
        raise RefusedError(400, f"CommitRequest.checkpoint.sha256: {new.sha256[:80]!r} is not a sha256 in hex")
    if new.fewest > new.world_size or len(new.crowded) > MAX_CROWDED:
        raise RefusedError(400, f"CommitRequest.checkpoint: fewest is more than the ranks, or crowded > {MAX_CROWDED}")
    needs = new.needs
    if needs is not None and (len(needs.cpu) > MAX_NEEDS or any(len(n) > MAX_NEEDS for n in _words(needs))):
        raise RefusedError(400, f"CommitRequest.checkpoint.needs: more than {MAX_NEEDS} features, or a longer name")
    if not job.of_store(new):
        raise RefusedError(400, f"CommitRequest.checkpoint.url: {new.url!r}, the Job's store is {job.store!r}")


def failure(job: Object, message: CheckpointFailure, now: float) -> Annotations | None:
    """What to write; None when it changes nothing. Raises RefusedError 409."""
    seen_job = Job.parse(job)
    _require_wanted(seen_job, message.attempt)
    over = _last_phase(seen_job) == "finished"
    change: dict[str, str | None] = {}
    if not over:  # training that has ended is no job that cannot be saved
        why = message.why or message.message
        change.update(saveable.failed(job, message.attempt, now, message.cause, why.rstrip(". ")))
    wanted = seen_job.checkpoint_request.running
    if wanted is not None and wanted[1].attempt == message.attempt:
        text = f"{attempt_history.NO_CHECKPOINT}: {message.message.rstrip('. ')}"
        change.update(user_requests.stored(user_requests.ended(wanted[1], "failed", text, now)))
    leaving = leaves.of_attempt(job, message.attempt)
    if leaving is not None and leaving.live:
        early, why = message.cause in saveable.EARLY, message.why or message.message
        # Where nothing runs yet no work is lost.
        change.update(leaves.stored(leave.saved(leaving, "", now, why) if early else leave.failed(leaving, why, now)))
    if message.goes_on:
        return change or None
    deadline = required(seen_job.hold_deadline)
    asked = seen_job.armed and deadline is not None
    if asked and over:
        return change or None  # training has ended: the hold lasts until the Job is complete, or its deadline
    history, record = _current(seen_job, message.attempt)
    if asked and message.finishing:
        # To suspend it now, so near to its end, would repeat all work since its last checkpoint.
        note = f"{message.message.rstrip('. ')}; {attempt_history.MAY_END}"
        if record is not None and note not in (record.note or ""):
            change.update(
                attempt_history.stored(
                    attempt_history.with_last(history, attempt_history.noted(record, note, "ending"))
                )
            )
        return change or None
    if asked:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if record is not None and record.checkpoint is None:
        within = ""
        if asked and deadline is not None and record.evicted_at is not None and now >= deadline - 1:
            within = f" within {deadline - record.evicted_at:.0f} s"
        text = message.message.rstrip(". ")
        restart = attempt_history.restart_point(required(seen_job.checkpoint))
        note = f"{attempt_history.NO_CHECKPOINT}{within}: {text}; {restart}"
        seen = attempt_history.noted(record, note, "failed")
        if seen != record:
            change.update(attempt_history.stored(attempt_history.with_last(history, seen)))
    return change or None


def trial(job: Object, message: TrialReport, now: float) -> Annotations | None:
    """What to write; None when it changes nothing. Raises RefusedError 409."""
    _require_wanted(Job.parse(job), message.attempt)
    if message.verdict == "yes":
        return saveable.saved(job, message.attempt, now, "trial") or None
    if message.verdict == "no":
        return saveable.failed(job, message.attempt, now, message.cause, message.why, "trial") or None
    return saveable.untried(job, message.attempt, now, message.why) or None


def damage(job: Object, message: DamageReport, node: str = "") -> Annotations | None:
    """What to write when a pod has not restored what its attempt was given; None if that is known already.

    :param node: of the pod that says so, "" if that is not known
    Raises RefusedError 409.
    """
    seen = Job.parse(job)
    _require_current(seen, message.attempt)
    return failed_restores.noted(seen, message.attempt, message.damaged, node)


def lifted(job: Object, change: Annotations | None, now: float) -> str | None:
    """Why `change` lifts the hold of `job`, a word for the metrics: its deadline, or a save that failed before. None if
    it does not."""
    if (change or {}).get(job_names.ANN_HOLD) != job_names.HOLD_RELEASED:
        return None
    deadline = required(Job.parse(job).hold_deadline)
    return "deadline" if deadline is not None and now >= deadline - 1 else "failed"


def _words(needs: Needs) -> list[str]:
    return [needs.architecture, *needs.cpu]
