"""`SingularityJobTrigger`: waits for one training Job and tells its story in the task log meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from kueue_integration.errors import Conflict, KubeError
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.phase import Phase
from kueue_integration.jobs.status import JobStatus, summarise
from kueue_integration.kube.resources import JOB

from . import compat, ending
from .cluster import connect_async
from .informer import Subscription, subscribe
from .lineage import document, preemptions
from .logplace import Place
from .narrate import narrate, progress
from .podlogs import PodLog

SETTLE_S = 15.0
"""How long a finished job's last history record is waited for: Kubernetes says Complete before our controller does."""
PROGRESS_EVERY_S = 30.0
TROUBLE_AFTER_S = 30.0
KILL_TIMEOUT_S = 25.0
"""Below Airflow's `[triggerer] on_kill_timeout` (30 s)."""
USER_STATES = frozenset(("failed", "success", "skipped", "removed", "upstream_failed", compat.GONE))
"""States that a deferred task reaches only by somebody's decision; `deferred` means that the trigger was only handed to
another triggerer."""
CLEARED_STATES = frozenset((None, "scheduled", "queued"))
"""Of a deferred task that a user has cleared, until its next try starts, which may be never. Or it goes on, because
another triggerer has seen the end of its Job: then there is nothing to give up."""


_killing: set[asyncio.Task[None]] = set()
"""Kept from the garbage collector: what Airflow no longer waits for."""


