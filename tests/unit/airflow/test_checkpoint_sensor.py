"""The sensor takes the newest checkpoint of the task's current Job, and knows when none can come."""

from __future__ import annotations

import asyncio
import datetime
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import CONN_ID, NAMESPACE, ApiServer
from waits import eventually

from airflow_provider import awaited, cluster, compat, informer, sensors
from airflow_provider.awaited import Looked, SingularityCheckpointWait, Wanted, look, recorded
from airflow_provider.compat import AirflowSensorTimeout, TaskDeferred
from airflow_provider.exceptions import SingularityProviderError
from airflow_provider.identity import ANN_TASK, LABEL_OWNER, Claim, TaskKey, Try
from airflow_provider.sensors import SingularityCheckpointSensor, moment
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord, Skipped
from kueue_integration.errors import Forbidden, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol.messages import to_json

KEY = TaskKey("dag", "run", "train")
ANY = Wanted()
NOW = 1000.0


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
    assert look(kube.list(JOB, NAMESPACE), ANY, NOW) == Looked(None, there=False, over=False)
    add(kube, 0, 500, done="Failed")
    add(kube, 1, 10, 20)
    looked = look(kube.list(JOB, NAMESPACE), ANY, NOW)
    found = looked.found
    assert found is not None
    assert (found["id"], found["step"], looked.over) == ("c1-2", 20, False)
    assert (found["job"], found["namespace"]) == ("train-1-here", NAMESPACE), "the next task can ask for it"


def test_a_checkpoint_that_cannot_be_restored_does_not_count() -> None:
    kube = FakeKube()
    add(kube, 0, 10, 20, skipped="c0-2")
    found = look(kube.list(JOB, NAMESPACE), ANY, NOW).found
    assert found is not None and found["id"] == "c0-1"


def test_asks_for_steps_and_for_age() -> None:
    kube = FakeKube()
    add(kube, 0, 10, 20)
    for wanted, good in ((Wanted(21), False), (Wanted(20, 19.5), True), (Wanted(0, 20.0), False)):
        assert (look(kube.list(JOB, NAMESPACE), wanted, NOW).found is not None) is good


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_job_that_has_ended_brings_no_more(end: str) -> None:
    kube = FakeKube()
    add(kube, 0, 10, done=end)
    assert look(kube.list(JOB, NAMESPACE), Wanted(99), NOW) == Looked(None, there=True, over=True)
    assert look(kube.list(JOB, NAMESPACE), Wanted(10), NOW).found is not None


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


class Airflow:
    """What Airflow says of the training: its state, or an error, and its XCom `lineage`."""

    def __init__(self) -> None:
        self.state: str | Exception | None = "deferred"
        self.lineage: Any = None

    def task_state(self, key: TaskKey) -> str | None:
        assert key == KEY
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    said = Airflow()

    async def task_state(key: TaskKey) -> str | None:
        return said.task_state(key)

    monkeypatch.setattr(compat, "task_state_or_none", said.task_state)
    monkeypatch.setattr(compat, "task_state_from_trigger", task_state)
    monkeypatch.setattr(compat, "xcom_of", lambda key, name: said.lineage)
    return said


def test_a_look_brings_the_checkpoint_as_the_value_of_the_task(kube: FakeKube, airflow: Airflow) -> None:
    assert not sensor().poke(context()).is_done  # no Job yet
    add(kube, 0, 10)
    assert not sensor(min_step="20").poke(context()).is_done
    found = sensor(min_step="10", newer_than=9.5).poke(context())
    assert found.is_done and found.xcom_value["id"] == "c0-1"
    assert sensor(training_dag_id="dag").poke(context("other")).is_done
    add(kube, 1, done="Complete")
    assert not sensor().poke(context()).is_done  # the task is not over yet
    airflow.state = "success"
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


def test_a_training_that_has_ended_is_not_late(kube: FakeKube, airflow: Airflow) -> None:
    add(kube, 0, 10, done="Complete")
    airflow.state = "success"
    with pytest.raises(SingularityProviderError, match="has ended"):
        sensor(min_age=datetime.timedelta(seconds=1)).poke(context())


# --- what outlasts the Job --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [None, "queued", "up_for_retry", "up_for_reschedule", "running", OSError("down")])
@pytest.mark.parametrize("job", ["none", "Failed"])
def test_a_job_may_come_while_the_task_is_not_over(kube: FakeKube, airflow: Airflow, state: Any, job: str) -> None:
    """A training with retries left failed the sensor at once."""
    if job != "none":
        add(kube, 0, done=job)
    airflow.state = state
    assert not sensor().poke(context()).is_done


@pytest.mark.parametrize("state", ["failed", "skipped", "removed", "upstream_failed", "success"])
@pytest.mark.parametrize("job", ["none", "Failed"])
def test_none_can_come_of_a_task_that_is_over(kube: FakeKube, airflow: Airflow, state: str, job: str) -> None:
    """A training that never was, or whose Job was deleted, was waited for for seven days."""
    if job != "none":
        add(kube, 0, done=job)
    airflow.state = state
    left = "no Job of it is left" if job == "none" else "it is"
    with pytest.raises(SingularityProviderError, match=f"train has ended without such a checkpoint.*{state}.*") as told:
        sensor().poke(context())
    assert left in str(told.value)


def test_a_job_that_nobody_waits_for_is_not_over_with_its_task(kube: FakeKube, airflow: Airflow) -> None:
    airflow.state = "success"  # wait=False
    add(kube, 0)
    assert not sensor().poke(context()).is_done


