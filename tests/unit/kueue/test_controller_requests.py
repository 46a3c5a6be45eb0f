"""Users' requests in the controller: taken up or refused, carried out through Kueue, and seen to be done."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.contract import job_names, leaves
from kueue_integration.contract.record_types import JobRequest, NodeRequirement, Placement, RequestStatus
from kueue_integration.controller import leave, request_status, reshape
from kueue_integration.controller.actions import (
    AnswerReady,
    AnswerRequest,
    NoteLeave,
    PatchWorkload,
    RecordHistory,
    RequestReadmission,
    Reshape,
    StartCheckpoint,
)
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.snapshot import Workload
from kueue_integration.kube.resources import merge_patch
from kueue_integration.requests import placement, user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import from_json, to_json

NOW = T0 + 100
SPOT = Placement(["spot"], [], [[NodeRequirement("flavor", "In", ["spot"])]])
AWAY = Placement([], ["node-a"], [[NodeRequirement(placement.HOSTNAME, "NotIn", ["node-a"])]])


def job(request=None, *, state=None, taken_up_at=T0 + 90, past=None, suspend=False, pods=4, cleared=(), **more):
    """A Job of 4 ranks in `pods` pods, bounds 2..4, with a request (and the controller's answer in `state`)."""
    notes = {
        job_names.ANN_WORKERS: "4", job_names.ANN_MIN_WORKERS: "2", job_names.ANN_WORLD_SIZE: "4",
        job_names.ANN_HOLD: "armed", job_names.COMPLETIONS_EQUAL_PARALLELISM: "true", job_names.MIN_PARALLELISM: "2",
    }  # fmt: skip
    past = past or [trained(pods=pods)]
    notes.update(scene.history(*past))
    if request is not None:
        slot = user_requests.slot_of(request.op)
        notes[slot.request] = to_json(request)
        if state is not None:
            deadline = taken_up_at + 60 if request.op == "checkpoint" else None
            status = RequestStatus(request.id, request.op, state, "", taken_up_at, 1, deadline=deadline)
            notes[slot.status] = to_json(status)
    notes.update(more.pop("annotations", {}))
    for name in cleared:
        notes.pop(name)
    made = scene.job(annotations=notes, suspend=suspend, parallelism=pods, **more)
    made["spec"]["template"] = {"spec": {"containers": [{"name": "train"}]}}
    return made


def trained(number=1, **fields):
    return scene.record(number, **{"pods": 4, "ranks": 4, "first_step": 0, "first_step_at": T0 + 20, **fields})


def running(count=4, flavor="ondemand", **fields):
    return scene.workload(state="Ready", admitted=True, count=count, wanted=4, flavor=flavor, **fields)


def waiting(count=4, least=2, active=True, **fields):
    """A Workload without quota."""
    made = scene.workload(reserved_at=None, state="Pending", wanted=count, **fields)
    made["spec"]["podSets"][0].update({"minCount": least} if least else {})
    made["spec"]["active"] = active
    return made


def pods(count=4, number=1, node="node-b"):
    made = [scene.pod(i, attempt=number) for i in range(count)]
    for pod in made:
        pod["spec"]["nodeName"] = node
    return made


def act(the_job, workload, the_pods=(), flavors=("ondemand", "spot"), now=NOW):
    """What is decided once the controller has written down what it sees of the attempt and its pods, and an attempt
    that is to be stopped is saved."""
    for _ in range(3):
        found = scene.decide(the_job, workload, the_pods, now, Settings(), scene.nobody, lambda job: flavors)
        if not isinstance(found.action, (RecordHistory, NoteLeave)):
            return found
        the_job = merge_patch(the_job, {"metadata": {"annotations": dict(found.action.job_annotations)}})
        begun = leaves.of(the_job)
        if isinstance(found.action, NoteLeave) and begun is not None and begun.state == "saving":
            saved = leaves.stored(leave.saved(begun, "train-a1-g1", now))
            the_job = merge_patch(the_job, {"metadata": {"annotations": saved}})
    raise AssertionError("the bookkeeping does not settle")


def action(*args, **kwargs):
    return act(*args, **kwargs).action


def request(op, **fields):
    return JobRequest("r-1", op, T0 + 80, "ann", **fields)


RESIZE = request("resize", workers=2)
PAUSE = {"spec": {"active": False}, "metadata": {"annotations": {job_names.ANN_PAUSED: "r-1"}}}
REQUESTS = [RESIZE, request("migrate", placement=SPOT, flavor="spot"), request("checkpoint"), request("pause")]


# --- taken up -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("asked", [*REQUESTS, request("resume")], ids=lambda r: r.op)
def test_a_request_is_taken_up_once(asked):
    current = job(asked)
    taken = action(current, running(), pods())
    assert isinstance(taken, AnswerRequest)
    assert taken.status is not None
    assert (taken.status.id, taken.status.state, taken.status.attempt, taken.status.at) == ("r-1", "running", 1, NOW)
    current["metadata"]["annotations"].update(taken.job_annotations)
    later = action(current, running(), pods())
    assert not isinstance(later, AnswerRequest) or later.status.state == "done"


def test_a_resize_sets_the_bounds_that_kueue_will_be_given():
    change = action(job(RESIZE), running(), pods()).job_annotations
    assert (change[job_names.ANN_WORKERS], change[job_names.ANN_MIN_WORKERS]) == ("2", "2")
    change = action(job(request("resize", workers=4, min_workers=1)), running(), pods()).job_annotations
    assert (change[job_names.ANN_WORKERS], change[job_names.ANN_MIN_WORKERS]) == ("4", "1")


def test_growth_says_that_it_waits_for_quota():
    small = job(request("resize", workers=4), pods=2)
    assert "grows to 4 workers as soon as their quota is free" in action(small, running(2), pods(2)).status.message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("resize", workers=8), "more than its world size, 4 ranks"),
        (request("resize", workers=3), "does not divide its 4 ranks"),
        (request("resize"), "workers = None"),
        (request("migrate"), "placement = None: is missing"),
        (request("migrate", placement=Placement(["gold"], [], SPOT.terms)), "has: ondemand, spot"),
        (request("migrate", placement=Placement(["spot"], [], [])), "its terms do not say"),
        (request("checkpoint", timeout_s=1e9), "must be from 1 to 3600"),
    ],
)
def test_what_a_hand_wrote_past_the_verbs_is_refused_and_changes_nothing(asked, message):
    refused = action(job(asked), running(), pods())
    assert isinstance(refused, AnswerRequest)
    assert (refused.status.state, set(refused.job_annotations)) == ("failed", {user_requests.slot_of(asked.op).status})
    assert message in refused.status.message


