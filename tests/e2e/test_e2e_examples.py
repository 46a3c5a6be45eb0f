"""The example Dags, run as their readers would, and what OpenLineage and the assets say of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dag_run import Run

from kueue_integration.jobs.status import describe
from localcluster.demo.stage import DAGS, NAMESPACE, Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(2400)]

TIMEOUT_S = 600.0
Start = Callable[[str, dict[str, Any] | None], Run]


@pytest.fixture
def start(stage: Stage, say: Callable[[str], None]) -> Start:
    """Trigger a Dag with that configuration; None: switch it on and take the run that its schedule makes."""
    return lambda dag_id, conf: Run(stage, dag_id, say, conf, scheduled=conf is None)


def apply(stage: Stage, name: str) -> None:
    """`kubectl apply -f` of the queues that an example asks for."""
    program, path = str(stage.cluster.kubectl), DAGS / "queues" / name
    subprocess.run([program, f"--kubeconfig={stage.cluster.kubeconfig}", "apply", "-f", path], check=True, timeout=60)


def until_trained(stage: Stage, run: Run, steps: int = 5) -> str:
    """The run's job has done some steps; its name."""
    name = run.job()

    def trained() -> bool:
        status = describe(stage.kube, NAMESPACE, name)
        assert not status.final, f"{name} is {status.phase} too early: {status.message}"
        return status.step >= steps

    wait_for(trained, f"{steps} steps of {name}", TIMEOUT_S)
    return name


