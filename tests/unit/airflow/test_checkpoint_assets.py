"""One asset event per checkpoint: against an HTTP server that speaks list and watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow_fakes import CONN_ID, NAMESPACE, ApiServer, make_attempt, make_job
from waits import LIMIT_S, eventually

from airflow_provider import assets, informer
from airflow_provider.assets import CURSOR_KEY, SingularityCheckpointTrigger, untold
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from kueue_integration.contract import job_names
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol.messages import CheckpointRef, to_json


class Store:
    """The asset's state store, as the triggerer injects it."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    async def aget(self, key: str, default: Any = None) -> Any:
        assert key == CURSOR_KEY
        if self.error is not None:
            raise self.error
        return self.value

    async def aset(self, key: str, value: Any) -> None:
        assert key == CURSOR_KEY and value is not None
        self.value = value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr(informer, "BACKOFF_MAX_S", 0.1)


def training(
    *ids: str, name: str = "train", uid: str = "u1", task: str = "train", deployment: str = "here"
) -> dict[str, Any]:
    """A Job of Dag `digits` that has these checkpoints."""
    job = make_job(name, uid, attempts=[make_attempt(1)])
    claim = Claim(TaskKey("digits", "r1", task), 0, Try(1, 0, 0), NAMESPACE, name, uid, deployment)
    refs = [
        CheckpointRef(each, 1, 1, 10 * (number + 1), 4, "file:///s", 1, 1, 1000.0 + number, "5" * 64)
        for number, each in enumerate(ids)
    ]
    job["metadata"]["annotations"] |= {ANN_TASK: json.dumps(claim.to_dict()), job_names.ANN_CHECKPOINTS: to_json(refs)}
    return job


def trigger(store: Store | None) -> SingularityCheckpointTrigger:
    made = SingularityCheckpointTrigger("digits", "train", NAMESPACE, CONN_ID)
    made.asset_state_store = store
    return made


async def following(events: AsyncIterator[Any]) -> dict[str, Any]:
    event = await asyncio.wait_for(anext(events), LIMIT_S)
    found: dict[str, Any] = event.payload
    return found


async def test_every_checkpoint_from_now_on_is_one_event(api: ApiServer) -> None:
    store = Store()
    api.put(JOB, training("c1"))
    events = trigger(store).run()
    waiting = asyncio.create_task(following(events))
    await eventually(lambda: store.value == {"u1": "c1"})  # from before the asset was watched: not told
    api.put(JOB, training("c1", "c2", "c3"))
    first = await waiting
    assert first["checkpoint"]["id"] == "c2"
    assert (first["dag_id"], first["run_id"], first["task_id"], first["map_index"]) == ("digits", "r1", "train", -1)
    assert first["job"] == {"namespace": NAMESPACE, "name": "train", "uid": "u1"}
    assert (await following(events))["checkpoint"]["step"] == 30
    await events.aclose()
    assert json.loads(json.dumps(first)) == first