def test_a_job_that_has_ended_meanwhile_fails_its_request():
    complete = [scene.condition("Complete", True, 99)]
    refused = action(job(RESIZE, conditions=complete), running(), ())
    assert (refused.status.state, "the job has finished" in refused.status.message) == ("failed", True)
    past = [trained(ended_by="Finished", finished_at=T0 + 99)]
    ended = action(job(RESIZE, state="running", conditions=complete, past=past), running(), ())
    assert (ended.status.state, ended.status.message) == ("failed", "the job has ended (Finished)")


def test_requests_of_jobs_that_are_not_ours_are_not_looked_at():
    assert action(job(RESIZE, managed=False), running(), pods()) is None


# --- resize and migrate: leave --------------------------------------------------------------------------------------
def bounds(workers, fewest):
    return {job_names.ANN_WORKERS: str(workers), job_names.ANN_MIN_WORKERS: str(fewest)}


def placed(where):
    return {job_names.ANN_PLACEMENT: to_json(where)}


@pytest.mark.parametrize("before", [placement.ANYWHERE, SPOT])
def test_a_placement_that_a_drain_gives_back_moves_nothing(before):
    """The pods run with the affinity of the drain; they get the old one at their next start."""
    back = request("migrate", placement=before)
    current = job(back, annotations=placed(AWAY))
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(AWAY)
    workload, own = running(flavor="spot"), pods()
    taken = action(current, workload, own)
    assert isinstance(taken, AnswerRequest)
    assert taken.job_annotations[job_names.ANN_PLACEMENT] == to_json(before)
    current = merge_patch(current, {"metadata": {"annotations": dict(taken.job_annotations)}})
    current = merge_patch(
        current, {"metadata": {"annotations": scene.history(trained(running_at=T0 + 15, flavor="spot"))}}
    )
    done = action(current, workload, own)
    assert isinstance(done, AnswerRequest) and done.status is not None and done.status.state == "done"
    current = merge_patch(current, {"metadata": {"annotations": dict(done.job_annotations)}})
    assert action(current, workload, own) is None