class SingularityJobTrigger(compat.BaseTrigger):  # type: ignore[misc]
    """Fires once, when the Job has succeeded, failed, or been deleted, or when `deadline` passes.

    The event is `{"status": "success" | "failed" | "deleted" | "timeout" | "preempted", "message", "job", "lineage",
    "output_shown"}`; `lineage` is the document of `airflow_provider.lineage`, None when the Job was never seen;
    `output_shown` whether all of rank 0's output is in the task log. An API server that does not answer only delays the
    event.

    :param conn_id: Airflow connection of type `kubernetes`
    :param namespace: namespace of the Job
    :param name: name of the Job
    :param uid: uid of the Job: another Job of that name is not ours
    :param deadline: Unix seconds, None for no limit
    :param queue_deadline: the same for a Job that no quota has ever been reserved for
    :param preemption_alert: warn in the task log, and in the lineage, when there are more preemptions than this
    :param max_preemptions: fire with "preempted" when there are more than this; None: never
    :param get_logs: copy what rank 0 prints to the task log
    :param logging_interval: seconds between two looks at it
    :param log_max_lines: most lines to copy, over all attempts
    """

    def __init__(
        self,
        conn_id: str,
        namespace: str,
        name: str,
        uid: str,
        deadline: float | None = None,
        preemption_alert: int | None = None,
        max_preemptions: int | None = None,
        get_logs: bool = False,
        logging_interval: float = 10.0,
        log_max_lines: int = 10_000,
        queue_deadline: float | None = None,
    ) -> None:
        super().__init__()
        self.queue_deadline = queue_deadline
        self.conn_id = conn_id
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.deadline = deadline
        self.preemption_alert = preemption_alert
        self.max_preemptions = max_preemptions
        self.get_logs = get_logs
        self.logging_interval = logging_interval
        self.log_max_lines = log_max_lines
        self._output: PodLog | None = None
        self._fired = False
        self._shown: JobStatus | None = None
        self._progress_at = 0.0
        self._published: object = None
        self._publishing: asyncio.Task[None] | None = None
        self._behind = False
        """Whether a change could not be published yet."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SingularityJobTrigger", {
            "conn_id": self.conn_id,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "deadline": self.deadline,
            "preemption_alert": self.preemption_alert,
            "max_preemptions": self.max_preemptions,
            "get_logs": self.get_logs,
            "logging_interval": self.logging_interval,
            "log_max_lines": self.log_max_lines,
            "queue_deadline": self.queue_deadline,
        }

    async def run(self) -> AsyncIterator[compat.TriggerEvent]:
        async with subscribe(self.conn_id, self.namespace, self.name) as view:
            event = {**await self._told(view), "output_shown": self._output is not None and self._output.complete}
        await self._published_all()
        self._fired = True
        yield compat.TriggerEvent(event)

    def out_of_time(self) -> dict[str, Any]:
        """The event of a process that Airflow has interrupted."""
        return {**self._timeout(), "output_shown": False}

    async def _told(self, view: Subscription) -> dict[str, Any]:
        """`_wait`, with the output of rank 0 copied meanwhile."""
        if not self.get_logs:
            return await self._wait(view)
        place = Place(self.task_instance, self.log)
        self._output = PodLog(view, self.name, self.log, self.logging_interval, self.log_max_lines, place)
        follower = asyncio.create_task(self._output.follow())
        try:
            event = await self._wait(view)
            await self._output.finish()
            return event
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def _wait(self, view: Subscription) -> dict[str, Any]:
        ended_at: float | None = None
        trouble_at: float | None = None
        while True:
            changed = await view.changed(self._patience(ended_at))
            late = self.deadline is not None and time.time() >= self.deadline
            trouble_at = self._tell_trouble(view, trouble_at)
            if not view.synced:
                # A triggerer that was away may find the time over and the job finished before: look first.
                if late and view.trouble:
                    return self._timeout()
                continue
            job = view.job
            if job is None or job["metadata"]["uid"] != self.uid:
                if await self._gone():
                    return self._event("deleted", f"Job {self.name} was deleted")
                if late:
                    return self._timeout()
                continue
            in_vain = self.queue_deadline is not None and time.time() >= self.queue_deadline
            if not (changed or late or in_vain or self._behind or ended_at):
                continue
            status = summarise(job, view.workload, ())
            self._tell(status)
            if self._output is not None:
                self._output.look(status)
            self._publish(status)
            phase = Phase(status.phase)
            if phase is Phase.DELETED:
                return self._event("deleted", f"Job {self.name} was deleted")
            if not phase.final:
                count = preemptions(status)
                if self.max_preemptions is not None and count > self.max_preemptions:
                    text = f"was preempted {count} times, max_preemptions is {self.max_preemptions}"
                    return self._event("preempted", text)
                if late:
                    return self._timeout()
                if in_vain and not status.attempts:
                    why = f": {status.message}" if status.message else ""
                    return self._event("timeout", f"queue_timeout has passed, and the job was never admitted{why}")
                if in_vain:
                    self.queue_deadline = None
                continue
            ended_at = ended_at or time.monotonic()
            settled = not status.attempts or status.attempts[-1].finished_at is not None
            if settled or time.monotonic() - ended_at >= SETTLE_S:
                return self._event("success" if phase is Phase.SUCCEEDED else "failed", _outcome(status))

    def _patience(self, ended_at: float | None) -> float:
        """Seconds to wait for a change before looking at the clock."""
        if ended_at is not None:
            return max(0.05, SETTLE_S - (time.monotonic() - ended_at))
        deadlines = [each for each in (self.deadline, self.queue_deadline) if each is not None]
        return min([PROGRESS_EVERY_S, *(max(0.05, each - time.time()) for each in deadlines)])

    def _tell(self, status: JobStatus) -> None:
        for line in narrate(self._shown, status):
            self.log.info("%s", line)
            self._progress_at = time.monotonic()
        before = self._shown
        moved = before is not None and (status.step > before.step or (status.saving and status.saving != before.saving))
        told = status.phase == Phase.RUNNING.value or bool(status.saving)
        if told and time.monotonic() - self._progress_at >= PROGRESS_EVERY_S and moved:
            self.log.info("%s", progress(status))
            self._progress_at = time.monotonic()
        limit, count = self.preemption_alert, preemptions(status)
        if limit is not None and count > limit >= (0 if self._shown is None else preemptions(self._shown)):
            self.log.warning(
                "Preempted %d times, preemption_alert is %d: the job goes on and no retry is used, but its queue or "
                "priority may be the wrong one",
                count, limit,
            )  # fmt: skip
        self._shown = status

    def _tell_trouble(self, view: Subscription, since: float | None) -> float | None:
        if not view.trouble:
            if since is not None and since < 0:
                self.log.info("The Kubernetes API answers again")
            return None
        if since is None:
            return time.monotonic()
        if since >= 0 and time.monotonic() - since >= TROUBLE_AFTER_S:
            self.log.warning("The Kubernetes API does not answer, waiting on: %s", view.trouble)
            return -1.0
        return since

    def _publish(self, status: JobStatus) -> None:
        """Keep the XCom `lineage` current; one write at a time, and none when only the step has moved."""
        # A running attempt's last step and GPUs move with each note of progress.
        marks = [replace(a, last_step=None, gpus=None) if a.ended_by is None else a for a in status.attempts]
        mark = (status.phase, status.reason, marks)
        if mark == self._published or self.task_instance is None:
            return
        self._behind = self._publishing is not None and not self._publishing.done()
        if self._behind:
            return  # the next look writes it; the final document comes with the event
        self._published = mark
        self._publishing = asyncio.create_task(self._write_xcom(document(status, self.preemption_alert)))

    async def _write_xcom(self, value: dict[str, Any]) -> None:
        try:
            await asyncio.wait_for(compat.set_xcom(self.task_instance, "lineage", value), 60)
        except Exception as error:  # a convenience: `dag.test()` has no channel for it, and the event carries it too
            self.log.debug("XCom lineage not updated: %s", error)

    async def _gone(self) -> bool:
        """Ask the API server itself: the shared cache may be older than the Job."""
        try:
            async with connect_async(self.conn_id) as cluster:
                job = await cluster.find(JOB, self.namespace, self.name)
        except (KubeError, OSError) as error:
            self.log.info("Job %s is not in sight and cannot be asked for, waiting on: %s", self.name, error)
            return False
        return job is None or job["metadata"]["uid"] != self.uid

    def _event(self, status: str, message: str) -> dict[str, Any]:
        lineage = None if self._shown is None else document(self._shown, self.preemption_alert)
        job = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        return {"status": status, "message": message, "job": job, "lineage": lineage}

    def _timeout(self) -> dict[str, Any]:
        return self._event("timeout", "execution_timeout has passed")

    async def _published_all(self) -> None:
        """An older document must not arrive after the final one, which the worker writes."""
        if self._publishing is not None:
            await asyncio.wait([self._publishing], timeout=SETTLE_S)

    async def on_kill(self) -> None:
        """Delete the Job if, and only if, a user has decided about the task.

        Airflow 3.3 also calls this when a triggerer that hung for a while finds its triggers handed to another one. And
        it cancels a trigger again every second until it has ended, in the middle of this method. So the work is a task
        of its own.
        """
        if self._fired:
            return
        killing = asyncio.create_task(self._kill_in_time())
        _killing.add(killing)
        killing.add_done_callback(_killing.discard)
        while not killing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(killing)

    async def cleanup(self) -> None:
        """Called whenever `run` has ended: before 3.3 nothing else tells that a user has decided about the task."""
        if not compat.TELLS_OF_KILLS:
            await self.on_kill()

    async def _kill_in_time(self) -> None:
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await self._kill()
        except Exception as error:
            self.log.error(
                "Could not find out whether Job %s has to go, so it stays (%s: %s). If it is not wanted: "
                "singularityctl delete %s --namespace %s",
                self.name, type(error).__name__, error, self.name, self.namespace,
            )  # fmt: skip

    async def _kill(self) -> None:
        state = await self._persistently(lambda: compat.task_state_from_trigger(self.task_instance))
        if state not in USER_STATES | CLEARED_STATES:
            self.log.info("Task state is %s, not ended by a user: Job %s goes on", state, self.name)
            return
        done = "cleared" if state in CLEARED_STATES else state if state == compat.GONE else f"marked {state}"
        became = await self._persistently(self._give_up)
        if became:
            self.log.info("The task was %s by a user: Job %s (uid %s) is %s", done, self.name, self.uid, became)
        else:
            self.log.info("The task was %s by a user; Job %s had ended already", done, self.name)

    async def _give_up(self) -> str:
        """As `ending.give_up`."""
        async with connect_async(self.conn_id) as cluster:
            job = await cluster.find(JOB, self.namespace, self.name)
            if job is not None and job["metadata"]["uid"] == self.uid and ending.leaves_record(job):
                done = await cluster.end_unfinished_job(self.namespace, self.name, self.uid, lifecycle.END)
                return ending.ENDED if done else ""
            deleted = await cluster.delete_unfinished_job(self.namespace, self.name, self.uid)
            return ending.DELETED if deleted else ""

    async def _persistently(self, action: Any) -> Any:
        """Try again after errors that may pass; the caller bounds the time."""
        while True:
            try:
                return await action()
            except (KubeError, OSError) as error:
                if isinstance(error, KubeError) and not error.transient and not isinstance(error, Conflict):
                    raise
                self.log.info("Asking again: %s", error)
                await asyncio.sleep(1.0)


def _outcome(status: JobStatus) -> str:
    last = status.attempts[-1] if status.attempts else None
    note = f"; {last.note}" if last and last.note and last.note not in status.message else ""
    return f"{status.message}{note}"
