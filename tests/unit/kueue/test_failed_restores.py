"""Restores that fail, of whole checkpoints: three tries each, then the checkpoint before, then the beginning."""

from __future__ import annotations

import dataclasses
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import T0
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.cli import tables
from kueue_integration.contract import attempt_records, branches, job_names
from kueue_integration.contract.record_types import JobRequest
from kueue_integration.controller import attempt_history, decide, rewind
from kueue_integration.controller.actions import AnswerReady, RecordHistory, RequestReadmission
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Job
from kueue_integration.jobs.status import newest_usable, summarise
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import RESTORES, CheckpointRef, CommitRequest, Damage, DamageReport, Progress

WHY = "rank 0: CRIU restore ended with 1: no such file"
ALWAYS = 100


class Run:
    """A Job, its controller, and pods that say how their restore has gone. One attempt after the other."""

    def __init__(self, checkpoints: int, **annotations: str) -> None:
        self.job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed"})
        self.now = T0 + 100
        self.refs = [scene.checkpoint(n, step=100 * n) for n in range(1, checkpoints + 1)]
        for ref in self.refs:
            self.write(scene.history(scene.record(ref.attempt)))
            told = CommitRequest(scene.NS, "train", ref.attempt, ref, 1.0, 9, goes_on=True)
            self.write(reports.commit(self.job, told, self.now))
        self.job["metadata"]["annotations"].update(annotations)
        records = [
            scene.record(ref.attempt, ended_by="Preempted", first_step=ref.step - 100, last_step=ref.step - 1,
                         evicted_at=T0 + 50, running_at=T0 + 20)
            for ref in self.refs
        ]  # fmt: skip
        self.write(scene.history(*records))
        self.let_in()

    def write(self, change: Any) -> None:
        notes = self.job["metadata"]["annotations"]
        for name, value in (change or {}).items():
            if value is None:
                notes.pop(name, None)
            else:
                notes[name] = value

    @property
    def record(self) -> Any:
        return attempt_records.history(self.job)[-1]

    def let_in(self) -> None:
        self.now += 1000
        self.job["spec"]["suspend"] = True
        answer = scene.decide(self.job, scene.workload(reserved_at=self.now - T0), [], self.now).action
        assert isinstance(answer, AnswerReady)
        self.write(answer.job_annotations)
        self.job["spec"]["suspend"] = False
        start = self.record.restored_from
        assert answer.pod_annotations[names.ANN_CHECKPOINT] == (start or "")
        told = Progress(scene.NS, "train", self.record.attempt, "restoring" if start else "starting", 0)
        step = next((ref.step for ref in self.refs if ref.id == start), 0)
        self.write(reports.progress(self.job, dataclasses.replace(told, first_step=step), self.now))

    def says(self, *found: Damage) -> None:
        """Both pods of the attempt say the same: it counts once."""
        message = DamageReport(scene.NS, "train", self.record.attempt, list(found))
        first = reports.damage(self.job, message)
        assert first
        self.write(first)
        assert reports.damage(self.job, message) is None

    def fails(self, why: str = WHY, passes: bool = False) -> RequestReadmission:
        self.says(Damage(self.record.restored_from, why, tried=True, passes=passes))
        return self.ended()

    def ended(self, pods: Any = None) -> RequestReadmission:
        pods = pods or [scene.pod(i, attempt=self.record.attempt) for i in (0, 1)]
        workload = scene.workload(state="Ready", admitted=True, reserved_at=self.now - T0)
        action = scene.decide(self.job, workload, pods, self.now).action
        assert isinstance(action, RequestReadmission), action
        self.write(action.job_annotations)
        return action

    def loses_a_node(self) -> None:
        """Before or during the restore: nothing of it is the checkpoint's fault."""
        lost = scene.pod(0, attempt=self.record.attempt, phase="Failed")
        assert "was lost" in self.ended([lost, scene.pod(1, attempt=self.record.attempt)]).message

    def runs(self) -> None:
        told = Progress(scene.NS, "train", self.record.attempt, "running", 0)
        self.write(reports.progress(self.job, told, self.now))