async def test_a_change_costs_a_look_at_the_job_that_changed(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were looked at: with 1,000 Jobs each change took a second of the loop in which all triggers run."""
    looks: list[str] = []
    summarise = assets.summarise

    def counted(job: dict[str, Any], *rest: Any) -> Any:
        looks.append(job["metadata"]["name"])
        return summarise(job, *rest)

    monkeypatch.setattr(assets, "summarise", counted)
    store = Store()
    for number in range(30):
        api.put(JOB, training("c1", name=f"train-{number}", uid=f"u{number}"))
    events = trigger(store).run()
    waiting = asyncio.create_task(following(events))
    await eventually(lambda: store.value == {f"u{number}": "c1" for number in range(30)})
    looks.clear()
    api.put(JOB, training("c1", "c2", name="train-3", uid="u3"))
    assert (await waiting)["checkpoint"]["id"] == "c2" and looks == ["train-3"]
    waiting = asyncio.create_task(following(events))
    api.delete(JOB, "train-4")
    api.put(JOB, training("c1", "c2", name="train-5", uid="u5"))
    assert (await waiting)["job"]["uid"] == "u5"
    waiting = asyncio.create_task(following(events))  # what was told is written down before the next
    api.put(JOB, training("c1", "c2", name="train-6", uid="u6"))
    assert (await waiting)["job"]["uid"] == "u6"
    await events.aclose()
    assert store.value.keys() == {f"u{number}" for number in range(30)} - {"u4"}


async def test_a_triggerer_that_was_away_catches_up_and_tells_nothing_twice(api: ApiServer) -> None:
    store = Store({"u1": "c1"})
    api.put(JOB, training("c1", "c2"))
    api.put(JOB, training("d1", name="other", uid="u2"))
    events = trigger(store).run()
    told = {(await following(events))["checkpoint"]["id"] for _ in range(2)}
    assert told == {"c2", "d1"}
    api.put(JOB, training("c1", "c2", "c3"))
    assert (await following(events))["checkpoint"]["id"] == "c3"
    await events.aclose()
    again = trigger(store).run()  # c3 was taken, but the triggerer died before it could note that
    assert (await following(again))["checkpoint"]["id"] == "c3"
    await again.aclose()


async def test_other_tasks_and_jobs_of_nobody_are_not_told(api: ApiServer) -> None:
    store = Store({})
    api.put(JOB, training("x1", name="sweep", uid="u3", task="sweep"))
    api.put(JOB, training("y1", name="elsewhere", uid="u5", deployment="there"))
    api.put(JOB, make_job("by-hand", "u4"))
    events = trigger(store).run()
    waiting = asyncio.create_task(following(events))
    api.put(JOB, training("c1"))
    assert (await waiting)["checkpoint"]["id"] == "c1"
    await events.aclose()


async def test_what_is_gone_is_forgotten(api: ApiServer) -> None:
    store = Store({"u1": "c1", "u0": "b9"})
    api.put(JOB, training("c1"))
    events = trigger(store).run()
    waiting = asyncio.create_task(following(events))
    api.put(JOB, training("c1", "c2"))
    assert (await waiting)["checkpoint"]["id"] == "c2"
    waiting = asyncio.create_task(following(events))
    await eventually(lambda: store.value == {"u1": "c2"})
    api.put(JOB, training("c1", "c2", "c3"))
    await waiting
    await events.aclose()


@pytest.mark.parametrize("store", [None, Store(error=ValueError("2 concrete inlets"))], ids=["none", "shared"])
async def test_without_a_store_events_are_told_all_the_same(api: ApiServer, store: Store | None) -> None:
    api.put(JOB, training())
    events = trigger(store).run()
    waiting = asyncio.create_task(following(events))
    while api.count("watch", "jobs") == 0:
        await asyncio.sleep(0.01)
    api.put(JOB, training("c1"))
    assert (await waiting)["checkpoint"]["id"] == "c1"
    await events.aclose()


def test_the_last_one_told_decides() -> None:
    rows = [{"checkpoint": {"id": each}} for each in ("a", "b", "c")]
    assert untold(rows, "b") == rows[2:]
    assert untold(rows, "c") == []
    assert untold(rows, None) == untold(rows, "no longer known") == rows


def test_a_checkpoint_that_cannot_be_restored_is_no_event() -> None:
    rows = [{"checkpoint": {"id": each}} for each in ("a", "b", "c")]
    rows[1]["checkpoint"]["unusable"] = "pack 00ff is missing"
    assert untold(rows, "a") == rows[2:]
    assert untold(rows, "b") == rows[2:], "it was told while it was good"


def test_an_asset_can_be_watched_with_it() -> None:
    made = SingularityCheckpointTrigger(dag_id="digits")
    asset = Asset("checkpoints", watchers=[AssetWatcher(name="digits", trigger=made)])
    path, values = asset.watchers[0].trigger.serialize()
    assert path == "airflow_provider.assets.SingularityCheckpointTrigger"
    again = SingularityCheckpointTrigger(**values)
    assert again.serialize() == (path, values)
    assert made.hash(path, values) == again.hash(*again.serialize())
