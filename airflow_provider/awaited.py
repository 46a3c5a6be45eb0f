"""Which checkpoint a sensor waits for, whether one can still come, and the trigger that waits for it in a triggerer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kueue_integration.contract import kinds
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.resources import Object, is_true

from . import compat
from .identity import Claim, TaskKey, belongs
from .informer import Subscription, owned_by, subscribe

ENDED_STATES = frozenset(("success", "failed", "skipped", "removed", "upstream_failed"))
"""Of a task that submits no more Jobs unless somebody clears it."""
PATIENCE_S = 60.0
ASK_FIRST_S, ASK_MOST_S = 2.0, 300.0
"""Between two questions to Airflow for the training's state, which are asked only while no Job of it lives."""


@dataclass(frozen=True)
class Wanted:
    """Which checkpoint is good enough. Ages in seconds, moments in Unix seconds."""

    min_step: int = 0
    newer_than: float = 0.0
    max_age_s: float | None = None
    min_age_s: float | None = None
    """The newest one is at least so old, of a training that goes on."""

    def of(self, checkpoints: Iterable[Mapping[str, Any]], now: float) -> dict[str, Any] | None:
        """The newest of these, oldest first, if it is good enough."""
        usable = [c for c in checkpoints if not c.get("unusable") and not c.get("side_branch")]
        after = max(self.newer_than, now - self.max_age_s if self.max_age_s is not None else 0.0)
        before = math.inf if self.min_age_s is None else now - self.min_age_s
        good = [c for c in usable if (c.get("step") or 0) >= self.min_step and (c.get("committed_at") or 0) > after]
        return dict(good[-1]) if good and (usable[-1].get("committed_at") or 0) <= before else None


@dataclass(frozen=True)
class Looked:
    """What the Jobs of a task say."""

    found: dict[str, Any] | None = None
    there: bool = False
    """Whether there is a Job at all."""
    over: bool = False
    """Whether the current one has ended."""


def look(owned: Iterable[Object], wanted: Wanted, now: float) -> Looked:
    """What the current one of a task's Jobs says."""
    jobs = [(claim, job) for job in owned if (claim := Claim.of_job(job))]
    if not jobs:
        return Looked()
    _, job = max(jobs, key=lambda pair: pair[0].generation)
    over = is_true(job, "Complete") or is_true(job, "Failed")
    found = wanted.of(summarise(job, None, ()).checkpoints, now)
    if found is None or (over and wanted.min_age_s is not None):  # what has ended saves no more: nobody is warned
        return Looked(None, True, over)
    whose = {"job": kinds.job_key(job), "namespace": job["metadata"].get("namespace", "default")}
    return Looked({**whose, **found}, True, over)


def recorded(lineage: object, wanted: Wanted, now: float) -> dict[str, Any] | None:
    """The same of a task's XCom `lineage`, which outlasts the Job. None for what is no such document, too."""
    if not isinstance(lineage, Mapping) or wanted.min_age_s is not None:
        return None
    rows = lineage.get("checkpoints")
    known = [row for row in rows if _readable(row)] if isinstance(rows, list) else []
    found = wanted.of(known, now)
    return None if found is None else {"job": lineage.get("name"), "namespace": lineage.get("namespace"), **found}


def _readable(row: object) -> bool:
    """A task can write what it likes."""
    numbers = (row.get("step") or 0, row.get("committed_at") or 0) if isinstance(row, Mapping) else ("",)
    return all(isinstance(number, (int, float)) for number in numbers)


class SingularityCheckpointWait(compat.BaseTrigger):  # type: ignore[misc]
    """Fires once, with `{}`, when the sensor has to look: there is such a checkpoint, or none can come any more.

    Shares the watch of the deferred training tasks. Airflow is asked for the training's state while no Job lives.

    :param conn_id, namespace: where the training's Jobs are
    :param key: of the training's task instance, as a dict
    :param deployments: ids of Airflows whose Jobs count
    :param wanted: `Wanted` as a dict
    """

    def __init__(
        self, conn_id: str, namespace: str, key: dict[str, Any], deployments: list[str], wanted: dict[str, Any]
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.namespace = namespace
        self.key = TaskKey(**key)
        self.deployments = list(deployments)
        self.wanted = Wanted(**wanted)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SingularityCheckpointWait", {
            "conn_id": self.conn_id,
            "namespace": self.namespace,
            "key": asdict(self.key),
            "deployments": self.deployments,
            "wanted": asdict(self.wanted),
        }

    async def run(self) -> AsyncIterator[compat.TriggerEvent]:
        async with subscribe(self.conn_id, self.namespace, owned_by(self.key.owner)) as view:
            await self._decided(view)
        yield compat.TriggerEvent({})

    async def _decided(self, view: Subscription) -> None:
        gap, ask_at = ASK_FIRST_S, 0.0
        while True:
            changed = await view.changed(max(0.0, min(PATIENCE_S, ask_at - time.monotonic())) if ask_at else PATIENCE_S)
            if not view.synced:
                continue
            owned = [job for job in view.owned(self.key.owner) if belongs(job, self.deployments)]
            looked = look(owned, self.wanted, time.time())
            if looked.found is not None:
                return
            if looked.there and not looked.over:
                ask_at = 0.0
                continue
            if changed or not ask_at:  # Airflow hears of an end seconds after the cluster
                gap, ask_at = ASK_FIRST_S, time.monotonic() + ASK_FIRST_S
            if time.monotonic() < ask_at:
                continue
            if await self._state() in ENDED_STATES and not view.trouble:
                return
            gap = min(2 * gap, ASK_MOST_S)
            ask_at = time.monotonic() + gap

    async def _state(self) -> str | None:
        try:
            return await asyncio.wait_for(compat.task_state_from_trigger(self.key), PATIENCE_S)
        except Exception as error:  # an Airflow that does not answer, or `dag.test()`: asked again
            self.log.debug("Airflow does not say how %s is: %s", self.key.task_id, error)
            return None
