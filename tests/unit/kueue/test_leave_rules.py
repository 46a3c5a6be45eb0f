"""A voluntary stop saves first: the rules, for every request and every moment of an attempt."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import controller_scene as scene
import planner_scene as plan
import pytest
from controller_scene import CHECK, NS, T0

from kueue_integration.contract import job_names, leaves, saveable
from kueue_integration.contract.leaves import Leave
from kueue_integration.contract.record_types import JobRequest, NodeRequirement, Placement, RequestStatus
from kueue_integration.controller import apply, leave, reshape
from kueue_integration.controller.actions import (
    Action,
    AnswerRequest,
    NoteLeave,
    PatchWorkload,
    RecordHistory,
    RequestReadmission,
    Reshape,
)
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.planning import carry_out
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Job, Snapshot, Workload
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import merge_patch
from kueue_integration.planner import policies
from kueue_integration.planner.arbiter import Arbiter, Limits, Terms
from kueue_integration.planner.job import BY, Request
from kueue_integration.planner.proposals import ACTIONS, Proposal, moves
from kueue_integration.requests import placement, user_requests
from singularity_proxy.protocol.messages import CheckpointFailure, Command, CommitRequest, from_json

NOW = T0 + 100
BUDGET_S = 30.0
SPOT = Placement(["spot"], [], [[NodeRequirement("flavor", "In", ["spot"])]])
AWAY = Placement([], ["node-b"], [[NodeRequirement(placement.HOSTNAME, "NotIn", ["node-b"])]])
WISHES: dict[str, JobRequest] = {
    "pause": JobRequest("r-1", "pause", T0 + 80, "ann"),
    "migrate to a flavor": JobRequest("r-1", "migrate", T0 + 80, "ann", placement=SPOT, flavor="spot"),
    "migrate off a node": JobRequest("r-1", "migrate", T0 + 80, "ann", placement=AWAY, node="node-b"),
    "resize to fewer": JobRequest("r-1", "resize", T0 + 80, "ann", workers=2),
    "resize at once": JobRequest("r-1", "resize", T0 + 80, "ann", workers=8, at_once=True),
    "resize above what it has": JobRequest("r-1", "resize", T0 + 80, "ann", workers=8, min_workers=8),
}
ASKED = {
    **WISHES,
    **{f"{name}, by a policy": replace(wish, by=f"{BY}lending: gives way") for name, wish in WISHES.items()},
}
EVERY = pytest.mark.parametrize("wish", ASKED.values(), ids=ASKED)
POLICIES = ("regrow", "lending", "marginal_gain", "time_sharing", "defragmentation", "health", "cordon")


def job(wish: JobRequest | None = None, stood: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """A Job of 8 ranks in 4 pods that trains, and was asked for `wish`."""
    notes = {
        job_names.ANN_WORKERS: "4", job_names.ANN_MIN_WORKERS: "2", job_names.ANN_WORLD_SIZE: "8",
        job_names.ANN_HOLD: "armed", job_names.COMPLETIONS_EQUAL_PARALLELISM: "true", job_names.MIN_PARALLELISM: "2",
        job_names.ANN_BUDGET: str(int(BUDGET_S)), job_names.ANN_STORE: "file:///shared/checkpoints",
        **scene.history(scene.record(pods=4, ranks=8, first_step=0, first_step_at=T0 + 20)), **(stood or {}),
    }  # fmt: skip
    if wish is not None:
        notes.update({name: text for name, text in user_requests.written(wish).items() if text is not None})
    made = scene.job(annotations=notes, suspend=False, parallelism=4, **fields)
    made["spec"]["template"] = {"spec": {"containers": [{"name": "train"}]}}
    return made


def workload(**fields: Any) -> dict[str, Any]:
    return scene.workload(**{"state": "Ready", "admitted": True, "count": 4, "wanted": 4, **fields})


def pods(**fields: Any) -> list[dict[str, Any]]:
    made = [scene.pod(i, **fields) for i in range(4)]
    for pod in made:
        pod["spec"]["nodeName"] = "node-b"
    return made


def decided(known: dict[str, Any], its: Any = None, shown: Any = None, now: float = NOW) -> Action | None:
    its, shown = workload() if its is None else its, pods() if shown is None else shown
    found = scene.decide(known, its, shown, now, Settings(), scene.nobody, lambda job: ("ondemand", "spot"))
    return found.action


def after(known: dict[str, Any], change: Any) -> dict[str, Any]:
    return merge_patch(known, {"metadata": {"annotations": dict(change or {})}})


def settled(known: dict[str, Any], its: Any = None, shown: Any = None, now: float = NOW) -> tuple[Any, Action | None]:
    """The Job once all that is only noted on it is noted, and what is to be done then."""
    for _ in range(8):
        action = decided(known, its, shown, now)
        if not isinstance(action, (RecordHistory, AnswerRequest, NoteLeave)):
            return known, action
        known = after(known, action.job_annotations)
    raise AssertionError("it does not settle")


def saving(wish: JobRequest) -> dict[str, Any]:
    """Taken up, and its pods are being saved."""
    known, action = settled(job(wish))
    assert action is None, "the Workload is left alone meanwhile"
    assert state(known) == "saving"
    return known


def state(known: dict[str, Any]) -> str:
    found = leaves.of(known)
    return "" if found is None else found.state


def command(known: dict[str, Any], now: float = NOW) -> Command:
    found = reports.command(known, now)
    assert found is not None
    return found


def commit(goes_on: bool = True, stays: bool = True, sequence: int = 1) -> CommitRequest:
    ref = replace(scene.checkpoint(sequence=sequence), world_size=8)
    return CommitRequest(NS, "train", 1, ref, 1.0, 99, goes_on, stays)


def saved(known: dict[str, Any], now: float = NOW) -> dict[str, Any]:
    return after(known, reports.commit(known, commit(), now))


FAILED = CheckpointFailure(
    NS, "train", 1, "saving failed: pod 0: rank 0 holds a lock", goes_on=True, cause="program",
    why="pod 0: rank 0 holds a lock",
)  # fmt: skip


def failed(known: dict[str, Any], now: float = NOW) -> dict[str, Any]:
    return after(known, reports.failure(known, FAILED, now))


def answer(known: dict[str, Any]) -> RequestStatus:
    found = user_requests.answer(known, user_requests.CHANGE)
    assert found is not None
    return found


# --- saved first ----------------------------------------------------------------------------------------------------
@EVERY
def test_every_request_saves_first_and_then_stops_the_attempt(wish: JobRequest) -> None:
    known = saving(wish)
    asked = command(known)
    assert (asked.op, asked.then, asked.stay_s, asked.remaining_s) == ("checkpoint", "stay", leave.STAY_S, BUDGET_S)
    known, action = settled(saved(known))
    assert isinstance(action, (PatchWorkload, RequestReadmission)) and leave.stops(action)
    assert action.safe == "saved as train-a1-g1"
    assert reports.command(known, NOW) is None, "the ranks stay stopped until Kueue evicts"


CROWDED = "on 2 pods ranks 1 and 2 would share one: tcp 0.0.0.0:80, tcp 0.0.0.0:80"


def crowded(known: dict[str, Any]) -> dict[str, Any]:
    """Saved, and its ranks have no room in fewer than three pods."""
    told = commit()
    told = replace(told, checkpoint=replace(told.checkpoint, fewest=3, crowded=CROWDED))
    return after(known, reports.commit(known, told, NOW))


def test_a_resize_to_fewer_pods_than_its_ranks_have_room_in_stops_nothing() -> None:
    """The save shows that two of them hold one port."""
    known, action = settled(crowded(saving(WISHES["resize to fewer"])))
    assert action is None and answer(known).state == "failed"
    assert f"its ranks need 3 pods ({CROWDED}): let each rank choose a port of its own" in answer(known).message
    assert command(known).op == "resume", "the ranks go on"
    assert known["metadata"]["annotations"][job_names.ANN_WORKERS] == "4"
    assert saveable.current(known).verdict == "yes", "it can be saved"
    again = settled(after(known, user_requests.written(replace(WISHES["resize to fewer"], id="r-2"))))[0]
    assert answer(again).message.startswith("workers = 2: its ranks need 3 pods"), "known before it is saved"
    forced = replace(WISHES["resize to fewer"], id="r-3", lose_work=True)
    _, action = settled(after(known, user_requests.written(forced)))
    assert action is not None and leave.stops(action)


@pytest.mark.parametrize("op", ["pause", "migrate to a flavor", "resize above what it has"])
def test_other_requests_do_not_ask_in_how_few_pods_there_is_room(op: str) -> None:
    _, action = settled(crowded(saving(WISHES[op])))
    assert action is not None and leave.stops(action)


def test_kueue_never_admits_fewer_pods_than_the_ranks_of_the_checkpoint_have_room_in() -> None:
    """A preempted job may get fewer pods than it had, and nobody can be asked first."""
    known = crowded(job())
    assert Job.parse(known).fewest_workers == 3 and Job.parse(known).fewest_asked == 2
    known["spec"]["suspend"] = True
    change = reshape.reshape(Job.parse(known), Workload.parse(scene.workload(reserved_at=None, wanted=4)))
    assert isinstance(change, Reshape) and change.body["metadata"]["annotations"] == {job_names.MIN_PARALLELISM: "3"}


@EVERY
def test_every_request_fails_with_the_reason_if_the_save_fails_and_changes_nothing(wish: JobRequest) -> None:
    before = job(wish)
    known, action = settled(failed(saving(wish)))
    assert action is None
    told = answer(known)
    assert told.state == "failed"
    assert told.message == (
        "not stopped, it goes on (`--lose-work` stops it all the same): no checkpoint: pod 0: rank 0 holds a lock"
    )
    shape = {name: (before["metadata"]["annotations"].get(name)) for name in leaves.SHAPE}
    assert {name: known["metadata"]["annotations"].get(name) for name in leaves.SHAPE} == shape
    assert job_names.ANN_SHAPE_BEFORE not in known["metadata"]["annotations"]
    assert saveable.barred(known) == "pod 0: rank 0 holds a lock"


@EVERY
def test_whoever_does_not_mind_the_loss_stops_it_at_once(wish: JobRequest) -> None:
    known, action = settled(job(replace(wish, lose_work=True)))
    assert action is not None and leave.stops(action) and state(known) == ""
    known, action = settled(after(saving(wish), user_requests.written(replace(wish, id="r-2", lose_work=True))))
    assert action is not None and leave.stops(action), "also while it is being saved"


def test_a_request_that_says_nothing_of_it_is_understood_by_older_readers() -> None:
    (text,) = user_requests.written(WISHES["pause"]).values()
    assert text is not None and "lose_work" not in text and from_json(JobRequest, text).lose_work is None


def verdict(known: dict[str, Any], shown: list[dict[str, Any]]) -> leave.Verdict:
    seen = Snapshot.parse(known, workload(), shown)
    assert seen.workload is not None
    return leave.verdict(seen, seen.workload, WISHES["pause"], "pause", BUDGET_S, NOW)


MOMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no program runs yet": ({"first_step_at": None, "first_step": None}, {}),
    "it has stopped with a checkpoint": ({"checkpoint": "train-a1-g1"}, {}),
    "it has broken off": ({"ended_by": "Deleted"}, {}),
    "its pods have ended": ({}, {"phase": "Succeeded"}),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_where_no_work_can_be_lost_it_is_stopped_at_once(moment: str) -> None:
    record, shown = MOMENTS[moment]
    trained = {"pods": 4, "ranks": 8, "first_step": 0, "first_step_at": T0 + 20}
    known = job(WISHES["pause"], scene.history(scene.record(**{**trained, **record})))
    assert verdict(known, pods(**shown)).go and verdict(known, pods(**shown)).note is None


def test_a_program_that_has_ended_is_left_as_it_was() -> None:
    done = '{"attempt":1,"step":9,"at":%f,"phase":"finished"}' % (T0 + 90)
    assert verdict(job(WISHES["pause"], {job_names.ANN_PROGRESS: done}), pods()).go == "its programs have ended"


# --- the only way ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hold", ["armed", "off", "released", None])
@pytest.mark.parametrize("known_leave", ["", "saving", "saved", "failed", "off", "stale", "of another attempt"])
@EVERY
def test_no_decision_stops_a_running_attempt_that_was_not_saved(
    wish: JobRequest, known_leave: str, hold: str | None
) -> None:
    """For each request, whoever has made it, whatever stands on the Job already, and each step that follows."""
    begun = Leave(1, "saving", NOW - 60, NOW + 10, NOW - 60, "w", "r-1")
    stands = {
        "": None, "saving": begun, "failed": leave.failed(begun, "no", NOW), "off": replace(begun, state="off"),
        "saved": leave.saved(begun, "c", NOW - 1), "stale": leave.saved(begun, "c", NOW - leave.USED_S - 1),
        "of another attempt": replace(leave.saved(begun, "c", NOW), attempt=0),
    }[known_leave]  # fmt: skip
    known = job(wish)
    for _ in range(8):
        action = decided(known)
        if action is None:
            break
        known = after(known, action.job_annotations)
        if isinstance(action, AnswerRequest) and stands is not None:
            known = after(known, {**leaves.stored(stands), job_names.ANN_HOLD: hold})
            stands = None
        if leave.stops(action):
            assert known_leave == "saved" and isinstance(action, (PatchWorkload, RequestReadmission))
            assert action.safe == "saved as c"
            break


@pytest.mark.parametrize(
    "action",
    [
        PatchWorkload(body={"spec": {"active": False}}), RequestReadmission(cause="request"),
        RequestReadmission(cause="regrow"),
    ],
    ids=lambda action: f"{type(action).__name__} {getattr(action, 'cause', '')}",
)  # fmt: skip
def test_nothing_that_has_not_passed_the_rule_is_written(action: Action) -> None:
    kube = FakeKube(job(), workload(), *pods())
    objects = kube.objects()
    with pytest.raises(AssertionError, match="would stop a running attempt that was not saved"):
        apply.perform(kube, action, job(), workload(), CHECK, Metrics(), NOW)
    assert kube.objects() == objects


@pytest.mark.parametrize("cause", ["machines", "evicted", "broken"])
def test_an_attempt_that_cannot_go_on_is_no_matter_of_this_rule(cause: Any) -> None:
    leave.require(RequestReadmission(cause=cause), job(), workload())
    leave.require(PatchWorkload(body={"spec": {"active": True}}), job(), workload())


# --- what comes in between ------------------------------------------------------------------------------------------
def test_what_was_saved_too_long_ago_is_saved_again_and_not_for_ever() -> None:
    known = saved(saving(WISHES["pause"]))
    late = NOW + leave.USED_S
    again = decided(known, now=late)
    assert isinstance(again, NoteLeave)
    known = after(known, again.job_annotations)
    assert state(known) == "saving" and command(known, late).seq > command(saving(WISHES["pause"])).seq
    known = after(known, reports.commit(known, commit(sequence=2), late))
    last = decided(known, now=late + leave.USED_S)
    assert isinstance(last, NoteLeave) and "could not be stopped in time" in last.message
    known, action = settled(after(known, last.job_annotations), now=late + leave.USED_S)
    assert action is None and answer(known).state == "failed"
    assert command(known, late + leave.USED_S).op == "resume" and saveable.barred(known) == "", "it can be saved"


def test_pods_that_give_no_answer_are_asked_again_and_then_it_has_failed() -> None:
    known, now = saving(WISHES["pause"]), NOW + BUDGET_S
    assert reports.command(known, now) is None, "there is no time left for it"
    now += leave.SILENCE_S
    again = decided(known, now=now)
    assert isinstance(again, NoteLeave)
    known = after(known, again.job_annotations)
    assert command(known, now).remaining_s == BUDGET_S
    now += BUDGET_S + leave.SILENCE_S
    known, action = settled(known, now=now)
    assert action is None and "the pods gave no answer" in answer(known).message
    assert "the pods gave no answer" in saveable.barred(known)


def test_who_looks_before_there_is_an_answer_is_told_when_to_look_again() -> None:
    known = saving(WISHES["pause"])
    found = scene.decide(known, workload(), pods(), NOW + 1, Settings(), scene.nobody, lambda job: ("ondemand",))
    assert found.action is None and found.wake_at == NOW + BUDGET_S + leave.SILENCE_S


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_request_that_is_taken_back_calls_it_off(is_saved: bool) -> None:
    known = saving(WISHES["pause"])
    known = saved(known) if is_saved else known
    known, action = settled(after(known, user_requests.written(JobRequest("r-2", "resume", NOW, "ann"))), now=NOW + 1)
    assert action is None and state(known) == "off"
    assert (command(known).op, answer(known).state) == ("resume", "done")
    late = after(known, reports.commit(known, commit(), NOW + 2))
    assert state(late) == "off", "a commit that was on its way"


def test_nothing_is_called_off_once_the_attempt_is_told_to_leave() -> None:
    """Kueue has not evicted it yet."""
    known = saved(saving(WISHES["migrate off a node"]))
    assert decided(known, workload(state="Retry")) is None
    paused = workload()
    paused["spec"]["active"] = False
    assert not isinstance(decided(saved(saving(WISHES["pause"])), paused), NoteLeave)


@pytest.mark.parametrize("is_saved", [False, True])
def test_another_request_goes_on_with_the_save_that_there_is(is_saved: bool) -> None:
    known = saving(WISHES["pause"])
    number = command(known).seq
    known = saved(known) if is_saved else known
    later = replace(WISHES["migrate to a flavor"], id="r-2")
    known, action = settled(after(known, user_requests.written(later)), now=NOW + 1)
    if not is_saved:
        assert action is None and command(known).seq == number
        known, action = settled(saved(known, NOW + 2), now=NOW + 3)
    assert action is not None and leave.stops(action)


def test_a_failure_of_the_request_before_is_none_of_the_next() -> None:
    known, _ = settled(failed(saving(WISHES["pause"])))
    later = after(known, user_requests.written(replace(WISHES["pause"], id="r-2")))
    later, action = settled(later, now=NOW + 1)
    assert action is None and state(later) == "saving", "it is tried again"
    assert answer(later).state == "running"


def test_two_requests_that_fail_give_back_the_shape_of_before_both() -> None:
    known = saving(WISHES["resize to fewer"])
    later = replace(WISHES["migrate to a flavor"], id="r-2")
    known, _ = settled(after(known, user_requests.written(later)), now=NOW + 1)
    known, _ = settled(failed(known, NOW + 2), now=NOW + 3)  # of the save that was begun for the first
    known, _ = settled(failed(known, NOW + 4), now=NOW + 5)
    assert answer(known).state == "failed"
    notes = known["metadata"]["annotations"]
    assert (notes[job_names.ANN_WORKERS], notes.get(job_names.ANN_PLACEMENT)) == ("4", None)


def test_a_request_that_is_done_keeps_its_shape() -> None:
    known = saving(WISHES["resize to fewer"])
    assert job_names.ANN_SHAPE_BEFORE in known["metadata"]["annotations"]
    second = scene.record(2, pods=2, ranks=8, first_step=100, first_step_at=T0 + 120)
    known = after(known, scene.history(scene.record(pods=4, ranks=8, ended_by="Resized"), second))
    known, _ = settled(known, workload(count=2), [scene.pod(i, attempt=2) for i in range(2)], T0 + 130)
    assert answer(known).state == "done"
    notes = known["metadata"]["annotations"]
    assert notes[job_names.ANN_WORKERS] == "2" and job_names.ANN_SHAPE_BEFORE not in notes


def test_a_checkpoint_that_was_asked_for_is_answered_by_the_same_save() -> None:
    known = saving(WISHES["pause"])
    asked = JobRequest("c-1", "checkpoint", NOW, "ann", timeout_s=60)
    known, _ = settled(after(known, user_requests.written(asked)), now=NOW + 1)
    assert command(known).then == "stay"
    done = user_requests.answer(saved(known, NOW + 2), user_requests.CHECKPOINT)
    assert done is not None and (done.state, done.checkpoint) == ("done", "train-a1-g1")
    again = after(saved(known, NOW + 2), user_requests.written(replace(asked, id="c-2")))
    again, _ = settled(again, now=NOW + 3)
    assert command(again, NOW + 3).then == "continue", "the leader knows that its ranks are saved already"
    done = user_requests.answer(after(again, reports.commit(again, commit(), NOW + 4)), user_requests.CHECKPOINT)
    assert done is not None and (done.id, done.state) == ("c-2", "done")


def test_the_end_that_follows_is_recorded_with_the_checkpoint_that_there_is() -> None:
    known = saved(saving(WISHES["pause"]))
    end = reports.commit(known, commit(goes_on=False, stays=False), NOW + 5)
    assert end is not None and end[job_names.ANN_HOLD] == job_names.HOLD_RELEASED
    record = scene.stored(end)[-1]
    assert (record.checkpoint, record.committed_at) == ("train-a1-g1", NOW), "it was committed before the eviction"


def test_a_periodic_checkpoint_on_its_way_is_not_the_one_that_stops_the_job() -> None:
    """Its ranks have gone on since."""
    known = saving(WISHES["pause"])
    known = after(known, reports.commit(known, commit(stays=False), NOW + 1))
    assert state(known) == "saving" and decided(known, now=NOW + 2) is None


def test_ranks_that_do_not_run_yet_have_nothing_to_lose() -> None:
    known = saving(WISHES["pause"])
    early = replace(FAILED, message="no rank runs yet in this attempt", cause="early")
    known, action = settled(after(known, reports.failure(known, early, NOW)))
    assert action is not None and leave.stops(action) and answer(known).state == "running"


def test_text_that_nobody_can_read_is_no_leave() -> None:
    for text in ("{", "[]", '{"attempt":1,"state":"gone"}', "x" * 1000):
        known, action = settled(job(WISHES["pause"], {job_names.ANN_LEAVE: text, job_names.ANN_SHAPE_BEFORE: text}))
        assert action is None and state(known) == "saving"


# --- the planner ----------------------------------------------------------------------------------------------------
def regrown(known: dict[str, Any]) -> dict[str, Any]:
    begun = carry_out.saved_first(known, "quota is free again", 600.0, NOW)
    assert not leave.stops(begun)
    return after(known, begun.job_annotations)


def test_regrowth_saves_first_and_readmits_then() -> None:
    known, action = settled(regrown(job()))
    assert action is None and command(known).then == "stay"
    known, action = settled(saved(known))
    assert isinstance(action, RequestReadmission) and action.cause == "regrow" and action.safe
    assert scene.stored(action.job_annotations)[-1].readmitted_for == "regrow"


def test_regrowth_leaves_a_job_alone_that_cannot_be_saved() -> None:
    known, action = settled(failed(regrown(job())))
    assert action is None and state(known) == "failed" and saveable.barred(known)
    assert settled(known, now=NOW + 1000)[1] is None


def test_regrowth_that_somebody_waits_for_fails_the_request() -> None:
    grow = JobRequest("r-1", "resize", T0 + 80, "ann", workers=8)
    known, _ = settled(job(grow))
    known, action = settled(failed(regrown(known)))
    assert action is None and answer(known).state == "failed" and "holds a lock" in answer(known).message
    assert known["metadata"]["annotations"][job_names.ANN_WORKERS] == "4"


def test_regrowth_that_comes_too_late_is_saved_anew() -> None:
    known = saved(regrown(job()))
    known, action = settled(known, now=NOW + leave.USED_S)
    assert action is None
    again = leaves.of(known)
    assert again is not None and (again.state, again.readmit, again.tries) == ("saving", "quota is free again", 2)


def ruled(found: Any, action: str, policy: str) -> Any:
    more: dict[str, Any] = {"resize": {"workers": 4}, "migrate": {"nodes": ("n1",)}, "priority": {"priority": -5}}
    proposal = Proposal(action, found.key, "because", 1e9, policy, **more.get(action, {}))  # type: ignore[arg-type]
    assert not policies.nonsense(proposal, policy, plan.snapshot(found)) or action in ("unpin", "resume")
    judge = Arbiter({policy: Terms(Limits(0.0, None, None))})
    (ruling,) = judge.rule(plan.snapshot(found), [proposal], 0.0)
    return moves(proposal, found), ruling


@pytest.mark.parametrize(("action", "policy"), [*itertools.product(ACTIONS, POLICIES)])
def test_every_policy_leaves_a_job_alone_that_could_not_be_saved(action: str, policy: str) -> None:
    stops, ruling = ruled(plan.job(), action, policy)
    assert ruling.allowed
    stops, ruling = ruled(plan.job(unsaved="rank 0 holds a lock"), action, policy)
    assert ruling.allowed is not stops
    assert not stops or ruling.why == "is left alone until it could be saved: rank 0 holds a lock"
    stops, ruling = ruled(plan.job(leaving="quota is free again"), action, policy)
    assert ruling.allowed is not stops


def test_what_a_user_waits_for_is_tried_all_the_same() -> None:
    found = plan.job(unsaved="no", change=Request("resize", "ann", "running", 1))
    proposal = Proposal("readmit", found.key, "because", 1e9, "regrow", asked=True)
    (ruling,) = Arbiter({"regrow": Terms(Limits(0.0, None, None))}).rule(plan.snapshot(found), [proposal], 0.0)
    assert ruling.allowed
