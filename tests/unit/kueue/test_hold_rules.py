"""The hold: every way in, every way out."""

from __future__ import annotations

import controller_scene as scene
import pytest
from controller_scene import T0
from job_builder import a_job

from kueue_integration.contract import job_names
from kueue_integration.controller.actions import RecordHistory, ReleaseHold, StartCheckpoint
from kueue_integration.controller.hold import Settings
from kueue_integration.kube import server_time
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

EVICTED = ("Preempted", scene.PREEMPTED, 30.0)
NAMES = {"99-wl": "job-big"}


def held(**annotations: str):
    base = {job_names.ANN_HOLD: "armed", job_names.ANN_BUDGET: "30", **scene.history(scene.record())}
    return scene.job(suspend=False, annotations={**base, **annotations})


def look(job, workload=None, pods=None, now=T0 + 30.5, settings=None, named=NAMES):
    workload = workload or scene.workload(evicted=EVICTED, admitted=True)
    pods = [scene.pod(0), scene.pod(1)] if pods is None else pods
    return scene.decide(job, workload, pods, now, settings or Settings(), scene.preemptors(named))


def test_an_eviction_starts_a_checkpoint_with_a_deadline():
    decision = look(held())
    action = decision.action
    assert isinstance(action, StartCheckpoint)
    assert action.deadline == T0 + 60.5 == decision.wake_at
    assert server_time.parse(str(action.job_annotations[job_names.ANN_HOLD_DEADLINE])) == T0 + 60.5
    assert job_names.ANN_HOLD not in action.job_annotations  # still armed
    (record,) = scene.stored(action.job_annotations)
    assert (record.ended_by, record.preempted_by, record.evicted_at) == ("Preempted", "job-big", T0 + 30.5)


def test_the_platforms_limit_cuts_the_jobs_budget():
    action = look(held(), settings=Settings(max_budget_s=5)).action
    assert isinstance(action, StartCheckpoint)
    assert action.deadline == T0 + 35.5


def test_without_a_budget_of_its_own_a_job_gets_the_platforms():
    job = a_job().running().preempted()
    action = job.look(now=T0 + 30.5, settings=Settings(max_budget_s=77)).action
    assert isinstance(action, StartCheckpoint)
    assert action.deadline == T0 + 107.5


@pytest.mark.parametrize(
    ("known", "shown"),
    [({"99-wl": "job-big"}, "job-big"), ({"99-job": "job-big"}, "job-big"), ({}, "99-wl")],
)
def test_the_preemptor_is_named_by_workload_or_job_uid(known, shown):
    action = look(held(), named=known).action
    assert isinstance(action, StartCheckpoint)
    assert action.preemptor == shown


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([], "no pod"),
        ([scene.pod(0, phase="Failed"), scene.pod(1, phase="Failed")], "no pod"),
        ([scene.pod(0), scene.pod(1, phase="Pending")], "only 1 of 2"),
        ([scene.pod(0)], "only 1 of 2"),
    ],
)
def test_without_all_pods_running_the_hold_ends_at_once(pods, why):
    action = look(held(), pods=pods).action
    assert isinstance(action, ReleaseHold)
    assert action.job_annotations[job_names.ANN_HOLD] == "released"
    assert why in action.message
    (record,) = scene.stored(action.job_annotations)
    assert record.evicted_at is not None
    assert record.note == action.message


def test_a_pod_that_has_finished_does_not_end_the_hold():
    """The job is about to complete: suspending it now would repeat everything since its last checkpoint."""
    assert isinstance(look(held(), pods=[scene.pod(0), scene.pod(1, phase="Succeeded")]).action, StartCheckpoint)


@pytest.mark.parametrize("asked", [False, True])
def test_pods_that_have_all_ended_well_hold_until_the_job_is_complete(asked):
    """Kubernetes counts them a moment later: letting go meanwhile would be recorded as a loss and another attempt."""
    pods = [scene.pod(0, phase="Succeeded"), scene.pod(1, phase="Succeeded")]
    action = look(waiting(60) if asked else held(), pods=pods, now=T0 + 40).action
    assert action is None if asked else isinstance(action, StartCheckpoint)
    late = look(waiting(60), pods=pods, now=T0 + 60).action
    assert isinstance(late, ReleaseHold) and late.why == "deadline", "never for longer than its budget"


def test_pods_of_which_one_failed_are_not_about_to_complete_the_job():
    pods = [scene.pod(0, phase="Succeeded"), scene.pod(1, phase="Failed")]
    action = look(held(), pods=pods).action
    assert isinstance(action, ReleaseHold) and "no pod" in action.message


def waiting(seconds: float, **annotations: str):
    record = scene.record(evicted_at=T0 + 30, ended_by="Preempted")
    deadline = {job_names.ANN_HOLD_DEADLINE: server_time.to_text(T0 + seconds), **scene.history(record)}
    return held(**{**deadline, **annotations})


