"""Looking at one training job while it runs: samples for the picture, lines for the person who watches."""

from __future__ import annotations

import time
from collections.abc import Callable

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs.status import JobStatus, describe
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, POD

from .errors import StoryError, StoryTimeoutError
from .model import Sample, Saved
from .wait import wait_for

LINE_EVERY_S = 5.0
PATIENCE = 4


class Follower:
    """Samples the job `name`. `also` is called at every look (the Airflow side samples there)."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        say: Callable[[str], None],
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube, self._namespace, self.name = kube, namespace, name
        self._say, self._also = say, also
        self.samples: list[Sample] = []
        self.checkpoints: dict[str, Saved] = {}
        self.status: JobStatus | None = None
        self._said: tuple[object, ...] = ()
        self._said_at = 0.0

    def look(self) -> JobStatus:
        """One sample of the job, its pods, and whatever `also` looks at."""
        self._also()
        status = describe(self._kube, self._namespace, self.name)
        for checkpoint in status.checkpoints:
            # Only the newest one carries its sizes: they are kept from the looks at which it was the newest.
            if "bytes" in checkpoint:
                seen = Saved(checkpoint["id"], checkpoint["step"], checkpoint["bytes"], checkpoint["bytes_stored"])
                self.checkpoints[seen.id] = seen
        pods = running_pods(self._kube, self._namespace, f"{job_names.LABEL_JOB}={self.name}")
        self.samples.append(Sample(time.time(), status.phase, step_of(status), pods))
        self.status = status
        self._tell(status, pods)
        return status

    def _tell(self, status: JobStatus, pods: int) -> None:
        attempt = current(status)
        place = f"attempt {attempt.attempt} on {attempt.flavor}, {pods} of {attempt.pods} pods" if attempt else ""
        facts: tuple[object, ...] = (status.phase, attempt and attempt.attempt, pods)
        if facts == self._said and time.monotonic() < self._said_at + LINE_EVERY_S:
            return
        step = step_of(status)
        parts = [f"{status.phase:<13}", place, "" if step is None else f"step {step}"]
        if facts[:1] != self._said[:1] and status.message:
            parts.append(status.message)
        self._say("  ".join(part for part in parts if part).rstrip())
        self._said, self._said_at = facts, time.monotonic()

    def until(self, condition: Callable[[JobStatus], bool], what: str, timeout_s: float) -> JobStatus:
        """Look until `condition` holds. A busy machine is slow: while the job gets on, it has up to `PATIENCE` as long.

        Raises StoryError: the job ended first, StoryTimeoutError: time is up.
        """

        def holds() -> JobStatus | None:
            status = self.look()
            if condition(status):
                return status
            if status.phase in ENDED:
                raise StoryError(f"the job {status.phase.lower()} before: {what}. {status.message}".rstrip())
            return None

        left = PATIENCE
        while True:
            before, left = self._got_to(), left - 1
            try:
                return wait_for(holds, what, timeout_s, detail=self._last)
            except StoryTimeoutError:
                if not left or self._got_to() == before:
                    raise
                self._say(f"still waiting for: {what}. The job gets on, but this machine is slow")

    def _got_to(self) -> tuple[object, ...]:
        s = self.status
        return () if s is None else (s.phase, len(s.attempts), step_of(s))

    def _last(self) -> str:
        s = self.status
        return "nothing" if s is None else f"{s.phase} {s.reason or ''} {s.message or ''} (step {step_of(s)})"


ENDED = frozenset({"Succeeded", "Failed", "Deleted"})


def current(status: JobStatus) -> AttemptRecord | None:
    """The newest attempt."""
    return status.attempts[-1] if status.attempts else None


def step_of(status: JobStatus) -> int | None:
    """Step boundaries passed, as last reported; None before the first attempt."""
    return status.step if status.attempts else None


def runs(status: JobStatus, flavor: str, pods: int, more_steps: int) -> bool:
    """True when the current attempt trains on `flavor` with `pods` pods and has done `more_steps` steps there."""
    attempt, step = current(status), step_of(status)
    return (
        attempt is not None
        and attempt.flavor == flavor
        and attempt.pods == pods
        and attempt.first_step is not None
        and attempt.evicted_at is None
        and step is not None
        and step - attempt.first_step >= more_steps
    )


def running_pods(kube: Kube, namespace: str, selector: str) -> int:
    """Pods in phase Running that are not being deleted."""
    pods = kube.list(POD, namespace, selector)
    return sum(1 for p in pods if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp"))


def managed_jobs(kube: Kube, namespace: str) -> dict[str, str]:
    """Uid -> name of the Jobs that this project made in `namespace`."""
    jobs = kube.list(JOB, namespace, f"{job_names.LABEL_MANAGED}=true")
    return {job["metadata"]["uid"]: job["metadata"]["name"] for job in jobs}
