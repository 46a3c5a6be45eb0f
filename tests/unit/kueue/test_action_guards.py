"""What keeps an action from a state that is over: versions when it is written, fresh reads before it is decided."""

from __future__ import annotations

from typing import Any

import controller_scene as scene
import pytest
from controller_scene import CHECK, NS
from job_builder import a_job

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import RequestStatus
from kueue_integration.controller import actions, apply, fence, look
from kueue_integration.controller.actions import BOTH, Action, Decision, Guard
from kueue_integration.controller.cache import World
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.overdue import Overdue
from kueue_integration.errors import Conflict
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, WORKLOAD, Object

NOTE = {"x": "y"}
STATUS = RequestStatus("r", "pause", "running", "", 0.0, 1)
JOB_WRITERS = (
    actions.RecordHistory(NOTE), actions.Repair(NOTE), actions.StartCheckpoint(NOTE), actions.ReleaseHold(NOTE),
    actions.AnswerRequest(NOTE, status=STATUS), actions.AskCheckpoint(NOTE), actions.BeginFrom(NOTE),
    actions.KeepRecords(), actions.NoteLeave(NOTE),
    actions.Reshape(body={"spec": {"parallelism": 1}}), actions.GiveUp(annotations=NOTE), actions.AnswerReady(NOTE),
    actions.RequestReadmission(NOTE), actions.PatchWorkload(NOTE),
)  # fmt: skip
WORKLOAD_WRITERS = (
    actions.AnswerReady(message="m"), actions.Wait(message="m"), actions.Withdraw(message="m"), fence.UNMANAGED,
    fence.FOREIGN,
    actions.RequestReadmission(message="m"), actions.Revive(status={"x": 1}),
    actions.PatchWorkload(body={"spec": {"active": False}}, safe="saved"),
)  # fmt: skip


def of_class(found: Action) -> str:
    return type(found).__name__


def test_every_action_that_exists_is_looked_at_here() -> None:
    known = {type(found) for found in (*JOB_WRITERS, *WORKLOAD_WRITERS)}
    assert known == set(Action.__subclasses__())


@pytest.mark.parametrize("action", JOB_WRITERS, ids=of_class)
def test_a_job_that_has_changed_since_is_not_written(action: Action) -> None:
    assert Guard.JOB_VERSION in action.guard
    one = a_job().running()
    kube = FakeKube(*one.objects)
    seen = kube.get_job(NS, "train"), kube.get(WORKLOAD, NS, "job-train-1")
    kube.patch(JOB, NS, "train", {"metadata": {"annotations": {"somebody": "else"}}})
    before = kube.objects()
    with pytest.raises(Conflict):
        apply.perform(kube, action, *seen, CHECK, Metrics(), scene.T0)
    assert kube.objects() == before


@pytest.mark.parametrize("action", WORKLOAD_WRITERS, ids=of_class)
def test_a_workload_that_has_changed_since_is_not_written(action: Action) -> None:
    assert Guard.WORKLOAD_VERSION in action.guard
    kube = FakeKube(*a_job().running().objects)
    seen = kube.get_job(NS, "train"), kube.get(WORKLOAD, NS, "job-train-1")
    kube.patch(WORKLOAD, NS, "job-train-1", {"metadata": {"annotations": {"somebody": "else"}}})
    before = kube.objects()
    with pytest.raises(Conflict):
        apply.perform(kube, action, *seen, CHECK, Metrics(), scene.T0)
    assert kube.objects() == before


def test_who_looks_at_an_old_copy_makes_kueue_ask_once() -> None:
    """The Job was let go already, and the informers are behind: each further look would have changed the Workload."""
    kube = FakeKube(*a_job().running().preempted().objects)
    seen = kube.get_job(NS, "train"), kube.get(WORKLOAD, NS, "job-train-1")
    nudge = actions.ReleaseHold(NOTE, nudge=True)
    written = apply.perform(kube, nudge, *seen, CHECK, Metrics(), scene.T0)
    assert [before["kind"] for before, _ in written] == ["Workload", "Job"]
    after = kube.get(WORKLOAD, NS, "job-train-1")
    for _ in range(3):
        with pytest.raises(Conflict):
            apply.perform(kube, nudge, *seen, CHECK, Metrics(), scene.T0 + 1)
    assert kube.get(WORKLOAD, NS, "job-train-1") == after


def test_a_job_is_let_go_also_where_its_workload_has_changed_since() -> None:
    kube = FakeKube(*a_job().running().preempted().objects)
    seen = kube.get_job(NS, "train"), kube.get(WORKLOAD, NS, "job-train-1")
    kube.patch(WORKLOAD, NS, "job-train-1", {"metadata": {"annotations": {"somebody": "else"}}})
    written = apply.perform(kube, actions.ReleaseHold(NOTE, nudge=True), *seen, CHECK, Metrics(), scene.T0)
    assert [before["kind"] for before, _ in written] == ["Job"]


