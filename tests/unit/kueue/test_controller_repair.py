"""What somebody deletes or spoils by hand in a Job's annotations is put back, exactly, or left alone."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.contract import job_names
from kueue_integration.controller import attempt_history
from kueue_integration.controller.actions import AnswerReady, Repair
from kueue_integration.controller.snapshot import Job
from singularity_proxy.protocol import gpus, names
from singularity_proxy.protocol.messages import GpuFault, Gpus, to_json

GOOD = {
    **scene.history(
        scene.record(1, ended_by="Preempted", evicted_at=T0 + 40, checkpoint="train-a1-g1", last_step=99, held=True),
        scene.record(2, restored_from="train-a1-g1", held=True, first_step=100),
    ),
    names.ANN_CHECKPOINT: to_json(scene.checkpoint()),
    job_names.ANN_CHECKPOINT_COPY: to_json(scene.checkpoint()),
    job_names.ANN_HOLD: job_names.HOLD_ARMED,
    job_names.ANN_STORE: "file:///shared/checkpoints",
}
PODS = [scene.pod(0, attempt=2), scene.pod(1, attempt=2)]


def look(annotations, *, suspend=False, workload=None, pods=PODS):
    running = workload or scene.workload(state="Ready", admitted=True)
    job = scene.job(annotations=annotations, suspend=suspend)
    return scene.decide(job, running, pods, T0 + 100).action


def without(*gone, **changed):
    kept = {name: value for name, value in GOOD.items() if name not in gone}
    return {**kept, **changed}


def test_nothing_is_put_back_where_nothing_is_missing():
    assert look(GOOD) is None


@pytest.mark.parametrize(
    ("name", "spoilt", "what"),
    [
        (job_names.ANN_ATTEMPT, None, "attempt"),
        (job_names.ANN_ATTEMPT, "two", "attempt"),
        (job_names.ANN_ATTEMPT, "1", "attempt"),
        (names.ANN_CHECKPOINT, None, "checkpoint"),
        (names.ANN_CHECKPOINT, "{", "checkpoint"),
        (job_names.ANN_HOLD, None, "hold"),
        (job_names.ANN_HOLD, "amred", "hold"),
    ],
)
def test_one_annotation_is_put_back_as_it_was(name, spoilt, what):
    changed = without(name) if spoilt is None else {**GOOD, name: spoilt}
    action = look(changed)
    assert isinstance(action, Repair)
    assert action.what == what
    assert {**changed, **action.job_annotations} == GOOD


@pytest.mark.parametrize("spoilt", [None, "[1]"])
def test_a_lost_history_gets_a_record_of_the_attempt_that_runs(spoilt):
    changed = without(job_names.ANN_HISTORY) if spoilt is None else {**GOOD, job_names.ANN_HISTORY: spoilt}
    action = look(changed)
    assert isinstance(action, Repair)
    (record,) = scene.stored(action.job_annotations)
    assert (record.attempt, record.restored_from, record.first_step, record.held) == (2, "train-a1-g1", 100, True)
    assert record.note and "earlier records were lost" in record.note
    assert look({**changed, **action.job_annotations}) is None


@pytest.mark.parametrize("runs", [True, False])
def test_an_unreadable_history_is_set_aside_and_not_deleted(runs):
    """One that a newer version has written, for example: a rollback deleted it."""
    newer = GOOD[job_names.ANN_HISTORY].replace('"attempt"', '"of_tomorrow"')
    annotations = {**GOOD, job_names.ANN_HISTORY: newer}
    waiting = {"suspend": True, "workload": scene.workload(reserved_at=90), "pods": []}
    action = look(annotations, **({} if runs else waiting))
    assert isinstance(action, Repair)
    assert action.job_annotations[job_names.ANN_HISTORY_ASIDE] == newer
    annotations |= {**action.job_annotations, job_names.ANN_HISTORY: "[2"}
    again = look(annotations, **({} if runs else waiting))
    assert isinstance(again, Repair)
    assert again.job_annotations[job_names.ANN_HISTORY_ASIDE] == f"{newer}\n[2"


def test_of_a_huge_unreadable_history_the_newest_part_is_kept():
    kept = attempt_history.set_aside("{" + "显" * attempt_history.MAX_BYTES + "end", "before")
    text = kept[job_names.ANN_HISTORY_ASIDE]
    assert text is not None and text.endswith("显end")
    assert attempt_history.MAX_BYTES - 3 < len(text.encode()) <= attempt_history.MAX_BYTES


@given(st.lists(st.text(max_size=attempt_history.MAX_NOTE), min_size=1, max_size=60), st.integers(0, 60))
def test_what_is_stored_of_a_history_fits_and_can_be_read(notes, faults):
    """Whatever pods say: 50 notes of 400 characters were 168 KiB of escapes, which the reader refused."""
    seen = [GpuFault(f"GPU-{n:036x}", 63, 7) for n in range(faults)]
    bad = gpus.bounded(Gpus(64, 85.3, 7 * 10**10, 8 * 10**10, faults=seen))
    history = [replace(scene.record(n + 1), note=note, gpus=bad) for n, note in enumerate(notes)]
    (text,) = attempt_history.stored(history).values()
    assert text is not None and len(text.encode()) <= attempt_history.MAX_BYTES
    read = scene.stored({job_names.ANN_HISTORY: text})
    assert read and [r.attempt for r in read] == [n + 1 for n in range(len(notes))][-len(read) :]
    full = len(text.encode()) > attempt_history.MAX_BYTES * 0.9
    assert full or len(read) == min(len(notes), attempt_history.MAX_RECORDS)


@pytest.mark.parametrize("word", ["显存不足，进程被终止。", "out of memory ", "\ud800 half", "😀"])
def test_fifty_attempts_with_the_longest_notes_are_all_kept_or_the_newest(word):
    history = [attempt_history.noted(scene.record(n + 1), word * 400) for n in range(50)]
    (text,) = attempt_history.stored(history).values()
    read = scene.stored({job_names.ANN_HISTORY: text})
    assert read[-1].attempt == 50 and len(read) >= 30
    assert len(text.encode()) <= attempt_history.MAX_BYTES


def test_with_history_and_attempt_gone_the_pods_tell():
    changed = without(job_names.ANN_HISTORY, job_names.ANN_ATTEMPT)
    first = look(changed)
    assert isinstance(first, Repair)
    assert first.job_annotations == {job_names.ANN_ATTEMPT: "2"}
    second = look({**changed, **first.job_annotations})
    assert isinstance(second, Repair)
    assert second.what == "history"


def test_attempts_go_on_from_the_right_checkpoint_after_everything_was_put_back():
    annotations = without(job_names.ANN_ATTEMPT, names.ANN_CHECKPOINT, job_names.ANN_HOLD)
    for _ in range(3):
        action = look(annotations, suspend=True, workload=scene.workload(reserved_at=90), pods=[])
        assert isinstance(action, Repair)
        annotations.update(action.job_annotations)
    answer = look(annotations, suspend=True, workload=scene.workload(reserved_at=90), pods=[])
    assert isinstance(answer, AnswerReady)
    assert (answer.attempt, answer.pod_annotations[names.ANN_CHECKPOINT]) == (3, "train-a1-g1")
    assert answer.job_annotations[job_names.ANN_HOLD] == job_names.HOLD_ARMED


def test_an_empty_checkpoint_and_a_hold_that_is_off_are_wishes():
    assert look({**GOOD, names.ANN_CHECKPOINT: ""}) is None
    assert look({**GOOD, job_names.ANN_HOLD: job_names.HOLD_OFF}) is None
    assert Job.parse(scene.job(annotations={job_names.ANN_HOLD: job_names.HOLD_OFF})).hold is None


def test_a_job_that_never_had_a_hold_gets_none():
    plain = {**without(job_names.ANN_HOLD), **scene.history(scene.record(2))}
    assert look(plain) is None


def test_a_hold_removed_to_let_kueue_through_is_not_put_back_at_that_moment():
    evicted = scene.workload(state="Ready", admitted=True, evicted=("Preempted", scene.PREEMPTED, 90))
    assert not isinstance(look(without(job_names.ANN_HOLD), workload=evicted), Repair)
    resting = scene.workload(state="Pending", reserved_at=None, evicted=("Preempted", scene.PREEMPTED, 90))
    assert isinstance(look(without(job_names.ANN_HOLD), workload=resting, suspend=True), Repair)


def test_jobs_of_others_and_ended_ones_are_left_alone():
    changed = without(job_names.ANN_ATTEMPT)
    stranger = scene.job(annotations=changed, managed=False)
    done = scene.job(annotations=changed, conditions=[scene.condition("Complete", True, 95)])
    for job in (stranger, done):
        action = scene.decide(job, scene.workload(state="Ready", admitted=True), PODS, T0 + 100).action
        assert not isinstance(action, Repair)


def test_a_history_is_not_made_up_without_a_readable_world_size():
    """It used to end every look at the job with an error."""
    torn = {job_names.ANN_HISTORY: "{", job_names.ANN_WORLD_SIZE: "x"}
    job = scene.job(suspend=False, annotations={job_names.ANN_ATTEMPT: "1", **torn})
    assert scene.decide(job, scene.workload(state="Ready", admitted=True), PODS, T0 + 100).action is None
