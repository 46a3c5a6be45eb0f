"""The branches of a job in the Training tab: what it is sent to draw, and what its buttons Rewind and Fork do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import db_rows
import pytest
from airflow_fakes import NAMESPACE
from fastapi import HTTPException
from kueue_samples import PLATFORM, namespace
from pydantic import ValidationError
from sqlalchemy.orm import Session

from airflow_provider import memory
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from airflow_provider.plugin import actions, app, connection
from airflow_provider.plugin.live_looks import LiveLooks
from kueue_integration.contract import branches, job_names
from kueue_integration.contract.branches import Rewind
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.errors import StoreSaidNo
from kueue_integration.jobs import time_travel
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, KUEUE_GROUP, KUEUE_VERSION
from kueue_integration.requests import user_requests
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, Origin, to_json

KEY = TaskKey("dag", "run", "train", -1)
STORE = "file:///store"
USER = SimpleNamespace(get_name=lambda: "ann")


def saved(number: int, job: str = "train-1", attempt: int = 1) -> CheckpointRef:
    generation = attempt * 1_000_000 + number
    return CheckpointRef(
        f"{job}-a{attempt}-g{number}", generation, attempt, 100 * number, 2, STORE, bytes=10, bytes_stored=5,
        created_at=1e9 + number, sha256="0" * 64,
    )  # fmt: skip


FIRST, SECOND = saved(1), saved(2)


@pytest.fixture
def kube() -> FakeKube:
    """Job train-1 of the task has two checkpoints. It was taken back to the first one, and runs as attempt 2."""
    claim = Claim(KEY, 0, Try(1, 0, 0), NAMESPACE, "train-1")
    notes = {
        ANN_TASK: json.dumps(claim.to_dict()),
        names.ANN_CHECKPOINT: to_json(FIRST),
        job_names.ANN_CHECKPOINTS: to_json([FIRST, SECOND]),
        job_names.ANN_REWINDS: to_json([Rewind(1, FIRST.id, FIRST.step, 150, "ann", 1e9)]),
        job_names.ANN_HISTORY: to_json([
            AttemptRecord(1, "r1", "a", 2, 2, 1.0, first_step=0, last_step=249, ended_by="Rewound"),
            AttemptRecord(2, "r2", "a", 2, 2, 2.0, restored_from=FIRST.id, first_step=100),
        ]),
        job_names.ANN_ATTEMPT: "2",
        job_names.ANN_WORLD_SIZE: "2",
        job_names.ANN_STORE: STORE,
    }  # fmt: skip
    labels = {
        job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: "train-1", job_names.KUEUE_QUEUE_LABEL: "training",
    }  # fmt: skip
    kueue = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
    fence = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    made = FakeKube(
        namespace(NAMESPACE),
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE},
            "data": {platform_config.CONFIG_KEY: platform_config.to_json(PLATFORM)},
        },
        {
            "apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "training", "namespace": NAMESPACE},
            "spec": {"clusterQueue": "all"},
        },
        {
            "apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "all"},
            "spec": {"admissionChecksStrategy": fence},
        },
        {
            "apiVersion": kueue, "kind": "AdmissionCheck", "metadata": {"name": job_names.ADMISSION_CHECK_NAME},
            "spec": {"controllerName": job_names.ADMISSION_CHECK_CONTROLLER},
        },
    )  # fmt: skip
    made.create({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train-1", "namespace": NAMESPACE, "labels": labels, "annotations": notes},
        "spec": {"parallelism": 2, "completions": 2, "suspend": False, "template": {"spec": {"containers": []}}},
    })  # fmt: skip
    return made


@pytest.fixture
def session(kube: FakeKube) -> Iterator[Session]:
    """Airflow's store says which Job the task has."""
    uid = kube.get(JOB, NAMESPACE, "train-1")["metadata"]["uid"]
    known = {**Claim(KEY, 0, Try(1, 0, 0), NAMESPACE, "train-1", uid).to_dict(), "conn_id": "c"}
    with db_rows.database() as made:
        text = json.dumps(known)
        row = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}
        db_rows.stored(made, **row, key=memory.STORE_KEY, value=text)
        yield made


