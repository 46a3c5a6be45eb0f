"""Rank 0's output in the task log while the task is deferred, attempt after attempt.

Polled, not streamed: a triggerer with a thousand running jobs would need as many open connections. A poll is one short
request on the client that the shared watch has anyway. There are a few at a time and a few per second. So with more
than fifty running jobs, each is polled less often than its `logging_interval` says. Ranks that stand still for a
checkpoint, and jobs that end, are polled at once. So the last lines of a pod are read before it goes.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.errors import Forbidden, Invalid, KubeError, NotFound
from kueue_integration.job.pods import Pod
from kueue_integration.jobs.phase import Phase
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.aio import AsyncKube
from kueue_integration.kube.resources import POD, Object, selector

from .informer import Subscription
from .logplace import Place

RANK = "[rank 0] "
LINES_PER_POLL = 1000
BYTES_PER_POLL = 1_000_000
LONGEST_LINE = 2000
FINISH_S = 10.0
"""How long the last poll may take: the task's end waits for it."""
PLACE_EVERY_S = 30.0
"""How often the place is written down at most, for up to 100 jobs in work; less often for more."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_WITH_PODS = frozenset((Phase.STARTING, Phase.RESTORING, Phase.RUNNING, Phase.CHECKPOINTING))


class PodLog:
    """Copies what rank 0 of one job prints into `log`, at most `max_lines` lines over all attempts.

    Never raises: what cannot be read, and what is left out, is named in the log.
    """

    def __init__(self, view: Subscription, job: str, log: Any, interval_s: float, max_lines: int, place: Place) -> None:
        self._place = place
        self._place_known = False
        self._saved = ""
        self._saved_at = time.monotonic()
        self._view, self._job, self._log = view, job, log
        self._interval_s, self._left = interval_s, max_lines
        self._max_lines = max_lines
        self._attempt = 0
        self._phase: Phase | None = None
        self._counted = False
        self._pod = ""
        self._newest = ""
        """Time stamp of the last line seen of this pod, as the kubelet writes it."""
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._over = False
        self._more = False
        """Whether the last answer was cut at its end."""
        self._read_last = False
        self.complete = True
        """Whether nothing was left out that was still there to be read."""

    def look(self, status: JobStatus) -> None:
        """Take notice of where the job stands now; reads nothing itself."""
        phase = Phase(status.phase)
        # All ranks stand still: nothing more will be printed by these pods, and they may soon be gone.
        if phase is not self._phase and phase in (Phase.CHECKPOINTING, Phase.PREEMPTED, Phase.RUNNING):
            self._wake.set()
        last = status.attempts[-1] if status.attempts else None
        if last is not None and last.barrier_at is not None and self._phase is Phase.CHECKPOINTING:
            self._wake.set()
        if status.attempt != self._attempt:
            self._attempt, self._pod, self._newest = status.attempt, "", ""
        self._phase = phase
        self._count(phase in _WITH_PODS and not self._over)

    def _count(self, reading: bool) -> None:
        if reading != self._counted:
            self._counted = reading
            self._view.count_log_reader(1 if reading else -1)

    async def follow(self) -> None:
        """Until cancelled."""
        try:
            await self._follow()
        finally:
            self._count(False)

    async def _follow(self) -> None:
        while not self._over:
            interval_s = self._view.log_interval(self._interval_s)
            try:
                await asyncio.wait_for(self._wake.wait(), interval_s * random.uniform(0.8, 1.2))  # noqa: S311
                urgent = True
            except TimeoutError:
                urgent = False
            self._wake.clear()
            if urgent or self._phase in _WITH_PODS:
                await self._poll()
                await self._save_place()

    async def finish(self) -> bool:
        """The rest, once the job has ended. Returns whether all that was there has been shown."""
        try:
            async with asyncio.timeout(FINISH_S):
                while await self._poll() and self._more:
                    pass
        except TimeoutError:
            self._read_last = False
        self.complete = self.complete and self._read_last
        return self.complete

    async def _poll(self) -> bool:
        """Returns whether something could be read."""
        cluster = self._view.cluster
        self._read_last = False
        if cluster is None or self._over or not self._attempt:
            return False
        async with self._busy, self._view.log_slots:
            try:
                self._read_last = await self._read(cluster)
            except (Invalid, NotFound):  # its container has not started, or it is gone
                self._pod = ""
            except Forbidden as error:
                self._stop(f"the output of the ranks cannot be shown ({error}): the connection needs the "
                           "permission to list pods and to get pods/log, or set get_logs=False")  # fmt: skip
            except KubeError:
                pass  # reported by whoever follows the Job
        return self._read_last

    async def _save_place(self) -> None:
        """Now and then: all tasks of a triggerer share one channel to Airflow's database."""
        pause = PLACE_EVERY_S * max(1.0, self._view.informer.size / 100)
        if self._newest in ("", self._saved) or time.monotonic() - self._saved_at < pause:
            return
        self._saved, self._saved_at = self._newest, time.monotonic()
        await self._place.save(self._attempt, self._newest, self._left)

    async def _find_place(self, attempt: int) -> None:
        """Go on where another triggerer has stopped. Asked once, when there is something to be read."""
        if self._place_known:
            return
        self._place_known = True
        former = await self._place.load()
        if former is not None:
            at, newest, left = former
            self._left = min(self._left, left)
            if at == attempt == self._attempt:
                self._newest = self._saved = newest

    async def _read(self, cluster: AsyncKube) -> bool:
        attempt = self._attempt
        pod = self._pod or await self._find(cluster, attempt)
        if not pod:
            return False
        await self._find_place(attempt)
        data = await cluster.pod_log(
            self._view.informer.namespace, pod, job_names.CONTAINER_TRAIN, self._newest, LINES_PER_POLL, BYTES_PER_POLL
        )
        if attempt != self._attempt:
            return False  # read while the next one began; its own lines come with the next poll
        self._pod = pod
        lines = data.decode("utf-8", "replace").split("\n")
        self._more = len(data) >= BYTES_PER_POLL
        rest = lines.pop()  # what follows the last line end
        if rest and not self._more:
            lines.append(rest)
        stamped = [line.partition(" ")[::2] for line in lines if line]
        fresh = [(stamp, words) for stamp, words in stamped if stamp > self._newest]
        if len(stamped) >= LINES_PER_POLL and len(fresh) == len(stamped):
            since = f"since {self._newest}" if self._newest else f"at the beginning of attempt {attempt}"
            self._log.warning("--- more than %d lines %s: the older ones are left out here", LINES_PER_POLL, since)
            self.complete = False
        for number, (stamp, words) in enumerate(fresh):
            self._newest = stamp
            if words.startswith(RANK):
                if self._left <= 0:
                    self._stop(f"--- log_max_lines = {self._max_lines} lines of output are shown, what follows is not "
                               f"copied here: singularityctl logs {self._job} "
                               f"--namespace {self._view.informer.namespace}")  # fmt: skip
                    return True
                self._left -= 1
                self._log.info("%s", shortened(words))
            if number % 50 == 49:
                await asyncio.sleep(0)  # other triggers live in this loop too
        return True

    async def _find(self, cluster: AsyncKube, attempt: int) -> str:
        """Name of the pod with index 0 of `attempt`, the youngest of several; "" while there is none."""
        query = selector({job_names.LABEL_JOB: self._job, INDEX_LABEL: "0"})
        pods, _ = await cluster.list(POD, self._view.informer.namespace, query)
        own: list[Object] = [pod for pod in pods if Pod.parse(pod).attempt == attempt]
        own.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        return str(own[-1]["metadata"]["name"]) if own else ""

    def _stop(self, why: str) -> None:
        self._over, self.complete = True, False
        self._log.warning("%s", why)


def shortened(line: str) -> str:
    """`line`, or its beginning and how much of it is missing."""
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[:LONGEST_LINE]} [... {len(line) - LONGEST_LINE} more characters]"
