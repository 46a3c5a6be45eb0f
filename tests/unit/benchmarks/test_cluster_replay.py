"""The mapping of a simulated workload to Kueue's objects, and its player against an API server in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import __main__ as cli
from benchmarks.cluster import alone, replay, twin
from benchmarks.cluster.active import Active, State
from benchmarks.cluster.model import HELD, SAVES, Cluster, Flavor, Job, Setting, Tier
from benchmarks.cluster.outcome import EndlessError
from benchmarks.cluster.simulator import Simulation
from benchmarks.events import changes
from kueue_integration.errors import Invalid, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import WORKLOAD, Object, is_true

CLUSTER = Cluster([Flavor("v100", 2, 2.0)], [0.7, 0.3], borrow=0.5)
JOB = Job(7, 1, 0.0, 8, 2, 16, "X", 1000.0, 1.0, 1.0, {"v100": 1.0}, 1.0, tier=Tier.PREMIUM)


def conditions(**states: str) -> list[Object]:
    return [{"type": name, "status": status, "reason": "x", "message": "of Kueue"} for name, status in states.items()]


def status(count: int, **states: str) -> Object:
    assigned = [{"name": "main", "count": count, "flavors": {"cpu": "v100"}}]
    return {"status": {"admission": {"podSetAssignments": assigned}, "conditions": conditions(**states)}}


def test_queues_have_the_quota_of_the_tenants() -> None:
    made = twin.cluster_objects(CLUSTER, "replay")
    queues = [one for one in made if one["kind"] == "ClusterQueue"]
    assert [one["kind"] for one in made[:2]] == ["Namespace", "ResourceFlavor"]
    resources = [one["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0] for one in queues]
    assert [(r["nominalQuota"], r["borrowingLimit"]) for r in resources] == [("11", "2"), ("5", "5")]
    assert {one["spec"]["cohortName"] for one in queues} == {"replay"}
    assert queues[0]["spec"]["preemption"] == {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    assert queues[0]["spec"]["queueingStrategy"] == "BestEffortFIFO"


def test_a_job_is_a_workload_of_as_many_pods() -> None:
    made = twin.workload(JOB, "replay", classes=True)
    podset = made["spec"]["podSets"][0]
    assert (podset["count"], podset["minCount"], made["spec"]["priority"]) == (8, 2, Tier.PREMIUM.priority)
    assert made["spec"]["queueName"] == "replay-1" and twin.job_of(made["metadata"]["name"]) == 7
    rigid = twin.workload(replace(JOB, least=8), "replay", classes=False)
    assert "minCount" not in rigid["spec"]["podSets"][0] and rigid["spec"]["priority"] == 0


@pytest.mark.parametrize(("costs", "again_s"), [(HELD, 1000.0 - 400.0), (SAVES, 1000.0)])
def test_an_attempt_an_eviction_and_the_attempt_after_it(costs, again_s: float) -> None:
    active = Active(JOB, 8)
    ready, end = twin.look(active, status(4, Admitted="True"), 50.0, costs)
    begin = costs.start_s
    trains = 2 * again_s if costs is SAVES else 2000.0
    assert (ready.after_s, end.after_s) == (0.0, pytest.approx(begin + trains / costs.slowdown(JOB)))
    assert not twin.look(active, status(4, Admitted="True"), 60.0, costs), "what was seen is not new"

    evicted = status(4, Admitted="True", QuotaReserved="True", Evicted="True")
    (leave,) = twin.look(active, evicted, 50.0 + begin + 800.0, costs)
    assert leave.after_s == costs.leaving(JOB, 4) and active.preempted == 1
    written = {"status": leave.body["status"]}
    assert written["status"]["admission"] is None
    assert not is_true(written, "Admitted") and not is_true(written, "QuotaReserved") and is_true(written, "Requeued")

    twin.left(active)
    _, end = twin.look(active, status(8, Admitted="True", Evicted="False"), 2000.0, costs)
    coming = costs.coming(JOB, 8, active.done_s == 0)
    assert end.after_s == pytest.approx(coming + again_s / costs.slowdown(JOB))


def test_an_eviction_while_it_comes_loses_nothing_and_saves_nothing() -> None:
    active = Active(JOB, 8)
    twin.look(active, status(8, Admitted="True"), 0.0, HELD)
    (leave,) = twin.look(active, status(8, Admitted="True", Evicted="True"), 1.0, HELD)
    assert (leave.after_s, active.done_s) == (HELD.evict_s, 0.0)


def test_conditions_of_kueue_stay_when_ours_are_written() -> None:
    current = {"status": {"conditions": conditions(Admitted="True", Preempted="True")}}
    ours = {"type": "Admitted", "status": "False", "reason": "x", "message": "replay"}
    body = {"status": {"admission": None, "conditions": [*conditions(Preempted="False"), ours]}}
    found = replay.merged(current, body)["status"]
    assert found["admission"] is None
    assert {one["type"]: one["status"] for one in found["conditions"]} == {"Preempted": "True", "Admitted": "False"}


@contextmanager
def kueue_that_admits_all(kube: FakeKube) -> Iterator[None]:
    """Admits what waits, at once, and preempts job 0 the first time that it is ready."""
    stop, evicted = threading.Event(), set[str]()

    def serve() -> None:
        for seen in changes(kube, WORKLOAD, replay.NAMESPACE, stop):
            name, held = seen["metadata"]["name"], (seen.get("status") or {}).get("admission")
            if is_true(seen, "Finished"):
                continue
            if not held:
                count = seen["spec"]["podSets"][0]["count"]
                kube.set_status(WORKLOAD, replay.NAMESPACE, name, status(count, Admitted="True")["status"])
            elif name == "job-0" and is_true(seen, "PodsReady") and name not in evicted:
                evicted.add(name)
                others = [one for one in seen["status"]["conditions"] if one["type"] != "Evicted"]
                made = {"conditions": [*others, *conditions(Evicted="True")]}
                kube.set_status(WORKLOAD, replay.NAMESPACE, name, made)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def test_a_replay_ends_and_is_compared() -> None:
    jobs = [replace(JOB, id=n, arrival_s=10.0 * n, least=8, most=8) for n in range(3)]
    made = replay.Plan(CLUSTER, jobs, replace(HELD, fails=0.0), compress=1000.0)
    kube = FakeKube()
    with kueue_that_admits_all(kube):
        played = replay.replay(kube, lambda objects: None, made, 60, print)
    real = played.books
    assert played.trouble == "" and all(one.state is State.DONE for one in real)
    assert [one.attempts for one in real] == [2, 1, 1]
    assert real[1].finished_at >= 10 + HELD.start_s + 1000
    simulated = Simulation(Cluster([Flavor("v100", 3, 2.0)], [0.0, 1.0]), jobs, Setting(made.costs)).run()
    found = twin.agreement(real, simulated.jobs)
    assert found.evictions == (1, 0)
    assert found.completion_mean > 0
    with pytest.raises(ValueError, match="the same jobs"):
        twin.agreement(real[:1], simulated.jobs[1:2])


ONE = replay.Plan(CLUSTER, [replace(JOB, id=0)], replace(HELD, fails=0.0), compress=1000.0)


def seen_by(player: replay.Player, kube: FakeKube, **states: str) -> None:
    """Kueue writes these conditions, and the player sees them."""
    player.look(kube.set_status(WORKLOAD, replay.NAMESPACE, "job-0", status(8, **states)["status"]))


class SlowKube(FakeKube):
    """Does something else before it answers the next change."""

    before_patch: Callable[[], object] = staticmethod(lambda: None)

    def patch(self, *arguments: Any, **more: Any) -> Object:
        self.before_patch()
        return super().patch(*arguments, **more)


def test_a_job_whose_end_was_being_written_when_its_eviction_was_seen_is_done() -> None:
    kube = SlowKube(twin.workload(ONE.jobs[0], replay.NAMESPACE, classes=True))
    player = replay.Player(kube, ONE, print)
    seen_by(player, kube, Admitted="True")
    evicted = {"metadata": {"name": "job-0"}, **status(8, Admitted="True", Evicted="True")}
    kube.before_patch = lambda: player.look(evicted)
    player.carry_out(0, "end", 1)
    kube.before_patch = lambda: None
    player.carry_out(0, "leave", 2)
    assert player.books[0].state is State.DONE and player.over.is_set()
    assert is_true(kube.get(WORKLOAD, replay.NAMESPACE, "job-0"), "Finished")


def test_an_answer_that_will_not_change_ends_the_replay_and_another_is_said_once() -> None:
    kube, told = FakeKube(), list[str]()
    player = replay.Player(kube, ONE, told.append)
    for error in (Unreachable("nobody answers"), Unreachable("nobody answers"), Invalid("no such field", 422)):
        kube.fail_next("create", WORKLOAD, error)
    with player:
        assert player.over.wait(120)
    assert player.trouble == "Invalid: no such field"
    assert len([line for line in told if "nobody answers" in line]) == 1


def test_a_replay_whose_time_is_up_writes_its_books(tmp_path: Path) -> None:
    made = replay.plan(8, 0.5, 1.0, 1, 3600.0, plain=False)
    played = replay.replay(FakeKube(), lambda objects: None, made, 0.2, print)
    found = replay.write(tmp_path, played, replay.simulated(made), made)
    written = json.loads((tmp_path / "replay.json").read_text())
    assert f"{len(made.jobs)} jobs are not done in 0.2 s" == found["trouble"] == written["trouble"]
    assert written["agreement"] is None and written["asked"]["seed"] == 1 and written["costs"]["evict_s"] > 0
    assert [row["kueue_s"] for row in written["jobs"]] == [None] * len(made.jobs)


def test_a_plan_without_an_end_starts_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def endless(*_: object) -> None:
        raise EndlessError("3 jobs are not done")

    monkeypatch.setattr(Simulation, "run", endless)
    monkeypatch.setattr(alone, "kueue_alone", lambda say: pytest.fail("a cluster was started"))
    assert cli.main(["replay", "--devices", "8", "--hours", "1"]) == 1
    assert "3 jobs are not done" in capsys.readouterr().err


def test_a_simulator_agrees_with_itself() -> None:
    made = replay.plan(64, 4, 1.0, 1, 60, plain=False)
    runs = [Simulation(made.cluster, made.jobs, Setting(made.costs, classes=True)).run().jobs for _ in range(2)]
    found = twin.agreement(*runs)
    assert (found.completion_mean, found.makespan, found.job_median) == (0, 0, 0)
    assert found.evictions[0] > 0, "the plan has evictions, or it would compare little"


@pytest.mark.parametrize("wrong", [["--devices", "12"], ["--compress", "0"]])
def test_a_plan_that_makes_no_workload(wrong: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["replay", *wrong]) == 2
    assert "give a multiple of 8" in capsys.readouterr().err
