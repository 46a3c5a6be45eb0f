"""Training time that later attempts started without: with or without steps."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.cli import tables
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller.measure import Meter, facts
from kueue_integration.controller.metrics import Metrics
from kueue_integration.jobs import lost_time
from kueue_integration.jobs.status import summarise
from kueue_integration.overview import goodput
from kueue_integration.overview.objects import training
from singularity_proxy.protocol.messages import to_json


def ran(attempt: int, begin: float, end: float, **fields: object) -> AttemptRecord:
    """A program without steps that ran from `begin` to `end` seconds after T0."""
    times = {"admitted_at": T0 + begin - 5, "running_at": T0 + begin, "evicted_at": T0 + end - 2, "ended_by": "Paused",
             "released_at": T0 + end, "pods_gone_at": T0 + end}  # fmt: skip
    return scene.record(attempt, **{**times, **fields})


def saved(attempt: int, begin: float, end: float, **fields: object) -> AttemptRecord:
    made = {"checkpoint": f"c{attempt}", "barrier_at": T0 + end - 1, "committed_at": T0 + end - 0.5}
    return ran(attempt, begin, end, **{**made, **fields})


A, B, C = ran(1, 10, 100), ran(2, 200, 260), ran(3, 300, 310)
SAVED = saved(1, 10, 100)


@pytest.mark.parametrize(
    ("attempts", "made", "of"),
    [
        ([A], {}, {}),
        ([A, B], {}, {1: 90.0}),
        ([A, B, C], {}, {1: 90.0, 2: 60.0}),
        ([SAVED, replace(B, restored_from="c1")], {}, {}),
        ([replace(SAVED, barrier_at=None), replace(B, restored_from="c1")], {}, {}),
        ([A, replace(B, restored_from="p")], {"p": (1, T0 + 70)}, {1: 30.0}),
        ([SAVED, replace(B, restored_from="c1"), replace(C, restored_from="c1")], {}, {2: 60.0}),
        ([SAVED, replace(B, restored_from="c1"), C], {}, {1: 89.0, 2: 60.0}),
        ([A, replace(B, restored_from="p"), replace(C, restored_from="p")], {"p": (1, T0 + 70)}, {1: 30.0, 2: 60.0}),
        ([A, replace(B, restored_from="of another job")], {"of another job": (7, T0 - 99)}, {1: 90.0}),
        ([A, replace(B, restored_from="nobody knows")], {}, {}),
        ([replace(A, running_at=None), B], {}, {}),
        ([replace(A, first_step_at=T0 + 40), B], {}, {1: 60.0}),
        ([replace(A, released_at=None, pods_gone_at=None), B], {}, {1: 88.0}),
    ],
    ids=["runs", "nothing was saved", "twice", "its last moment was saved", "when it stopped was not told",
         "a periodic checkpoint", "the next was not", "back to the beginning", "twice from the same", "forked",
         "from an unknown one", "never ran", "with steps", "its end was not seen"],
)  # fmt: skip
def test_what_is_lost_of_each_attempt(attempts, made, of):
    found = lost_time.of_history(attempts, made)
    assert found.of == of
    assert found.total == pytest.approx(sum(of.values())) == pytest.approx(sum(found.since.values()))


def test_what_is_lost_is_lost_once_it_is_known():
    """By the attempt that could not have it: so a counter that was told of two attempts never counts one twice."""
    three = [SAVED, replace(B, restored_from="c1"), C]
    assert lost_time.of_history(three[:2], {}).since == {}
    assert lost_time.of_history(three, {}).since == {3: 149.0}
    counted = facts(three, lost_time.of_history(three, {}).since)
    assert counted[3, "singularity_seconds_lost_total", ""].value == 149.0


def job(*records, **annotations):
    return scene.job(suspend=False, annotations={**scene.history(*records), **annotations})


def test_the_counter_grows_when_the_next_attempt_is_let_in():
    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    for records in ([A], [A, B], [A, B]):
        meter.see(job(*records), deleted=False)
    assert metrics.value("singularity_seconds_lost_total") == 90.0
    assert metrics.value("singularity_steps_lost_total") == 0


def test_status_says_what_no_step_tells():
    periodic = replace(scene.checkpoint(), id="p", created_at=T0 + 70)
    known = job(A, replace(B, restored_from="p"), **{job_names.ANN_CHECKPOINTS: to_json([periodic])})
    found = summarise(known, scene.workload(), [])
    assert (found.steps_lost, found.seconds_lost) == (0, 30.0)
    assert "0 lost (30 s of training)" in tables.detail(found)
    assert "30" in tables.jobs_table([found], wide=True).splitlines()[1].split()


def test_goodput_of_a_program_without_steps_counts_it():
    known = job(A, B, **{job_names.ANN_PROGRESS: '{"attempt":2,"step":0,"at":1800000250.0,"free":true}'})
    seen, _ = training(known)
    assert seen.stepless and seen.lost == {1: 90.0}
    whole = goodput.of_history(seen.attempts, T0 + 400, holds=False, stepless=True)
    assert whole.lost_s == 0
    true = goodput.of_history(seen.attempts, T0 + 400, holds=False, stepless=True, lost=seen.lost)
    assert true.lost_s == pytest.approx(min(90.0, whole.training_s) * A.pods, rel=0.5) and true.share < whole.share


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, ""), (30, "30 s of training"), (720, "12 min of training"), (12600, "3.5 h of training")],
)
def test_words(seconds, words):
    assert lost_time.words(seconds) == words
