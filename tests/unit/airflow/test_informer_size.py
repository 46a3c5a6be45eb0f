"""What a triggerer with very many tasks saves: memory of its copy, looks at the pods' output."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import ADMITTED, CONN_ID, NAMESPACE, ApiServer, make_attempt, make_job, make_workload

from airflow_provider import informer
from airflow_provider.informer import Informer, Subscription, compact, subscribe
from kueue_integration.contract import job_names
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.interning import MAX_STRINGS
from kueue_integration.kube.resources import JOB, WORKLOAD
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol.messages import to_json

PLATFORM = PlatformConfig(
    agent_image="agent",
    controller_url="https://controller:443",
    controller_ca="PEM",
    train_image="train",
    store="file:///shared/store",
    volumes=[{"name": "shared", "hostPath": {"path": "/x"}}],
    volume_mounts=[{"name": "shared", "mountPath": "/shared"}],
)


def submitted() -> dict[str, Any]:
    """A Job as `submit` makes it and the API server keeps it, in its first attempt."""
    spec = TrainSpec(name="train", namespace=NAMESPACE, queue="training", command=["python3", "x.py"])
    job: dict[str, Any] = next(made for made in render(spec, PLATFORM) if made["kind"] == "Job")
    meta = job["metadata"]
    meta |= {"uid": "u1", "managedFields": [{"manager": "kueue", "fieldsV1": {"f:spec": {}}}]}
    # Long enough for a checkpoint to be warned of: the grace period comes from the pod template.
    attempt = make_attempt(1, evicted_at=1.0, barrier_at=2.0, committed_at=900.0, checkpoint="c", ended_by="Preempted")
    meta["annotations"] |= {job_names.ANN_HISTORY: to_json([attempt]), job_names.ANN_ATTEMPT: "1"}
    return {**job, "status": {"active": 1, "ready": 1, "conditions": []}}


def test_a_compact_copy_says_the_same_and_is_a_fraction_of_the_size():
    job = submitted()
    workload = make_workload(job, *ADMITTED)
    workload["spec"]["podSets"] = [{"name": "main", "count": 1, "template": job["spec"]["template"]}]
    before = json.dumps([job, workload])
    whole = summarise(job, workload, ())
    assert any("grace" in text for text in whole.warnings)
    assert summarise(compact(job), compact(workload), ()) == whole
    assert len(json.dumps([compact(job), compact(workload)])) < len(before) / 3
    assert json.dumps([job, workload]) == before  # what is given stays as it is


def test_strings_of_a_job_that_changes_for_ever_are_not_kept() -> None:
    """Whoever may edit one Job decides how many different ones there are."""
    job = submitted()
    for number in range(3000):
        job["metadata"]["annotations"] |= {f"key-{number}-{i}": f"value-{number}-{i}" for i in range(5)}
        held = compact({**job, "metadata": {**job["metadata"], "annotations": {f"k{number}": f"v{number}"}}})
        compact(job)
        job["metadata"]["annotations"] = {}
        assert len(informer._strings) <= MAX_STRINGS
    again = compact(json.loads(json.dumps(held)))
    ((key, value),), ((other_key, other_value),) = (o["metadata"]["annotations"].items() for o in (held, again))
    assert key is other_key and value is other_value


def test_no_string_becomes_immortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 never frees an interned one: 597 MiB after 20,000 updates of one Job with 150 annotations."""
    seen: list[str] = []
    job = submitted()
    with monkeypatch.context() as patch:
        patch.setattr("sys.intern", lambda text: (seen.append(text), text)[1])
        compact(job)
    assert seen == []


async def test_a_long_list_comes_in_pages(api: ApiServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(informer, "PAGE", 2)
    for number in range(5):
        job = make_job(f"train-{number}", f"u{number}")
        api.put(JOB, job)
        api.put(WORKLOAD, make_workload(job, *ADMITTED))
    async with subscribe(CONN_ID, NAMESPACE, informer.ALL) as view:
        while not view.synced:
            await asyncio.wait_for(view.changed(20), 120)
        assert len(view.jobs) == 5 and len(view.informer.workloads) == 5
        assert api.count("list", JOB.plural) == 3
        while api.count("watch", JOB.plural) == 0:
            await asyncio.sleep(0.01)
        api.put(JOB, make_job("train-5", "u5"))
        while len(view.jobs) < 6:
            await asyncio.wait_for(view.changed(20), 120)


async def test_a_list_that_becomes_too_old_between_two_pages_starts_again(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(informer, "PAGE", 1)
    for number in range(3):
        api.put(JOB, make_job(f"train-{number}", f"u{number}"))
    page, compacted = api._page, False

    def compacting(items: list[dict[str, Any]], query: Any) -> Any:
        nonlocal compacted
        answer = page(items, query)
        if len(items) == 3 and not compacted:
            compacted = True
            api.compact()
        return answer

    monkeypatch.setattr(api, "_page", compacting)
    async with subscribe(CONN_ID, NAMESPACE, "train-0") as view:
        while not view.synced:
            await asyncio.wait_for(view.changed(20), 120)
        assert len(view.jobs) == 3 and compacted
        assert api.count("list", JOB.plural) == 5  # one, refused, three


def test_many_jobs_share_the_looks_at_their_output():
    view = Subscription(Informer("c", "n"), "train")
    view.count_log_reader(1)
    assert view.log_interval(10.0) == 10.0
    for _ in range(999):
        view.count_log_reader(1)
    assert view.log_interval(10.0) == 1000 / informer.LOG_LOOKS_PER_S
    view.count_log_reader(-1)
    assert view.informer.log_readers == 999


async def test_only_jobs_with_pods_count_for_the_looks():
    from airflow_provider.logplace import Place
    from airflow_provider.podlogs import PodLog

    view = Subscription(Informer("c", "n"), "train")
    log = PodLog(view, "train", SimpleNamespace(), 60.0, 10, Place(None, SimpleNamespace()))
    job = make_job(attempts=[make_attempt(1)])
    follower = asyncio.create_task(log.follow())
    await asyncio.sleep(0)
    log.look(summarise(make_job(suspend=True), None, ()))
    assert view.informer.log_readers == 0
    log.look(summarise(job, make_workload(job, *ADMITTED), ()))
    log.look(summarise(job, make_workload(job, *ADMITTED), ()))
    assert view.informer.log_readers == 1
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    assert view.informer.log_readers == 0
