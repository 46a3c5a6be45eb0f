"""Budgets of disruption: a job that would leave its node has one, and no other job has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_planner_rounds import KEY, Stage

from kueue_integration.contract import job_names, saveable
from kueue_integration.contract.record_types import JobRequest
from kueue_integration.controller.planning import disruption_budgets as budgets
from kueue_integration.errors import Forbidden
from kueue_integration.kube.resources import DISRUPTION_BUDGET, JOB, Object
from kueue_integration.planner.settings import Cordon, PlannerSettings
from kueue_integration.requests import user_requests
from singularity_proxy.protocol.messages import to_json

ON, OFF = PlannerSettings(cordon=Cordon("act")), PlannerSettings(cordon=Cordon("none"))
WITHOUT = PlannerSettings(cordon=Cordon("act", disruption_budgets=False))


@pytest.fixture
def play() -> Iterator[Stage]:
    stage = Stage(ON)
    yield stage
    stage.world.stop()


def made(stage: Stage) -> list[Object]:
    return [obj for obj in stage.kube.objects() if obj["kind"] == DISRUPTION_BUDGET.name]


def annotate(stage: Stage, **notes: str | None) -> None:
    stage.kube.patch(JOB, *KEY, {"metadata": {"annotations": notes}})


def writes(stage: Stage) -> list[tuple[str, str]]:
    return [r[:2] for r in stage.kube.requests if r[1] == DISRUPTION_BUDGET.name and r[0] != "list"]


def theirs(labels: dict[str, str], name: str = "theirs") -> Object:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": KEY[0], "name": name},
            "spec": spec}  # fmt: skip


def test_a_job_that_trains_has_one_for_all_of_its_pods(play: Stage) -> None:
    play.round()
    (found,) = made(play)
    job = play.job()
    assert found["spec"] == {
        "minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}},
    }  # fmt: skip
    assert found["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    play.kube.requests.clear()
    for _ in range(3):
        play.round()
    assert writes(play) == [], "nothing has changed"


def test_it_follows_the_number_of_pods_over_a_restart_of_the_controller(play: Stage) -> None:
    play.round()
    (found,) = made(play)
    play.kube.patch(DISRUPTION_BUDGET, KEY[0], found["metadata"]["name"], {"spec": {"minAvailable": 4}})
    play.rounds = play.again()
    play.round()
    assert [each["spec"]["minAvailable"] for each in made(play)] == [2]


@pytest.mark.parametrize(
    "notes",
    [
        {job_names.ANN_HOLD: "off"},
        {job_names.ANN_SAVEABLE: to_json(saveable.Saveable(1, "no", 5.0, "trial", "", "a GPU without a driver"))},
    ],
)
def test_a_job_that_could_not_leave_has_none_any_more(play: Stage, notes: dict[str, str]) -> None:
    play.round()
    assert len(made(play)) == 1
    annotate(play, **notes)
    play.round()
    assert made(play) == []


def test_a_job_with_an_affinity_of_its_own_gets_none(play: Stage) -> None:
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    play.kube.patch(JOB, *KEY, {"spec": {"template": {"spec": {"affinity": own}}}})
    for _ in range(2):
        play.round()
    assert made(play) == []


@pytest.mark.parametrize(
    ("labels", "ours"),
    [({"batch.kubernetes.io/job-name": "train"}, 0), ({}, 0), ({"batch.kubernetes.io/job-name": "other"}, 1)],
)
def test_pods_that_another_budget_covers_get_no_second_one(play: Stage, labels: dict[str, str], ours: int) -> None:
    play.kube.put(theirs(labels))
    play.round()
    assert len(made(play)) - 1 == ours


def test_a_job_that_refuses_to_leave_blocks_no_drain(play: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    play.round()
    play.answer(user_requests.CHECKPOINT)
    other = JobRequest("r1", "resize", 1.0, "ann", workers=4)
    usual = play.rounds._carry_out.do

    def refused(proposal: Any, *args: Any) -> None:
        annotate(play, **user_requests.written(other))
        usual(proposal, *args)

    monkeypatch.setattr(play.rounds._carry_out, "do", refused)
    play.round()
    assert play.count("cordon migrate refused") == 1
    play.round()
    assert made(play) == []


@pytest.mark.parametrize("settings", [OFF, WITHOUT])
def test_what_an_earlier_setting_has_made_is_removed(play: Stage, settings: PlannerSettings) -> None:
    play.kube.put(theirs({"app": "web"}))
    play.round()
    assert len(made(play)) == 2
    play.settings = type(play.settings)(regrow="none", planner=settings)
    play.rounds = play.again()
    play.round()
    assert [each["metadata"]["name"] for each in made(play)] == ["theirs"]
    play.kube.requests.clear()
    play.round()
    assert not [r for r in play.kube.requests if r[1] == DISRUPTION_BUDGET.name]


def test_without_the_right_the_policy_goes_on_and_says_so(play: Stage) -> None:
    play.kube.fail_next("list", DISRUPTION_BUDGET, Forbidden("no", 403))
    play.round()
    assert made(play) == [] and play.asked(user_requests.CHECKPOINT) is not None
    assert play.metrics.value("singularity_planner_policy_errors_total", "cordon") == 1
    play.round()
    assert len(made(play)) == 1


def test_a_budget_without_a_selector_covers_nothing() -> None:
    assert not budgets.covers({"spec": {}}, {"a": "b"})
    assert budgets.covers({"spec": {"selector": {}}}, {"a": "b"})