@pytest.mark.parametrize(
    ("asked", "notes", "size", "message"),
    [
        (RESIZE, bounds(2, 2), 4, "4 -> 2 workers"),
        (request("resize", workers=4, min_workers=4), bounds(4, 4), 2, "2 -> 4 workers"),
        (request("migrate", placement=SPOT), placed(SPOT), 4, "ondemand -> spot"),
        (request("migrate", placement=AWAY, node="node-a"), placed(AWAY), 4, "away from node node-a"),
    ],
)
def test_an_attempt_that_does_not_fit_any_more_leaves_once_and_comes_back_in_its_new_shape(asked, notes, size, message):
    """By Retry, Kueue would reserve the old shape again in the moment of the release: a second eviction."""
    current, own = job(asked, state="running", annotations=notes, pods=size), pods(size, node="node-a")
    workload = running(size)
    out = action(current, workload, own)
    assert isinstance(out, PatchWorkload)
    assert out.body == {"spec": {"active": False}, "metadata": {"annotations": {job_names.ANN_RESHAPE: message}}}
    assert scene.stored(out.job_annotations)[-1].note == f"as asked for by ann: {message}"
    assert job_names.ANN_HOLD not in out.job_annotations  # same hold, same barrier as for any eviction
    again = merge_patch(current, {"metadata": {"annotations": out.job_annotations}})
    assert action(again, workload, own) == out, "we may die between the two writes"
    assert action(again, merge_patch(workload, out.body), own) is None
    evicted = merge_patch(running(size, evicted=("Deactivated", "The workload is deactivated", 99)), out.body)
    ask = action(again, evicted, own)
    assert isinstance(ask, StartCheckpoint)
    record = scene.stored(ask.job_annotations)[-1]
    assert record.ended_by == {"resize": "Resized", "migrate": "Migrated"}[asked.op]


def test_what_needs_no_new_shape_is_readmitted_at_once():
    """It is on the wrong flavor by chance, say: what Kueue plans with says already where it may be."""
    current = job(request("migrate", placement=SPOT), state="running", annotations=placed(SPOT))
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(SPOT)
    shaped = running()
    shaped["spec"]["podSets"][0]["template"]["spec"]["affinity"] = placement.affinity(SPOT)
    shaped["spec"]["podSets"][0]["minCount"] = 2
    asked_for = action(current, shaped, pods())
    assert isinstance(asked_for, RequestReadmission)
    assert asked_for.message == "as asked for by ann: ondemand -> spot"
    shaped["status"]["admissionChecks"][0]["state"] = "Retry"
    assert action(current, shaped, pods()) is None
    current["metadata"]["annotations"].update(asked_for.job_annotations)
    gone = running(evicted=("AdmissionCheck", "", 99))
    assert scene.stored(action(current, gone, pods()).job_annotations)[-1].ended_by == "Migrated"


