"""The story itself: what happens to the training job and when. Every event waits for a condition, none for a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB

from .cluster_jobs import intruder
from .errors import StoryError
from .follow import ENDED, Follower, current, running_pods, runs
from .model import Expectation, StoryRecord
from .wait import wait_for


@dataclass(frozen=True)
class Pace:
    """When the story goes on, in steps of the training."""

    before: int = 60
    """Steps on the first flavor before the high-priority job arrives."""
    moved: int = 40
    """Steps on the other flavor before that job ends."""


# Several times what a machine with two busy cores takes: a wait that ends here means that something is stuck.
START_TIMEOUT_S = 300.0
MOVE_TIMEOUT_S = 300.0
FINISH_TIMEOUT_S = 900.0
RECORD_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 180.0
"""Longer than the grace period of a training pod (90 s by default)."""

QUEUE = "training"
CPU_PER_POD = "250m"


def drive(
    kube: Kube,
    namespace: str,
    follower: Follower,
    expect: Expectation,
    image: str,
    say: Callable[[str], None],
    pace: Pace = Pace(),
    intruder_from: str | None = None,
    then: Callable[[], None] = lambda: None,
) -> JobStatus:
    """Preempt, move, grow back, finish. Returns the last status; raises StoryError when it goes another way.

    :param intruder_from: namespace of the high-priority job; None: that of the training
    :param then: called when the training has grown back
    """
    elsewhere = intruder_from or namespace
    follower.until(
        lambda s: runs(s, expect.flavor, expect.workers, pace.before),
        f"{pace.before} steps done by {expect.workers} pods on {expect.flavor}",
        START_TIMEOUT_S,
    )
    say(f"--> high-priority job {expect.intruder} arrives and wants all of {expect.flavor}")
    kube.create(intruder(expect.intruder, elsewhere, QUEUE, image, expect.workers, CPU_PER_POD))
    try:
        follower.until(
            lambda s: runs(s, expect.other_flavor, expect.min_workers, pace.moved),
            f"{pace.moved} more steps done by {expect.min_workers} pods on {expect.other_flavor}",
            MOVE_TIMEOUT_S,
        )
        wait_for(
            lambda: running_pods(kube, elsewhere, f"job-name={expect.intruder}") == expect.workers,
            f"{expect.workers} running pods of {expect.intruder}",
            MOVE_TIMEOUT_S,
        )
        say(f"--> {expect.intruder} had its {expect.workers} pods on {expect.flavor}; now it ends")
    finally:
        remove(kube, elsewhere, expect.intruder)
    follower.until(
        lambda s: runs(s, expect.flavor, expect.workers, 1),
        f"grown back to {expect.workers} pods on {expect.flavor} (if the training ended first, give it more steps)",
        MOVE_TIMEOUT_S,
    )
    say(f"--> grown back to {expect.workers} pods on {expect.flavor}")
    then()
    last = follower.until(lambda s: s.phase in ENDED, "the end of the training", FINISH_TIMEOUT_S)
    if last.phase != "Succeeded":
        raise StoryError(f"the training job {last.phase.lower()}: {last.reason or ''} {last.message or ''}".rstrip())
    # Kubernetes says that the Job is complete before our controller has written how the last attempt ended.
    return wait_for(lambda: recorded(follower.look()), "the record of the last attempt", RECORD_TIMEOUT_S)


def recorded(status: JobStatus) -> JobStatus | None:
    """`status` once the controller has written the end of the last attempt."""
    attempt = current(status)
    return status if attempt is not None and attempt.finished_at is not None else None


def remove(kube: Kube, namespace: str, job: str) -> None:
    """Delete a Job with its pods and wait until they are gone; no error when there is none."""
    if kube.find(JOB, namespace, job) is None:
        return
    kube.delete(JOB, namespace, job)
    wait_for(
        lambda: kube.find(JOB, namespace, job) is None and not running_pods(kube, namespace, f"job-name={job}"),
        f"Job {job} gone with its pods",
        GONE_TIMEOUT_S,
    )


def record(follower: Follower, started_at: float, last: JobStatus) -> StoryRecord:
    """What was measured, without the Airflow side."""
    return StoryRecord(
        job=follower.name,
        started_at=started_at,
        attempts=tuple(last.attempts),
        checkpoints=tuple(follower.checkpoints.values()),
        samples=tuple(follower.samples),
    )
