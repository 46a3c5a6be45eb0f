"""Figures, checks, verdict and table of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kueue_integration.contract.record_types import AttemptRecord
from localcluster.demo import report
from localcluster.demo.compare import Comparison
from localcluster.demo.model import Expectation, Outcome, Saved, StoryRecord, TaskSample

EXPECT = Expectation(
    steps=900, ranks=4, workers=4, min_workers=2, flavor="ondemand", other_flavor="spot", intruder="urgent"
)


def attempts() -> list[AttemptRecord]:
    """A good run: 200 steps, preempted, 150 steps on spot, grown back, finished."""
    return [
        AttemptRecord(
            attempt=1, reservation="a", flavor="ondemand", pods=4, ranks=4, queued_at=1000.0, admitted_at=1001.0,
            first_step=0, first_step_at=1010.0, last_step=199, ended_by="Preempted",
            preempted_by="job-urgent-1a2b3", evicted_at=1030.0, barrier_at=1030.25, committed_at=1032.0,
            released_at=1032.5, checkpoint="train-a1-g1",
        ),
        AttemptRecord(
            attempt=2, reservation="b", flavor="spot", pods=2, ranks=4, queued_at=1032.5, admitted_at=1034.0,
            first_step=200, first_step_at=1040.0, last_step=349, ended_by="Regrown", evicted_at=1055.0,
            barrier_at=1055.5, committed_at=1057.0, released_at=1057.25, checkpoint="train-a2-g1",
            restored_from="train-a1-g1",
        ),
        AttemptRecord(
            attempt=3, reservation="c", flavor="ondemand", pods=4, ranks=4, queued_at=1057.25, admitted_at=1058.0,
            first_step=350, first_step_at=1063.0, last_step=899, ended_by="Finished", finished_at=1100.0,
            restored_from="train-a2-g1",
        ),
    ]  # fmt: skip


def task_samples(*states: str) -> list[TaskSample]:
    return [TaskSample(1000.0 + i, state, 1) for i, state in enumerate(states)]


GOOD_STATES = ("none", "scheduled", "queued", "running", "deferred", "deferred", "running", "success")
GOOD_COMPARISON = Comparison(steps=900, ranks=4, differences=())


def outcome(
    history: list[AttemptRecord] | None = None,
    comparison: Comparison = GOOD_COMPARISON,
    states: tuple[str, ...] = GOOD_STATES,
    dag_run: str = "success",
) -> Outcome:
    saved = (Saved("train-a1-g1", 200, 4096, 1024), Saved("train-a2-g1", 350, 5000, 10))
    record = StoryRecord(
        job="train",
        started_at=999.0,
        attempts=attempts() if history is None else history,
        checkpoints=saved,
        samples=(),
        task_samples=task_samples(*states),
        dag_run_state=dag_run,
    )
    return Outcome(record, comparison)


def test_good_run_passes_with_measured_figures() -> None:
    content = report.build(EXPECT, outcome())
    assert content["verdict"] == "pass", [c for c in content["checks"] if not c["ok"]]
    assert (content["steps_total"], content["steps_lost"], content["bit_identical"]) == (900, 0, True)
    assert content["airflow"]["state"] == "success"
    assert content["airflow"]["try_number"] == 1
    assert content["timings_s"] == {
        "evicted_to_barrier": 0.25,
        "barrier_to_committed": 1.75,
        "committed_to_quota_released": 0.5,
        "admitted_to_first_step": 6.0,
    }
    assert (content["checkpoint_bytes"], content["checkpoint_bytes_stored"]) == (4096, 1024)
    assert content["attempts"][0] == {
        "attempt": 1,
        "flavor": "ondemand",
        "pods": 4,
        "ranks": 4,
        "first_step": 0,
        "last_step": 199,
        "ended_by": "Preempted",
        "preempted_by": "job-urgent-1a2b3",
        "note": None,
    }


def changed(index: int, **fields: object) -> list[AttemptRecord]:
    history = attempts()
    history[index] = replace(history[index], **fields)  # type: ignore[arg-type]
    return history


@pytest.mark.parametrize(
    ("bad", "failed"),
    [
        (outcome(attempts()[:2]), "attempts"),
        (outcome(changed(0, flavor="spot")), "started"),
        (outcome(changed(1, flavor="ondemand")), "moved"),
        (outcome(changed(1, pods=4)), "moved"),
        (outcome(changed(2, pods=2)), "grown back"),
        (outcome(changed(1, ranks=2)), "ranks"),
        (outcome(changed(0, ended_by="AdmissionCheck")), "preempted"),
        (outcome(changed(0, preempted_by="somebody-else")), "preempted"),
        (outcome(changed(0, preempted_by=None)), "preempted"),
        (outcome(changed(2, ended_by="Failed")), "finished"),
        (outcome(changed(1, first_step=190)), "steps lost"),
        (outcome(changed(1, first_step=None)), "steps lost"),
        (outcome(changed(1, first_step=201)), "every step once"),
        (outcome(changed(2, last_step=898)), "every step once"),
        (outcome(changed(0, barrier_at=None)), "timings"),
        (outcome(changed(0, barrier_at=1029.0)), "timings"),
        (outcome(comparison=Comparison(900, 4, ("rank 2: step 7 differs",))), "bit-identical"),
        (outcome(comparison=Comparison(899, 4, ())), "bit-identical"),
        (outcome(comparison=Comparison(900, 3, ())), "bit-identical"),
        (outcome(states=("none", "running", "success")), "deferred all along"),
        (outcome(states=("deferred", "running", "deferred", "success")), "deferred all along"),
        (outcome(states=("deferred", "up_for_retry", "success")), "deferred all along"),
        (outcome(states=("deferred", "deferred")), "deferred all along"),
        (outcome(states=()), "no retry"),
        (outcome(dag_run="failed"), "dag run"),
    ],
)
def test_each_thing_that_is_wrong_fails_the_verdict_by_name(bad: Outcome, failed: str) -> None:
    content = report.build(EXPECT, bad)
    assert content["verdict"] == "fail"
    assert failed in [c["name"] for c in content["checks"] if not c["ok"]]
    assert f"FAILED {failed}" in report.summary(content)


def test_a_second_try_fails_the_verdict() -> None:
    good = outcome()
    samples = [*good.record.task_samples[:-1], replace(good.record.task_samples[-1], try_number=2)]
    content = report.build(EXPECT, replace(good, record=replace(good.record, task_samples=samples)))
    assert content["verdict"] == "fail"
    assert [c["name"] for c in content["checks"] if not c["ok"]] == ["no retry"]


def test_no_attempt_at_all_is_a_verdict_and_not_a_crash() -> None:
    content = report.build(EXPECT, outcome([], Comparison(0, 0, ("no step was logged",))))
    assert content["verdict"] == "fail"
    assert content["timings_s"]["evicted_to_barrier"] is None
    assert "attempt" in report.table(content)


def test_without_airflow_nothing_of_airflow_is_judged_or_told() -> None:
    content = report.build(EXPECT, outcome(states=(), dag_run=""), with_airflow=False)
    assert content["verdict"] == "pass"
    assert "airflow" not in content


def test_lost_steps_are_counted_over_all_attempts() -> None:
    history = changed(1, first_step=190)
    history[2] = replace(history[2], first_step=345)
    assert report.steps_lost(history) == 10 + 5


def test_table_has_one_aligned_row_per_attempt() -> None:
    lines = report.table(report.build(EXPECT, outcome())).splitlines()
    assert len(lines) == 2 + 3
    assert lines[2].split() == ["1", "ondemand", "4", "4", "0", "199", "Preempted", "job-urgent-1a2b3"]
    assert lines[4].split() == ["3", "ondemand", "4", "4", "350", "899", "Finished", "-"]
    assert len({line.index("ondemand") for line in (lines[2], lines[4])}) == 1
