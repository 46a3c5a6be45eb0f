"""Periodic checkpoints: when is the next one of this job due? Pure; the controller asks, `status` shows.

The Job's own annotations say everything. `plan` needs no clock: it names a moment. The next request replaces the
answer to the last one. Two facts must survive it: the cost of a checkpoint and how many in a row have failed. They
stand in an annotation that is written with the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol.messages import to_json

from ..contract import attempt_records, job_names
from ..contract.record_types import AttemptRecord, CheckpointMemory, JobRequest, RequestStatus
from ..job.view import Job
from ..spec import save_interval
from . import save_time_estimate, user_requests

BY = "policy"
"""`JobRequest.by` of the requests that are made here."""
FIRST_S = 300.0
"""`auto` takes the first checkpoint after so many seconds: then it knows what one costs."""
SHORTEST_S = 60.0
LONGEST_S = 6 * 3600.0
"""Bounds of the interval that `auto` chooses."""
PRIOR_POD_S = 24 * 3600.0
"""`auto` begins with one failure in so many seconds of pod time: much for a good cluster, little for spot machines."""
MAX_PAUSE_S = 3600.0
"""Failures in a row double the wait, up to this (or the interval itself, if that is longer)."""
LOOK_S = 2.0
LONGEST_LOOK_S = 30.0
"""Bounds of the time until the next look at a job that is to reach a step first."""
LEAST_COST_S = 0.1


@dataclass(frozen=True)
class Plan:
    """The next periodic checkpoint: not before `at` (Unix seconds), and not before `step` boundaries are passed."""

    at: float
    step: int | None = None
    interval_s: float | None = None
    """Seconds between two, None for steps."""
    failures: int = 0
    """Checkpoints in a row that could not be had."""


# --- the interval of `auto` -----------------------------------------------------------------------------------------
def optimum(cost_s: float, mtbf_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time, both arguments more than 0.

    sqrt(2 * cost * MTBF): J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
    1974; with the correction for costs that are not small of J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", FGCS 22(3), 2006. For a cost of twice the MTBF and more, it stays at 8/9 of
    the MTBF (Daly: the MTBF itself). So it is continuous and grows with both.
    """
    x = min(1.0, math.sqrt(cost_s / (2 * mtbf_s)))
    return 2 * mtbf_s * x * (1 - x * 2 / 3 + x * x / 9)


def mtbf(attempts: Sequence[AttemptRecord], until: float) -> float:
    """Seconds between two failures of the job's newest attempt, learnt from all of them and a prior.

    A failure is the end of an attempt that trained and left no checkpoint: a lost pod, an eviction that nobody held
    back. Evictions with a checkpoint lose nothing and do not count. Pods fail on their own, so time is pod time.
    """
    failures, pod_s = 1, PRIOR_POD_S
    for record in attempts:
        if record.runs_since is None:
            continue  # nothing to save yet
        ends = [at for at in (record.evicted_at, record.released_at, record.finished_at) if at is not None]
        end = min(ends) if ends else (until if record.ended_by is None else record.runs_since)
        pod_s += max(0.0, end - record.runs_since) * max(1, record.pods)
        failures += lost(record)
    return pod_s / failures / max(1, attempts[-1].pods if attempts else 1)


def lost(record: AttemptRecord) -> bool:
    """Whether the attempt ended with work that nobody had saved."""
    over = record.ended_by is not None and record.ended_by not in ("Finished", "Failed", "Rewound")
    return over and record.checkpoint is None and record.runs_since is not None


def interval(attempts: Sequence[AttemptRecord], cost_s: float | None, until: float) -> float:
    """Seconds between two checkpoints of a job with `auto`; `until` ends the time that is looked at."""
    if cost_s is None:
        return FIRST_S
    best = optimum(max(cost_s, LEAST_COST_S), mtbf(attempts, until))
    return min(max(best, SHORTEST_S), LONGEST_S)


# --- the plan -------------------------------------------------------------------------------------------------------
def memory(job: Mapping[str, Any]) -> CheckpointMemory:
    """Cost and failures in a row as of now: what was written down, and the answer that came since."""
    known = Job.parse(job).checkpoint_memory
    last = user_requests.answer(job, user_requests.CHECKPOINT)
    cost, failures = known.cost_s, max(0, known.failures)
    if last is not None and last.state == "done":
        failures = 0
    elif last is not None and last.state == "failed" and _tried(job, last):
        failures += 1
    measured = save_time_estimate.of_request(last) if last is not None else None
    cost = measured if measured is not None else cost
    return CheckpointMemory(save_time_estimate.of_job(job) if cost is None else cost, failures)


