"""The trigger's watch of progress: the task log and the marks show the newest word, and nothing waits for it."""

from __future__ import annotations

import json

import pytest
from airflow_fakes import CONN_ID, NAMESPACE, ApiServer, make_attempt, make_job
from waits import LIMIT_S, eventually

from airflow_provider import informer
from airflow_provider.informer import Subscription, subscribe
from kueue_integration.contract import attempt_records, progress_objects
from kueue_integration.kube.resources import JOB, PROGRESS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr(informer, "BACKOFF_MAX_S", 0.1)


def note(api: ApiServer, step: int, uid: str = "u1", name: str = "train") -> None:
    text = json.dumps({"attempt": 1, "step": step, "at": 5.0, "phase": "running"})
    api.put(PROGRESS, progress_objects.made_for(make_job(name, uid), text))


def running(api: ApiServer) -> None:
    """A job that has told step 3 at its last change of phase."""
    api.put(JOB, make_job(attempts=[make_attempt(1, first_step=0, first_step_at=1001.0)], step=3))


def step_of(view: Subscription) -> int | None:
    seen = attempt_records.progress(view.job)
    return None if seen is None else seen.step


async def test_the_newest_note_is_shown_with_the_job_and_wakes_its_trigger(api: ApiServer) -> None:
    api.missing.clear()
    running(api)
    note(api, 10)
    async with subscribe(CONN_ID, NAMESPACE, "train") as view, subscribe(CONN_ID, NAMESPACE, "other") as bystander:
        await eventually(lambda: view.synced and step_of(view) == 10)
        while await bystander.changed(0.2):
            pass  # what was listed
        while await view.changed(0.2):
            pass
        note(api, 11)
        assert await view.changed(LIMIT_S) and step_of(view) == 11
        assert not await bystander.changed(0.2), "a note wakes the trigger of its own job"
        note(api, 9)  # an old word, of a controller that is on its way out
        await eventually(lambda: view.informer.notes["u1"].find('"step": 9') > 0)
        api.delete(PROGRESS, "u1")
        await eventually(lambda: step_of(view) == 3)


async def test_a_job_of_the_same_name_has_other_progress(api: ApiServer) -> None:
    api.missing.clear()
    running(api)
    note(api, 500, uid="of-an-earlier-one")
    async with subscribe(CONN_ID, NAMESPACE, "train") as view:
        await eventually(lambda: view.synced and "of-an-earlier-one" in view.informer.notes)
        assert step_of(view) == 3


@pytest.mark.parametrize("why", ["no such kind", "forbidden"])
async def test_without_progress_the_job_is_followed_all_the_same(api: ApiServer, why: str) -> None:
    if why == "forbidden":
        api.missing.clear()
        api.refused.add(PROGRESS.plural)
    running(api)
    async with subscribe(CONN_ID, NAMESPACE, "train") as view:
        await eventually(lambda: view.synced and step_of(view) == 3)
        api.put(JOB, make_job(condition="Complete"))
        await eventually(lambda: (view.job or {}).get("status", {}).get("conditions"))
        assert view.trouble == ""
        assert api.count("list", JOB.plural) == 1, "the watches were not begun again"


async def test_notes_that_came_while_the_watch_was_cut_are_there_afterwards(api: ApiServer) -> None:
    api.missing.clear()
    running(api)
    note(api, 10)
    async with subscribe(CONN_ID, NAMESPACE, "train") as view:
        await eventually(lambda: view.synced and step_of(view) == 10)
        api.drop()
        note(api, 25)
        await eventually(lambda: step_of(view) == 25)