def test_an_action_that_names_no_version_writes_nothing_of_that_object() -> None:
    for action in (*JOB_WRITERS, *WORKLOAD_WRITERS):
        kube = FakeKube(*a_job().running().objects)
        job, workload = kube.get_job(NS, "train"), kube.get(WORKLOAD, NS, "job-train-1")
        written = apply.perform(kube, action, job, workload, CHECK, Metrics(), scene.T0)
        kinds = {before["kind"] for before, _ in written}
        assert "Job" not in kinds or Guard.JOB_VERSION in action.guard
        assert "Workload" not in kinds or Guard.WORKLOAD_VERSION in action.guard


# --- what the decisions declare -------------------------------------------------------------------------------------
FIRST = a_job().with_quota()


def generation(one: dict[str, Any], number: int) -> dict[str, Any]:
    one["metadata"]["generation"] = number
    return one


@pytest.mark.parametrize(
    ("action", "reads"),
    [
        (a_job().running().preempted().look(now=scene.T0 + 31).action, Guard(0)),
        (a_job().running().preempted().look(now=scene.T0 + 5000).action, Guard.FRESH_READS),  # nobody wrote a deadline
        (
            a_job().running().preempted().with_note(job_names.ANN_HOLD_DEADLINE, scene.at(60)).look().action,
            Guard(0),  # a thousand budgets may end at once, and the policy lets the suspend through by then anyway
        ),
        (a_job().running().losing_a_pod().look().action, Guard.FRESH_READS),
        (FIRST.look().action, Guard.FRESH_PODS | Guard.FRESH_WORKLOAD),
        (scene.decide(generation(FIRST.job, 1), FIRST.workload, [], scene.T0).action, Guard(0)),
        (a_job().of_others().with_quota().look().action, Guard(0)),
    ],
    ids=["checkpoint", "overdue", "deadline", "broken", "answer", "first answer", "not ours"],
)
def test_what_has_to_be_fresh(action: Action, reads: Guard) -> None:
    assert action.guard.reads == reads


# --- the loop -------------------------------------------------------------------------------------------------------
class Loop:
    """`look.Looks` on copies of a running job, with decisions that are given; tells what was read before each write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *decided: Action | None) -> None:
        self.kube = FakeKube(*a_job().running().objects)
        self.world = World(self.kube)
        self.world.start()
        assert self.world.wait_synced(10)
        settings, metrics = Settings(), Metrics()
        overdue = Overdue(list, lambda job: None, settings, lambda: scene.T0)
        self.looks = look.Looks(
            self.kube, settings, self.world, overdue, lambda flavor: None, metrics, lambda: scene.T0
        )
        self.left = list(decided)
        self.written: list[tuple[Action, list[str]]] = []
        self.start = len(self.kube.requests)
        monkeypatch.setattr(look, "decide", lambda seen, settings, now: Decision(self.left.pop(0)))
        monkeypatch.setattr(self.looks, "perform", self._perform)

    def _perform(self, action: Action, job: Object, workload: Object | None) -> None:
        self.written.append((action, self.reads()))

    def reads(self) -> list[str]:
        made = self.kube.requests[self.start :]
        return [f"{verb} {kind}" for verb, kind, _ in made if verb != "watch"]

    def run(self) -> Loop:
        try:
            self.looks.job(NS, "train", again=lambda seconds: None)
        finally:
            self.world.stop()
        return self


def guarded(guard: Guard) -> Action:
    return Action(guard=guard)


AT_ONCE, PART, ALL = guarded(BOTH), guarded(BOTH | Guard.FRESH_PODS | Guard.FRESH_WORKLOAD), guarded(
    BOTH | Guard.FRESH_READS
)  # fmt: skip
PODS, ITS_WORKLOAD, THE_JOB = "list Pod", "get Workload", "get Job"


@pytest.mark.parametrize(
    ("decided", "written", "reads"),
    [
        ([None], None, []),
        ([AT_ONCE], AT_ONCE, []),
        ([PART, PART], PART, [PODS, ITS_WORKLOAD]),
        ([ALL, ALL], ALL, [PODS, ITS_WORKLOAD, THE_JOB]),  # pods first: a failed pod is counted before the Job tells
        ([ALL, AT_ONCE], AT_ONCE, [PODS, ITS_WORKLOAD, THE_JOB]),
        ([ALL, None], None, [PODS, ITS_WORKLOAD, THE_JOB]),
        # What a part of the reads has changed is decided on all of them.
        ([PART, ALL, AT_ONCE], AT_ONCE, [PODS, ITS_WORKLOAD, THE_JOB]),
        ([PART, AT_ONCE, AT_ONCE], AT_ONCE, [PODS, ITS_WORKLOAD, THE_JOB]),
        ([PART, None, None], None, [PODS, ITS_WORKLOAD, THE_JOB]),
    ],
)
def test_the_loop_reads_what_the_guard_asks_for_and_decides_again(
    monkeypatch: pytest.MonkeyPatch, decided: list[Action | None], written: Action | None, reads: list[str]
) -> None:
    loop = Loop(monkeypatch, *decided).run()
    assert loop.left == [] and loop.reads() == reads
    assert loop.written == ([] if written is None else [(written, reads)])


def test_a_job_that_is_gone_by_then_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, ALL, ALL)
    monkeypatch.setattr(loop.world, "job", lambda namespace, name: a_job().running().job)
    loop.kube.delete(JOB, NS, "train")
    loop.start = len(loop.kube.requests)
    loop.run()
    assert loop.written == [] and loop.left == [ALL]
