"""The sensor takes the newest checkpoint of the task's current Job, and knows when none can come."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import NAMESPACE

from airflow_provider import cluster, sensors
from airflow_provider.exceptions import SingularityProviderError
from airflow_provider.identity import ANN_TASK, LABEL_OWNER, Claim, TaskKey, Try
from airflow_provider.sensors import SingularityCheckpointSensor, look, moment
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord, Skipped
from kueue_integration.errors import Forbidden, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol.messages import to_json

KEY = TaskKey("dag", "run", "train")


def add(
    kube: FakeKube, generation: int, *steps: int, done: str = "", deployment: str = "here", skipped: str = ""
) -> None:
    """A Job whose attempts each ended with a checkpoint after so many steps, committed at that Unix second.

    :param skipped: one of them, which cannot be restored
    """
    name = f"train-{generation}-{deployment}"
    claim = Claim(KEY, generation, Try(1, 0, 0), NAMESPACE, name, deployment=deployment)
    history = [
        AttemptRecord(
            number, "r", "spot", 1, 1, admitted_at=0.0, last_step=step - 1, committed_at=float(step),
            checkpoint=f"c{generation}-{number}",
        )
        for number, step in enumerate(steps, 1)
    ]  # fmt: skip
    if skipped:
        history[-1] = replace(history[-1], skipped=[Skipped(skipped, 1, "damaged")])
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": claim.name,
            "namespace": NAMESPACE,
            "labels": {job_names.LABEL_MANAGED: "true", LABEL_OWNER: KEY.owner},
            "annotations": {ANN_TASK: json.dumps(claim.to_dict()), job_names.ANN_HISTORY: to_json(history)},
        },
        "spec": {"parallelism": 1, "template": {"spec": {"containers": []}}},
    }
    kube.create(job)
    if done:
        kube.set_status(JOB, NAMESPACE, claim.name, {"conditions": [{"type": done, "status": "True"}]})


def test_takes_the_newest_checkpoint_of_the_current_generation() -> None:
    kube = FakeKube()
    assert look(kube.list(JOB, NAMESPACE), 0, 0.0) == (None, False)
    add(kube, 0, 500, done="Failed")
    add(kube, 1, 10, 20)
    found, over = look(kube.list(JOB, NAMESPACE), 0, 0.0)
    assert found is not None
    assert (found["id"], found["step"], over) == ("c1-2", 20, False)
    assert (found["job"], found["namespace"]) == ("train-1-here", NAMESPACE), "the next task can ask for it"


def test_a_checkpoint_that_cannot_be_restored_does_not_count() -> None:
    kube = FakeKube()
    add(kube, 0, 10, 20, skipped="c0-2")
    found, _ = look(kube.list(JOB, NAMESPACE), 0, 0.0)
    assert found is not None and found["id"] == "c0-1"


def test_asks_for_steps_and_for_age() -> None:
    kube = FakeKube()
    add(kube, 0, 10, 20)
    assert look(kube.list(JOB, NAMESPACE), 21, 0.0) == (None, False)
    assert look(kube.list(JOB, NAMESPACE), 20, 19.5)[0] is not None
    assert look(kube.list(JOB, NAMESPACE), 0, 20.0) == (None, False)


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_job_that_has_ended_brings_no_more(end: str) -> None:
    kube = FakeKube()
    add(kube, 0, 10, done=end)
    assert look(kube.list(JOB, NAMESPACE), 99, 0.0) == (None, True)
    assert look(kube.list(JOB, NAMESPACE), 10, 0.0)[0] is not None


# --- as Airflow calls it ----------------------------------------------------------------------------------------------
def sensor(**changes: Any) -> SingularityCheckpointSensor:
    values = {"task_id": "saved", "training_task_id": "train", "namespace": NAMESPACE}
    return SingularityCheckpointSensor(**{**values, **changes})


def context(dag_id: str = "dag") -> dict[str, Any]:
    return {"ti": SimpleNamespace(dag_id=dag_id, run_id="run", task_id="saved", map_index=-1)}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = FakeKube()
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (fake, "default"))
    return fake


def test_a_look_brings_the_checkpoint_as_the_value_of_the_task(kube: FakeKube) -> None:
    assert not sensor().poke(context()).is_done  # no Job yet
    add(kube, 0, 10)
    assert not sensor(min_step="20").poke(context()).is_done
    found = sensor(min_step="10", newer_than=9.5).poke(context())
    assert found.is_done and found.xcom_value["id"] == "c0-1"
    assert sensor(training_dag_id="dag").poke(context("other")).is_done
    assert not sensor().poke(context("other")).is_done
    add(kube, 1, done="Complete")
    with pytest.raises(SingularityProviderError, match="train has ended without such a checkpoint"):
        sensor().poke(context())


def test_a_job_of_another_airflow_does_not_count(kube: FakeKube) -> None:
    add(kube, 1, 10, deployment="there")
    assert not sensor().poke(context()).is_done
    add(kube, 0, 20)
    assert sensor().poke(context()).xcom_value["step"] == 20


def test_the_event_of_an_asset_has_the_checkpoint(kube: FakeKube) -> None:
    from airflow.sdk import Asset

    add(kube, 0, 10)
    asset = Asset("evaluated")
    events: dict[Any, Any] = {asset: SimpleNamespace(extra={})}
    sensor(outlets=[asset]).poke({**context(), "outlet_events": events})
    assert events[asset].extra["training"]["checkpoint"]["step"] == 10


def test_age_is_asked_for_in_both_directions(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    add(kube, 0, 100, 200)
    minute = datetime.timedelta(minutes=1)
    for now, young, old in ((250.0, True, False), (300.0, False, True)):
        monkeypatch.setattr(sensors, "time", SimpleNamespace(time=lambda now=now: now))
        assert sensor(max_age=minute).poke(context()).is_done is young
        assert sensor(min_age=minute).poke(context()).is_done is old
    add(kube, 1)
    assert not sensor(min_age=minute).poke(context()).is_done  # nothing saved yet


def test_a_training_that_has_ended_is_not_late(kube: FakeKube) -> None:
    add(kube, 0, 10, done="Complete")
    with pytest.raises(SingularityProviderError, match="has ended"):
        sensor(min_age=datetime.timedelta(seconds=1)).poke(context())


@pytest.mark.parametrize(("transient", "words"), [(True, ""), (False, "not allowed")])
def test_an_outage_is_waited_for_and_a_refusal_is_not(
    monkeypatch: pytest.MonkeyPatch, transient: bool, words: str
) -> None:
    def connect(conn_id: str) -> None:
        raise Unreachable("down") if transient else Forbidden("not allowed", 403)

    monkeypatch.setattr(cluster, "connect", connect)
    if transient:
        assert not sensor().poke(context()).is_done
    else:
        with pytest.raises(SingularityProviderError, match=words):
            sensor().poke(context())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_step": "many"}, "min_step = 'many': must be a whole number of steps"),
        ({"newer_than": "yesterday"}, "newer_than = 'yesterday': give ISO 8601 or Unix seconds"),
        ({"max_age": 3600}, "max_age = 3600: must be a datetime.timedelta"),
        ({"min_age": -datetime.timedelta(1)}, "min_age = .*: must be a datetime.timedelta, zero or more"),
        ({"min_age": datetime.timedelta(1), "newer_than": 5}, "asks for an old checkpoint"),
    ],
)
def test_what_is_known_is_checked_when_the_dag_is_parsed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, SingularityProviderError), match=words):
        sensor(**changes)
    sensor(min_step="{{ params.steps }}", newer_than="{{ ts }}")


def test_moments() -> None:
    assert moment(None) == moment("") == 0.0
    assert moment("1700000000.5") == 1700000000.5
    assert moment("2026-01-01T00:00:00") == moment("2026-01-01T01:00:00+01:00") == 1767225600.0
    with pytest.raises(SingularityProviderError, match="newer_than = 'yesterday'"):
        moment("yesterday")