def _tried(job: Mapping[str, Any], last: RequestStatus) -> bool:
    """A request that an eviction overtook has not failed: its attempt was saved otherwise, or is gone."""
    past = attempt_records.history(job)
    return bool(past) and past[-1].attempt == last.attempt


def plan(job: Mapping[str, Any]) -> Plan | None:
    """When the attempt that trains now is to be saved next; None while there is none, or nothing is wished."""
    wanted, past = Job.parse(job).save_interval, attempt_records.history(job)
    if wanted is None or not past:
        return None
    record, known = past[-1], memory(job)
    trains = attempt_records.trains_since(job, record)
    if trains is None or record.ended_by is not None or record.checkpoint is not None:
        return None
    known_refs = (*attempt_records.checkpoints(job), attempt_records.checkpoint(job))
    saved = [ref for ref in known_refs if ref is not None and ref.attempt == record.attempt]
    last = user_requests.answer(job, user_requests.CHECKPOINT)
    tried = last.finished_at if last is not None and last.attempt == record.attempt else None
    # The controller's own clock, where it can be had: the others are the pods'.
    since = tried if tried is not None else max([trains, *(ref.created_at for ref in saved)])
    if wanted.steps is not None:
        start = max([record.first_step or 0, *(ref.step for ref in saved)])
        at = since + (
            _backed_off(SHORTEST_S, known.failures) if known.failures else save_interval.LEAST_S if saved else 0.0
        )
        return Plan(at, start + wanted.steps, failures=known.failures)
    seconds = interval(past, known.cost_s, since) if wanted.seconds is None else wanted.seconds
    return Plan(since + _backed_off(seconds, known.failures), interval_s=seconds, failures=known.failures)


def _backed_off(seconds: float, failures: int) -> float:
    return min(seconds * 2.0 ** min(failures, 20), max(seconds, MAX_PAUSE_S))


# --- asking ---------------------------------------------------------------------------------------------------------
def due(job: Mapping[str, Any], now: float) -> tuple[JobRequest | None, float | None]:
    """The request to make now, if any; else when to look again (Unix seconds), None: after the Job has changed.

    The caller sees to it that Kueue leaves the attempt alone.
    """
    planned = plan(job)
    if planned is None or _busy(job):
        return None, None
    if now < planned.at:
        return None, planned.at
    seen, record = attempt_records.progress(job), attempt_records.history(job)[-1]
    newest = attempt_records.checkpoint(job)
    if seen is None or seen.attempt != record.attempt or seen.phase == "finished":
        return None, None
    if planned.step is not None and seen.step < planned.step:
        return None, now + _until(planned.step, seen, record)
    if newest is not None and seen.step <= newest.step and not seen.free:
        return None, now + LOOK_S  # not a step since: there is nothing new to save
    request = JobRequest(
        id=f"{BY}-{record.attempt}-{round(now * 1000)}", op="checkpoint", at=round(now, 3), by=BY,
        timeout_s=_patience(memory(job)),
    )  # fmt: skip
    return (request, None) if user_requests.problem(job, request, None) is None else (None, None)


def _until(step: int, seen: attempt_records.ProgressNote, record: AttemptRecord) -> float:
    """Seconds until it is worth while to look whether `step` is reached: notes of progress wake nobody."""
    begun, first = record.first_step_at, record.first_step
    if begun is None or first is None or seen.step <= first or seen.at <= begun:
        return LOOK_S
    left = (step - seen.step) * (seen.at - begun) / (seen.step - first)
    return min(max(LOOK_S, 0.9 * left), LONGEST_LOOK_S)


def asking(job: Mapping[str, Any], request: JobRequest) -> dict[str, str | None]:
    """The annotations that ask for it and keep what the answer before it told."""
    return {**user_requests.written(request), job_names.ANN_CHECKPOINT_POLICY: to_json(memory(job))}


def _busy(job: Mapping[str, Any]) -> bool:
    """Another request is not answered, or carried out. Growth that waits for quota may take days: it does not count."""
    for slot in user_requests.SLOTS:
        request, answer = user_requests.asked(job, slot), user_requests.answer(job, slot)
        waits = request is not None and request.op == "resize"
        if request is not None and (answer is None or (answer.state == "running" and not waits)):
            return True
    return False


def _patience(known: CheckpointMemory) -> float:
    """Seconds that the checkpoint may take: more after every failure, which may have been too little time."""
    usual = max(user_requests.DEFAULT_CHECKPOINT_S, 3 * (known.cost_s or 0.0))
    return round(min(usual * 2.0 ** min(known.failures, 10), user_requests.MAX_CHECKPOINT_S), 1)