Fates = st.lists(st.one_of(st.integers(0, 5), st.just(ALWAYS), st.just("damaged")), min_size=1, max_size=6)


@given(fates=Fates, lost=st.lists(st.integers(0, 30), max_size=6), retries=st.sampled_from([None, "0", "100"]))
def test_any_sequence_of_failed_restores_ends_with_a_running_attempt(
    fates: list[Any], lost: list[int], retries: str | None
) -> None:
    """`fates`: how often the restore of each checkpoint fails, oldest first. `lost`: tries in which a node is lost."""
    lost = [] if retries == "0" else lost  # that budget is for nodes
    run = Run(len(fates), **({} if retries is None else {job_names.ANN_INFRASTRUCTURE_RETRIES: retries}))
    fate = {ref.id: how for ref, how in zip(run.refs, fates, strict=True)}
    tried: dict[str | None, int] = {}
    bound = sum(1 if how == "damaged" else min(how, RESTORES) for how in fates) + len(lost) + 1
    for turn in range(bound + 1):
        assert turn < bound, "it never ends"
        start = run.record.restored_from
        if turn in lost:
            run.loses_a_node()
            run.let_in()
            continue
        how = fate.get(start, 0)
        if how == "damaged":
            run.says(Damage(start, "a pack is gone"))
            run.ended()
        elif tried.get(start, 0) < how:
            tried[start] = tried.get(start, 0) + 1
            said = run.fails()
            count = tried[start]
            assert (f"try {count} of {RESTORES}: {WHY}" if count < RESTORES else "3 restores failed") in said.message
        else:
            break
        run.let_in()
    good = [ref for ref in run.refs if fate[ref.id] != "damaged" and fate[ref.id] < RESTORES]
    assert run.record.restored_from == (good[-1].id if good else None), "the newest that can be restored"
    run.runs()
    passed = [ref for ref in run.refs if not good or ref.generation > good[-1].generation]
    assert [s.id for s in run.record.skipped] == [ref.id for ref in passed[::-1]][: attempt_history.MAX_SKIPPED]
    status = summarise(run.job, None, ())
    counts = {c["id"]: c.get("failed_restores", 0) for c in status.checkpoints}
    assert {name: count for name, count in counts.items() if count} == {n: c for n, c in tried.items() if c}
    usable = newest_usable(status.checkpoints)
    assert (usable or {}).get("id") == run.record.restored_from
    assert status.steps_lost == 100 * len(passed)


def test_a_failed_restore_is_told_where_people_look() -> None:
    run = Run(2)
    newest = run.refs[-1].id
    messages = []
    for _ in range(RESTORES):
        messages.append(run.fails().message)
        run.let_in()
    again = f"; restarts from checkpoint {newest} (step 200)"
    assert messages[0] == f"checkpoint {newest} was not restored, try 1 of 3: {WHY}{again}"
    whole = f"checkpoint {newest} cannot be restored: 3 restores failed, the last one in attempt 5: {WHY}"
    assert messages[2] == f"{whole}; restarts from checkpoint {run.refs[0].id} (step 100)"
    shown = " ".join(tables.detail(summarise(run.job, None, ())).split())
    assert "Steps: 100 done, 100 lost" in shown and f"attempt 3: {messages[0]}" in shown
    assert f"attempt 6: checkpoint {newest} (step 200) cannot be restored: 3 restores failed" in shown


def test_tries_count_in_a_row() -> None:
    """A checkpoint that was restored is good: what fails after that is counted anew."""
    run = Run(2)
    for _ in range(RESTORES - 1):
        run.fails()
        run.let_in()
    run.runs()
    run.loses_a_node()
    run.let_in()
    for number in range(1, RESTORES):
        assert f"try {number} of {RESTORES}" in run.fails().message
        run.let_in()
        assert run.record.restored_from == run.refs[-1].id
    assert "3 restores failed" in run.fails().message
    run.let_in()
    assert run.record.restored_from == run.refs[0].id