def test_until_the_deadline_nothing_is_done():
    decision = look(waiting(60), now=T0 + 59.9)
    assert decision.action is None
    assert decision.wake_at == T0 + 60


def test_at_the_deadline_the_hold_ends_and_the_history_says_why():
    action = look(waiting(60), now=T0 + 60).action
    assert isinstance(action, ReleaseHold)
    assert (action.why, action.job_annotations[job_names.ANN_HOLD]) == ("deadline", "released")
    (record,) = scene.stored(action.job_annotations)
    expected = "no checkpoint within 30 s: no step boundary was reached; restarts from the beginning"
    assert record.note == expected


def test_the_note_names_the_checkpoint_that_is_left():
    job = waiting(60, **{names.ANN_CHECKPOINT: to_json(scene.checkpoint(step=80))})
    action = look(job, now=T0 + 61).action
    assert isinstance(action, ReleaseHold)
    assert action.message.endswith("restarts from checkpoint train-a1-g1 (step 80)")


def test_a_barrier_that_was_reached_is_not_called_missing():
    record = scene.record(evicted_at=T0 + 30, ended_by="Preempted", barrier_at=T0 + 31)
    action = look(waiting(60, **scene.history(record)), now=T0 + 61).action
    assert isinstance(action, ReleaseHold)
    assert "no step boundary" not in action.message
    assert "not written in time" in action.message


def test_pods_that_vanish_while_waiting_end_the_hold():
    action = look(waiting(60), pods=[], now=T0 + 40).action
    assert isinstance(action, ReleaseHold)
    assert action.why == "no-pods"


def test_a_pod_that_fails_while_others_run_leaves_it_to_the_sidecars():
    decision = look(waiting(60), pods=[scene.pod(0), scene.pod(1, phase="Failed")], now=T0 + 40)
    assert decision.action is None


@pytest.mark.parametrize("name", [job_names.ANN_HISTORY, names.ANN_CHECKPOINT])
def test_what_cannot_be_read_never_holds_kueue_back(name):
    action = look(held(**{name: "nonsense"})).action
    assert isinstance(action, ReleaseHold)
    assert action.job_annotations == {job_names.ANN_HOLD: "released"}
    assert name in action.message


@pytest.mark.parametrize("text", ["nonsense", "9" * 400, "9" * 5000, "-1", "1e9", "NaN", "٣", ""])
def test_a_budget_that_cannot_be_read_is_the_platforms(text):
    action = look(held(**{job_names.ANN_BUDGET: text}), settings=Settings(max_budget_s=40)).action
    assert isinstance(action, StartCheckpoint)
    assert action.deadline == T0 + 70.5
    late = look(held(**{job_names.ANN_BUDGET: text}), now=T0 + 71.1, settings=Settings(max_budget_s=40)).action
    assert isinstance(late, ReleaseHold)


@pytest.mark.parametrize("text", ["nonsense", "", "99999-01-01T00:00:00Z", "2099-01-01T00:00:00", "T" * 200_000])
def test_a_deadline_that_cannot_be_read_is_written_again(text):
    action = look(held(**{job_names.ANN_HOLD_DEADLINE: text})).action
    assert isinstance(action, StartCheckpoint)
    assert action.job_annotations[job_names.ANN_HOLD_DEADLINE] == server_time.to_text(T0 + 60.5)


