"""Rounds of the planner against an API server's objects: what is written, what a dry run tells, and what goes wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import NS, T0
from test_verbs_ask import flavor, node, queue
from waits import until

from kueue_integration.contract import attempt_records, job_names, priority, saveable
from kueue_integration.contract.record_types import JobRequest, Placement, RequestStatus
from kueue_integration.controller.cache import World
from kueue_integration.controller.forever import Skips
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.planning import rounds
from kueue_integration.controller.planning.look import Eyes
from kueue_integration.controller.planning.rounds import Rounds
from kueue_integration.errors import Conflict, Forbidden
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import EVENT, JOB, NODE, POD, WORKLOAD, Kind, version_of
from kueue_integration.planner.proposals import Proposal
from kueue_integration.planner.settings import Cordon, Introspection, MoveLimits, PlannerSettings
from kueue_integration.requests import placement, user_requests
from singularity_proxy.protocol.messages import to_json

KUEUE = "kueue.x-k8s.io/v1beta2"
KEY = (NS, "train")


def _versions(objects: Any) -> dict[str, str]:
    return {str(obj["metadata"]["name"]): version_of(obj) for obj in objects}


class Stage:
    """A job of two pods on node n1, and rounds of the planner over it. `now` is the time of both clocks."""

    def __init__(self, planner: PlannerSettings) -> None:
        record = scene.record(running_at=T0 + 15, first_step=0, first_step_at=T0 + 20)
        notes = {job_names.ANN_HOLD: "armed", job_names.ANN_WORLD_SIZE: "4"}
        notes[job_names.COMPLETIONS_EQUAL_PARALLELISM] = "true"
        job = scene.job(suspend=False, annotations={**notes, **scene.history(record)})
        job["spec"]["template"] = {"spec": {"containers": []}}
        pods = [scene.pod(n) for n in range(2)]
        for pod in pods:
            pod["spec"]["nodeName"] = "n1"
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "q", "namespace": NS},
                 "spec": {"clusterQueue": "training"}}  # fmt: skip
        nodes = [node(name, "ondemand", cordoned=name == "n1") for name in ("n1", "n2")]
        flavors = flavor("ondemand", flavor="ondemand"), flavor("spot", flavor="spot")
        self.kube = FakeKube(job, *pods, local, *nodes, *flavors, queue("ondemand", "spot"))
        self.kube.put(scene.workload(state="Ready", admitted=True))
        self.now = T0 + 500
        self.metrics, self.settings = Metrics(), Settings(regrow="none", planner=planner)
        places = planner.defragmentation.mode != "none"
        self.world = World(self.kube, all_pods=places)
        self.world.start()
        assert self.world.wait_synced(10)
        self.rounds = self.again()

    def again(self) -> Rounds:
        """Rounds of a new process."""
        skips = Skips(self.metrics)
        return Rounds(
            self.kube, self.world, self.settings, skips, self.metrics, self._never, lambda: self.now, lambda: self.now
        )

    @staticmethod
    def _never(*_: Any) -> None:
        raise AssertionError("nothing is to regrow")

    def round(self, seconds: float = 31) -> list[float]:
        """One, when our copies have caught up; the seconds until another look."""
        self._caught_up()
        self.now += seconds
        wake: list[float] = []
        self.rounds.plan(wake.append)
        return wake

    def _caught_up(self) -> None:
        copies = {JOB: (self.world.jobs, "train"), WORKLOAD: (self.world.workloads, "job-train-1")}
        for kind, (informer, name) in copies.items():
            wanted = version_of(self.kube.get(kind, NS, name))
            until(lambda: version_of(informer.get(NS, name) or {"metadata": {}}) == wanted)  # noqa: B023
        until(lambda: _versions(self.world.pods.all()) == self._stored(POD))
        if self.world.nodes.followed:
            until(lambda: self._nodes() == self._stored(NODE))

    def _stored(self, kind: Kind) -> dict[str, str]:
        """Versions as the API server has them, without a request that a test would count."""
        return _versions(obj for obj in self.kube.objects() if obj["kind"] == kind.name)

    def _nodes(self) -> dict[str, str]:
        """Versions; none while they cannot be seen."""
        with contextlib.suppress(Forbidden):
            return _versions(self.world.nodes.all())
        return {}

    def job(self) -> Any:
        return self.kube.get(JOB, *KEY)

    def asked(self, slot: user_requests.Slot = user_requests.CHANGE) -> Any:
        return user_requests.asked(self.job(), slot)

    def answer(self, slot: user_requests.Slot, state: str = "done", **notes: str) -> None:
        """The controller's final word on the request in `slot`."""
        request = self.asked(slot)
        said = RequestStatus(request.id, request.op, state, "so", self.now, 1, finished_at=self.now)  # type: ignore[arg-type]
        self.kube.patch(JOB, *KEY, {"metadata": {"annotations": {**user_requests.stored(said), **notes}}})

    def events(self) -> list[tuple[str, str]]:
        return [(e["reason"], e["message"]) for e in self.kube.objects() if e["kind"] == EVENT.name]

    def count(self, label: str) -> float:
        return self.metrics.value("singularity_planner_actions_total", label)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def start(mode: str = "act", **limits: Any) -> Stage:
        planner = PlannerSettings(cordon=Cordon(mode), limits=replace(MoveLimits(), **limits))  # type: ignore[arg-type]
        made.append(Stage(planner))
        return made[-1]

    yield start
    for one in made:
        one.world.stop()


