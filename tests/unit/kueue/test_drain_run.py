"""A drain against a fake API server: what it asks, in which order, what it says, and what faults do to it."""

from __future__ import annotations

import json

import pytest
from drain_world import World, pod
from test_verbs_ask import node

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import Placement, RequestStatus
from kueue_integration.drain import departure
from kueue_integration.drain.plan import Stage
from kueue_integration.errors import Forbidden, PlatformError, Unreachable
from kueue_integration.kube.resources import JOB, JOBSET, NODE, POD, RESOURCE_FLAVOR, WORKLOAD
from kueue_integration.requests import user_requests, verbs

KEY = ("default", "digits")


@pytest.fixture
def world() -> World:
    return World()


def test_a_job_is_saved_then_moved_and_may_come_back_later(world: World) -> None:
    world.train()
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert (move.stage, move.steps_lost, move.checkpoint) == (Stage.AWAY, 0, "digits-a1-g1")
    assert move.where == "attempt 2 on ondemand (n2)"
    assert world.lines[:2] == ["digits: is saved while it goes on", "digits: is asked to leave"]
    assert world.lines[-1].startswith("digits: away after ")
    asked = user_requests.asked(world.kube.get_job(*KEY), user_requests.CHANGE)
    assert asked is not None and asked.by == "ann (drain of n1)" and asked.placement == Placement()
    world.tick()
    assert world.placement() == Placement()


def test_nothing_is_asked_before_the_save_is_done(world: World) -> None:
    world.train()
    world.dead = True
    seen: list[object] = []
    world.events[4] = lambda: seen.append(user_requests.asked(world.kube.get_job(*KEY), user_requests.CHANGE))
    world.events[5] = lambda: setattr(world, "dead", False)
    world.drain().run()
    assert seen == [None]


def test_a_job_without_a_step_is_moved_without_a_save(world: World) -> None:
    world.train(stepped=False)
    drain = world.drain()
    drain.run()
    assert drain.moves[KEY].stage is Stage.AWAY
    assert user_requests.asked(world.kube.get_job(*KEY), user_requests.CHECKPOINT) is None


def test_a_job_that_cannot_be_saved_stays_unharmed(world: World) -> None:
    world.train()
    world.save_fails = "no checkpoint: rank 0 reached no step boundary"
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert move.stage is Stage.STAYS and move.refusal is not None
    assert "reached no step boundary" in move.refusal.why and "goes on as before" in move.refusal.fix
    assert user_requests.asked(world.kube.get_job(*KEY), user_requests.CHANGE) is None


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_no_more_than_so_many_move_together_and_high_priority_goes_first(world: World, at_once: int) -> None:
    for number in range(4):
        world.train(f"job-{number}", priority=number)
    drain = world.drain(at_once=at_once)
    drain.run()
    assert {m.stage for m in drain.moves.values()} == {Stage.AWAY}
    assert world.most_at_once == min(at_once, 4)
    if at_once == 1:
        away = [line.partition(":")[0] for line in world.lines if "away after" in line]
        assert away == ["job-3", "job-2", "job-1", "job-0"]


def test_only_pods_at_work_on_the_nodes_count(world: World) -> None:
    world.train("other", on="n2")
    world.kube.put(pod("other", "n1", 7, phase="Succeeded"))
    stranger = pod("nobody", "n1")
    stranger["metadata"]["labels"] = {}
    world.kube.put(stranger)
    drain = world.drain()
    drain.run()
    assert drain.moves == {} and world.written() == []


def test_a_job_on_two_drained_nodes_moves_once(world: World) -> None:
    world.train()
    world.kube.put(pod("digits", "n2", 9))
    world.refuge = "n3"
    world.events[5] = lambda: world.kube.delete(POD, "default", "digits-9")
    drain = world.drain("n1", "n2")
    drain.run()
    assert drain.moves[KEY].where == "attempt 2 on ondemand (n3)"
    assert sum("asked to leave" in line for line in world.lines) == 1


