"""`describe`: everything worth knowing about one job, out of its Job, its Workload and its pods."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import CheckpointRef, Origin
from singularity_proxy.protocol.outputs import StoredOutputs

from ..contract import attempt_phases, attempt_records, branches, job_names, kinds, progress_objects, saveable
from ..contract.attempt_phases import AttemptPhases
from ..contract.record_types import AttemptRecord, RequestStatus
from ..contract.saveable import Saveable
from ..errors import Gone, JobNotFoundError, KubeError
from ..job import states
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import JOB, Kind, label, selector
from ..requests import periodic_checkpoints, save_time_estimate, user_requests
from . import cost, lines, loss_curve, lost_time, queue_position, unreadable
from .lines import JobLine, reached
from .phase import Phase, classify, evictions, shortages
from .queue_position import Position
from .shortage import Shortage

TIMINGS = {
    "queued_to_admitted": ("queued_at", "admitted_at"),
    "admitted_to_running": ("admitted_at", "running_at"),
    "admitted_to_first_step": ("admitted_at", "first_step_at"),
    "evicted_to_barrier": ("evicted_at", "barrier_at"),
    "barrier_to_committed": ("barrier_at", "committed_at"),
    "committed_to_quota_released": ("committed_at", "released_at"),
}
_RELOOK_S = 2.0

MOST_WHY = 300
"""Characters of a sentence that anybody may have written."""


@dataclass(frozen=True)
class JobStatus(JobLine):
    """One look at a job. Times are Unix seconds, `timings_s` seconds, one value per attempt that has both ends."""

    uid: str
    priority_class: str
    identity: str
    hold: str
    min_workers: int
    world_size: int
    """With the state engine: of the attempt that runs, else of one with all workers."""
    steps_lost: int
    """Steps that were run and had to be run again, over all attempts; those of `steps_given_up` too, once the job has
    gone on."""
    attempts: list[AttemptRecord]
    checkpoints: list[dict[str, Any]]
    """Oldest first: `id`, `attempt`, `step`, `committed_at`; the current one with `bytes`, `bytes_stored` and `url`.
    `side_branch` is true for those that the job has been taken back from."""
    requests: list[RequestStatus]
    """The last request for a change and the last for a checkpoint, as far as the controller has answered them."""
    timings_s: dict[str, list[float]]
    workload: str
    created_at: str
    queue_position: Position | None = None
    """Place in the queue while it waits, where Kueue's visibility API is served."""
    shortages: list[Shortage] = field(default_factory=list)
    """What is missing in which flavor while it waits."""
    evictions: dict[str, int] = field(default_factory=dict)
    """Attempts that ended before the job did, by `ended_by`; of those that are kept in the history."""
    kueue_evictions: dict[str, int] = field(default_factory=dict)
    """Kueue's own count by its own reasons: a move is a deactivation there, and what never started counts as well."""
    estimated_save_s: float | None = None
    """Seconds that the last checkpoint took from request to commit: what the next one may take."""
    warnings: list[str] = field(default_factory=list)
    """Limits that are shorter than that, with what to set; annotations that cannot be read."""
    progress: dict[str, Any] = field(default_factory=dict)
    """What the script printed: `step`, `total`, `loss`, and `eta_s` (seconds left at this attempt's speed) if known."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """`(step, loss)` as printed, thinned out."""
    saving: dict[str, int] = field(default_factory=dict)
    """While a checkpoint is stored: `bytes_done` and `bytes_total`."""
    broken_attempts: int = 0
    """Attempts that were lost to the infrastructure: nodes, pods, kills; preemptions never count."""
    infrastructure_retries: int | None = None
    """How many may be lost; None: no limit."""
    checkpoint_every: str = ""
    """As wished: `300s`, `500 steps`, `auto`; "" for no periodic checkpoints."""
    next_checkpoint: periodic_checkpoints.Plan | None = None
    """The next periodic one, while the job trains; in the past: it is being asked for or saved."""
    phases: list[AttemptPhases] = field(default_factory=list)
    """How long saves and starts of the last attempts took, as their pods have told: what `trace` draws."""
    steps_given_up: int = 0
    """Steps that somebody has given up by going back to an older checkpoint."""
    rewinds: list[branches.Rewind] = field(default_factory=list)
    origin: Origin | None = None
    """The checkpoint of another job that this one began with."""
    cost: float | None = None
    """Of its attempts until its last report, in the unit of the chart's prices; None: no flavor of theirs has one."""
    cost_per_step: float | None = None
    seconds_lost: float = 0.0
    """Seconds of training that later attempts started without, with or without steps: of these, `steps_lost` counts."""
    saveable: Saveable | None = None
    """Whether the current attempt can be saved."""
    privileges: str = ""
    """Where its launcher's capabilities count: `userns` (in the pod only), `node`; "" if it has none."""
    privileges_why: str = ""
    """Why there; "" if nobody has chosen it."""
    outputs_to: str = ""
    """URL to which `$OUTPUTS` is stored when the program has ended well."""
    outputs: StoredOutputs | None = None
    """All of it is there."""