TAMPERED = {
    "removed": lambda now: {},
    "ahead": lambda now: {job_names.ANN_HOLD_DEADLINE: server_time.to_text(now + 25)},
    "far ahead": lambda now: {job_names.ANN_HOLD_DEADLINE: "2099-01-01T00:00:00Z"},
    "spoilt": lambda now: {job_names.ANN_HOLD_DEADLINE: "soon"},
    "budget": lambda now: {job_names.ANN_BUDGET: "9" * (2 + int(now) % 400)},
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
@pytest.mark.parametrize("gone", [False, True], ids=["evicted", "without a Workload"])
def test_a_tenant_who_rewrites_it_every_two_seconds_does_not_move_the_end(tamper, gone):
    """Counted from Kueue's eviction, or from when the Workload was first seen to be gone: nothing on the Job counts."""
    settings = Settings(max_budget_s=30)
    for step in range(20):
        now = T0 + 30.5 + 2 * step
        job = held(**tamper(now))
        workload = None if gone else scene.workload(evicted=EVICTED, admitted=True)
        pods = [scene.pod(0), scene.pod(1)]
        decision = scene.decide(job, workload, pods, now, settings, scene.preemptors(NAMES), seen_at=T0 + 30.5)
        if isinstance(decision.action, ReleaseHold):
            assert now >= T0 + 60.5, "nobody has to end it early"
            return
        assert decision.wake_at is not None and decision.wake_at <= T0 + 60.5
    pytest.fail("held for longer than the platform allows")


def test_a_hold_whose_end_does_not_come_through_makes_kueue_ask_again():
    """Our write on the Job may be refused: then the Lease lets the suspend through, and Kueue has to try once more."""
    stuck = look(waiting(60), now=T0 + 60.5)
    assert isinstance(stuck.action, ReleaseHold) and not stuck.action.nudge
    assert stuck.wake_at is not None and T0 + 62 < stuck.wake_at < T0 + 64
    later = look(waiting(60), now=T0 + 64)
    assert isinstance(later.action, ReleaseHold) and later.action.nudge
    assert later.wake_at is not None and later.wake_at - (T0 + 64) >= 2
    much_later = look(waiting(60), now=T0 + 4000)
    assert much_later.wake_at is not None and 50 < much_later.wake_at - (T0 + 4000) <= 60
    unreadable = look(held(**{job_names.ANN_HISTORY: "["}), now=T0 + 64)
    assert isinstance(unreadable.action, ReleaseHold) and unreadable.action.nudge


def test_no_annotation_holds_kueue_back_for_longer_than_the_budget():
    """A deadline that nobody of ours wrote, or wrote with another budget, is cut to what is allowed from now."""
    job = held(**{job_names.ANN_HOLD_DEADLINE: "2099-01-01T00:00:00Z"})
    action = look(job).action
    assert isinstance(action, StartCheckpoint)
    assert action.deadline == T0 + 30.5 + 30
    assert action.job_annotations[job_names.ANN_HOLD_DEADLINE] == server_time.to_text(T0 + 60.5)


def test_a_deleted_workload_is_an_eviction_too():
    """Kueue then suspends the Job without setting Evicted; the hold must not deny that for ever."""
    workload = scene.workload(state="Ready", admitted=True)
    workload["metadata"]["deletionTimestamp"] = scene.at(30)
    first = look(held(), workload)
    assert isinstance(first.action, StartCheckpoint) and first.action.deadline == T0 + 60.5
    asked = held(**{job_names.ANN_HOLD_DEADLINE: server_time.to_text(T0 + 60.5)})
    assert look(asked, workload, now=T0 + 40).action is None
    last = look(asked, workload, now=T0 + 61)
    assert isinstance(last.action, ReleaseHold) and last.action.job_annotations[job_names.ANN_HOLD] == "released"


def test_a_job_that_stopped_for_a_deleted_workload_is_left_to_kueue():
    workload = scene.workload(state="Ready", admitted=True)
    workload["metadata"]["deletionTimestamp"] = scene.at(30)
    done = scene.record(first_step=0, committed_at=T0 + 40, checkpoint="train-a1-g1")
    job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "released", **scene.history(done)})
    assert look(job, workload, now=T0 + 41).action is None


@pytest.mark.parametrize("state", ["released", None])
def test_without_the_hold_an_eviction_is_only_recorded(state):
    job = held(**({job_names.ANN_HOLD: state} if state else {}))
    if state is None:
        del job["metadata"]["annotations"][job_names.ANN_HOLD]
    action = look(job).action
    assert isinstance(action, RecordHistory)
    assert set(action.job_annotations) == {job_names.ANN_HISTORY}
    (record,) = scene.stored(action.job_annotations)
    assert (record.ended_by, record.preempted_by) == ("Preempted", "job-big")


def test_a_suspended_or_finished_job_is_not_held():
    for job in (scene.job(suspend=True, annotations=held()["metadata"]["annotations"]), held()):
        if not job["spec"]["suspend"]:
            job["status"]["conditions"] = [scene.condition("Complete", True, 31)]
        assert not isinstance(look(job).action, (StartCheckpoint, ReleaseHold))


def test_an_old_eviction_is_not_taken_for_one_of_this_attempt():
    """Evicted stays True until the next reservation; a record made after it must not inherit it."""
    late = scene.record(2, admitted_at=T0 + 50)
    job = scene.job(suspend=True, annotations=scene.history(late))
    decision = look(job, scene.workload(evicted=EVICTED, reserved_at=None), pods=[], now=T0 + 55)
    assert decision.action is None


def test_a_job_without_history_is_held_and_released_all_the_same():
    job = held()
    del job["metadata"]["annotations"][job_names.ANN_HISTORY]
    assert isinstance(look(job).action, StartCheckpoint)
    job["metadata"]["annotations"][job_names.ANN_HOLD_DEADLINE] = server_time.to_text(T0 + 60)
    action = look(job, now=T0 + 61).action
    assert isinstance(action, ReleaseHold)
    assert action.job_annotations == {job_names.ANN_HOLD: "released"}
