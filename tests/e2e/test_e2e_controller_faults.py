"""Two replicas of the controller, one killed in the middle of an eviction: the other goes on, and no step is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import controllers
import pytest
from rows import Rows

from kueue_integration.contract import job_names
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, LEASE, POD, annotation
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
SYSTEM = job_names.SYSTEM_NAMESPACE
TIMEOUT_S = 600.0
STEP_S = 3.0
"""So long takes the way to the barrier: the kill comes before it."""


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-faults", say)
    yield made
    made.close()


@pytest.fixture
def two_replicas(stage: Stage) -> Kube:
    """Both controllers are ready, and one of them leads."""
    kube = stage.kube
    ready = lambda: controllers.ready(kube)  # noqa: E731
    wait_for(lambda: len(ready()) == 2 == len(controllers.pods(kube)), "two ready controllers", TIMEOUT_S)
    wait_for(lambda: controllers.leader(kube) in ready(), "a controller that leads", TIMEOUT_S)
    return kube


class Seen:
    """Follows a Job in a thread: when its hold was lifted and when it was suspended, as they came (monotonic)."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.lifted: float | None = None
        self.suspended: float | None = None
        self._args = (kube, namespace, name)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        kube, namespace, name = self._args
        for _, job in kube.watch(JOB, namespace, f"{job_names.LABEL_JOB}={name}", timeout_s=TIMEOUT_S):
            now = time.monotonic()
            if self.lifted is None and annotation(job, job_names.ANN_HOLD) == job_names.HOLD_RELEASED:
                self.lifted = now
            if self.lifted is not None and job["spec"].get("suspend"):
                self.suspended = now
                return


def test_the_leader_is_killed_in_the_middle_of_an_eviction(
    rows: Rows, two_replicas: Kube, say: Callable[[str], None]
) -> None:
    kube = two_replicas
    rows.queue("killed", {"ondemand": "100m"})
    job = rows.train("leader-killed", "killed", workers=2, pace=STEP_S)
    job.until_steps(2)
    leader = controllers.leader(kube)
    transitions = kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE)["spec"]["leaseTransitions"]
    rows.activate(job.name, False)
    wait_for(
        lambda: annotation(job.job(), job_names.ANN_HOLD_DEADLINE), "the checkpoint asked for", TIMEOUT_S, tick_s=0.05
    )
    kube.delete(POD, SYSTEM, leader)  # else its container would come back in place, under the same name
    assert controllers.kill(leader), "the fault did not fire"
    say(f"{leader} is killed, {annotation(job.job(), job_names.ANN_HOLD)} hold")
    ended = job.until_ended(1)
    assert ended.ended_by == "Deactivated"
    assert ended.checkpoint is not None, ended.note
    say(f"checkpoint {ended.checkpoint} was committed all the same")
    wait_for(lambda: controllers.leader(kube) not in ("", leader), "another controller that leads", TIMEOUT_S)
    assert kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE)["spec"]["leaseTransitions"] > transitions
    rows.activate(job.name, True)
    status = job.until_attempt(2, steps=1)
    assert status.attempts[1].restored_from == ended.checkpoint
    job.assert_exact(job.finish())


@pytest.mark.full
def test_lifting_the_hold_suspends_the_job_at_once(rows: Rows, say: Callable[[str], None]) -> None:
    """Measured and reported, not asserted: a busy machine is no fault of the hold's."""
    rows.queue("latency", {"ondemand": "100m"})
    job = rows.train("latency", "latency", workers=1)
    job.until_steps(5)
    seen = Seen(rows.kube, rows.namespace, job.name)
    rows.activate(job.name, False)
    wait_for(lambda: seen.suspended is not None, "the Job suspended", TIMEOUT_S)
    assert seen.lifted is not None and seen.suspended is not None
    say(f"hold_release_to_suspended_s = {seen.suspended - seen.lifted:.3f}")
    rows.activate(job.name, True)
    job.until_attempt(2)
    job.assert_exact(job.finish())