def test_a_job_is_saved_and_then_leaves_a_cordoned_node(stage: Callable[..., Stage]) -> None:
    play = stage()
    assert min(play.round()) <= 30
    save = play.asked(user_requests.CHECKPOINT)
    assert (save.op, save.by) == ("checkpoint", "policy/cordon: node n1 is cordoned")
    assert play.asked() is None
    play.round()  # the save is under way: nothing else is asked for
    assert play.asked() is None
    play.answer(user_requests.CHECKPOINT)
    play.round()
    request = play.asked()
    assert (request.op, request.node, request.placement.avoid_nodes) == ("migrate", "n1", ["n1"])
    assert request.by == "policy/cordon: node n1 is cordoned"
    assert [reason for reason, _ in play.events()] == ["PlannerAction"] * 2
    assert play.count("cordon migrate done") == play.count("cordon checkpoint done") == 1
    # It has left: it may go everywhere again at its next start.
    has_left(play)
    play.round()
    assert play.asked().placement == placement.ANYWHERE


def has_left(play: Stage) -> None:
    """The request to leave the node was carried out."""
    play.answer(user_requests.CHANGE, **{job_names.ANN_PLACEMENT: to_json(play.asked().placement)})
    for pod in play.kube.objects():
        if pod["kind"] == "Pod":
            play.kube.put({**pod, "spec": {"nodeName": "n2"}})


@pytest.mark.parametrize("mode", ["act", "none"])
@pytest.mark.parametrize("by", ["policy/cordon: node n1 is cordoned", "ann"])
@pytest.mark.parametrize("avoids", [["n1"], ["n1", "n3"]])
def test_after_a_restart_too_it_may_go_everywhere_again(
    stage: Callable[..., Stage], by: str, avoids: list[str], mode: str
) -> None:
    """Also when the policy is off. Unless its owner has asked for it, or had ruled out another node before: then it is
    not known what was so."""
    play = stage(mode)
    asked = JobRequest("r", "migrate", T0, by, node="n1", placement=Placement([], avoids, []))
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": user_requests.written(asked)}})
    play.rounds = play.again()
    play.round()
    assert play.asked() == asked  # not yet: it is under way
    has_left(play)
    play.round()
    back = by != "ann" and avoids == ["n1"]
    assert play.asked().placement == (placement.ANYWHERE if back else asked.placement)