def test_the_record_of_the_task_outlasts_the_job(kube: FakeKube, airflow: Airflow) -> None:
    rows = [{"id": "c1", "step": 10, "committed_at": 10.0, "url": "file:///s"}, {"id": "c2", "step": 20}]
    airflow.state, airflow.lineage = "success", {"name": "train-1", "namespace": NAMESPACE, "checkpoints": rows}
    found = sensor(min_step=10, newer_than=5).poke(context()).xcom_value
    assert (found["job"], found["namespace"], found["id"], found["step"]) == ("train-1", NAMESPACE, "c1", 10)
    with pytest.raises(SingularityProviderError, match="its XCom lineage names none"):
        sensor(min_step=21).poke(context())
    with pytest.raises(SingularityProviderError):  # a training that has ended is not late
        sensor(min_age=datetime.timedelta(seconds=1)).poke(context())


@pytest.mark.parametrize("lineage", [None, "x", {}, {"checkpoints": 5}, {"checkpoints": [5, {"step": "many"}]}])
def test_a_record_that_somebody_else_wrote_names_no_checkpoint(lineage: object) -> None:
    assert recorded(lineage, ANY, NOW) is None


def test_a_task_that_the_dag_does_not_have_is_said_at_once(kube: FakeKube) -> None:
    from airflow.sdk import DAG

    with DAG("dag"):
        wrong = sensor(training_task_id="trian")
    with pytest.raises(SingularityProviderError, match="training_task_id = 'trian': Dag dag has no such task"):
        wrong.poke(context())


# --- in a triggerer ---------------------------------------------------------------------------------------------------
@pytest.fixture
def waits(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> SingularityCheckpointWait:
    """What a sensor defers to."""
    monkeypatch.setattr(awaited, "ASK_FIRST_S", 0.02)
    monkeypatch.setattr(informer, "BACKOFF_FIRST_S", 0.02)
    wanted = {"min_step": 20, "newer_than": 0.0, "max_age_s": None, "min_age_s": None}
    key = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}
    return SingularityCheckpointWait(CONN_ID, NAMESPACE, key, ["", "here"], wanted)


def stored(*steps: int, done: str = "", generation: int = 0) -> dict[str, Any]:
    kube = FakeKube()
    add(kube, generation, *steps, done=done)
    return kube.list(JOB, NAMESPACE)[0]


async def fired(trigger: SingularityCheckpointWait) -> Any:
    return (await asyncio.wait_for(anext(trigger.run()), 120)).payload


async def test_the_trigger_fires_with_the_checkpoint(api: ApiServer, waits: SingularityCheckpointWait) -> None:
    api.put(JOB, stored(10))
    path, kwargs = waits.serialize()
    assert path == "airflow_provider.awaited.SingularityCheckpointWait" and json.loads(json.dumps(kwargs)) == kwargs
    waiting = asyncio.create_task(fired(SingularityCheckpointWait(**kwargs)))
    other = asyncio.create_task(fired(waits))
    await eventually(lambda: api.count("watch", "jobs"))  # else the list itself has the checkpoint
    assert not waiting.done() and not other.done()
    api.put(JOB, stored(10, 20))
    assert await waiting == {} and await other == {}
    assert api.count("watch", "jobs") == 1, "both have one watch"


@pytest.mark.parametrize("job", ["none", "Failed"])
async def test_the_trigger_fires_when_none_can_come(
    api: ApiServer, waits: SingularityCheckpointWait, airflow: Airflow, job: str
) -> None:
    if job != "none":
        api.put(JOB, stored(10, done=job))
    waiting = asyncio.create_task(fired(waits))
    await asyncio.wait({waiting}, timeout=0.3)
    assert not waiting.done()
    airflow.state = "failed"
    assert await waiting == {}


async def test_the_trigger_waits_for_the_job_of_a_retry(
    api: ApiServer, waits: SingularityCheckpointWait, airflow: Airflow
) -> None:
    airflow.state = "up_for_retry"
    api.put(JOB, stored(10, done="Failed"))
    waiting = asyncio.create_task(fired(waits))
    await asyncio.wait({waiting}, timeout=0.3)
    api.delete(JOB, "train-0-here")
    api.put(JOB, stored(30, generation=1))
    assert await waiting == {}


def test_a_deferrable_sensor_looks_defers_and_looks_again(kube: FakeKube, airflow: Airflow) -> None:
    waiting = sensor(deferrable=True, min_step=10, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context())
    trigger = deferred.value.trigger
    assert (trigger.key, trigger.wanted, trigger.deployments) == (KEY, Wanted(10), ["", "here"])
    kwargs = deferred.value.kwargs
    assert 59 < deferred.value.timeout.total_seconds() <= 60
    with pytest.raises(TaskDeferred):  # it was a mistake
        waiting.execute_complete(context(), {}, **kwargs)
    with pytest.raises(AirflowSensorTimeout, match="No such checkpoint of train within 60 s"):
        waiting.execute_complete(context(), {}, since=kwargs["since"] - 61)
    add(kube, 0, 10)
    assert waiting.execute_complete(context(), {}, **kwargs)["step"] == 10
    assert waiting.execute(context())["step"] == 10
    airflow.state = "failed"
    with pytest.raises(SingularityProviderError, match="has ended"):
        kube.delete(JOB, NAMESPACE, "train-0-here")
        waiting.execute_complete(context(), {}, **kwargs)


def test_only_true_and_false_are_ways_of_waiting() -> None:
    with pytest.raises(ValueError, match="deferrable = 'yes': must be True or False"):
        sensor(deferrable="yes")
    assert sensor().deferrable is False


# --- bad input --------------------------------------------------------------------------------------------------------
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