def test_a_job_without_quota_counts_as_away_when_it_waits(world: World) -> None:
    world.train()
    world.quota = False
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert (move.stage, move.steps_lost) == (Stage.AWAY, 0) and "queue training" in move.where
    world.tick()
    assert world.placement() == Placement()  # no flavor was left out: the scheduler's cordon is enough


def test_a_job_that_waits_is_not_let_to_a_flavor_without_a_node(world: World) -> None:
    world.kube.delete(NODE, None, "n2")
    world.train()
    world.quota = False
    drain = world.drain()
    drain.run()
    assert drain.moves[KEY].stage is Stage.AWAY and world.placement().flavors == ["spot"]
    assert "keeps away from n1 until `singularityctl migrate digits --anywhere`" in world.lines[-1]


def test_what_a_user_said_before_holds_again(world: World) -> None:
    world.train()
    verbs.migrate(world.kube, "default", "digits", flavor="ondemand")
    world.tick()
    world.tick()
    before = world.placement()
    assert before.flavors == ["ondemand"]
    world.drain().run()
    world.tick()
    assert world.placement() == before


# --- jobs that are not moved ----------------------------------------------------------------------------------------
def refused(world: World) -> str:
    drain = world.drain()
    world.kube.requests.clear()
    drain.run()
    move = drain.moves[KEY]
    assert move.stage is Stage.STAYS and move.refusal is not None
    assert world.written() == []
    return f"{move.refusal.why} | {move.refusal.fix}"


@pytest.mark.parametrize("hold", ["armed", "off"])
def test_who_does_not_mind_the_loss_moves_a_job_that_cannot_be_saved(world: World, hold: str) -> None:
    world.train(**{job_names.ANN_HOLD: hold})
    world.save_fails = "no checkpoint: rank 0 holds a lock"
    drain = world.drain(lose_work=True)
    drain.run()
    assert drain.moves[KEY].stage is Stage.AWAY
    assert user_requests.asked(world.kube.get_job(*KEY), user_requests.CHECKPOINT) is None, "no save is asked for"


def test_a_job_that_cannot_be_saved_any_more_stays_where_it_is(world: World) -> None:
    """Its first save worked, and the one that ends the attempt did not."""
    world.train()
    world.events[3] = lambda: world.fail_change("not stopped, it goes on: no checkpoint: rank 0 holds a lock")
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert move.stage is Stage.STAYS and move.refusal is not None and "rank 0 holds a lock" in move.refusal.why


@pytest.mark.parametrize("hold", ["off", "released"])
def test_a_hold_that_is_not_armed(world: World, hold: str) -> None:
    world.train(**{job_names.ANN_HOLD: hold})
    said = refused(world)
    assert f"its hold is {hold}" in said and "grace period of 30 s" in said
    assert f"kubectl annotate job digits -n default {job_names.ANN_HOLD}=armed" in said


def test_a_request_of_somebody_else_is_not_replaced(world: World) -> None:
    world.train()
    asked = verbs.resize(world.kube, "default", "digits", 2, by="bob")
    assert "request resize, asked for by bob, is under way: the controller is to answer" in refused(world)
    status = RequestStatus(asked.id, "resize", "running", "grows when there is quota", 1.0)
    world.note("digits", **user_requests.stored(status))
    assert "is under way: grows when there is quota" in refused(world)


def test_a_budget_that_is_too_short(world: World) -> None:
    world.train(**{job_names.ANN_BUDGET: "20"})
    history = json.loads(world.kube.get_job(*KEY)["metadata"]["annotations"][job_names.ANN_HISTORY])
    before = {**history[0], "ended_by": "Preempted", "evicted_at": 10.0, "barrier_at": 11.0, "committed_at": 70.0}
    world.note("digits", **{job_names.ANN_HISTORY: json.dumps([before, {**history[0], "attempt": 2}])})
    said = refused(world)
    assert "cannot be saved in time: the last checkpoint took 60 s" in said and job_names.ANN_BUDGET in said