def test_a_dry_run_tells_once_and_writes_nothing_on_the_job(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kueue_integration.controller.planning.report")
    play = stage("propose")
    before = play.job()
    for _ in range(3):
        play.round()
    assert play.job() == before
    (line,) = [record for record in caplog.records if record.getMessage().startswith("planner: ")]
    assert line.getMessage() == f"planner: proposed: {play.events()[0][1]}"
    assert (line.job, line.policy) == ("team/train", "cordon")  # type: ignore[attr-defined]  # fields of the JSON log
    ((reason, message),) = play.events()
    assert reason == "PlannerProposal"
    assert message.startswith("cordon: checkpoint of team/train: node n1 is cordoned (gain ")
    assert play.count("cordon checkpoint proposed") == 1
    play.round(700)
    assert len(play.events()) == 2  # it is told again after a while


def test_regrowth_has_a_dry_run(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    def grows(seen: Any, enabled: bool, min_run_s: float) -> list[Proposal]:
        return [Proposal("readmit", KEY, "quota is free again", 1e6, "regrow")] if enabled else []

    play = stage("none")
    monkeypatch.setattr(rounds.regrow, "propose", grows)
    play.settings = replace(play.settings, regrow="propose")
    play.rounds = play.again()
    before = play.job()
    play.round()
    play.round()
    assert play.job() == before, "`_never` would have raised"
    ((reason, message),) = play.events()
    assert reason == "PlannerProposal" and message.startswith("regrow: readmit of team/train: quota is free again")
    assert play.count("regrow readmit proposed") == 1


def test_regrowth_tells_what_a_limit_holds_back_and_not_that_it_waits(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = stage("none", tenant_moves_per_hour=1)
    begins_at = play.now + 100
    grow = Proposal("readmit", KEY, "quota is free again", 1e6, "regrow", not_before=begins_at)
    monkeypatch.setattr(rounds.regrow, "propose", lambda *_, **__: [grow])
    monkeypatch.setattr(play, "_never", lambda *_: None)
    play.settings = replace(play.settings, regrow="act")
    play.rounds = play.again()
    play.round()
    assert [play.count(f"regrow readmit {how}") for how in ("done", "refused")] == [0, 0], "it waits"
    play.round(100)
    assert [play.count(f"regrow readmit {how}") for how in ("done", "refused")] == [1, 0]
    play.round(100)
    play.round(100)
    assert [play.count(f"regrow readmit {how}") for how in ("done", "refused")] == [1, 1], "once, until it changes"


def test_without_a_policy_nothing_is_asked_and_no_node_is_listed(stage: Callable[..., Stage]) -> None:
    play = stage("none")
    play.kube.requests.clear()
    assert play.round() == []
    assert not [r for r in play.kube.requests if r[0] in ("patch", "create") or r[1] == NODE.name]


def test_a_job_that_would_lose_steps_stays_and_says_why(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.round()
    off = {job_names.ANN_HOLD: "off"}
    play.answer(user_requests.CHECKPOINT, **off)
    play.round()
    assert [e for e in play.events() if "migrate" in e[1]] == []
    assert play.asked() is None
    assert play.count("cordon migrate refused") == 1
    assert play.count("cordon migrate done") == 0


def test_somebody_elses_request_is_not_replaced(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.round()
    theirs = {"metadata": {"annotations": user_requests.written(user_requests_of("ann"))}}
    play.answer(user_requests.CHECKPOINT)
    play.kube.patch(JOB, *KEY, theirs)
    play.round()
    assert play.asked().by == "ann"


def user_requests_of(who: str) -> Any:
    return JobRequest("r1", "resize", T0, who, workers=4)


def test_a_conflict_voids_the_plan_and_is_not_counted_as_a_move(stage: Callable[..., Stage]) -> None:
    play = stage(min_run_s=0.0)
    play.round()
    play.answer(user_requests.CHECKPOINT)
    play._caught_up()
    for _ in range(5):
        play.kube.fail_next("patch", JOB, Conflict("changed", 409, "Conflict"))
    with pytest.raises(Conflict):
        play.round()
    assert play.asked() is None
    play.round()
    assert play.asked().op == "migrate"


def test_limits_hold_over_a_restart_of_the_planner(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that optimises, unlike one that leaves nodes which go, waits for the budget of the hour."""

    def mover(seen: Any) -> Any:
        return [Proposal("migrate", KEY, "cheaper", 1e9, "mover", nodes=("n1",))]

    usual = rounds.chosen
    monkeypatch.setattr(rounds, "chosen", lambda planner, mode: {**usual(planner, mode), "mover": mover})
    play = stage(moves_per_hour=1)
    past = scene.record(1, ended_by="Migrated", evicted_at=T0 + 100, released_at=T0 + 110, last_step=9)
    now = scene.record(2, admitted_at=T0 + 120, first_step=10, first_step_at=T0 + 130)
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": scene.history(past, now)}})
    for pod in play.kube.objects():
        if pod["kind"] == "Pod":
            pod["metadata"]["annotations"][job_names.ANN_ATTEMPT] = "2"
            play.kube.put(pod)
    until(lambda: all(p["metadata"]["annotations"][job_names.ANN_ATTEMPT] == "2" for p in play.world.pods.all()))
    assert attempt_records.history(play.job())[-1].attempt == 2
    play.rounds = play.again()
    play.round()
    assert play.asked() is None and play.count("mover migrate refused") == 1


def test_a_policy_that_raises_is_named_and_the_others_go_on(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(seen: Any) -> Any:
        raise ZeroDivisionError

    def raving(seen: Any) -> Any:
        return [Proposal("resize", KEY, "why not", 1e9, "raving", workers=3)]

    found = {"broken": broken, "raving": raving}
    usual = rounds.chosen
    monkeypatch.setattr(rounds, "chosen", lambda planner, mode: {**usual(planner, mode), **found})
    play = stage()
    play.round()
    assert play.asked(user_requests.CHECKPOINT).op == "checkpoint"  # of cordon
    assert play.metrics.value("singularity_planner_policy_errors_total", "broken") == 2  # acting, and in the dry run
    assert play.metrics.value("singularity_planner_policy_errors_total", "raving") == 2
    assert play.asked() is None


def test_an_api_server_that_does_not_show_nodes_stops_nothing_else(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.kube.fail_next("list", NODE, Forbidden("nodes", 403, "Forbidden"))
    play.round()
    assert play.asked(user_requests.CHECKPOINT) is None
    assert play.metrics.value("singularity_planner_policy_errors_total", "cordon") == 1
    play.round()
    assert play.asked(user_requests.CHECKPOINT) is not None


def only(monkeypatch: pytest.MonkeyPatch, *wanted: Proposal) -> None:
    """A policy `stub` that proposes just that."""
    found = {"stub": lambda seen: wanted}
    monkeypatch.setattr(rounds, "chosen", lambda planner, mode: found if mode == "act" else {})


@pytest.mark.parametrize(
    ("action", "first", "second"),
    [
        ("resize", {"workers": 1}, {"workers": 4}),
        ("migrate", {"flavor": "spot"}, {"nodes": ("n1",)}),
        ("priority", {"priority": 7}, {"priority": 8}),
    ],
    ids=["resize", "migrate", "priority"],
)
def test_a_dry_run_tells_of_another_proposal_at_once(
    stage: Callable[..., Stage],
    monkeypatch: pytest.MonkeyPatch,
    action: Any,
    first: dict[str, Any],
    second: dict[str, Any],
) -> None:
    wanted = dict(first)
    found = {"stub": lambda seen: [Proposal(action, KEY, f"as of {seen.now:.0f}", 1e9, "stub", **wanted)]}
    monkeypatch.setattr(rounds, "chosen", lambda planner, mode: found if mode == "propose" else {})
    # It looks at nodes: proposals to leave one make no sense otherwise.
    monkeypatch.setattr(rounds, "LOOK_AT_NODES", {"stub"})
    play = stage("none")
    play.round()
    play.round()
    assert len(play.events()) == 1  # its reason has another number, and that is all
    wanted = dict(second)
    play.round()
    assert len({message for _, message in play.events()}) == play.count(f"stub {action} proposed") == 2


@pytest.mark.parametrize(
    ("action", "more"), [("pause", {}), ("resize", {"workers": 1}), ("checkpoint", {})], ids=["pause", "resize", "save"]
)
def test_what_is_allowed_becomes_a_signed_request(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, action: Any, more: dict[str, Any]
) -> None:
    only(monkeypatch, Proposal(action, KEY, "a good reason", 1e9, "stub", **more))
    play = stage("none")
    play.round()
    request = play.asked(user_requests.slot_of(action))
    assert (request.op, request.by) == (action, "policy/stub: a good reason")
    assert request.workers == more.get("workers")
    play.round()
    assert len(play.events()) == 1  # it is under way


def saved(play: Stage) -> dict[str, str]:
    """The annotation of a job whose last save has worked."""
    return {name: str(text) for name, text in saveable.saved(play.job(), 1, play.now).items()}


def test_who_may_be_preempted_by_a_policy_is_saved_once_before(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Proposal("priority", KEY, "it has had much", 1e9, "stub", priority=7))
    play = stage("none")
    play.round()
    request = play.asked(user_requests.CHECKPOINT)
    assert (request.op, request.by) == ("checkpoint", "policy/stub: it has had much")
    play.round()
    assert play.kube.get(WORKLOAD, NS, "job-train-1")["spec"]["priority"] == 10, "it is under way"
    why = saveable.failed(play.job(), 1, play.now, "program", "rank 0 holds a lock")
    play.answer(user_requests.CHECKPOINT, "failed", **{name: str(text) for name, text in why.items()})
    play.round(100)
    assert play.kube.get(WORKLOAD, NS, "job-train-1")["spec"]["priority"] == 10
    play.answer(user_requests.CHECKPOINT, "done", **saved(play))
    play.round(100)
    assert play.kube.get(WORKLOAD, NS, "job-train-1")["spec"]["priority"] == 7


def test_a_priority_is_set_on_the_workload_and_given_back(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Proposal("priority", KEY, "it has had much", 1e9, "stub", priority=7))
    play = stage("none")
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": saved(play)}})
    play.round()
    workload = play.kube.get(WORKLOAD, NS, "job-train-1")
    assert (workload["spec"]["priority"], priority.read(workload)) == (7, priority.Mark("stub", 10, 7, 1, play.now))
    assert play.asked() is None
    play._caught_up()
    seen = Eyes(play.world, Skips(play.metrics)).look(play.now).snapshot.jobs[KEY]
    assert (seen.lowered, seen.lowered_at) == (1, play.now)
    # The policy is switched off: the next planner gives back what it finds.
    monkeypatch.undo()
    play.rounds = play.again()
    play.round()
    workload = play.kube.get(WORKLOAD, NS, "job-train-1")
    assert (workload["spec"]["priority"], priority.read(workload)) == (10, None)


@pytest.mark.parametrize(("ago", "counts"), [(600, True), (4000, False)])
def test_the_look_has_the_moves_of_jobs_that_ended_within_the_hour(
    stage: Callable[..., Stage], ago: float, counts: bool
) -> None:
    play = stage("none")
    ended = scene.condition("Complete", True, int(500 - ago))
    play.kube.set_status(JOB, NS, "train", {"conditions": [ended]})
    play._caught_up()
    seen = Eyes(play.world, Skips(play.metrics)).look(T0 + 500).snapshot
    assert seen.jobs == {}
    assert [(job.namespace, len(job.attempts)) for job in seen.ended] == ([(NS, 1)] if counts else [])


def park(play: Stage, request: JobRequest, mark: str) -> None:
    """The job is paused, with `mark` on its Workload, and `request` was the last one about it."""
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": user_requests.written(request)}, "spec": {"suspend": True}})
    play.answer(user_requests.CHANGE)
    parked = {"metadata": {"annotations": {job_names.ANN_PAUSED: mark}}, "spec": {"active": False}}
    play.kube.patch(WORKLOAD, NS, "job-train-1", parked)
    play.kube.set_status(WORKLOAD, NS, "job-train-1", {"conditions": [], "admission": None})


PARKED = JobRequest("r1", "pause", T0, "policy/timeSharing: its turn is over")


@pytest.mark.parametrize(
    ("request_", "mark"),
    [
        (PARKED, "r1"),  # by a controller that did not write the policy
        (PARKED, "r1 timeSharing"),
        (JobRequest("r2", "resize", T0, "ann", workers=2), "r1 timeSharing"),
    ],
    ids=["before", "parked", "resized since"],
)
def test_a_job_that_was_parked_is_queued_again_when_the_policy_is_off(
    stage: Callable[..., Stage], request_: JobRequest, mark: str
) -> None:
    play = stage("none")
    park(play, request_, mark)
    play.round()
    assert (play.asked().op, play.asked().by) == ("resume", "policy/tidy: policy timeSharing is off")


@pytest.mark.parametrize(
    ("request_", "mark"),
    [
        (JobRequest("r2", "pause", T0, "ann"), "r2"),
        (JobRequest("r2", "pause", T0, "ann"), "r1 timeSharing"),  # its owner has asked for it since
        (JobRequest("r3", "resize", T0, "ann", workers=2), "r2"),
    ],
)
def test_a_job_that_its_owner_has_paused_stays_paused(
    stage: Callable[..., Stage], request_: JobRequest, mark: str
) -> None:
    play = stage("none")
    park(play, request_, mark)
    play.round()
    assert play.asked() == request_


def test_objects_that_cannot_be_read_are_named_and_hide_no_other(stage: Callable[..., Stage]) -> None:
    play = stage()
    bad = scene.workload("job-bad", owner=None, uid="uid-bad", cpu="lots", state=None)
    play.kube.put(bad)
    broken = queue("ondemand")
    broken["metadata"]["name"] = "broken"
    broken["spec"]["resourceGroups"] = [{"flavors": [{"name": "x", "resources": [{"name": "cpu"}]}]}]
    play.kube.put(broken)
    job = scene.job("other", suspend=False, uid="uid-other", annotations={job_names.ANN_HISTORY: "{"})
    play.kube.put(job)
    until(lambda: play.world.cluster_queues.get("", "broken") is not None)
    until(lambda: play.world.workloads.get(NS, "job-bad") is not None and play.world.job(NS, "other") is not None)
    play.round()
    assert play.asked(user_requests.CHECKPOINT) is not None
    assert play.metrics.value("singularity_unreadable_total", "plan") == 2


def test_an_event_that_cannot_be_written_stops_nothing(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.kube.fail_next("create", EVENT, Conflict("no", 409, "Conflict"))
    play.round()
    assert play.asked(user_requests.CHECKPOINT) is not None and play.events() == []


def test_a_job_that_is_sent_to_a_flavor_stays_there_until_the_policy_lets_it_go(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Proposal("migrate", KEY, "cheaper", 1e9, "stub", flavor="spot"))
    play = stage("none")
    play.round()
    request = play.asked()
    assert (request.op, request.flavor, request.placement.flavors) == ("migrate", "spot", ["spot"])
    assert request.by == "policy/stub: cheaper"
    assert "stub: migrate to spot of team/train: cheaper" in play.events()[0][1]
    play.answer(user_requests.CHANGE, **{job_names.ANN_PLACEMENT: to_json(request.placement)})
    # It is off: the next planner lets the job go everywhere.
    monkeypatch.undo()
    play.rounds = play.again()
    play.round()
    assert (play.asked().placement, play.asked().by) == (placement.ANYWHERE, "policy/tidy: policy stub is off")


def test_what_a_user_has_said_of_flavors_is_not_taken_back(stage: Callable[..., Stage]) -> None:
    play = stage("none")
    theirs = JobRequest("r1", "migrate", T0, "ann", flavor="spot")
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": user_requests.written(theirs)}})
    play.answer(user_requests.CHANGE, **{job_names.ANN_PLACEMENT: to_json(Placement(["spot"]))})
    play.round()
    assert play.asked().by == "ann"


def test_a_flavor_without_a_price_is_named_once(stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture) -> None:
    play = stage("none")
    play.settings = replace(
        play.settings, planner=PlannerSettings(prices={"spot": 0.9}, introspection=Introspection("propose"))
    )
    play.rounds = play.again()
    play.round()
    play.round(700)
    said = "policy introspection leaves flavor ondemand alone: planner.prices has none for it"
    assert [r.getMessage() for r in caplog.records].count(said) == 1
