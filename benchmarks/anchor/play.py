"""Play one scenario with one contender: trigger, watch, let happen what must happen, and watch until all is still."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kueue_integration.errors import SingularityError
from kueue_integration.kube.resources import JOB, POD
from localcluster.demo.errors import AirflowApiError, DemoError, StoryError
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

from . import ground
from .ground import RIVAL
from .record import ENDED, STEP_LINE, Record, Sample, Waiting, ended_at, view
from .scenarios import TASK, Contender, Scenario, dag_id

TIMEOUT_S = 900.0
LOOK_S = 0.5
STILL_S = 12.0
"""The last look is so long after the end: what a kill still deletes is gone by then."""
KNOWN_TIMEOUT_S = 300.0
GIVE_UP_S = 240.0
"""A task that has not ended so long after the last of its Jobs is not waited for any longer."""
REST_S = 30.0
"""Tasks and Jobs that have not changed for so long are at rest."""

_WRITING = threading.Lock()
"""Airflow's SQLite takes one writer at a time, and answers the others with an error."""

Say = Callable[[str], None]


class Play:
    """One contender in one scenario. `run` never raises for what the contender does; it says what it saw."""

    def __init__(
        self, on: Stage, scenario: Scenario, contender: Contender, say: Say, stop: threading.Event | None = None
    ) -> None:
        """`stop`: when it is set, the play ends at its next look."""
        self._stop = stop or threading.Event()
        self._on, self._scenario, self._contender = on, scenario, contender
        self._speak = say
        self._api = on.airflow.api
        self._dag_id = dag_id(scenario, contender)
        self._run_id = f"run-{time.time_ns()}"
        self._samples: list[Sample] = []
        self._live: int | None = None
        self._event_at: float | None = None
        self._waiting: Waiting | None = None
        self._load = 0.0
        self._told = ""

    def _say(self, text: str) -> None:
        self._speak(f"{self._scenario.name}, {self._contender.name}: {text}")

    def run(self) -> Record:
        """Raises what Airflow, the cluster or its absence raise: SingularityError, DemoError."""
        kube, contender, api = self._on.kube, self._contender, self._api
        ground.clean(kube, contender)
        if self._scenario.full_s:
            ground.fill(self._on, contender)
        wait_for(lambda: api.dag_exists(self._dag_id), f"DAG {self._dag_id} known to Airflow", KNOWN_TIMEOUT_S)
        with _WRITING:
            api.unpause(self._dag_id)
            before, started_at = ground.requests(kube, contender), time.time()
            wait_for(self._triggered, f"a run of DAG {self._dag_id}", KNOWN_TIMEOUT_S)
        trouble = ""
        try:
            if 0 < self._scenario.full_s < math.inf:
                self._wait_in_the_queue()
                ground.empty(kube, contender)
            self._until(self._over, "the end")
        except (SingularityError, DemoError) as error:
            trouble = str(error)
            self._say(f"not played to its end: {trouble}")
        requests = ground.requests(kube, contender) - before
        logs = self._logs()
        steps = self._steps()
        ground.clean(kube, contender)
        self._say(f"over: task {self._samples[-1].task if self._samples else 'none'}, {len(steps)} steps")
        return Record(
            started_at,
            self._samples,
            steps,
            logs,
            self._live,
            self._event_at,
            self._waiting,
            requests,
            self._load,
            trouble,
        )

    def _triggered(self) -> bool:
        try:
            self._api.trigger(self._dag_id, self._run_id)
        except AirflowApiError as error:
            if error.status != 409:  # an answer that did not come in time may have been a success
                raise
        return True

    def _wait_in_the_queue(self) -> None:
        """From the first Job of the task on, for `full_s` seconds."""
        self._until(lambda s: bool(s.jobs) or s.task in ENDED, "the task's Job")
        # What submitting costs is no part of waiting: three looks later it is over, or the task has ended.
        settled = len(self._samples) + 3
        self._until(lambda s: len(self._samples) > settled and s.task != "queued", "the task at rest")
        first, before, began = len(self._samples) - 1, self._requests(), time.monotonic()
        self._until(lambda s: time.monotonic() - began >= self._scenario.full_s, "the queue's time")
        if self._samples[-1].task not in ENDED:  # else it waits for nothing
            states = {sample.task for sample in self._samples[first:]}
            self._waiting = Waiting(time.monotonic() - began, self._requests() - before, tuple(sorted(states)))

    def _requests(self) -> int:
        return ground.requests(self._on.kube, self._contender)

    def _until(self, condition: Callable[[Sample], bool], what: str) -> None:
        wait_for(lambda: condition(self._look()), what, TIMEOUT_S, LOOK_S, detail=lambda: self._told)

    def _look(self) -> Sample:
        if self._stop.is_set():
            raise StoryError("interrupted")
        kube, namespace = self._on.kube, self._contender.name
        tasks = self._tasks()
        pods = kube.list(POD, namespace)
        jobs = kube.list(JOB, namespace, f"{RIVAL}!=true")
        sample = Sample(
            time.time(),
            tuple(task["state"] or "none" for task in tasks.values()),
            max((int(task["try_number"]) for task in tasks.values()), default=0),
            tuple(view(job, pods) for job in jobs),
        )
        self._samples.append(sample)
        self._load = max(self._load, os.getloadavg()[0])
        step = self._step()
        self._happen(sample, step)
        if self._live is None and step >= 3 * self._scenario.steps // 4 and sample.task not in ENDED:
            self._live = len({n for log in self._logs() for n in STEP_LINE.findall(log)})
        told = f"task {_counted(sample.tasks)}, try {sample.try_number}, "
        told += f"Jobs {_counted(f'{j.state} {j.pods}' for j in sample.jobs)}"
        if told != self._told:
            self._say(f"{told}, step {step}")
            self._told = told
        return sample

    def _tasks(self) -> dict[str, dict[str, Any]]:
        return self._api.tasks(self._dag_id, self._run_id)

    def _happen(self, sample: Sample, step: int) -> None:
        """Let the scenario's event happen when it is due."""
        event = self._scenario.event
        if event is None or event == "kill" or self._event_at is not None:
            return
        if event == "fail-run":
            due = self._at_rest()
        elif event == "preempt":  # a Job that nobody waits for can be preempted too
            due = step >= self._scenario.at_step and any(job.state == "active" for job in sample.jobs)
        else:
            due = step >= self._scenario.at_step and sample.task not in ENDED
        if not due:
            return
        at = time.time()
        self._say(f"--> {event} at step {step}, tasks {_counted(sample.tasks)}")
        if event == "preempt":
            ground.preempt(self._on, self._contender)
        elif event == "clear":
            self._api.clear(self._dag_id, self._run_id, TASK)
        elif event == "fail":
            self._api.mark(self._dag_id, self._run_id, TASK, "failed")
        else:
            self._api.mark_run(self._dag_id, self._run_id, "failed")
        self._event_at = at  # not before: what was refused is tried again at the next look

    def _at_rest(self) -> bool:
        """All tasks are deferred; or nothing has changed for some time, with Jobs there."""
        last = self._samples[-1]
        if not last.jobs or last.task in ENDED:
            return False
        differ = (s.at for s in reversed(self._samples) if (s.tasks, s.jobs) != (last.tasks, last.jobs))
        changed = next(differ, self._samples[0].at)
        return last.task == "deferred" or last.at - changed >= REST_S

    def _over(self, sample: Sample) -> bool:
        """The task has ended for good, and every Job too, for some time. Raises StoryError: it will not."""
        if self._scenario.event == "clear" and self._event_at is not None and sample.try_number < 2:
            return False
        ended = [job.state in ("complete", "failed") for job in sample.jobs]
        if sample.task not in ENDED:
            if self._scenario.tasks == 1 and ended and all(ended) and sample.at >= self._since_jobs() + GIVE_UP_S:
                raise StoryError(f"given up {GIVE_UP_S:g} s after the last of its Jobs had ended")
            return False
        if not all(ended) and self._scenario.full_s < math.inf:
            return False
        since = ended_at(self._samples)
        return since is not None and sample.at >= since + STILL_S

    def _since_jobs(self) -> float:
        """When the Jobs came to the state that they have now."""
        last = self._samples[-1]
        return next((s.at for s in reversed(self._samples) if s.jobs != last.jobs), self._samples[0].at)

    def _logs(self) -> list[str]:
        """Of every try, or of every task when there are several; what cannot be had is empty."""
        found = []
        for task_id, task in self._tasks().items():
            for number in range(1, int(task["try_number"]) + 1):
                try:
                    found.append(self._api.log(self._dag_id, self._run_id, task_id, number))
                except AirflowApiError as error:
                    found.append("")
                    self._say(f"no log of try {number} of {task_id}: {error}")
        return found

    def _file(self) -> Path:
        return self._on.cluster.shared / ground.FOLDER / self._dag_id / self._run_id / "steps.log"

    def _steps(self) -> list[tuple[float, int]]:
        if not self._file().exists():
            return []
        lines = [line.split() for line in self._file().read_text().splitlines()]
        return [(float(at), int(step)) for at, step in lines]

    def _step(self) -> int:
        return max((step for _, step in self._steps()), default=0)


def _counted(words: Iterable[str]) -> str:
    return ", ".join(word if count == 1 else f"{count} x {word}" for word, count in Counter(words).items()) or "none"
