"""The runner of the comparison against a world of our own: what it lets happen and when, and what it writes down."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.anchor import ground, play
from benchmarks.anchor.play import Play
from benchmarks.anchor.record import SETTLE_S, judge
from benchmarks.anchor.scenarios import CONTENDERS, SCENARIOS, STEPS, dag_id
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB

CONTENDER = CONTENDERS[0]
NAMESPACE = CONTENDER.name
SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}


class World:
    """Airflow and the cluster in one: a look at the task is a step of its training, if it has a Job that may run."""

    def __init__(self, folder: Path, scenario: str, fails_in_a_full_queue: bool = False) -> None:
        self.kube = FakeKube()
        self.kube.get_text = self._metrics  # type: ignore[method-assign]
        self.airflow = SimpleNamespace(api=self)
        self.cluster = SimpleNamespace(shared=folder)
        self.platform = SimpleNamespace(train_image="i")
        self.scenario = SCENARIO[scenario]
        self.fails = fails_in_a_full_queue
        self.hangs = False
        self.rests_as = ""
        self.leaves_jobs = False
        self.state: str | None = None
        self.tries = 0
        self.run = ""
        self.done: dict[str, int] = {}
        self.happened: list[tuple[str, int]] = []
        self.asked = 0

    def _metrics(self, path: str) -> str:
        return f'apiserver_flowcontrol_dispatched_requests_total{{flow_schema="anchor-{NAMESPACE}"}} {self.asked}'

    # --- Airflow ------------------------------------------------------------------------------------------------
    def dag_exists(self, name: str) -> bool:
        return name == dag_id(self.scenario, CONTENDER)

    def unpause(self, name: str) -> None: ...

    def trigger(self, name: str, run_id: str) -> None:
        self.run, self.state, self.tries = run_id, self.rests_as or "running", 1
        for number, _ in enumerate(self.scenario.task_ids):
            self._submit(number)

    def _submit(self, number: int = 0) -> None:
        name = f"job-{self.tries}" + (f"-{number}" if number else "")
        labels = {"try": str(self.tries)}
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
        self.kube.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": self._full()}})
        self.done[name] = 0

    def tasks(self, name: str, run_id: str) -> dict[str, dict[str, Any]]:
        self._go_on()
        return {each: {"state": self.state, "try_number": self.tries} for each in self.scenario.task_ids}

    def _go_on(self) -> None:
        self.asked += 10
        self._admit_rivals()
        for name_of_job, steps in self.done.items():
            job = self.kube.find(JOB, NAMESPACE, name_of_job)
            if job is None or steps >= self.scenario.steps:
                continue
            if self._full():
                self.state = "failed" if self.fails else self.state
                continue
            self.kube.patch(JOB, NAMESPACE, name_of_job, {"spec": {"suspend": False}})
            self.done[name_of_job] += 1
            with open(self._folder() / "steps.log", "a") as log:
                log.write(f"{time.time():.3f} {self.done[name_of_job]}\n")
            if self.done[name_of_job] == self.scenario.steps:
                ended = {"conditions": [{"type": "Complete", "status": "True"}]}
                self.kube.set_status(JOB, NAMESPACE, name_of_job, ended)
                self.state = "success" if self.state == "running" and not self.hangs else self.state

    def _folder(self) -> Path:
        made = self.cluster.shared / ground.FOLDER / dag_id(self.scenario, CONTENDER) / self.run
        made.mkdir(parents=True, exist_ok=True)
        return Path(made)

    def _full(self) -> bool:
        rivals = self.kube.list(JOB, NAMESPACE, f"{ground.RIVAL}=true")
        return len([job for job in rivals if "preemptor" not in job["metadata"]["name"]]) > 0

    def _admit_rivals(self) -> None:
        for job in self.kube.list(JOB, NAMESPACE, f"{ground.RIVAL}=true"):
            if "preemptor" in job["metadata"]["name"] and ("preempt", 0) not in self.happened:
                self.happened.append(("preempt", 0))

    def log(self, name: str, run_id: str, task_id: str, number: int) -> str:
        return "\n".join(f"2026 info step {n}/60 loss 1.0" for n in range(1, 1 + self.done.get(f"job-{number}", 0)))

    def clear(self, name: str, run_id: str, task_id: str) -> None:
        self.happened.append(("clear", self.done["job-1"]))
        self.tries = 2
        self._submit()

    def mark(self, name: str, run_id: str, task_id: str, state: str) -> None:
        self.happened.append((state, self.done["job-1"]))
        self.state = state

    def mark_run(self, name: str, run_id: str, state: str) -> None:
        self.happened.append((f"run {state}", len(self.kube.list(JOB, NAMESPACE, f"{ground.RIVAL}!=true"))))
        self.state = state
        if not self.leaves_jobs:
            for job in self.done:
                self.kube.delete(JOB, NAMESPACE, job)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "LOOK_S", 0.001)
    monkeypatch.setattr(play, "STILL_S", 0.05)
    create = FakeKube.create

    def admitted(kube: FakeKube, obj: Any, dry_run: bool = False) -> Any:
        """Kueue has room for every rival."""
        return create(kube, {**obj, "spec": {**obj["spec"], "suspend": False}}, dry_run)

    monkeypatch.setattr(FakeKube, "create", admitted)


def played(world: World) -> Any:
    return Play(world, world.scenario, CONTENDER, lambda text: None).run()  # type: ignore[arg-type]


def test_the_preemptor_comes_at_its_step_and_all_is_gone_afterwards(tmp_path: Path):
    world = World(tmp_path, "preemption")
    record = played(world)
    assert world.happened == [("preempt", 0)] and record.event_at is not None
    made_before = [step for at, step in record.steps if at <= record.event_at + 0.001]  # written in milliseconds
    assert made_before[-1] >= world.scenario.at_step and len(record.steps) == STEPS
    assert record.live is not None and record.live >= 3 * STEPS // 4
    assert judge(record).task == "success" and not record.trouble
    assert not world.kube.list(JOB, NAMESPACE)


def test_a_clear_is_followed_to_the_end_of_its_second_try(tmp_path: Path):
    record = played(World(tmp_path, "cleared"))
    seen = judge(record)
    assert (seen.task, seen.tries, seen.jobs, seen.steps_made) == ("success", 2, 2, 2 * SCENARIO["cleared"].steps)
    assert len(record.logs) == 2


def test_a_job_that_outlives_its_task_is_followed_too(tmp_path: Path):
    world = World(tmp_path, "marked-failed")
    record = played(world)
    assert world.happened[0][0] == "failed" and world.happened[0][1] >= 20
    assert judge(record).task == "failed" and len(record.steps) == STEPS


@pytest.mark.parametrize("rests_as", ["deferred", "running"])
@pytest.mark.parametrize("leaves_jobs", [True, False])
def test_a_dag_run_is_marked_failed_when_all_its_tasks_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests_as: str, leaves_jobs: bool
):
    monkeypatch.setattr(play, "STILL_S", SETTLE_S)
    monkeypatch.setattr(time, "time", _fast(time.time))
    world = World(tmp_path, "run-failed")
    world.rests_as, world.leaves_jobs = rests_as, leaves_jobs
    record = played(world)
    assert world.happened == [("run failed", 50)]
    seen = judge(record)
    assert (seen.task, seen.tasks, seen.failed, seen.jobs) == ("failed", 50, 50, 50)
    assert seen.deferred_at_event == (50 if rests_as == "deferred" else 0)
    assert seen.left_behind == (50 if leaves_jobs else 0) and not record.steps
    if rests_as == "running":  # nothing tells that they wait but that nothing moves
        assert record.event_at is not None and record.event_at - record.samples[0].at >= play.REST_S


def test_a_job_that_nobody_waits_for_is_preempted_too(tmp_path: Path):
    world = World(tmp_path, "preemption")
    world.rests_as = "success"
    record = played(world)
    assert record.event_at is not None and len(record.steps) == STEPS


def test_a_task_that_outlives_its_jobs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(play, "GIVE_UP_S", 0.1)
    world = World(tmp_path, "room")
    world.hangs = True
    record = played(world)
    assert record.trouble == "given up 0.1 s after the last of its Jobs had ended"
    seen = judge(record)
    assert (seen.task, seen.completed, seen.steps_made) == ("running", 1, STEPS)


def test_the_queue_is_full_for_its_time_and_then_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = World(tmp_path, "waiting")
    monkeypatch.setattr(time, "monotonic", _fast(time.monotonic))
    record = played(world)
    assert record.waiting is not None and record.waiting.seconds >= 30
    assert record.waiting.states == ("running",) and record.waiting.requests > 0
    assert judge(record).task == "success" and len(record.steps) == STEPS


def test_a_task_that_fails_in_a_full_queue_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", _fast(time.monotonic))
    record = played(World(tmp_path, "full", fails_in_a_full_queue=True))
    assert record.waiting is None
    assert judge(record).task == "failed" and len(record.steps) == STEPS


def test_what_never_ends_is_told_and_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(play, "TIMEOUT_S", 0.2)
    world = World(tmp_path, "room")
    world.done = {}
    monkeypatch.setattr(world, "_submit", lambda number: None)
    record = played(world)
    assert record.trouble.startswith("waited 0.2 s in vain for: the end; last seen: task running")
    assert judge(record).trouble == record.trouble


def _fast(clock: Any) -> Any:
    """A clock that runs a hundred times as fast."""
    begin = clock()
    return lambda: begin + 100 * (clock() - begin)
