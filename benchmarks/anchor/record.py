"""What was seen of one scenario with one contender, and what it means. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kueue_integration.resources import Object, is_true

from .scenarios import STEPS, Scenario

ENDED = frozenset(("success", "failed"))
SETTLE_S = 10.0
"""A Job that still runs so long after the end of its task was left behind; a deletion takes less."""
STEP_LINE = re.compile(r"\bstep (\d+)/\d+ loss")


@dataclass(frozen=True)
class JobView:
    """:param state: suspended, active, deleting, complete or failed
    :param pods: its pods whose containers run, those that are being deleted included
    """

    uid: str
    state: str
    pods: int


@dataclass(frozen=True)
class Sample:
    """Everything at one moment, Unix seconds. `task`: the state of the task, "none" when it has none."""

    at: float
    task: str
    try_number: int
    jobs: tuple[JobView, ...]


@dataclass(frozen=True)
class Waiting:
    """While the queue was full: for how long, requests of the contender in that time, states of the task seen."""

    seconds: float
    requests: int
    states: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """:param steps: `(Unix seconds, step)` in the order in which they were made, whoever made them
    :param logs: task log of each try
    :param live: steps that the task log showed when three quarters of the training were done; None: it never was
    :param trouble: why the scenario was not played to its end, "" when it was
    """

    started_at: float
    samples: Sequence[Sample]
    steps: Sequence[tuple[float, int]]
    logs: Sequence[str]
    live: int | None = None
    event_at: float | None = None
    waiting: Waiting | None = None
    requests: int = 0
    trouble: str = ""


@dataclass(frozen=True)
class Outcome:
    """:param task: last state of the task
    :param seconds: from the start of the DAG run to that state
    :param jobs: Jobs that were made; `jobs_at_once`: most of them with running pods at a time
    :param pods_at_once: most running pods of one Job at a time (it wants one)
    :param completed: Jobs that ended as Complete
    :param left_behind: Jobs that were still there to run when the task had ended
    :param steps_made: by all of them; `steps_repeated`: those of them that had been made before; `steps_unwatched`:
        those made after the task had ended
    :param steps_logged: different steps in the task log; `live`: how many of them it had shown at three quarters
    :param error: the first error in the task log
    """

    task: str
    tries: int
    seconds: float
    jobs: int
    jobs_at_once: int
    pods_at_once: int
    completed: int
    left_behind: int
    steps_made: int
    steps_repeated: int
    steps_unwatched: int
    steps_logged: int
    live: int | None
    requests: int
    waiting_states: tuple[str, ...] = ()
    waiting_requests_per_s: float | None = None
    error: str = ""
    trouble: str = ""
    started_at: float = 0.0
    event_after_s: float | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def view(job: Object, pods: Sequence[Object]) -> JobView:
    """`job` as `Sample` has it; `pods` of the whole namespace."""
    uid = job["metadata"]["uid"]
    running = [p for p in pods if _owner(p) == uid and (p.get("status") or {}).get("phase") == "Running"]
    if is_true(job, "Complete"):
        state = "complete"
    elif is_true(job, "Failed"):
        state = "failed"
    elif job["metadata"].get("deletionTimestamp"):
        state = "deleting"
    else:
        state = "suspended" if job["spec"].get("suspend") else "active"
    return JobView(uid, state, len(running))


def _owner(pod: Object) -> str:
    return next((str(ref["uid"]) for ref in pod["metadata"].get("ownerReferences") or ()), "")


def judge(record: Record) -> Outcome:
    """What the record says. A record without samples is one of trouble."""
    samples = record.samples
    last = samples[-1] if samples else Sample(record.started_at, "none", 0, ())
    ended_at = _ended_at(samples)
    made = [step for _, step in record.steps]
    logged = {int(number) for log in record.logs for number in STEP_LINE.findall(log)}
    states = {job.uid: job.state for sample in samples for job in sample.jobs}  # the last one of each Job
    left = {
        job.uid
        for sample in samples
        if ended_at is not None and sample.at >= ended_at + SETTLE_S
        for job in sample.jobs
        if job.state in ("suspended", "active")
    }
    waiting = record.waiting
    return Outcome(
        task=last.task,
        tries=last.try_number,
        seconds=round((ended_at or last.at) - record.started_at, 1),
        jobs=len(states),
        jobs_at_once=max((sum(job.pods > 0 for job in s.jobs) for s in samples), default=0),
        pods_at_once=max((job.pods for s in samples for job in s.jobs), default=0),
        completed=sum(state == "complete" for state in states.values()),
        left_behind=len(left),
        steps_made=len(made),
        steps_repeated=len(made) - len(set(made)),
        steps_unwatched=sum(ended_at is not None and at > ended_at + SETTLE_S for at, _ in record.steps),
        steps_logged=len(logged),
        live=record.live,
        requests=record.requests,
        waiting_states=waiting.states if waiting else (),
        waiting_requests_per_s=round(waiting.requests / waiting.seconds, 2) if waiting else None,
        error=first_error(record.logs),
        trouble=record.trouble,
        started_at=record.started_at,
        event_after_s=None if record.event_at is None else round(record.event_at - record.started_at, 1),
    )


def _ended_at(samples: Sequence[Sample]) -> float | None:
    """When the task came to the state that it has at the end; None when that is none of an end."""
    ended: float | None = None
    for sample in samples:
        if sample.task not in ENDED:
            ended = None
        elif ended is None:
            ended = sample.at
    return ended


def first_error(logs: Sequence[str]) -> str:
    """The first line of level error, without its time, shortened."""
    for log in logs:
        for line in log.splitlines():
            _, _, rest = line.partition(" ")
            if rest.startswith(("error ", "critical ")):
                return rest.partition(" ")[2][:300]
    return ""


def cell(scenario: Scenario, outcome: Outcome) -> str:
    """The outcome in words, for the table."""
    if outcome.trouble:
        return f"not played to its end: {outcome.trouble}"
    words = [f"**{outcome.task}** (try {outcome.tries}) after {outcome.seconds:.0f} s"]
    if outcome.task == "failed" and outcome.completed and scenario.event != "fail":
        words[0] += ", **although its Job completed**"
    jobs = "1 Job" if outcome.jobs == 1 else f"{outcome.jobs} Jobs"
    if outcome.jobs_at_once > 1:
        jobs = f"**{outcome.jobs_at_once} Jobs at once**"
    words.append(jobs)
    if outcome.pods_at_once > 1:
        words.append(f"{outcome.pods_at_once} pods of one Job at once")
    if outcome.left_behind:
        count = "Job" if outcome.left_behind == 1 else f"{outcome.left_behind} Jobs"
        words.append(f"**{count} left behind, {outcome.steps_unwatched} steps unwatched**")
    if outcome.waiting_requests_per_s is not None and outcome.waiting_states:
        slot = "worker slot held" if "running" in outcome.waiting_states else "no worker slot held"
        words.append(f"while waiting {outcome.waiting_requests_per_s:g} requests/s, {slot}")
    if outcome.steps_made:
        steps = f"{outcome.steps_made} steps made of {STEPS}"
        words.append(steps + (f", {outcome.steps_repeated} of them again" if outcome.steps_repeated else ""))
        live = "" if outcome.live is None else f" ({outcome.live} of them while it ran)"
        words.append(f"log has {outcome.steps_logged} steps{live}")
    return "; ".join(words)
