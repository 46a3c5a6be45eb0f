"""What pods report of their steps: on an object beside the job, and on the job if it is news."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time

import controller_scene as scene
import pytest
from controller_scene import NS
from sidecar_scene import COMMIT, HELLO
from waits import LIMIT_S, eventually

from kueue_integration.contract import job_names, progress_objects
from kueue_integration.controller import notes as notes_module
from kueue_integration.errors import Forbidden
from kueue_integration.jobs import loss_curve
from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import JOB, PROGRESS, annotation
from singularity_proxy.protocol.messages import (
    Progress,
    Reading,
)


async def test_progress_is_written_on_the_job_only_if_it_is_news(served):
    def writes():
        return [r for r in served.kube.requests if r[:2] == ("patch", "Job")]

    async def seen(count):
        await eventually(
            lambda: len(writes()) == count and annotation(served.job(), job_names.ANN_PROGRESS) is not None
        )

    await served.post("/v1/progress", Progress(NS, "train", 1, "running", 1, first_step=0, first_step_ago_s=5.0))
    await seen(1)
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert (record.first_step, record.last_step) == (0, 0)
    assert record.first_step_at == pytest.approx(time.time() - 5, abs=5)
    await eventually(lambda: annotation(served.world.jobs.get(NS, "train"), job_names.ANN_PROGRESS) is not None)
    for step in range(2, 12):
        assert (await served.post("/v1/progress", Progress(NS, "train", 1, "running", step)))[0] == 200
    assert len(writes()) == 1
    await served.post("/v1/progress", Progress(NS, "train", 1, "barrier", 12, barrier_ago_s=9.0))
    await eventually(lambda: json.loads(annotation(served.job(), job_names.ANN_PROGRESS))["phase"] == "barrier")


def told(step, phase="running", **more):
    return Progress(NS, "train", 1, phase, step, first_step=0, first_step_ago_s=5.0, **more)


def writes(kube, kind):
    return [r for r in kube.requests if r[0] in ("patch", "create") and r[1] == kind.name]


async def test_a_hundred_notes_write_the_job_once_and_the_object_a_few_times(served):
    served.world.notes.start()
    served.kube.patch_job(NS, "train", {"metadata": {"annotations": {}}})
    before = len(writes(served.kube, JOB))
    began = time.monotonic()
    for step in range(1, 101):
        status, reply = await served.post("/v1/progress", told(step, reading=Reading(step, 200, 1 / step)))
        assert (status, reply) == (200, {"every_s": notes_module.EVERY_S})
    took = time.monotonic() - began
    assert len(writes(served.kube, JOB)) - before == 1, "the change of phase"
    await eventually(lambda: describe(served.kube, NS, "train").step == 100)
    assert len(writes(served.kube, PROGRESS)) <= 3 + took / notes_module.EVERY_S
    status = describe(served.kube, NS, "train")
    assert status.attempts[-1].last_step == 99 and status.progress["step"] == 100
    assert status.curve[-1] == (100, 0.01) and len(status.curve) <= loss_curve.NOTED + 1
    assert served.world.job(NS, "train") is served.world.job(NS, "train"), "made once of each note"
    served.world.notes.stop()


@pytest.mark.parametrize("reader", ["gone", "forbidden"])
async def test_without_the_object_the_job_says_what_it_knows(served, reader):
    served.world.notes.start()
    for step in (1, 7):
        assert (await served.post("/v1/progress", told(step)))[0] == 200
    await eventually(lambda: describe(served.kube, NS, "train").step == 7)
    (found,) = served.kube.list(PROGRESS, NS)
    assert found["metadata"]["ownerReferences"][0]["uid"] == served.job()["metadata"]["uid"]
    if reader == "gone":
        served.kube.delete(PROGRESS, NS, found["metadata"]["name"])
        assert describe(served.kube, NS, "train").step == 1
        assert (await served.post("/v1/progress", told(8)))[0] == 200
        await eventually(lambda: describe(served.kube, NS, "train").step == 8)
    else:

        def refused(kind, namespace, name):
            raise Forbidden("no", 403, "Forbidden")

        assert progress_objects.shown(type("Kube", (), {"find": staticmethod(refused)}), served.job()) == served.job()
    served.world.notes.stop()


async def test_a_change_of_phase_writes_all_that_was_noted_on_the_job(served):
    for step in (1, 5, 9):
        await served.post("/v1/progress", told(step, reading=Reading(step, 20, float(step))))
    assert loss_curve.points(served.job()) == [(1, 1.0)], "only the first was news"
    await served.post("/v1/progress", told(9, "barrier", reading=Reading(9, 20, 9.0)))
    assert loss_curve.points(served.job()) == [(1, 1.0), (5, 5.0), (9, 9.0)]
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert record.last_step == 8


async def test_a_flood_of_news_delays_no_commit_and_no_hello(served, monkeypatch):
    """The API server answers none of their writes. Twelve jobs' worth of news wait for their own threads only."""
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    patch, waiting, answer = served.kube.patch, threading.Semaphore(0), threading.Event()

    def patched(kind, *args, **more):
        if threading.current_thread().name.startswith("api-note"):
            waiting.release()
            assert answer.wait(LIMIT_S)
        return patch(kind, *args, **more)

    monkeypatch.setattr(served.kube, "patch", patched)
    phases = itertools.cycle(["barrier", "dumping", "uploading", "running"])
    flood = [asyncio.ensure_future(served.post("/v1/progress", told(5, next(phases)))) for _ in range(60)]
    await eventually(lambda: waiting.acquire(blocking=False))
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "follower"))[0] in (200, 202)
    assert not any(one.done() for one in flood), "commit and hello have not waited for the notes"
    for one in flood:
        one.cancel()
    answer.set()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_an_api_server_that_is_slow_about_progress_delays_nobody_else(served, monkeypatch):
    """As long as a request may take: its writers wait, and nothing waits for them."""
    begun, free, patch = threading.Event(), threading.Event(), served.kube.patch

    def patched(kind, *args, **more):
        if kind is PROGRESS:
            begun.set()
            assert free.wait(120)
        return patch(kind, *args, **more)

    monkeypatch.setattr(served.kube, "patch", patched)
    served.world.notes.start()
    for step in (1, 7):
        assert (await served.post("/v1/progress", told(step)))[0] == 200
    await eventually(begun.is_set)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "follower"))[0] in (200, 202)
    assert (await served.post("/v1/progress", told(9)))[0] in (200, 409)
    assert served.kube.list(PROGRESS, NS) == []
    free.set()
    served.world.notes.stop()
    (found,) = served.kube.list(PROGRESS, NS)
    assert json.loads(progress_objects.note_of(found))["step"] >= 7, "what waited is written in the end"