@pytest.fixture
def asked(kube: FakeKube, session: Session, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the store is asked, in place of a pod that asks it."""
    found: list[tuple[str, ...]] = []

    def ask(job: Any, url: str, question: Sequence[str]) -> Any:
        if question[3] == SECOND.id:
            raise StoreSaidNo(f"{SECOND.id}: pack 7 is missing")
        found.append((url, *question))

    monkeypatch.setattr(time_travel, "in_a_pod", lambda kube, namespace, timeout_s=0.0: ask)
    monkeypatch.setattr(actions.clusters, "_connect", lambda conn_id: (kube, "default"))
    monkeypatch.setattr(connection, "of", lambda session, key, conn_id: "c")
    monkeypatch.setattr(app, "create_session", lambda scoped: nullcontext(session))
    actions.clusters.forget("c")
    return found


def live(kube: FakeKube) -> dict[str, Any]:
    """As it is sent to the browser."""
    uid = kube.get(JOB, NAMESPACE, "train-1")["metadata"]["uid"]
    claim = {**Claim(KEY, 0, Try(1, 0, 0), NAMESPACE, "train-1", uid).to_dict(), "conn_id": "c"}
    shown = LiveLooks(actions.Clusters(lambda conn_id: (kube, "default"))).ask(KEY, claim).result(120)
    sent: dict[str, Any] = json.loads(json.dumps(shown))
    return sent


def test_the_tab_is_sent_the_side_branch_and_who_has_gone_back(kube: FakeKube) -> None:
    shown = live(kube)
    assert [(each["id"], each.get("side_branch", False)) for each in shown["checkpoints"]] == [
        (FIRST.id, False), (SECOND.id, True),
    ]  # fmt: skip
    (back,) = shown["rewinds"]
    # What the sentence above the table is made of.
    assert {name: back[name] for name in ("attempt", "by", "checkpoint", "step", "steps")} == {
        "attempt": 1, "by": "ann", "checkpoint": FIRST.id, "step": 100, "steps": 150,
    }  # fmt: skip
    assert shown["steps_given_up"] == 150 and shown["origin"] is None


def test_the_tab_of_a_job_that_went_on_on_its_own_branch(kube: FakeKube) -> None:
    third = saved(1, attempt=2)
    told = {names.ANN_CHECKPOINT: to_json(third), job_names.ANN_CHECKPOINTS: to_json([FIRST, SECOND, third])}
    kube.patch(JOB, NAMESPACE, "train-1", {"metadata": {"annotations": told}})
    aside = {each["id"]: each.get("side_branch", False) for each in live(kube)["checkpoints"]}
    assert aside == {FIRST.id: False, SECOND.id: True, third.id: False}


def test_the_tab_of_a_job_that_began_with_anothers_checkpoint_names_that_job(kube: FakeKube) -> None:
    other = saved(3, job="other")
    told = {
        names.ANN_CHECKPOINT: to_json(other), job_names.ANN_CHECKPOINTS: to_json([other]),
        job_names.ANN_ORIGIN: to_json(Origin("other", other.id)), job_names.ANN_REWINDS: None,
        job_names.ANN_HISTORY: None,
    }  # fmt: skip
    kube.patch(JOB, NAMESPACE, "train-1", {"metadata": {"annotations": told}})
    shown = live(kube)
    assert shown["origin"] == {"job": "other", "checkpoint": other.id} and shown["rewinds"] == []
    assert [each["id"] for each in shown["checkpoints"]] == [other.id]


def test_rewind_holds_the_checkpoint_and_asks_the_controller(
    kube: FakeKube, session: Session, asked: list[tuple[str, ...]]
) -> None:
    answer = asyncio.run(app.rewind(KEY, app.Rewind(checkpoint=FIRST.id), USER))
    assert answer["state"] == "asked" and answer["id"]
    request = user_requests.asked(kube.get_job(NAMESPACE, "train-1"), user_requests.CHANGE)
    assert request is not None
    assert (request.op, request.checkpoint, request.by, request.id) == ("rewind", FIRST.id, "airflow:ann", answer["id"])
    assert asked == [(STORE, "hold", NAMESPACE, "train-1", FIRST.id, names.HOLD_REWIND, FIRST.sha256)]


@pytest.mark.parametrize("button", ["rewind", "fork"])
def test_what_the_store_does_not_have_is_refused_with_a_sentence(
    kube: FakeKube, session: Session, asked: list[tuple[str, ...]], button: str
) -> None:
    before = kube.get_job(NAMESPACE, "train-1")
    with pytest.raises(HTTPException) as refused:
        if button == "rewind":
            asyncio.run(app.rewind(KEY, app.Rewind(checkpoint=SECOND.id), USER))
        else:
            asyncio.run(app.fork(KEY, app.Fork(checkpoint=SECOND.id, name="twin"), USER))
    assert refused.value.status_code == 409 and "pack 7 is missing" in str(refused.value.detail)
    assert kube.get_job(NAMESPACE, "train-1") == before and kube.find(JOB, NAMESPACE, "twin") is None
    assert asked == []


def test_fork_makes_a_second_job_that_belongs_to_no_task(
    kube: FakeKube, session: Session, asked: list[tuple[str, ...]]
) -> None:
    before = kube.get_job(NAMESPACE, "train-1")
    answer = asyncio.run(app.fork(KEY, app.Fork(checkpoint=FIRST.id, name="twin"), USER))
    twin = kube.get_job(NAMESPACE, "twin")
    assert answer == {
        "message": f"job twin goes on from checkpoint {FIRST.id} (step 100)", "state": "done",
        "id": twin["metadata"]["uid"],
    }  # fmt: skip
    assert branches.start_from(twin) == Origin("train-1", FIRST.id)
    assert ANN_TASK not in twin["metadata"]["annotations"]
    assert kube.get_job(NAMESPACE, "train-1") == before
    assert asked == [(STORE, "hold", NAMESPACE, "train-1", FIRST.id, "twin", FIRST.sha256)]


def test_a_checkpoint_that_is_no_name_reaches_nobody() -> None:
    for text in ("", "../x", "a b", "x" * 400):
        with pytest.raises(ValidationError):
            app.Rewind(checkpoint=text)
