"""An asset event for every checkpoint of a training task, while it trains on: Dags that evaluate can wait for it.

    checkpoints = Asset(
        "digits-checkpoints",
        watchers=[AssetWatcher(name="digits", trigger=SingularityCheckpointTrigger(dag_id="digits", task_id="train"))],
    )

    with DAG("evaluate", schedule=checkpoints):
        ...  # context["triggering_asset_events"][checkpoints][0].extra["payload"] is the document of `payload`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger

from kueue_integration.jobs.status import summarise
from kueue_integration.kube.resources import Object

from . import compat
from .identity import DEPLOYMENT, Claim, TaskKey
from .informer import ALL, Subscription, subscribe

CURSOR_KEY = "singularity_checkpoints"
"""In the asset's state store: uid of a Job -> id of the last checkpoint with an event, for the Jobs that exist."""
PATIENCE_S = 60.0


class SingularityCheckpointTrigger(BaseEventTrigger):  # type: ignore[misc]
    """For AssetWatcher: an event for each new checkpoint of the Jobs of a training task.

    The event's payload is `{"dag_id", "run_id", "task_id", "map_index", "job": {"namespace", "name", "uid"},
    "checkpoint": {"id", "attempt", "step", "committed_at", ...}}`. The asset's state store keeps what had an event. So
    a triggerer that was away catches up with what the Job still names (its last checkpoints). Nothing has two events,
    except a checkpoint whose event came in the very moment in which the triggerer died. Checkpoints from before the
    asset was first watched have none. Shares the watch of the deferred training tasks; an API server that is away
    only delays.

    :param dag_id: Dag of the training task, None for any
    :param task_id: the training task, None for any
    :param namespace: where its Jobs are
    :param kubernetes_conn_id: Airflow connection of type `kubernetes`
    """

    asset_state_store: Any = None
    """Injected by the triggerer before `run`; none before Airflow 3.3."""

    def __init__(
        self,
        dag_id: str | None = None,
        task_id: str | None = None,
        namespace: str = "default",
        kubernetes_conn_id: str = "kubernetes_default",
    ) -> None:
        super().__init__()
        self.dag_id = dag_id
        self.task_id = task_id
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self._deployment: str | None = None
        self._seen: Mapping[str, Object] = {}
        """The Jobs of the last look, by their names."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SingularityCheckpointTrigger", {
            "dag_id": self.dag_id,
            "task_id": self.task_id,
            "namespace": self.namespace,
            "kubernetes_conn_id": self.kubernetes_conn_id,
        }

    async def run(self) -> AsyncIterator[compat.TriggerEvent]:
        told = await self._load()
        async with subscribe(self.kubernetes_conn_id, self.namespace, ALL) as view:
            while True:
                await view.changed(PATIENCE_S)
                if not view.synced:
                    continue
                if self._deployment is None:  # none before Airflow was started with this package
                    self._deployment = await compat.variable_from_trigger(DEPLOYMENT)
                    self._seen = {} if self._deployment else self._seen
                changed = self._changed(view)
                if told is None:  # watched for the first time
                    told = {uid: rows[-1]["checkpoint"]["id"] for uid, rows in changed.items() if rows}
                    await self._save(told)
                if changed and not view.trouble:
                    there = {job["metadata"]["uid"] for job in view.jobs.values()}
                    told = {uid: last for uid, last in told.items() if uid in there}
                for uid, rows in changed.items():
                    for row in untold(rows, told.get(uid)):
                        yield compat.TriggerEvent(row)
                        told[uid] = row["checkpoint"]["id"]
                        await self._save(told)

    def _changed(self, view: Subscription) -> dict[str, list[dict[str, Any]]]:
        """uid of each Job that counts and has changed since the last look -> payloads of its checkpoints, oldest first.

        With thousands of Jobs a change of one costs the look at one: the event loop is that of all triggers.
        """
        before, self._seen = self._seen, dict(view.jobs)
        found = {}
        for name, job in self._seen.items():
            if before.get(name) is job:
                continue
            claim = Claim.of_job(job)
            if claim is None or not self._wants(claim.key) or claim.deployment not in ("", self._deployment):
                continue
            found[str(claim.uid)] = [payload(claim, each) for each in summarise(job, None, ()).checkpoints]
        return found

    def _wants(self, key: TaskKey) -> bool:
        return self.dag_id in (None, key.dag_id) and self.task_id in (None, key.task_id)

    async def _load(self) -> dict[str, str] | None:
        store: Any = self.asset_state_store
        if store is None:
            return None
        try:
            found = await store.aget(CURSOR_KEY)
        except ValueError:  # several assets watch with one and the same trigger: Airflow has no store for them together
            self.log.warning("Several assets share this trigger: a restart of the triggerer forgets what was told")
            self.asset_state_store = None
            return None
        return dict(found) if isinstance(found, dict) else None

    async def _save(self, told: Mapping[str, str]) -> None:
        store: Any = self.asset_state_store
        if store is not None:
            await store.aset(CURSOR_KEY, dict(told))


def payload(claim: Claim, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says about one checkpoint."""
    key = claim.key
    return {
        "dag_id": key.dag_id,
        "run_id": key.run_id,
        "task_id": key.task_id,
        "map_index": key.map_index,
        "job": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "checkpoint": dict(checkpoint),
    }


def untold(rows: list[dict[str, Any]], last: str | None) -> list[dict[str, Any]]:
    """The rows after checkpoint `last`; all if it is None or no longer known. Without those that cannot be restored."""
    ids = [row["checkpoint"]["id"] for row in rows]
    new = rows[ids.index(last) + 1 :] if last in ids else rows
    return [row for row in new if not row["checkpoint"].get("unusable")]