@pytest.mark.parametrize("stepped", [True, False])
def test_no_other_node(world: World, stepped: bool) -> None:
    world.train(stepped=stepped)
    world.kube.put(node("n2", "ondemand", cordoned=True))
    world.kube.put(node("n3", "spot", ready=False))
    said = refused(world)
    assert "no usable node of flavor ondemand, spot is left without n1" in said
    assert "singularityctl pause digits -n default --wait" in said


def test_a_copy_of_multikueue(world: World) -> None:
    world.train()
    world.kube.patch(JOB, "default", "digits", {"metadata": {"labels": {job_names.MULTIKUEUE_ORIGIN_LABEL: "m"}}})
    assert "MultiKueue has brought it here" in refused(world)


def test_a_jobset_keeps_its_affinity(world: World) -> None:
    world.train()
    made = world.kube.get_job(*KEY)
    inner = {"name": "w", "replicas": 1, "template": {"spec": {"parallelism": 1, "template": made["spec"]["template"]}}}
    meta = {**made["metadata"], "uid": "u-set", "labels": {**made["metadata"]["labels"]}}
    meta["labels"][job_names.LABEL_JOB] = "digits.jobset"
    spec = {"replicatedJobs": [inner]}
    world.kube.delete(JOB, *KEY)
    world.kube.put({"apiVersion": JOBSET.api_version, "kind": "JobSet", "metadata": meta, "spec": spec})
    world.kube.put(pod("digits.jobset", "n1", name="digits-0"))
    drain = world.drain()
    world.kube.requests.clear()
    drain.run()
    move = drain.moves["default", "digits.jobset"]
    assert move.stage is Stage.STAYS and move.refusal is not None and world.written() == []
    assert "node affinity of the pods of a JobSet cannot be changed" in move.refusal.why


def test_flavors_may_not_be_looked_at(world: World) -> None:
    world.train(stepped=False)
    world.kube.fail_next("list", RESOURCE_FLAVOR, Forbidden("no", 403))
    assert "permission to list them" in refused(world)


# --- faults ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_job_that_finishes_meanwhile_is_away(world: World, moment: int) -> None:
    world.train()
    complete = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}

    def finish() -> None:
        world.kube.patch(JOB, "default", "digits", complete, subresource="status")
        world.kube.put(pod("digits", "n1", phase="Succeeded"))

    world.dead = True
    world.events[moment] = finish
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert (move.stage, move.where) == (Stage.AWAY, "finished")


def test_a_job_that_is_deleted_meanwhile_is_away(world: World) -> None:
    world.train()
    world.dead = True
    world.events[2] = lambda: (
        world.kube.delete(JOB, "default", "digits"),
        world.kube.delete(POD, "default", "digits-0"),
    )
    drain = world.drain()
    drain.run()
    assert (drain.moves[KEY].stage, drain.moves[KEY].where) == (Stage.AWAY, "the job was deleted")


def test_a_move_that_somebody_replaces_is_not_asked_for_again(world: World) -> None:
    world.train()

    def replaced() -> None:
        world.dead = True
        verbs.pause(world.kube, "default", "digits", by="bob")

    world.events[2] = replaced
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert move.stage is Stage.STAYS and move.refusal is not None
    assert move.refusal.why == "its move was replaced by a later request (pause)"


def test_an_overdue_move_keeps_its_place_and_the_next_is_not_asked(world: World) -> None:
    world.train("first", priority=1)
    world.train("second")
    world.dead = True
    drain = world.drain(timeout_s=10.0)
    drain.run()
    first, second = drain.moves["default", "first"], drain.moves["default", "second"]
    assert (first.stage, second.stage) == (Stage.OVERDUE, Stage.STAYS)
    assert first.refusal is not None and first.refusal.why.startswith("not saved within 10 s")
    assert "is the controller running?" in first.refusal.fix
    assert second.refusal is not None and second.refusal.why == "not asked: the move of default/first is not over"
    assert user_requests.asked(world.kube.get_job("default", "second"), user_requests.CHECKPOINT) is None