def _why_level(job: Mapping[str, Any]) -> str:
    return (Job.parse(job).text(job_names.ANN_PRIVILEGES_WHY) or "")[:MOST_WHY]


def describe(kube: Kube, namespace: str, name: str) -> JobStatus:
    """The status of the managed job that is called `name` (`kinds.named`). Raises JobNotFoundError, KubeError."""
    job = kinds.named(kube, namespace, name)
    if job is None:
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}; see `singularityctl status`")
    pods = kube.list_pods(namespace, selector({job_names.LABEL_JOB: kinds.job_key(job)}))
    workload = kube.get_workload_for_job(job)
    return summarise(progress_objects.shown(kube, job), workload, pods, queue_position.position(kube, workload))


def summarise(
    job: Mapping[str, Any],
    workload: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    position: Position | None = None,
) -> JobStatus:
    """Pure part of `describe`."""
    attempts = attempt_records.history(job)
    saved = attempt_records.checkpoint(job)
    seen = attempt_records.progress(job)
    last = attempts[-1] if attempts else None
    line = lines.of_job(job, workload, pods, position, attempt=lambda job: last)
    alive = last is not None and last.ended_by is None
    back = branches.rewinds(job)
    until = seen.at if seen is not None and last is not None and seen.attempt == last.attempt else 0.0
    spent = cost.of_history(attempts, until, alive)
    seen_job = Job.parse(job)
    running = line.phase == Phase.RUNNING
    level = states.privileges(job, workload)
    return JobStatus(
        **vars(line),
        uid=job["metadata"]["uid"],
        priority_class=label(job, job_names.KUEUE_PRIORITY_LABEL) or "",
        identity=label(job, job_names.LABEL_IDENTITY) or "",
        hold=seen_job.hold_word or job_names.HOLD_OFF,
        min_workers=readable_or(seen_job.min_workers, None) or 0,
        world_size=_world_size(seen_job, line.workers, last if alive else None),
        steps_lost=attempt_records.all_steps_lost(attempts),
        seconds_lost=lost_time.of_job(job).total,
        saveable=saveable.current(job) if last is not None else None,
        privileges=level,
        privileges_why=_why_level(job) if level else "",
        outputs_to=seen_job.outputs or "",
        outputs=readable_or(seen_job.outputs_stored, None),
        attempts=attempts,
        checkpoints=_checkpoints(job, attempts, attempt_records.checkpoints(job), saved),
        rewinds=back,
        steps_given_up=sum(rewind.steps for rewind in back),
        origin=branches.origin(job),
        cost=round(spent.amount, 6) if spent.attempts else None,
        cost_per_step=spent.per_step,
        requests=[status for slot in user_requests.SLOTS if (status := user_requests.answer(job, slot)) is not None],
        timings_s=timings(attempts),
        workload=workload["metadata"]["name"] if workload else "",
        created_at=str(job["metadata"].get("creationTimestamp", "")),
        progress=_printed(seen, last),
        saving=_saving(seen, last) if running or line.phase == Phase.CHECKPOINTING else {},
        curve=loss_curve.points(job),
        queue_position=position,
        shortages=shortages(workload),
        evictions=dict(Counter(a.ended_by for a in attempts if a.ended_by not in (None, "Finished", "Failed"))),
        kueue_evictions=_evictions(workload),
        phases=attempt_phases.of_job(job),
        broken_attempts=attempt_records.broken(job),
        infrastructure_retries=attempt_records.infrastructure_retries(job),
        checkpoint_every=seen_job.checkpoint_every or "",
        next_checkpoint=periodic_checkpoints.plan(job) if running else None,
        estimated_save_s=save_time_estimate.of_attempts(attempts),
        warnings=[
            *save_time_estimate.warnings(save_time_estimate.of_attempts(attempts), save_time_estimate.limits_of(job)),
            *unreadable.sentences(job),
        ],
    )


def _world_size(job: Job, workers: int, running: AttemptRecord | None) -> int:
    each = readable_or(job.ranks_per_worker, None)
    if not each:
        return readable_or(job.world_size, None) or 0
    return running.ranks if running is not None else workers * each


def _evictions(workload: Mapping[str, Any] | None) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason, _, count in evictions(workload):
        counts[reason] = counts.get(reason, 0) + count
    return counts


def _printed(seen: attempt_records.ProgressNote | None, last: AttemptRecord | None) -> dict[str, Any]:
    """The script counts in its own way (per epoch, per accumulation): its rate is taken from ours and their ratio."""
    if seen is None or (seen.printed is None and seen.loss is None):
        return {}
    found: dict[str, Any] = {"step": seen.printed, "total": seen.total, "loss": seen.loss}
    if last is not None and last.first_step_at is not None and last.first_step is not None:
        done, took = seen.step - last.first_step, seen.at - last.first_step_at
        if seen.attempt == last.attempt and seen.printed and seen.total and done > 0 < took and seen.step:
            each = took / done * seen.step / seen.printed
            found["eta_s"] = round(max(0, seen.total - seen.printed) * each, 1)
    return found


