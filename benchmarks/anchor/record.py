"""What was seen of one scenario with one contender, and what it means. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from kueue_integration.kube.resources import Object, is_true

from .scenarios import Scenario

ENDED = frozenset(("success", "failed", "skipped"))
SETTLE_S = 10.0
"""A Job that still runs so long after the end of its task was left behind; a deletion takes less."""
EXCEPTION = re.compile(r"\w+: ")
MADE_BY = re.compile(r"\btraining of try (\d+)")
PREEMPTED = re.compile(r"\bpreempted\b", re.IGNORECASE)
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
    """Everything at one moment, Unix seconds. `tasks`: the state of each task, "none" for one that has none."""

    at: float
    tasks: tuple[str, ...]
    try_number: int
    jobs: tuple[JobView, ...]

    @property
    def task(self) -> str:
        """The state of them all: "under way" when they differ and one has not ended."""
        states = set(self.tasks)
        if len(states) == 1:
            return self.tasks[0]
        if not states:
            return "none"
        return "under way" if states - ENDED else "failed" if "failed" in states else "success"


@dataclass(frozen=True)
class Waiting:
    """While the queue was full: for how long, requests of the contender in that time, states of the task seen."""

    seconds: float
    requests: int
    states: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """:param steps: `(Unix seconds, step)` in the order in which they were made, whoever made them
    :param logs: task log of each try, or of each task when there are several
    :param live: steps that the task log showed when three quarters of the training were done; None: it never was
    :param load: highest load of the machine in the last minute
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
    load: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class Outcome:
    """:param task: last state of the task, or of all of them
    :param tasks: how many there are; `failed` of them did
    :param seconds: from the start of the DAG run to that state
    :param jobs: Jobs that were made; `jobs_at_once`: most of them with running pods at a time; `jobs_at_once_s`: for
        how long more than one had
    :param pods_at_once: most running pods of one Job at a time (it wants one); `pods_at_once_s`: for how long
    :param completed: Jobs that ended as Complete
    :param left_behind: Jobs that were still there to run when the task had ended
    :param lag_s: from the end of the last Job to the end of the task that waited for it, as far as looks can tell
    :param steps_made: by all of them; `steps_repeated`: those of them that had been made before; `steps_unwatched`:
        those made after the task had ended
    :param steps_logged: different steps in the task log; `live`: how many of them it had shown at three quarters
    :param strange_logs: tries in whose log a Job of an earlier try trains, though they made one of their own
    :param tells: the task log says that it was preempted
    :param deferred_at_event: tasks that were deferred when the event happened
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
    tasks: int = 1
    failed: int = 0
    jobs_at_once_s: float = 0.0
    pods_at_once_s: float = 0.0
    lag_s: float | None = None
    strange_logs: tuple[int, ...] = ()
    tells: bool = False
    deferred_at_event: int | None = None
    waiting_states: tuple[str, ...] = ()
    waiting_requests_per_s: float | None = None
    error: str = ""
    trouble: str = ""
    started_at: float = 0.0
    event_after_s: float | None = field(default=None)
    load: float = 0.0

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
    last = samples[-1] if samples else Sample(record.started_at, (), 0, ())
    ended = ended_at(samples)
    made = [step for _, step in record.steps]
    logged = {int(number) for log in record.logs for number in STEP_LINE.findall(log)}
    states = {job.uid: job.state for sample in samples for job in sample.jobs}  # the last one of each Job
    left = {
        job.uid
        for sample in samples
        if ended is not None and sample.at >= ended + SETTLE_S
        for job in sample.jobs
        if job.state in ("suspended", "active")
    }
    at_event = [s for s in samples if record.event_at is not None and s.at <= record.event_at]
    waiting = record.waiting
    return Outcome(
        task=last.task,
        tries=last.try_number,
        seconds=round((ended or last.at) - record.started_at, 1),
        jobs=len(states),
        jobs_at_once=max((_training(s) for s in samples), default=0),
        pods_at_once=max((_pods(s) for s in samples), default=0),
        completed=sum(state == "complete" for state in states.values()),
        left_behind=len(left),
        steps_made=len(made),
        steps_repeated=len(made) - len(set(made)),
        steps_unwatched=sum(ended is not None and at > ended + SETTLE_S for at, _ in record.steps),
        steps_logged=len(logged),
        live=record.live,
        requests=record.requests,
        tasks=max(len(last.tasks), 1),
        failed=last.tasks.count("failed"),
        jobs_at_once_s=_lasted(samples, lambda s: _training(s) > 1),
        pods_at_once_s=_lasted(samples, lambda s: _pods(s) > 1),
        lag_s=_lag(samples, ended),
        strange_logs=_strange_logs(record.logs) if len(states) > 1 and len(last.tasks) == 1 else (),
        tells=any(PREEMPTED.search(log) for log in record.logs),
        deferred_at_event=at_event[-1].tasks.count("deferred") if at_event else None,
        waiting_states=waiting.states if waiting else (),
        waiting_requests_per_s=round(waiting.requests / waiting.seconds, 2) if waiting else None,
        error=first_error(record.logs),
        trouble=record.trouble,
        started_at=record.started_at,
        event_after_s=None if record.event_at is None else round(record.event_at - record.started_at, 1),
        load=round(record.load, 1),
    )


def _training(sample: Sample) -> int:
    return sum(job.pods > 0 for job in sample.jobs)


def _pods(sample: Sample) -> int:
    return max((job.pods for job in sample.jobs), default=0)


def _lasted(samples: Sequence[Sample], condition: Callable[[Sample], bool]) -> float:
    """Seconds in which it held: from a look that saw it to the next look."""
    return round(sum(after.at - seen.at for seen, after in pairwise(samples) if condition(seen)), 1)


def _lag(samples: Sequence[Sample], ended: float | None) -> float | None:
    """None where the task did not wait for its Jobs' end."""
    over = None
    for sample in samples:
        if not sample.jobs or any(job.state != "complete" for job in sample.jobs):
            over = None
        elif over is None:
            over = sample.at
    return None if over is None or ended is None or ended < over else round(ended - over, 1)