@pytest.mark.parametrize("verb,kind", [("list", POD), ("get", JOB), ("patch", JOB), ("list", NODE)])
def test_an_api_server_that_stumbles_is_asked_again(world: World, verb: str, kind: object) -> None:
    world.train()
    for _ in range(3):
        world.kube.fail_next(verb, kind, Unreachable("busy"))  # type: ignore[arg-type]
    drain = world.drain()
    drain.run()
    assert drain.moves[KEY].stage is Stage.AWAY and drain.moves[KEY].steps_lost == 0
    assert world.most_at_once == 1


def test_an_api_server_that_stays_away_ends_the_drain(world: World) -> None:
    world.train()
    for _ in range(200):
        world.kube.fail_next("list", POD, Unreachable("down"))
    with pytest.raises(Unreachable, match="down"):
        world.drain(timeout_s=20.0).run()
    assert world.ticks <= 22


def test_an_answer_that_is_lost_does_not_ask_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.train(stepped=False)
    real, lost = departure.leave, []

    def leave(*arguments: object) -> departure.Departure:
        found = real(*arguments)  # type: ignore[arg-type]
        if not lost:
            lost.append(found.asked.id)
            raise Unreachable("the answer was lost")
        return found

    monkeypatch.setattr(departure, "leave", leave)
    drain = world.drain()
    drain.run()
    move = drain.moves[KEY]
    assert move.stage is Stage.AWAY and move.asked is not None and move.asked.id == lost[0]
    assert any("keeps away from n1" in line for line in world.lines)  # where it might run before is not known


def test_pods_of_all_namespaces_are_a_permission(world: World) -> None:
    world.kube.fail_next("list", POD, Forbidden("no", 403))
    with pytest.raises(PlatformError, match="all namespaces; ask for that, or name one with -n"):
        world.drain().run()


def test_a_job_that_comes_back_to_an_open_node_is_told_once(world: World) -> None:
    world.train("first", priority=1)
    world.train("second")
    world.events[8] = lambda: world.kube.put(pod("first", "n1", 5))
    drain = world.drain()
    drain.run()
    first = drain.moves["default", "first"]
    assert first.stage is Stage.STAYS and first.refusal is not None
    assert first.refusal.why == "has pods on n1 again" and "kubectl cordon n1" in first.refusal.fix


def test_an_eviction_that_is_under_way_is_waited_for(world: World) -> None:
    world.train()
    history = json.loads(world.kube.get_job(*KEY)["metadata"]["annotations"][job_names.ANN_HISTORY])
    history[0].update(evicted_at=150.0, ended_by="Preempted")
    world.note("digits", **{job_names.ANN_HISTORY: json.dumps(history)})
    world.dead = True
    gone = [{"type": "QuotaReserved", "status": "False"}]
    world.events[3] = lambda: (
        world.kube.delete(POD, "default", "digits-0"),
        world.kube.patch(JOB, "default", "digits", {"spec": {"suspend": True}}),
        world.kube.set_status(WORKLOAD, "default", "job-digits", {"conditions": gone}),
    )
    drain = world.drain()
    drain.run()
    assert drain.moves[KEY].stage is Stage.AWAY
    assert [line for line in world.lines if "asked" in line or "saved" in line] == []
    assert "digits: is being stopped already" in world.lines


# --- the dry run ----------------------------------------------------------------------------------------------------
def test_a_dry_run_writes_nothing_and_says_what_a_run_would(world: World) -> None:
    world.train("moves", priority=5)
    world.train("stays", **{job_names.ANN_HOLD: "off"})
    world.train("stuck")
    job = world.kube.get_job("default", "stuck")
    job["spec"]["template"]["spec"]["affinity"] = {"podAffinity": {}}
    world.kube.put(job)
    shown = world.drain().preview()
    assert [key[1] for key in shown] == ["moves", "stays", "stuck"]
    reasons = {key[1]: refusal.why if refusal else "" for key, (_, refusal) in shown.items()}
    assert reasons["moves"] == "" and "hold is off" in reasons["stays"] and "affinity of its own" in reasons["stuck"]
    assert world.written() == []
