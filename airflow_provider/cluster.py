"""From an Airflow `kubernetes` connection to the cluster: a blocking facade for workers, an async one for triggers.

Both read the connection through the cncf.kubernetes hooks, so every way in which that provider can name a cluster
works. These are in-cluster, kube_config, kube_config_path, exec credentials, or no connection at all and $KUBECONFIG.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook, KubernetesHook

from kueue_integration.kube.aio import AsyncKube
from kueue_integration.kube.client import ApiKube, Kube
from kueue_integration.kube.credentials import OfClient

PART = "airflow-provider-singularity"
"""How the API server knows this program: in its audit log, and in `managedFields` of what it writes."""


def connect(conn_id: str) -> tuple[Kube, str]:
    """The facade of the cluster behind `conn_id`, and the connection's namespace ("default" if it names none).

    Blocking; for workers.
    """
    return opened(KubernetesHook(conn_id=conn_id))


def opened(hook: KubernetesHook) -> tuple[Kube, str]:
    """What `connect` returns, of a hook that has been looked at."""
    return ApiKube(OfClient(hook.get_conn()), part=PART), hook.get_namespace() or "default"


@asynccontextmanager
async def connect_async(conn_id: str) -> AsyncIterator[AsyncKube]:
    """One client (one TLS context, one connection pool) for as long as the context lasts; for triggers."""
    async with AsyncKubernetesHook(conn_id=conn_id).get_conn() as api:
        yield AsyncKube(api, PART)
