"""The history of a Job: pure updates of its list of AttemptRecord."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from singularity_proxy.protocol.messages import CheckpointRef, Damage, FailedRestore, LastWords, to_json

from ..contract import attempt_records, job_names
from ..contract.record_types import AttemptRecord, Earlier, Readmission, Skipped, Unsaved
from ..kube import server_time
from .snapshot import Job, Pod, Preemption, Workload, of_attempt, roster_text

MAX_RECORDS = 50
MAX_BYTES = 96 * 1024
"""The history is an annotation: it has to stay far below the 256 KiB that an object's annotations may have together."""
MAX_CHECKPOINTS = 20
MAX_NOTE = 400
MAX_WHOLE = 10
"""Records, the newest, that keep their details whatever room there is for older ones."""
_SHORT_NOTE = 60
_MAX_ENDS = 12
"""Different words in `Earlier.ended_by`: the last is for all others."""
_EARLIER_BYTES = 4096
MAX_SKIPPED = 3
MAX_WHY = 240
"""Most characters of the reason why a checkpoint cannot be restored."""
NO_CHECKPOINT = "no checkpoint"
"""How notes begin about an attempt that ended without a checkpoint: for people, who also find it by this."""
OUT_OF_MEMORY = "OutOfMemory"
BROKEN = frozenset(("Deleted", OUT_OF_MEMORY))
"""`ended_by` of attempts that broke off without Kueue's doing."""
PAUSED = "Paused"
REWOUND = "Rewound"
"""`ended_by` of an attempt that was given up for an older checkpoint."""
REGROWN = "Regrown"
"""`ended_by` of attempts that gave way to a larger or better placed attempt, without a user's request."""
ASKED_FOR = {"migrate": "Migrated", "resize": "Resized"}
"""`ended_by` of attempts that a user's request has ended, whatever Kueue calls the eviction."""
MAY_END = "the job may end by itself until its checkpoint budget is used up"

History = Sequence[AttemptRecord]


def stored(history: History, by: Preemption | None = None) -> dict[str, str | None]:
    """The annotation that stores `history`, in at most MAX_BYTES of UTF-8.

    What does not fit is shortened, the oldest records first: their details go, then they become numbers (`Earlier`).
    Records of evictions by `by` get its names: the preemptor still exists, and may not when somebody asks.
    """
    kept = [_named(record, by) for record in history]
    begin = max(0, len(kept) - MAX_RECORDS)
    texts = [to_json(record) for record in kept]
    sizes = [len(text.encode()) + len(",") for text in texts]
    room = MAX_BYTES - len("[]") - _EARLIER_BYTES
    over = sum(sizes[begin:]) - room
    for at in range(begin, len(kept) - MAX_WHOLE):
        if over <= 0:
            break
        kept[at] = _shortened(kept[at])
        texts[at] = to_json(kept[at])
        over -= sizes[at] - len(texts[at].encode()) - len(",")
        sizes[at] = len(texts[at].encode()) + len(",")
    while over > 0 and begin < len(kept) - 1:
        over -= sizes[begin]
        begin += 1
    if begin:
        texts[begin] = to_json(replace(kept[begin], earlier=_earlier(kept, begin)))
    return {job_names.ANN_HISTORY: f"[{','.join(texts[begin:])}]"}


def _shortened(record: AttemptRecord) -> AttemptRecord:
    """`record` with the numbers of all attempts, without the details that are read of the last ones."""
    plain = None if record.gpus is None else replace(record.gpus, faults=[], faults_more=0, pods=[])
    return replace(record, note=record.note and cut(record.note, _SHORT_NOTE), skipped=[], gpus=plain)


def _earlier(history: History, end: int) -> Earlier:
    """The first `end` records, and what the first of them sums up, as numbers."""
    gone, before = history[:end], history[0].earlier
    found = before or Earlier(0, gone[0].admitted_at)
    lost = attempt_records.steps_lost(history)
    ends = Counter(found.ended_by)
    for record in gone:
        word = record.ended_by or ""
        ends[word if word in ends or len(ends) < _MAX_ENDS else "other"] += 1
    return replace(
        found,
        attempts=found.attempts + len(gone),
        ran_s=found.ran_s + sum(map(_ran_s, gone)),
        steps_lost=found.steps_lost + sum(lost.get(r.attempt, 0) for r in history[1 : end + 1]),
        committed=found.committed + sum(r.checkpoint is not None for r in gone),
        ended_by={cut(word, _SHORT_NOTE): count for word, count in ends.items()},
    )


def _ran_s(record: AttemptRecord) -> float:
    ends = [at for at in (record.finished_at, record.pods_gone_at, record.released_at, record.evicted_at) if at]
    return max(0.0, min(ends) - record.runs_since) if ends and record.runs_since is not None else 0.0


def set_aside(text: str | None, before: str | None) -> dict[str, str | None]:
    """The annotation that keeps `text`, a history that cannot be read, with what was set aside `before` it.

    Of more than `MAX_BYTES` the end, which has the newest records, is kept.
    """
    if not text:
        return {}
    both = f"{before}\n{text}" if before else text
    return {job_names.ANN_HISTORY_ASIDE: both.encode()[-MAX_BYTES:].decode(errors="ignore")}