@pytest.mark.parametrize(
    ("asked", "notes", "reason", "ended_by"),
    [
        ("pause", {job_names.ANN_PAUSED: "r-1"}, "Deactivated", "Paused"),
        ("migrate", {}, "Preempted", "Preempted"),
        ("migrate", {}, "AdmissionCheck", "AdmissionCheck"),  # of somebody else's check
        ("migrate", {}, "Deactivated", "Deactivated"),  # by an administrator
        (None, {job_names.ANN_RESHAPE: "x"}, "PodsReadyTimeout", "PodsReadyTimeout"),
    ],
)
def test_an_eviction_is_called_what_it_is(asked, notes, reason, ended_by):
    wish = {"pause": request("pause"), "migrate": request("migrate", placement=SPOT), None: None}[asked]
    current = job(wish, state="running" if wish else None, annotations=placed(SPOT) if asked == "migrate" else {})
    evicted = merge_patch(running(evicted=(reason, "", 99)), {"metadata": {"annotations": notes}})
    assert scene.stored(action(current, evicted, pods()).job_annotations)[-1].ended_by == ended_by


@pytest.mark.parametrize(("cause", "ended_by"), [("regrow", "Regrown"), ("machines", "AdmissionCheck")])
def test_an_eviction_for_regrowth_is_called_so(cause, ended_by):
    current = job(past=[trained(readmitted_for=cause)])
    gone = running(evicted=("AdmissionCheck", "", 99))
    assert scene.stored(action(current, gone, pods()).job_annotations)[-1].ended_by == ended_by


def test_growth_within_the_bounds_goes_on_until_there_is_quota():
    grow = request("resize", workers=4)
    assert action(job(grow, state="running", pods=2), running(2), pods(2)) is None


def test_growth_at_once_leaves_now_and_comes_back_with_what_kueue_gives():
    """Whoever asks has seen the quota. The new attempt ends the request, also with fewer workers."""
    grow = request("resize", workers=4, at_once=True)
    taken = action(job(grow, pods=2), running(2), pods(2))
    assert taken.status.message == "goes from 2 to 4 workers"
    out = action(job(grow, state="running", pods=2), running(2), pods(2))
    assert isinstance(out, PatchWorkload) and out.body["spec"] == {"active": False}
    some = job(grow, state="running", past=second(pods=2), pods=2)
    assert action(some, running(2), pods(2, 2)).status.state == "done"


def test_an_older_reader_understands_a_request_that_says_nothing_of_at_once():
    assert "at_once" not in str(user_requests.written(request("resize", workers=4)))
    (text,) = user_requests.written(request("resize", workers=4, at_once=True)).values()
    assert from_json(JobRequest, text).at_once is True


def test_nobody_is_evicted_for_bounds_without_a_request():
    """Somebody edited the annotations by hand: they count at the next admission."""
    assert action(job(annotations=bounds(2, 2)), running(), pods()) is None


# --- the shape of a suspended job -----------------------------------------------------------------------------------
def stopped(asked=RESIZE, notes=None, **fields):
    past = [trained(ended_by="AdmissionCheck", evicted_at=T0 + 92, released_at=T0 + 99)]
    return job(
        asked, state="running", annotations=bounds(2, 2) if notes is None else notes, suspend=True, past=past, **fields
    )


def test_the_new_size_is_given_to_kueue_while_the_job_waits_without_quota():
    current = stopped()
    shaped = action(current, waiting())
    assert isinstance(shaped, Reshape)
    assert shaped.body == {
        "metadata": {"annotations": {job_names.MIN_PARALLELISM: None}},
        "spec": {"parallelism": 2, "completions": 2},
    }
    assert action(merge_patch(current, shaped.body), waiting(2, None)) is None


@pytest.mark.parametrize("case", ["it runs", "quota", "kueue is still at it", "started"])
def test_the_shape_is_left_alone(case):
    current, workload = stopped(), waiting()
    if case == "it runs":
        current["spec"]["suspend"] = False
    elif case == "quota":
        workload = running(evicted=("AdmissionCheck", "", 99))
    elif case == "kueue is still at it":
        current["metadata"]["annotations"]["kueue.x-k8s.io/stopping"] = "true"
    else:
        current["status"]["startTime"] = scene.at(90)
    assert not isinstance(action(current, workload), Reshape)