def _saving(seen: attempt_records.ProgressNote | None, last: AttemptRecord | None) -> dict[str, int]:
    if seen is None or last is None or seen.attempt != last.attempt or not seen.bytes_total:
        return {}
    return {"bytes_done": seen.bytes_done or 0, "bytes_total": seen.bytes_total}


def timings(attempts: Sequence[AttemptRecord]) -> dict[str, list[float]]:
    """Durations in seconds by name, one per attempt that has both ends in this order."""
    found: dict[str, list[float]] = {}
    for name, (start, end) in TIMINGS.items():
        ends = [(getattr(a, start), getattr(a, end)) for a in attempts]
        # Beside Kueue (a drained node, say) the barrier comes before the eviction: that is no duration.
        found[name] = [round(b - a, 3) for a, b in ends if a is not None and b is not None and b >= a]
    return found


def _checkpoints(
    job: Mapping[str, Any],
    attempts: Sequence[AttemptRecord],
    aside: Sequence[CheckpointRef],
    saved: CheckpointRef | None,
) -> list[dict[str, Any]]:
    unusable = {r.id: r.passed_over for r in aside if r.passed_over}
    unusable |= {skipped.id: skipped.why for attempt in attempts for skipped in attempt.skipped}
    rows = [(r.id, r.attempt, r.step, r.created_at) for r in aside]
    rows += [(a.checkpoint, a.attempt, reached(a), a.committed_at or 0.0) for a in attempts if a.checkpoint]
    found: dict[str, dict[str, Any]] = {
        name: {"id": name, "attempt": attempt, "step": step, "committed_at": at}
        for name, attempt, step, at in sorted(rows, key=lambda row: (row[1], row[2]))
    }
    if saved is not None:
        entry = found.setdefault(saved.id, {"id": saved.id, "committed_at": saved.created_at})
        sizes = {"bytes": saved.bytes, "bytes_stored": saved.bytes_stored, "url": saved.url}
        entry.update({"attempt": saved.attempt, "step": saved.step, **sizes})
    branch = {ref.id for ref in branches.line(job)}
    for ref in aside if saved is not None else ():
        if ref.id not in branch and not ref.passed_over:
            found[ref.id]["side_branch"] = True
    for ref in aside:
        if ref.failed:
            found[ref.id]["failed_restores"] = len(ref.failed)
    for name in unusable.keys() & found.keys():
        found[name]["unusable"] = unusable[name]
    return list(found.values())


def newest_usable(checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last of a status's checkpoints that the job may go on from by itself."""
    usable = (entry for entry in reversed(checkpoints) if not entry.get("unusable") and not entry.get("side_branch"))
    return next((dict(entry) for entry in usable), None)


def to_json(status: JobStatus) -> str:
    """JSON of a status, indented."""
    return json.dumps(decode.plain(status), indent=2)


def follow(kube: Kube, namespace: str, name: str, timeout_s: float | None = None) -> Iterator[JobStatus]:
    """A status at once and at every change until the job is final. Raises TimeoutError after `timeout_s` seconds.

    A job that is deleted while it is followed ends with phase Deleted. Transient API errors are ridden out.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown: JobStatus | None = None
    while True:
        try:
            now = describe(kube, namespace, name)
        except JobNotFoundError:
            if shown is None:
                raise
            gone = classify(None, None)
            now = replace(shown, phase=gone.phase.value, reason=gone.reason, message=gone.message)
        except KubeError as error:
            if not error.transient or shown is None:
                raise
            now = shown
        if now != shown:
            shown = now
            yield now
        if now.final:
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"job {name} is still {now.phase} after {timeout_s:.0f} s: {now.message}")
        _until_change(kube, now)


def until_any_change(kube: Kube, namespace: str | None) -> None:
    """Return at the next change of a managed Job, or after a moment."""
    _until(kube, JOB, namespace, selector({job_names.LABEL_MANAGED: "true"}))


def _until_change(kube: Kube, status: JobStatus) -> None:
    """Return at the next change of the Job, or after a moment: Workload and pods are looked at again then."""
    kind, _ = kinds.kind_and_name(status.name)
    _until(kube, kind, status.namespace, selector({job_names.LABEL_JOB: status.name}))


def _until(kube: Kube, kind: Kind, namespace: str | None, query: str) -> None:
    try:
        _, version = kube.list_versioned(kind, namespace, query)
        for event, _ in kube.watch(kind, namespace, query, version, timeout_s=_RELOOK_S):
            if event != "BOOKMARK":
                return
    except Gone:
        return
    except KubeError as error:
        if not error.transient:
            raise
        time.sleep(_RELOOK_S)  # the pace of asking again, nothing waits for this
