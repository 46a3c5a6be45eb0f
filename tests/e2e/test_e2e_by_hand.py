"""What administrators do by hand, or in the middle of: `doctor` names it, and the commands that it prints mend it.

Keys are rotated, and then deleted, while a job is saved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import controllers
import pytest
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import SECRET, annotation
from localcluster.addons.chart import NAMESPACE as SYSTEM
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "by-hand"
QUEUES = {"own": {"ondemand": "100m"}}
KEYS = job_names.KEYS_SECRET
BUDGET_S = 600
"""A job is saved for as long as an administrator needs to mend things."""


@pytest.fixture
def shell(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """In the checkout: the commands of doctor name the chart there. All is well afterwards."""
    monkeypatch.chdir(CHECKOUT)
    made = Shell(rows.stage.cluster)
    yield made
    made.type(f"kubectl -n {SYSTEM} rollout status deployment/{job_names.CONTROLLER_NAME} --timeout=300s")


@pytest.fixture
def job(rows: Rows) -> Training:
    made = rows.train("trains", "own", workers=2, checkpoint_budget_s=BUDGET_S)
    made.until_steps()
    return made


def mended(rows: Rows, shell: Shell, name: str, words: str) -> None:
    """`doctor` says `words` in its check `name`; its commands are typed, and then all of that is well."""
    seen: dict[str, dict[str, str]] = {}

    def named() -> bool:
        seen.update(shell.doctor_whatever_it_exits_with("-n", rows.namespace))
        return words in seen.get(name, {}).get("message", "")

    wait_for(named, f"doctor's check {name} says: {words}", TIMEOUT_S, detail=lambda: str(seen.get(name)))
    rows.say(f"doctor, {name}: {seen[name]['message']}\n{seen[name]['fix']}")
    shell.follow(seen[name]["fix"])

    def well() -> bool:
        seen.clear()
        seen.update(shell.doctor_whatever_it_exits_with("-n", rows.namespace))
        return seen.get(name, {"status": "ok"})["status"] == "ok"

    wait_for(well, f"doctor's check {name} is content", TIMEOUT_S, detail=lambda: str(seen.get(name)))


def being_saved(rows: Rows, job: Training) -> None:
    """Kueue stops it, its hold stands, and it cannot be saved before `job.slow(False)`."""
    job.slow()
    rows.activate(job.name, False)
    asked = lambda: annotation(job.job(), job_names.ANN_HOLD_DEADLINE)  # noqa: E731
    wait_for(asked, "a checkpoint is asked for, and Kueue waits", TIMEOUT_S, tick_s=0.1)


def goes_on(rows: Rows, job: Training, attempt: int) -> None:
    """What was being saved is saved, and the next attempt goes on from it."""
    assert job.job()["spec"]["suspend"] is False, "Kueue is held back all the time"
    job.slow(False)
    ended = job.until_ended(attempt)
    assert ended.checkpoint is not None, ended.note
    rows.activate(job.name, True)
    job.until_attempt(attempt + 1)


def data(rows: Rows) -> dict[str, str]:
    found: dict[str, str] = (rows.kube.find(SECRET, SYSTEM, KEYS) or {}).get("data") or {}
    return found


def test_keys_are_rotated_and_then_deleted_while_a_job_is_saved(rows: Rows, shell: Shell, job: Training) -> None:
    being_saved(rows, job)
    before = data(rows)
    rows.say("--> the keys are rotated")
    shell.type(f"kubectl -n {SYSTEM} annotate secret {KEYS} --overwrite singularity.dev/rotate={time.time_ns()}")
    wait_for(lambda: data(rows) not in ({}, before), "other keys", TIMEOUT_S)
    goes_on(rows, job, 1)

    being_saved(rows, job)
    rotated = data(rows)
    rows.say("--> the Secret is deleted, and the controllers live")
    rows.kube.delete(SECRET, SYSTEM, KEYS)
    mended(rows, shell, "keys", "is gone")
    wait_for(lambda: data(rows) == rotated, "the keys that were in memory are in the new Secret", TIMEOUT_S)
    goes_on(rows, job, 2)
    rows.say("--> a controller that starts anew has them, too")
    controllers.restart(rows.kube)
    being_saved(rows, job)
    goes_on(rows, job, 3)
    job.assert_exact(job.finish())