def test_a_placement_goes_to_the_job_and_to_the_workload_that_kueue_reads():
    wanted = placement.affinity(SPOT)
    current, workload = stopped(request("migrate", placement=SPOT), placed(SPOT)), waiting()
    first = action(current, workload)
    assert isinstance(first, Reshape)
    assert first.body == {"spec": {"template": {"spec": {"affinity": wanted}}}}
    current = merge_patch(current, first.body)
    second = action(current, workload)
    assert isinstance(second, PatchWorkload)
    (podset,) = second.body["spec"]["podSets"]
    assert podset["template"]["spec"]["affinity"] == wanted
    assert podset["template"]["spec"]["containers"] == workload["spec"]["podSets"][0]["template"]["spec"]["containers"]
    workload = merge_patch(workload, second.body)
    assert action(current, workload) is None
    # Freed again: the affinity goes from both.
    current["metadata"]["annotations"].update(placed(Placement()))
    freed = action(current, workload)
    assert isinstance(freed, Reshape)
    current = merge_patch(current, freed.body)
    assert "affinity" not in current["spec"]["template"]["spec"]
    back = action(current, workload)
    assert isinstance(back, PatchWorkload)
    assert "affinity" not in back.body["spec"]["podSets"][0]["template"]["spec"]


def test_a_job_with_its_own_affinity_that_never_migrated_is_left_alone():
    current = stopped(None, {})
    current["spec"]["template"]["spec"]["affinity"] = {"podAffinity": {}}
    assert action(current, waiting()) is None


# --- the fence ------------------------------------------------------------------------------------------------------
def admitted(count=4, least=2, flavor="ondemand", wanted=4, where=None):
    made = scene.workload(count=count, wanted=wanted, flavor=flavor)
    podset = made["spec"]["podSets"][0]
    podset.update({"minCount": least} if least else {})
    if where is not None:
        podset["template"]["spec"]["affinity"] = placement.affinity(where)
    return made


def test_an_admission_in_the_old_shape_leaves_the_queue_until_it_has_the_new_one():
    out = action(stopped(), admitted())
    assert isinstance(out, PatchWorkload)
    assert out.body["spec"] == {"active": False}
    assert out.body["metadata"] == {"annotations": {job_names.ANN_RESHAPE: "admitted in its old shape"}}
    shaped = merge_patch(stopped(), {"spec": {"parallelism": 2, "completions": 2}})
    shaped["metadata"]["annotations"].pop(job_names.MIN_PARALLELISM)
    assert isinstance(action(shaped, admitted()), PatchWorkload)  # Kueue has not taken it over yet
    assert isinstance(action(shaped, admitted(2, None, wanted=2)), AnswerReady)


def test_a_workload_out_of_the_queue_comes_back_in_its_new_shape():
    """The whole way of a migration that Kueue was faster than."""
    current, workload = stopped(request("migrate", placement=SPOT), placed(SPOT)), admitted()
    out = action(current, workload)
    assert isinstance(out, PatchWorkload)
    workload = merge_patch(waiting(active=False), out.body)
    assert not isinstance(action(current, workload), AnswerRequest)
    first = action(current, workload)
    assert isinstance(first, Reshape)
    current = merge_patch(current, first.body)
    second = action(current, workload)
    assert isinstance(second, PatchWorkload)
    assert "podSets" in second.body["spec"]
    workload = merge_patch(workload, second.body)
    back = action(current, workload)
    assert isinstance(back, PatchWorkload)
    assert back.body == {"spec": {"active": True}, "metadata": {"annotations": {job_names.ANN_RESHAPE: None}}}
    assert action(current, merge_patch(workload, back.body)) is None


def test_a_pause_while_a_workload_is_out_of_the_queue_keeps_it_out():
    current = stopped(request("pause"), {})
    out = merge_patch(waiting(active=False), {"metadata": {"annotations": {job_names.ANN_RESHAPE: "x"}}})
    assert not isinstance(action(current, out), PatchWorkload)
    resumed = action(stopped(request("resume"), {}), out)
    assert isinstance(resumed, PatchWorkload)
    assert resumed.body == {"spec": {"active": True}, "metadata": {"annotations": {job_names.ANN_RESHAPE: None}}}