def _named(record: AttemptRecord, by: Preemption | None) -> AttemptRecord:
    if by is None or by.who is None or record.preemptor is not None or record.preempted_by != by.who.workload:
        return record
    return replace(record, preemptor=by.who)


def listed(checkpoints: Sequence[CheckpointRef]) -> str:
    """The annotation's value for the committed checkpoints, oldest first, cut to the newest."""
    return to_json(list(checkpoints[-MAX_CHECKPOINTS:]))


def found(
    ref: CheckpointRef, told: Damage | None, attempt: int, history: History, node: str = ""
) -> CheckpointRef:
    """`ref` with what a pod of `attempt`, on `node`, has `told` of it. An attempt counts once, and only those since the
    checkpoint was restored last."""
    if told is None or ref.passed_over:
        return ref
    if not told.tried:
        return replace(ref, unusable=cut(told.problem, MAX_WHY))
    ran = [r.attempt for r in history if r.restored_from == ref.id and r.runs_since is not None]
    before = [failed for failed in ref.failed if failed.attempt > max(ran, default=0)]
    if attempt in [failed.attempt for failed in before]:
        return ref
    return replace(ref, failed=[*before, FailedRestore(attempt, cut(told.problem, MAX_WHY), told.passes, node)])


def failed_in(checkpoints: Sequence[CheckpointRef], record: AttemptRecord) -> CheckpointRef | None:
    """The checkpoint of the attempt, if it was not restored in it."""
    ref = next((ref for ref in checkpoints if ref.id == record.restored_from), None)
    if ref is None or not (ref.unusable or record.attempt in [failed.attempt for failed in ref.failed]):
        return None
    return ref


def usable_before(checkpoints: Sequence[CheckpointRef], damaged: CheckpointRef) -> CheckpointRef | None:
    """The newest checkpoint before `damaged` that is not passed over."""
    left = [ref for ref in checkpoints if not ref.passed_over and ref.generation < damaged.generation]
    return max(left, key=lambda ref: ref.generation, default=None)


def skipped(checkpoints: Sequence[CheckpointRef], start: CheckpointRef | None) -> list[Skipped]:
    """The checkpoints that an attempt from `start` skips, newest first, the first few."""
    after = -1 if start is None else start.generation
    newer = [ref for ref in checkpoints if ref.passed_over and ref.generation > after]
    newer.sort(key=lambda ref: ref.generation, reverse=True)
    return [Skipped(ref.id, ref.step, cut(ref.passed_over, MAX_WHY)) for ref in newer[:MAX_SKIPPED]]


def last(history: History) -> AttemptRecord | None:
    return history[-1] if history else None


def with_last(history: History, record: AttemptRecord) -> list[AttemptRecord]:
    """`history` with its last record replaced."""
    return [*history[:-1], record]


def cut(note: str, most: int = MAX_NOTE) -> str:
    return note if len(note) <= most else note[: most - 3] + "..."


def restart_point(checkpoint: CheckpointRef | None) -> str:
    """Words for where the next attempt starts."""
    if checkpoint is None:
        return "restarts from the beginning"
    return f"restarts from checkpoint {checkpoint.id} (step {checkpoint.step})"


def _since(record: AttemptRecord, workload: Workload, name: str) -> bool:
    """Whether condition `name` changed after the record's admission: it is about this attempt, not an earlier one."""
    changed = server_time.transition(workload.conditions.get(name))
    return changed is not None and changed >= int(record.admitted_at)


def evicted(record: AttemptRecord, job: Job, workload: Workload, preemptor: str | None, now: float) -> AttemptRecord:
    """`record` with the eviction that stands in the Workload's conditions."""
    found = workload.condition("Evicted")
    ended_by = record.ended_by or _asked_for(record, job, workload, str(found.get("reason") or "Evicted"))
    return replace(
        record,
        evicted_at=server_time.observed(found, now),
        ended_by=ended_by,
        preempted_by=preemptor,
        lowered_by=_lowered_by(record, workload) if ended_by == "Preempted" else None,
    )


def _lowered_by(record: AttemptRecord, workload: Workload) -> str | None:
    """The policy that has lowered the priority of this attempt, if that still holds: what follows is its move."""
    mark = workload.priority_mark
    return mark.policy if mark is not None and mark.attempt == record.attempt and mark.given < mark.own else None


def _asked_for(record: AttemptRecord, job: Job, workload: Workload, reason: str) -> str:
    """Kueue's `reason`, or the word for a user's request that Kueue's eviction only carries out."""
    if reason == "Deactivated" and workload.paused:
        return PAUSED
    found = job.changing
    by_check = reason == "AdmissionCheck" and record.readmitted_for in ("request", "regrow")
    by_reshape = reason == "Deactivated" and workload.reshape_reason is not None
    if found is not None and (by_check or by_reshape):
        return ASKED_FOR.get(found[0].op, reason)
    return REGROWN if by_check and record.readmitted_for == "regrow" else reason


