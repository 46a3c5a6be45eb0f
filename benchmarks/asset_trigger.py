"""What a change of one Job costs the event loop of a triggerer that watches 2,000 Jobs for checkpoint assets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

from airflow_provider import assets, compat
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object
from singularity_proxy.protocol.messages import CheckpointRef, to_json

from . import running_objects
from .model import Group, Measured, Options, Say, Spec
from .stats import median

JOBS = 2000
CHANGES = 200
LIMIT_S = 60.0


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    jobs = JOBS // 10 if options.quick else JOBS
    runs = asyncio.run(_changes(jobs, CHANGES))
    size = f"{jobs} Jobs of one task with {running_objects.ATTEMPTS} attempts each"
    about = f"{size}, {len(runs)} changes; worst {max(runs):.2f} ms"
    say(f"{median(runs):.2f} ms a change; {about}")
    return {"asset_trigger_ms_2000_jobs": Measured(median(runs), runs, about)}


async def _changes(jobs: int, changes: int) -> list[float]:
    """Milliseconds of processor from each change of a Job to its event: how long no other trigger runs."""
    changed = asyncio.Event()
    view = SimpleNamespace(synced=True, trouble="", jobs={f"train-{n}": _job(n) for n in range(jobs)})

    async def wait(_: float) -> bool:
        await changed.wait()
        changed.clear()
        return True

    view.changed = wait
    changed.set()
    trigger, looked, runs = assets.SingularityCheckpointTrigger("digits", "train"), asyncio.Event(), list[float]()
    trigger.asset_state_store = _Store(looked)

    @contextlib.asynccontextmanager
    async def subscribe(*_: Any) -> AsyncIterator[Any]:
        yield view

    async def deployment(_: str) -> str:
        return "here"

    of_airflow = mock.patch.object(compat, "variable_from_trigger", deployment)
    with mock.patch.object(assets, "subscribe", subscribe), of_airflow:
        events = trigger.run()
        following = asyncio.create_task(_next(events))
        await asyncio.wait_for(looked.wait(), LIMIT_S)
        for number in range(changes):
            name = f"train-{number * 7 % jobs}"
            newer = _job(number * 7 % jobs, f"new-{number}")
            began = time.thread_time()
            view.jobs[name] = newer
            changed.set()
            event = await asyncio.wait_for(following, LIMIT_S)
            runs.append((time.thread_time() - began) * 1000)
            if event.payload["checkpoint"]["id"] != f"new-{number}":
                raise RuntimeError(f"event of {event.payload['checkpoint']}")
            following = asyncio.create_task(_next(events))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return runs


async def _next(events: AsyncIterator[Any]) -> Any:
    return await anext(events)


class _Store:
    """The asset's state store: says when it was written first."""

    def __init__(self, written: asyncio.Event) -> None:
        self._written = written

    async def aget(self, _: str) -> None:
        return None

    async def aset(self, _: str, __: Any) -> None:
        self._written.set()


@functools.cache
def _text() -> str:
    return json.dumps(running_objects.job(0))


def _job(number: int, more: str = "") -> Object:
    name, uid = f"train-{number}", f"{number:08d}-1111-2222-3333-444444444444"
    made: Object = json.loads(_text())
    made["metadata"] |= {"name": name, "uid": uid, "namespace": "default"}
    notes = made["metadata"]["annotations"]
    claim = Claim(TaskKey("digits", f"run-{number}", "train"), 0, Try(1, 0, 0), "default", name, uid, "here")
    notes[ANN_TASK] = json.dumps(claim.to_dict())
    if more:
        ref = CheckpointRef(more, 1, 99, 10**6, 1, running_objects.STORE, 1, 1, time.time(), "a" * 64)
        held = [*json.loads(notes[job_names.ANN_CHECKPOINTS]), json.loads(to_json(ref))]
        notes[job_names.ANN_CHECKPOINTS] = json.dumps(held)
    return made


GROUP = Group(
    "asset trigger",
    "nothing",
    (Spec("asset_trigger_ms_2000_jobs", "ms", "<= 2", "of a processor: a change of one of 2,000 Jobs to its event"),),
    measure,
)