def test_a_partial_admission_beside_the_workload_before_it_is_sent_back_once():
    """Kueue replaces a Workload that it believes to have quota: the new one saw only what was left beside it."""
    grown = request("resize", workers=4)
    current = stopped(grown, bounds(4, 2))
    current["metadata"]["annotations"][job_names.MIN_PARALLELISM] = "2"
    fresh = admitted(count=2)
    fresh["metadata"]["uid"] = "another-uid"
    sent = action(current, fresh)
    assert isinstance(sent, RequestReadmission)
    assert (sent.cause, sent.requeue_after_s) == ("request", reshape.FORMER_S)
    assert "2 of 4 workers, while the Workload before this one still counted" in sent.message
    fresh["status"]["admissionChecks"][-1]["retryCount"] = 1
    assert isinstance(action(current, fresh), AnswerReady), "what Kueue gives then is what it has"
    assert isinstance(action(current, admitted(count=2)), AnswerReady), "the same Workload has no other beside it"


def test_an_admission_on_the_wrong_flavor_is_sent_back_at_the_fence():
    current = stopped(request("migrate", placement=SPOT), placed(SPOT))
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(SPOT)
    sent = action(current, admitted(where=SPOT))
    assert isinstance(sent, RequestReadmission)
    assert (sent.message, sent.requeue_after_s) == ("as asked for: not on ondemand, only on spot", reshape.SENT_BACK_S)
    again = admitted(where=SPOT)
    again["status"]["admissionChecks"][-1]["retryCount"] = 3
    assert action(current, again).requeue_after_s == 16, "ever later, should Kueue not know better"
    assert isinstance(action(current, admitted(flavor="spot")), PatchWorkload)  # by chance: Kueue knows nothing
    assert isinstance(action(current, admitted(flavor="spot", where=SPOT)), AnswerReady)


def test_an_ordinary_job_passes_the_fence_whatever_partial_admission_gave_it():
    fresh = job(suspend=True)
    for given in (2, 3, 4):
        assert isinstance(action(fresh, admitted(given)), AnswerReady)
    assert isinstance(action(fresh, admitted(4, None)), AnswerReady)  # a Kueue without partial admission


# --- pause and resume -----------------------------------------------------------------------------------------------
def test_pause_and_resume_set_the_workloads_activity():
    pause = action(job(request("pause"), state="running"), running(), pods())
    assert isinstance(pause, PatchWorkload)
    assert pause.body == PAUSE
    resume = action(stopped(request("resume"), {}), merge_patch(waiting(), pause.body))
    assert isinstance(resume, PatchWorkload)
    assert resume.body == {"spec": {"active": True}, "metadata": {"annotations": {job_names.ANN_PAUSED: None}}}
    assert action(stopped(request("resume"), {}), waiting()) is None  # queued: it is done when it trains


def test_a_pause_of_a_policy_names_it_and_the_last_one_to_ask_for_a_pause_counts():
    """Whatever is asked of the job meanwhile: the policy queues it again, and a user's pause is never undone."""
    theirs = replace(request("pause"), by="policy/timeSharing: its turn is over")
    parked = merge_patch(waiting(), action(job(theirs, state="running"), running(), pods()).body)
    assert Workload.parse(parked).paused_by == "timeSharing"
    assert action(stopped(theirs, {}), parked).status.state == "done"
    own = action(stopped(request("pause"), {}), parked)
    assert isinstance(own, PatchWorkload)
    paused = merge_patch(parked, own.body)
    assert (Workload.parse(paused).paused, Workload.parse(paused).paused_by) == (True, "")
    assert action(stopped(request("pause"), {}), paused).status.state == "done"


def test_a_pause_that_meets_the_fence_does_not_start_the_job():
    held = action(stopped(request("pause"), {}), admitted())
    assert isinstance(held, PatchWorkload)
    assert held.body == PAUSE


def kueue_deactivated(reason="DeactivatedDueToAdmissionCheck"):
    more = [scene.condition("Requeued", False, 40, reason)]
    return waiting(active=False, evicted=(reason, "", 40), extra_conditions=more)