def observe(
    record: AttemptRecord, job: Job, workload: Workload | None, preemptor: str | None, now: float
) -> AttemptRecord:
    """`record` of the current attempt with everything that the objects now show about its end."""
    if record.finished_at is None:
        done = job.end
        if done is not None:
            ended = "Finished" if done.get("type") == "Complete" else "Failed"
            note = record.note
            if ended == "Failed" and note is None:
                note = cut(f"{done.get('reason', '')}: {done.get('message', '')}")
            record = replace(record, ended_by=ended, finished_at=server_time.observed(done, now), note=note)
    if workload is None:
        return record
    open_end = record.evicted_at is None and record.finished_at is None
    if open_end and workload.is_true("Evicted") and _since(record, workload, "Evicted"):
        record = evicted(record, job, workload, preemptor, now)
    if record.released_at is None:
        reserved = workload.condition("QuotaReserved")
        if reserved.get("status") == "False" and _since(record, workload, "QuotaReserved"):
            record = replace(record, released_at=server_time.observed(reserved, now))
    return record


def emptied(record: AttemptRecord, pods: Sequence[Pod], now: float) -> AttemptRecord:
    """`record` of an attempt that was evicted, with the moment at which none of its pods could write any more."""
    known = record.pods_gone_at is not None or record.evicted_at is None or record.finished_at is not None
    if known or record.cluster is not None or any(pod.can_write for pod in of_attempt(pods, record.attempt)):
        return record
    return replace(record, pods_gone_at=now)


def orphaned(record: AttemptRecord, now: float) -> AttemptRecord:
    """`record` of an attempt whose Workload was deleted while it ran: Kueue suspends the Job and makes a new one."""
    if record.evicted_at is not None or record.finished_at is not None:
        return record
    left = replace(record, evicted_at=now, ended_by=record.ended_by or "Deleted")
    return noted(left, "its Workload was deleted: Kueue suspends the Job and makes a new one")


def roster(job: Job, record: AttemptRecord, pods: Sequence[Pod]) -> dict[str, str | None]:
    """Annotation with the pods that the attempt trains with, {} if it is there, or is not known yet."""
    if record.runs_since is None or job.roster_of(record.attempt) is not None:
        return {}
    text = roster_text(pods, record.attempt, record.pods)
    return {} if text is None else {job_names.ANN_PODS: text}


def readmitted(record: AttemptRecord, cause: Readmission, note: str) -> AttemptRecord:
    """`record` of an attempt that ends because the controller asks for another admission."""
    return replace(noted(record, note), readmitted_for=cause)


def noted(record: AttemptRecord, note: str, cause: Unsaved = "") -> AttemptRecord:
    """`record` with `note` added once, unless it already explains a missing checkpoint (`unsaved`): the first
    explanation is the best. `cause`: of a note that explains one."""
    if unsaved(record) or (record.note and note in record.note):
        return record
    return replace(record, note=cut(f"{record.note}. {note}" if record.note else note), cause=cause or record.cause)


def unsaved(record: AttemptRecord) -> bool:
    """Whether it is known why the attempt has no checkpoint."""
    return record.cause not in ("", "ending")


def explained(record: AttemptRecord, ends: Sequence[LastWords]) -> AttemptRecord:
    """`record` of an attempt that broke off or failed, with what its pods say (`snapshot.ends_of`).

    A kill for memory counts whenever it is seen: pods of other ranks, which end by it, may have been seen first.
    """
    text = ends[0].text if ends else ""
    killed = bool(ends) and ends[0].cause == "memory"
    failed = record.ended_by == "Failed"
    if not text or not (failed or (killed and record.ended_by in BROKEN)):
        return record
    told = record if text in (record.note or "") else noted(record, text)
    return told if failed else replace(told, ended_by=OUT_OF_MEMORY)


def closed(record: AttemptRecord, workload: Workload, preemptor: str | None, now: float) -> AttemptRecord:
    """`record` of an attempt whose successor is about to start, even if its end was not observed.

    Kueue keeps the text of an eviction in the condition's message when it turns the condition False.
    """
    if record.evicted_at is not None and record.pods_gone_at is None and record.cluster is None:
        record = replace(record, pods_gone_at=now)  # the fence has waited for them until this moment
    if record.evicted_at is not None and record.released_at is None:
        # We saw the eviction, so release and new reservation were at the same moment. Otherwise the time is unknown,
        # and stays empty.
        record = replace(record, released_at=server_time.observed(workload.conditions.get("QuotaReserved"), now))
    if record.ended_by is not None:
        return record
    message = str(workload.condition("Evicted").get("message", ""))
    if "Preempted to accommodate" in message and _since(record, workload, "Evicted"):
        lowered_by = _lowered_by(record, workload)
        return replace(record, ended_by="Preempted", preempted_by=preemptor, lowered_by=lowered_by)
    return noted(replace(record, ended_by="Evicted"), message or "how this attempt ended was not seen")