def killed(run: Run) -> list[Any]:
    """The pods of the attempt, one of which the kernel has killed as a whole: its launcher can say nothing."""
    dead, other = (scene.pod(i, attempt=run.record.attempt, phase=p) for i, p in enumerate(("Failed", "Running")))
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    dead["status"]["containerStatuses"] = [{"name": "train", "state": state}]
    dead["spec"]["nodeName"] = "small"
    return [dead, other]


@pytest.mark.parametrize("retries", [None, "0"])
def test_a_container_that_is_killed_for_memory_while_it_is_restored_costs_a_try_of_its_checkpoint(
    retries: str | None,
) -> None:
    run = Run(2, **({} if retries is None else {job_names.ANN_INFRASTRUCTURE_RETRIES: retries}))
    newest = run.refs[-1].id
    for number in range(1, RESTORES + 1):
        noted = scene.decide(run.job, scene.workload(state="Ready", admitted=True), killed(run), run.now).action
        assert isinstance(noted, RecordHistory)
        run.write(noted.job_annotations)
        said = run.ended(killed(run)).message
        assert "killed while it was restored: out of memory: the kernel killed it" in said
        assert (f"try {number} of {RESTORES}" if number < RESTORES else "3 restores failed") in said
        assert attempt_records.history(run.job)[-1].ended_by == attempt_history.OUT_OF_MEMORY
        ref = next(ref for ref in attempt_records.checkpoints(run.job) if ref.id == newest)
        assert ref.failed[-1].node == "small"
        run.let_in()
    assert run.record.restored_from == run.refs[0].id
    assert attempt_records.broken(run.job) == 0


def test_a_kill_for_memory_once_the_ranks_run_is_no_failed_restore() -> None:
    run = Run(1)
    run.runs()
    assert "was lost: out of memory" in run.ended(killed(run)).message
    assert not attempt_records.checkpoint(run.job).failed


def test_what_may_come_back_is_waited_for() -> None:
    run = Run(1)
    pauses = []
    for _ in range(RESTORES):
        pauses.append(run.fails("/data/x is not in this pod", passes=True).requeue_after_s)
        run.let_in()
    assert pauses[:2] == list(decide.AWAY_S) and pauses[2] < decide.AWAY_S[0], "the next start needs nothing of it"
    run = Run(1)
    assert run.fails().requeue_after_s == 1


def given_up(run: Run) -> CheckpointRef:
    for _ in range(RESTORES):
        run.fails()
        run.let_in()
    ref = next(ref for ref in attempt_records.checkpoints(run.job) if ref.id == run.refs[-1].id)
    assert ref.passed_over and not ref.unusable
    return ref


def test_a_user_may_ask_for_it_again() -> None:
    run = Run(2)
    ref = given_up(run)
    change, _ = rewind.taken_up(Job.parse(run.job), JobRequest("1", "rewind", run.now, checkpoint=ref.id), ref, run.now)
    run.write(change)
    assert attempt_records.checkpoint(run.job) == dataclasses.replace(ref, failed=[])
    assert attempt_records.checkpoints(run.job)[-1].failed == []


def test_another_job_may_begin_with_it() -> None:
    run = Run(2)
    ref = given_up(run)
    own = {job_names.ANN_STORE: ref.url, job_names.ANN_WORLD_SIZE: str(ref.world_size)}
    new = scene.job(name="new", annotations=own)
    assert branches.unfit(new, ref) == ""
    new["metadata"]["annotations"].update(branches.begun("train", run.job, ref))
    assert attempt_records.checkpoint(new) == dataclasses.replace(ref, failed=[])


@pytest.mark.parametrize("between", [0, 1, 3])
def test_steps_are_lost_whatever_lies_between(between: int) -> None:
    first = scene.record(1, first_step=0, last_step=99)
    tries = [scene.record(2 + n, first_step=80) for n in range(between)]
    last = scene.record(9, first_step=50, last_step=60)
    assert attempt_records.all_steps_lost([first, *tries, last]) == 50
    assert sum(attempt_records.steps_lost([first, *tries, last]).values()) == 50
