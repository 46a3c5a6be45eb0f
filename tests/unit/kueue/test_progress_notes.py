"""Progress beside the Job: one small object for each, the Job itself only at changes of phase."""

import itertools
import json

import controller_scene as scene
import pytest
from controller_scene import NS
from hypothesis import given
from hypothesis import strategies as st
from waits import until

from kueue_integration.contract import attempt_records, job_names, progress_objects
from kueue_integration.controller import notes as notes_module
from kueue_integration.controller.notes import Notes, pace_s
from kueue_integration.errors import Unreachable
from kueue_integration.jobs import loss_curve
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import PROGRESS, annotation
from singularity_proxy.protocol.messages import Reading


def text_of(step, attempt=1, at=1000.0, **more):
    return json.dumps({"attempt": attempt, "step": step, "at": at, "phase": "running", **more})


def job(**annotations):
    record = scene.record(first_step=0, first_step_at=scene.T0 + 1, running_at=scene.T0)
    return scene.job(suspend=False, annotations={**scene.history(record), **annotations})


# --- memory and object ------------------------------------------------------------------------------------------------
def test_the_pace_adapts_to_the_number_of_jobs():
    assert [pace_s(n) for n in (1, 100, 250, 400, 2000, 5000)] == [2, 2, 5, 8, 8, 20]


def test_a_new_controller_goes_on_from_the_object_and_the_pods_next_word():
    kube = FakeKube(job())
    old, held = Notes(kube), kube.get_job(NS, "train")
    old.take(held, text_of(40))
    assert old.flush() and not old.flush()
    new = Notes(kube)
    (found,) = kube.list(PROGRESS, NS)
    new.seen(found, False)
    assert attempt_records.history(new.over(held))[-1].last_step == 39
    new.take(held, text_of(44, at=900.0))  # the clock was set back
    assert attempt_records.history(new.over(held))[-1].last_step == 43
    new.seen(found, False)
    assert attempt_records.history(new.over(held))[-1].last_step == 43, "an old word takes nothing back"
    new.forget(held["metadata"]["uid"])
    assert new.over(held) is held


@pytest.mark.parametrize(
    ("record", "note", "last"),
    [
        ({"last_step": 30}, {"step": 21}, 30),  # the Job knows more: never too few steps are counted as lost
        ({"last_step": 30}, {"step": 41}, 40),
        ({"last_step": None}, {"step": 0}, None),
        ({"last_step": 30, "checkpoint": "c"}, {"step": 99}, 30),  # the commit is exact
        ({"last_step": 30}, {"step": 99, "attempt": 2}, 30),
    ],
)
def test_the_last_step_of_record_and_note(record, note, last):
    current = scene.job(annotations=scene.history(scene.record(first_step=0, **record)))
    shown = progress_objects.laid_over(current, text_of(**note))
    assert attempt_records.history(shown)[-1].last_step == last
    assert summarise(shown, None, ()).attempts[-1].last_step == last


@pytest.mark.parametrize("text", ["", "[", '{"attempt": 1}', '{"attempt": 1, "step": "x", "at": 5}', "[" * 9999])
def test_a_spoilt_object_hides_nothing(text):
    current = job(**{job_names.ANN_PROGRESS: text_of(3)})
    spoilt = {**progress_objects.made_for(current, "x"), progress_objects.KEY: text}
    held = Notes(FakeKube())
    held.seen(spoilt, False)
    assert held.over(current) is current
    assert progress_objects.laid_over(current, progress_objects.note_of(spoilt)) is current


def test_an_api_server_that_refuses_for_a_while_loses_nothing(monkeypatch):
    monkeypatch.setattr(notes_module, "backoff_s", lambda count: 0.01)
    monkeypatch.setattr(notes_module, "EVERY_S", 0.01)
    kube = FakeKube(job())
    held, running = kube.get_job(NS, "train"), Notes(kube)
    running._pace = (float("inf"), 0.01)
    refusals, patch = itertools.count(), kube.patch

    def refuse(*args, **more):
        if next(refusals) < 3:
            raise Unreachable("away")
        return patch(*args, **more)

    monkeypatch.setattr(kube, "patch", refuse)
    running.start()
    running.take(held, text_of(5))
    until(lambda: kube.list(PROGRESS, NS), "the note is written")
    running.take(held, text_of(6))
    running.stop()
    (found,) = kube.list(PROGRESS, NS)
    assert json.loads(progress_objects.note_of(found))["step"] == 6, "the last word is written before the end"
    assert annotation(held, job_names.ANN_PROGRESS) is None


def test_a_note_is_small():
    current = job()
    text = text_of(10**6, total=10**7, printed=10**6, loss=1.2345)
    for step in range(10**6, 10**6 + 500):
        seen = attempt_records.note(text)
        curve = loss_curve.noted_with(seen, Reading(step, 10**7, 1.23456789))
        text = text_of(step, total=10**7, printed=step, loss=1.2345, curve=curve)
    assert len(text) < 600
    points = loss_curve.points(progress_objects.laid_over(current, text))
    assert points[0][0] == 10**6 and points[-1][0] == step and len(points) <= loss_curve.NOTED


# --- faults -----------------------------------------------------------------------------------------------------------
WORDS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, 60)),  # the pods say a step, maybe an earlier one after a restart
        st.tuples(st.just("clock"), st.integers(-3600, 3600)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("killed"), st.just(0)),  # what was in memory alone is gone
    ),
    max_size=25,
)


@given(words=WORDS)
def test_no_step_that_was_told_and_written_is_forgotten(words):
    """Steps lost are counted from `last_step`: a controller that dies takes back what was in its memory alone, and a
    clock that jumps or a word that comes late takes back nothing."""
    kube, now, kept, told = FakeKube(job()), 1000.0, None, None
    held, notes = kube.get_job(NS, "train"), Notes(kube)
    for what, value in words:
        if what == "note":
            notes.take(held, text_of(value, at=now))
            told = max(value, told or 0)
        elif what == "clock":
            now = max(1.0, now + value)
        elif what == "flush":
            notes.flush()
            kept = told
        else:
            notes, told = Notes(kube), kept
            for found in kube.list(PROGRESS, NS):
                notes.seen(found, False)
        (shown,) = progress_objects.all_shown(kube, NS, [held])
        for seen, step in ((notes.over(held), told), (shown, kept)):
            assert attempt_records.history(seen)[-1].last_step == (step - 1 if step else None)