def test_resume_activates_what_pause_or_kueue_has_deactivated_and_nothing_else():
    """`spec.active` is an administrator's field, too: whoever may only patch the Job does not undo it."""
    wish = stopped(request("resume"), {})
    assert action(wish, kueue_deactivated()).body == {"spec": {"active": True}}
    fresh = job(request("resume"), suspend=True)
    for asked in (fresh, wish):
        for theirs in (waiting(active=False), kueue_deactivated("Deactivated")):
            refused = action(asked, theirs)
            assert isinstance(refused, AnswerRequest)
            assert refused.status.state == "failed"
            text = "not paused by `pause`: somebody has set spec.active of Workload job-train-1"
            assert text in refused.status.message


def test_who_activates_a_paused_job_by_hand_takes_it_over():
    paused = merge_patch(waiting(), PAUSE)
    by_hand = merge_patch(paused, {"spec": {"active": True}})
    current = job(request("pause"), state="done", suspend=True)
    forgotten = action(current, by_hand)
    assert forgotten.body == {"metadata": {"annotations": {job_names.ANN_PAUSED: None}}}
    there = merge_patch(waiting(active=False), forgotten.body)
    assert reshape.ours(Workload.parse(paused)) and not reshape.ours(Workload.parse(there))


def test_pause_is_done_when_the_quota_is_given_back():
    inactive = running(evicted=("Deactivated", "", 95))
    inactive["spec"]["active"] = False
    assert isinstance(action(job(request("pause"), state="running"), inactive, pods()), StartCheckpoint)
    saved = {names.ANN_CHECKPOINT: to_json(scene.checkpoint())}
    done = action(stopped(request("pause"), saved), waiting(active=False))
    assert (done.status.state, done.status.message) == (
        "done", "paused; restarts from checkpoint train-a1-g1 (step 100) when it is resumed",
    )  # fmt: skip


# --- done -----------------------------------------------------------------------------------------------------------
def second(**fields):
    return [trained(ended_by="AdmissionCheck"), trained(2, **{"pods": 2, "first_step_at": T0 + 95, **fields})]


def test_a_resize_is_done_when_the_new_attempt_trains():
    smaller = job(RESIZE, state="running", annotations=bounds(2, 2), past=second(), pods=2)
    done = action(smaller, running(2), pods(2, 2))
    assert (done.status.state, done.status.message) == ("done", "attempt 2 runs with 2 workers on ondemand")
    starting = job(RESIZE, state="running", annotations=bounds(2, 2), past=second(first_step_at=None), pods=2)
    assert action(starting, running(2), pods(2, 2)) is None


def test_a_program_without_steps_has_moved_as_soon_as_it_runs():
    moved = second(first_step_at=None, running_at=T0 + 95, flavor="spot", pods=4)
    current = job(request("migrate", placement=SPOT), state="running", annotations=placed(SPOT), past=moved)
    done = action(current, running(flavor="spot"), pods(4, 2))
    assert (done.status.state, done.status.message) == ("done", "attempt 2 runs with 4 workers on spot")


@pytest.mark.parametrize(("end", "word"), [("Complete", "finished"), ("Failed", "failed")])
def test_a_job_that_ends_soon_after_its_move_has_moved(end, word):
    """A short one may be over before anybody looks."""
    moved = second(first_step_at=None, running_at=T0 + 95, flavor="spot", pods=4)
    current = job(request("migrate", placement=SPOT), state="running", annotations=placed(SPOT), past=moved)
    current["status"]["conditions"] = [scene.condition(end, True, 99)]
    moved[-1] = replace(moved[-1], ended_by="Finished" if end == "Complete" else "Failed", finished_at=T0 + 99)
    current["metadata"]["annotations"].update(scene.history(*moved))
    done = action(current, running(flavor="spot"), [])
    assert (done.status.state, done.status.message) == (
        "done", f"attempt 2 ran with 4 workers on spot; the job has {word} since",
    )  # fmt: skip


