"""Plays a compressed workload on a whole cluster: submits the Jobs, and stands for the leader pod of each attempt."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from kueue_integration.controller.work_queue import WorkQueue
from kueue_integration.errors import NotFound
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import POD, WORKLOAD
from singularity_proxy.errors import StaleAttemptError

from ...events import changes
from ...fleet import patiently
from ..model import Costs, Job
from .attempts import Attempt, Attempts, Key
from .leader import Leader, Line, Told
from .stays import Stays

SUBMITTERS = 12
AGAIN_S = 0.5
PATIENCE_S = 120.0
"""For an API server that does not answer."""
ENDED = {"exitCode": 0, "reason": "Completed"}
Open = Callable[[Attempt], AbstractAsyncContextManager[Line]]


class Player:
    """`told` and `stays` have what has happened, in seconds since the beginning.

    `over` is set when all jobs are done, and when something failed: `trouble` says what, or is "".

    :param jobs: in seconds as they are played
    :param submit: creates one
    :param line: to the controller
    :param steps: in a second of work
    """

    def __init__(
        self,
        kube: Kube,
        jobs: Sequence[Job],
        costs: Costs,
        submit: Callable[[Job], object],
        line: Open,
        steps: float,
        store: str,
    ) -> None:
        self._kube, self._costs, self._submit, self._open = kube, costs, submit, line
        self._steps, self._store = steps, store
        self.jobs = {job.id: job for job in jobs}
        self.told: list[Told] = []
        self.stays = Stays()
        self.over, self.trouble = threading.Event(), ""
        self._stop, self._due = threading.Event(), WorkQueue[int]()
        self._attempts, self._running = Attempts(), dict[Key, asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._began = time.monotonic()
        parts = [self._watch_pods, self._watch_workloads, self._loop.run_forever, *[self._create] * SUBMITTERS]
        self._threads = [threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in parts]

    def __enter__(self) -> Player:
        self._began = time.monotonic()
        for job in self.jobs.values():
            self._due.add(job.id, job.arrival_s)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(15)
        self._loop.call_soon_threadsafe(self._loop.stop)
        # The watchers wait for the API server, which may take half a minute to let them go; all are daemons.

    def now(self) -> float:
        return time.monotonic() - self._began

    def running(self) -> int:
        """Attempts that have a leader now."""
        return len(self._running)

    def _guarded(self, part: Callable[[], None]) -> None:
        """A thread that died unseen would leave the replay waiting until its limit."""
        try:
            part()
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        self.trouble = self.trouble or why
        self._stop.set()
        self.over.set()

    # --- what comes in ----------------------------------------------------------------------------------------------
    def _create(self) -> None:
        while not self._stop.is_set():
            number = self._due.get(timeout_s=AGAIN_S)
            if number is not None:
                patiently(lambda job=self.jobs[number]: self._submit(job), PATIENCE_S)  # type: ignore[misc]

    def _watch_pods(self) -> None:
        for pod in changes(self._kube, POD, None, self._stop):
            found = self._attempts.look(pod)
            if isinstance(found, Attempt):
                self._loop.call_soon_threadsafe(self._begin, found)
            elif found is not None:
                self._loop.call_soon_threadsafe(self._end, found)

    def _watch_workloads(self) -> None:
        for workload in changes(self._kube, WORKLOAD, None, self._stop):
            self.stays.look(workload, self.now())
            if self.stays.failed:
                job, why = next(iter(self.stays.failed.items()))
                self._fail(f"job-{job} has ended: {why}")
            elif len(self.stays.finished_at) == len(self.jobs):
                self.over.set()

    # --- leaders, in the loop ---------------------------------------------------------------------------------------
    def _begin(self, attempt: Attempt) -> None:
        if attempt.job in self.jobs and not self._stop.is_set():
            self._running[attempt.key] = self._loop.create_task(self._lead(attempt))

    def _end(self, key: Key) -> None:
        """A pod of the attempt ends: its leader is not there any more."""
        task = self._running.get(key)
        if task is not None:
            task.cancel()

    async def _cancel_all(self) -> None:
        tasks = [*self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lead(self, attempt: Attempt) -> None:
        try:
            async with self._open(attempt) as line:
                leader = Leader(attempt, self.jobs[attempt.job], self._costs, line, self._steps, self._store, self.now)
                self.told.append(leader.told)
                done = await leader.run()
            if done:
                await asyncio.to_thread(self._succeed, attempt)
        except StaleAttemptError:
            pass  # the controller has given it up; its pods will go
        except Exception as error:
            if not await asyncio.to_thread(self._gone, attempt):
                self._fail(f"{attempt.name}, attempt {attempt.number}: {type(error).__name__}: {error}")
        finally:
            self._running.pop(attempt.key, None)

    def _gone(self, attempt: Attempt) -> bool:
        """Whether the leader's pod has gone meanwhile: then nothing of it has to succeed."""
        pod = patiently(lambda: self._kube.find(POD, attempt.namespace, attempt.leader), PATIENCE_S)
        return pod is None or bool(pod["metadata"].get("deletionTimestamp")) or pod["metadata"]["uid"] != attempt.uid

    def _succeed(self, attempt: Attempt) -> None:
        """What the kubelets would say of pods whose programs have all ended well."""
        for name in attempt.pods:
            with contextlib.suppress(NotFound):
                patiently(
                    lambda pod=name: self._kube.patch(POD, attempt.namespace, pod, succeeded(), subresource="status"),  # type: ignore[misc]
                    PATIENCE_S,
                )


def succeeded() -> dict[str, object]:
    return {"status": {"phase": "Succeeded", "containerStatuses": None, "initContainerStatuses": None}}