def _strange_logs(logs: Sequence[str]) -> tuple[int, ...]:
    return tuple(n for n, log in enumerate(logs, 1) if any(int(by) < n for by in MADE_BY.findall(log)))


def ended_at(samples: Sequence[Sample]) -> float | None:
    """When the task came to the state that it has at the end; None when that is none of an end."""
    ended: float | None = None
    for sample in samples:
        if sample.task not in ENDED:
            ended = None
        elif ended is None:
            ended = sample.at
    return ended


def first_error(logs: Sequence[str]) -> str:
    """The first line of level error, without its time, with the exception in the line below it, shortened."""
    for log in logs:
        lines = log.splitlines()
        for line, below in pairwise([*lines, ""]):
            _, _, rest = line.partition(" ")
            if rest.startswith(("error ", "critical ")):
                exception = f": {below}" if EXCEPTION.match(below) else ""
                return f"{rest.partition(' ')[2]}{exception}"[:300]
    return ""


def cell(scenario: Scenario, outcome: Outcome) -> str:
    """The outcome in words, for the table."""
    if outcome.trouble and not outcome.jobs:
        return f"not played to its end: {outcome.trouble}"
    words = [_end(scenario, outcome)]
    if outcome.event_after_s is not None and scenario.event == "fail-run":
        words.append(f"{outcome.deferred_at_event} of {outcome.tasks} tasks were deferred")
    jobs = "1 Job" if outcome.jobs == 1 else f"{outcome.jobs} Jobs"
    if outcome.jobs_at_once > 1 and outcome.tasks == 1:
        jobs = f"**{outcome.jobs_at_once} Jobs at once** for {outcome.jobs_at_once_s:.0f} s"
    words.append(jobs)
    if outcome.pods_at_once > 1:
        words.append(f"{outcome.pods_at_once} pods of one Job at once for {outcome.pods_at_once_s:.0f} s")
    if outcome.left_behind:
        count = "Job" if outcome.left_behind == 1 else f"{outcome.left_behind} Jobs"
        unwatched = f", {outcome.steps_unwatched} steps unwatched" if outcome.steps_unwatched else ""
        words.append(f"**{count} left behind{unwatched}**")
    if outcome.waiting_requests_per_s is not None and outcome.waiting_states:
        slot = "worker slot held" if "running" in outcome.waiting_states else "no worker slot held"
        words.append(f"while waiting {outcome.waiting_requests_per_s:g} requests/s, {slot}")
    if outcome.tasks == 1 and outcome.steps_made:
        steps = f"{outcome.steps_made} steps made of {scenario.steps}"
        words.append(steps + (f", {outcome.steps_repeated} of them again" if outcome.steps_repeated else ""))
        live = "" if outcome.live is None else f" ({outcome.live} of them while it ran)"
        words.append(f"log has {outcome.steps_logged} steps{live}")
    if scenario.event == "preempt" and outcome.event_after_s is not None:
        words.append("log tells of the preemption" if outcome.tells else "log says nothing of the preemption")
    words += [f"**log of try {number} is of an earlier try's Job**" for number in outcome.strange_logs]
    if outcome.lag_s is not None and outcome.tasks == 1:
        words.append(f"ended {outcome.lag_s:.0f} s after its Job")
    return "; ".join(words)


def _end(scenario: Scenario, outcome: Outcome) -> str:
    if outcome.trouble:
        return f"**no end** (try {outcome.tries} {outcome.task}): {outcome.trouble}"
    after = f"after {outcome.seconds:.0f} s"
    if outcome.tasks == 1:
        text = f"**{outcome.task}** (try {outcome.tries}) {after}"
        if not outcome.failed or not outcome.completed or scenario.event == "fail":
            return text
        which = "its Job" if outcome.completed == 1 else f"{outcome.completed} Jobs"
        return f"{text}, **although {which} completed**"
    if not outcome.failed:
        return f"**{outcome.task}** of all {outcome.tasks} tasks {after}"
    text = f"**{outcome.failed} of {outcome.tasks} tasks failed** {after}"
    return text + (f", **although {outcome.completed} of {outcome.jobs} Jobs completed**" if outcome.completed else "")
