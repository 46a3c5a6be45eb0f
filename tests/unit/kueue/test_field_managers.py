"""Who has written a field, as a real API server notes it: each part of this project under its own name."""

from __future__ import annotations

import asyncio

import pytest
from api_server import ADMIN, TEAM, Policies
from kubernetes import config

from airflow_provider import cluster
from kueue_integration import serve
from kueue_integration.kube.aio import AsyncKube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import CONFIG_MAP, JOB, Object

MADE = {"apiVersion": "v1", "kind": "ConfigMap"}


def managers(obj: Object) -> set[str]:
    return {str(entry["manager"]) for entry in obj["metadata"]["managedFields"]}


def test_each_part_writes_under_its_own_name(policies: Policies) -> None:
    path = str(policies.server.kubeconfig(ADMIN))
    name = "written-by-two"
    made = connect(path).create({**MADE, "metadata": {"namespace": TEAM, "name": name}, "data": {"a": "1"}})
    assert managers(made) == {"singularityctl"}
    controller = connect(path, part=serve.PART)
    changed = controller.patch(CONFIG_MAP, TEAM, name, {"data": {"b": "2"}})
    assert managers(changed) == {"singularityctl", "singularity-controller"}


def test_so_does_the_provider_in_its_event_loop(policies: Policies) -> None:
    kubernetes_asyncio = pytest.importorskip("kubernetes_asyncio", reason="it comes with Airflow's provider")
    job = policies.job("ended-by-the-provider")
    path = str(policies.server.kubeconfig(ADMIN))
    assert config.list_kube_config_contexts(config_file=path)

    async def end() -> None:
        loaded = kubernetes_asyncio.client.Configuration()
        await kubernetes_asyncio.config.load_kube_config(config_file=path, client_configuration=loaded)
        async with kubernetes_asyncio.client.ApiClient(loaded) as api:
            meta = job["metadata"]
            done = await AsyncKube(api, cluster.PART).end_unfinished_job(
                TEAM, meta["name"], meta["uid"], {"activeDeadlineSeconds": 1}
            )
            assert done

    asyncio.run(end())
    assert cluster.PART in managers(policies.server.kube().get(JOB, TEAM, job["metadata"]["name"]))