def lineage(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.api.xcom(run.dag_id, run.run_id, "train", "lineage")
    return found


def attempts_sent(events: Path, dag_id: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """OpenLineage events of the attempts of one Job, as they were sent."""
    sent = [json.loads(line) for line in events.read_text().splitlines()]
    mine = [event for event in sent if event["job"]["name"] == f"{dag_id}.train.attempt"]
    return [e for e in mine if e["run"]["facets"]["singularity_attempt"]["job"]["uid"] == job["uid"]]


def test_a_model_is_an_asset_and_starts_its_registration(stage: Stage, start: Start, openlineage_events: Path) -> None:
    wait_for(lambda: stage.airflow.api.dag_exists("digits_register"), "the second Dag", TIMEOUT_S)
    stage.airflow.api.unpause("digits_register")
    run = start("digits_train", {"steps": 60})
    assert run.until_run_ends() == "success", run.log()

    def registered() -> dict[str, Any] | None:
        runs = stage.airflow.api.call("GET", "dags/digits_register/dagRuns")["dag_runs"]
        states = [each["state"] for each in runs]
        assert "failed" not in states
        return next((each for each in runs if each["state"] == "success"), None)

    wait_for(registered, "digits_register, started by the asset", TIMEOUT_S)
    [card] = (stage.cluster.shared / "registry" / "digits").glob("*/card.json")
    made = json.loads(card.read_text())
    assert made["training"]["steps_lost"] == 0 and made["training"]["step"] == 60
    assert made["accuracy"] > 0.8
    assert (card.parent / "weights.npz").exists()

    sent = attempts_sent(openlineage_events, "digits_train", lineage(run))
    assert [event["eventType"] for event in sent] == ["START", "COMPLETE"]
    own = [json.loads(line) for line in openlineage_events.read_text().splitlines()]
    own = [event for event in own if event["job"]["name"] == "digits_train.train"]
    assert {event["run"]["runId"] for event in own} == {sent[0]["run"]["facets"]["parent"]["run"]["runId"]}

    def summed() -> bool:  # the provider sends it from a process of its own
        lines = [json.loads(line) for line in openlineage_events.read_text().splitlines()]
        last = [e for e in lines if e["job"]["name"] == "digits_train.train" and e["eventType"] == "COMPLETE"]
        if not last:
            return False
        assert last[-1]["run"]["facets"]["singularity_training"]["attempts"] == 1
        assert "digits-model" in [made["name"] for made in last[-1]["outputs"]]
        return True

    wait_for(summed, "the task's own COMPLETE", TIMEOUT_S)


def test_a_checkpoint_is_evaluated_and_registered_while_the_training_goes_on(stage: Stage, start: Start) -> None:
    run = start("digits_evaluate", {"steps": 4000, "evaluate_from": 200})
    until_trained(stage, run)

    def registered() -> bool:
        tasks = ("saved", "evaluate", "register")
        states = {name: run.api.task(run.dag_id, run.run_id, name)["state"] for name in tasks}
        assert not {"failed", "upstream_failed"} & set(states.values()), states
        return states["register"] == "success"

    wait_for(registered, "the checkpoint of the running job registered", TIMEOUT_S)
    assert run.task_state() in ("running", "deferred"), "the training goes on"
    card = json.loads(Path(run.api.xcom(run.dag_id, run.run_id, "register", "return_value")).read_text())
    assert 200 <= card["step"] < 4000 and card["accuracy"] > 0.8
    assert run.until_run_ends() == "success", run.log()
    assert lineage(run)["steps_lost"] == 0


def test_a_nightly_job_gives_way_to_the_owner_of_the_machines(
    stage: Stage, start: Start, openlineage_events: Path
) -> None:
    apply(stage, "nightly.yaml")
    wait_for(lambda: stage.airflow.api.dag_exists("on_checkpoint"), "the Dag of the checkpoints", TIMEOUT_S)
    stage.airflow.api.unpause("on_checkpoint")
    night = start("nightly_finetune", None)
    until_trained(stage, night)
    day = start("day_owner", None)
    assert day.until_run_ends() == "success"
    assert night.until_run_ends() == "success", night.log()
    told = lineage(night)
    first, second = told["attempts"][:2]
    assert (first["ended_by"], first["note"], told["steps_lost"]) == ("Preempted", None, 0)
    assert first["preemptor"]["job"].startswith("day-owner")
    assert second["first_step"] == first["last_step"] + 1
    assert night.api.task(night.dag_id, night.run_id, "train")["try_number"] == 1
    assert (stage.cluster.shared / "nightly" / "latest" / "weights.pt").exists()

    sent = attempts_sent(openlineage_events, "nightly_finetune", told)
    evicted = ["START", "ABORT"] * (len(told["attempts"]) - 1)
    assert [event["eventType"] for event in sent] == [*evicted, "START", "COMPLETE"]
    assert sent[1]["outputs"][0]["facets"]["version"]["datasetVersion"] == first["checkpoint"]
    assert sent[2]["inputs"][0]["facets"]["version"]["datasetVersion"] == first["checkpoint"]

    def evaluated() -> dict[str, Any] | None:
        runs = stage.airflow.api.call("GET", "dags/on_checkpoint/dagRuns")["dag_runs"]
        done = [each["dag_run_id"] for each in runs if each["state"] == "success"]
        return stage.airflow.api.xcom("on_checkpoint", done[0], "seen", "return_value") if done else None

    event = wait_for(evaluated, "a Dag run for the checkpoint", TIMEOUT_S)
    assert event["checkpoint"]["id"] == first["checkpoint"]
    assert (event["dag_id"], event["run_id"], event["task_id"]) == (night.dag_id, night.run_id, "train")


def test_teams_lend_and_reclaim(stage: Stage, start: Start) -> None:
    apply(stage, "two-teams.yaml")
    team_a = start("team_a_training", {"steps": 900})
    until_trained(stage, team_a)
    team_b = start("team_b_training", {"steps": 20})
    assert team_b.until_run_ends() == "success", team_b.log()
    assert team_a.until_run_ends() == "success", team_a.log()
    told = lineage(team_a)
    first, second = told["attempts"][:2]
    assert (first["pods"], first["ended_by"], first["note"]) == (2, "Preempted", None)
    assert (second["pods"], second["ranks"], second["first_step"]) == (1, 2, first["last_step"] + 1)
    assert told["steps_lost"] == 0
    assert lineage(team_b)["preemptions"] == 0