@pytest.mark.parametrize("op", [request("migrate", placement=SPOT), RESIZE, request("pause")], ids=lambda r: r.op)
def test_a_job_that_ends_before_it_is_changed_says_so(op):
    notes = placed(SPOT) if op.op == "migrate" else bounds(2, 2) if op.op == "resize" else {}
    current = job(op, state="running", annotations=notes)
    current["status"]["conditions"] = [scene.condition("Complete", True, 99)]
    current["metadata"]["annotations"].update(scene.history(trained(ended_by="Finished", finished_at=T0 + 99)))
    done = action(current, running(), [])
    assert (done.status.state, done.status.message) == ("failed", "the job has ended (Finished)")


def test_growth_is_done_at_full_size_or_with_what_kueue_gave():
    grow = request("resize", workers=4, min_workers=2)
    full = job(grow, state="running", past=second(pods=4))
    assert action(full, running(4), pods(4, 2)).status.state == "done"
    some = job(grow, state="running", past=second(pods=3), pods=3)
    assert "3 workers" in action(some, running(3), pods(3, 2)).status.message


def test_a_request_that_asks_for_what_is_there_is_done_at_once():
    assert action(job(request("resize", workers=4), state="running"), running(), pods()).status.state == "done"
    assert action(job(request("resume"), state="running"), running(), pods()).status.state == "done"
    free = request("migrate", placement=Placement())
    current = job(free, state="running", annotations=placed(Placement()))
    assert action(current, running(), pods()).status.state == "done"


def test_a_migration_is_done_on_the_other_flavor():
    current = job(
        request("migrate", placement=SPOT), state="running", annotations=placed(SPOT), past=second(flavor="spot")
    )
    done = action(current, running(flavor="spot"), pods(4, 2))
    assert done.status.message == "attempt 2 runs with 4 workers on spot"


def test_a_change_of_a_paused_job_is_done_when_it_is_set():
    shaped = merge_patch(stopped(), {"spec": {"parallelism": 2, "completions": 2}})
    shaped["metadata"]["annotations"].pop(job_names.MIN_PARALLELISM)
    done = action(shaped, waiting(2, None, active=False))
    assert (done.status.state, done.status.message) == ("done", "set; takes effect when the job is resumed")
    assert isinstance(action(stopped(), waiting(active=False)), Reshape)


# --- checkpoint -----------------------------------------------------------------------------------------------------
CHECKPOINT = request("checkpoint")


def test_a_checkpoint_is_waited_for_and_given_up_after_its_deadline():
    current = job(CHECKPOINT, state="running", taken_up_at=T0 + 90)
    looked = act(current, running(), pods())
    assert (looked.action, looked.wake_at) == (None, T0 + 150 + request_status.SILENCE_S)
    late = action(current, running(), pods(), now=T0 + 150 + request_status.SILENCE_S)
    assert (late.status.state, late.status.message) == ("failed", "no checkpoint: the pods gave no answer within 75 s")


def test_a_checkpoint_of_an_attempt_that_is_over_has_failed():
    over = job(CHECKPOINT, state="running", past=second(), pods=2)
    assert "attempt 1 ended before" in action(over, running(2), pods(2, 2)).status.message
    gone = action(stopped(CHECKPOINT, {}), waiting())
    assert gone.status.message == "no checkpoint: attempt 1 ended before (AdmissionCheck)"


def test_a_checkpoint_request_never_stops_an_eviction():
    evicted = running(evicted=("Preempted", scene.PREEMPTED, 99))
    assert isinstance(action(job(CHECKPOINT, state="running"), evicted, pods()), StartCheckpoint)


def test_taking_up_a_checkpoint_sets_its_deadline():
    status = from_json(
        RequestStatus, action(job(CHECKPOINT), running(), pods()).job_annotations[job_names.ANN_CHECKPOINT_STATUS]
    )
    assert status.deadline == NOW + user_requests.DEFAULT_CHECKPOINT_S
    short = request("checkpoint", timeout_s=9.0)
    assert action(job(short), running(), pods()).status.deadline == NOW + 9
