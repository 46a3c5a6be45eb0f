"""One watch of Jobs, Workloads and progress per (connection, namespace) in a triggerer, shared by all its triggers.

A thousand deferred tasks cost two API connections and no polling. The informer never fails its subscribers: an
unreachable API server only means that nothing new is known.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kueue_integration.contract import job_names, progress_objects
from kueue_integration.errors import Forbidden, Gone, KubeError, NotFound
from kueue_integration.job import states
from kueue_integration.kube.aio import AsyncKube
from kueue_integration.kube.interning import Strings
from kueue_integration.kube.resources import JOB, KUEUE_JOB_UID_LABEL, PROGRESS, WORKLOAD, Kind, Object, label

from .cluster import connect_async
from .identity import LABEL_OWNER

log = logging.getLogger(__name__)

WATCH_S = 300
"""A watch is ended by the server after about this time and goes on where it was; jitter keeps many of them apart."""
LOG_READERS = 8
"""Requests for the output of pods that may be under way at a time."""
LOG_LOOKS_PER_S = 5
"""Looks at the output of pods, all jobs together: with many of them each is looked at less often."""
PAGE = 100
"""Objects in one answer to a list."""
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0

ALL = ""
"""Instead of a Job's name: a subscription to every managed Job of the namespace."""


def owned_by(owner: str) -> str:
    """Instead of a Job's name: a subscription to the Jobs of a task instance, whatever their names. No Job's name has a
    slash."""
    return f"owner/{owner}"


_strings = Strings()
_Key = tuple[int, str, str]
_informers: dict[_Key, Informer] = {}


@dataclass
class Subscription:
    """One trigger's view on one Job, or on all (name `ALL`)."""

    informer: Informer
    name: str
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def synced(self) -> bool:
        """Whether Jobs and Workloads have been listed at least once."""
        return self.informer.synced

    @property
    def trouble(self) -> str:
        """Why the API server cannot be followed right now; "" when it can."""
        return self.informer.trouble

    @property
    def job(self) -> Object | None:
        found = self.informer.jobs.get(self.name)
        return None if found is None else self.informer.shown(found)

    @property
    def jobs(self) -> Mapping[str, Object]:
        """Every managed Job of the namespace by name, without newer progress; one that changes is another object."""
        return self.informer.jobs

    def owned(self, owner: str) -> list[Object]:
        """The Jobs with this owner's label, without newer progress."""
        return [job for job in self.informer.jobs.values() if label(job, LABEL_OWNER) == owner]

    @property
    def workload(self) -> Object | None:
        """The Workload of the Job's current uid."""
        job = self.job
        return self.informer.workloads.get(job["metadata"]["uid"]) if job else None

    @property
    def cluster(self) -> AsyncKube | None:
        """The client of the watch, None while there is none."""
        return self.informer.cluster

    @property
    def log_slots(self) -> asyncio.Semaphore:
        """Held while output of a pod is read."""
        return self.informer.log_slots

    def log_interval(self, wanted_s: float) -> float:
        """Seconds between two looks at a job's output: `wanted_s`, or more while many jobs want it."""
        return max(wanted_s, self.informer.log_readers / LOG_LOOKS_PER_S)

    def count_log_reader(self, more: int) -> None:
        """One more (1) or one less (-1) of whom output may come."""
        self.informer.log_readers += more

    def notify(self) -> None:
        self._changed.set()

    async def changed(self, timeout_s: float) -> bool:
        """Wait for a change since the last call; False if there was none within `timeout_s` seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            self._changed.clear()
        return True


class Informer:
    """Cache of one namespace. Lives in one event loop and is touched from there only."""

    def __init__(self, conn_id: str, namespace: str) -> None:
        self.conn_id, self.namespace = conn_id, namespace
        self.jobs: dict[str, Object] = {}
        self.workloads: dict[str, Object] = {}
        """By the uid of their Job."""
        self.notes: dict[str, str] = {}
        """The newest progress of running jobs, by the uid of the Job."""
        self.trouble = ""
        self.cluster: AsyncKube | None = None
        self.log_slots = asyncio.Semaphore(LOG_READERS)
        self.log_readers = 0
        """Jobs of which output may come right now."""
        self._by_name: dict[str, list[Subscription]] = {}
        self._synced: set[str] = set()
        self._following: set[str] = set()
        """Kinds listed since the last trouble."""
        self._task: asyncio.Task[None] | None = None

    @property
    def synced(self) -> bool:
        return len(self._synced) == 2

    def start(self) -> None:
        # An empty context: the log lines of the shared watch belong to no task instance.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def size(self) -> int:
        """How many Jobs are waited for."""
        return len(self._by_name)

    def add(self, subscription: Subscription) -> None:
        self._by_name.setdefault(subscription.name, []).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        left = [s for s in self._by_name.get(subscription.name, []) if s is not subscription]
        if left:
            self._by_name[subscription.name] = left
        else:
            self._by_name.pop(subscription.name, None)

    @property
    def idle(self) -> bool:
        return not self._by_name

    async def _run(self) -> None:
        backoff = BACKOFF_FIRST_S
        while True:
            started = asyncio.get_running_loop().time()
            try:
                async with connect_async(self.conn_id) as cluster:
                    self.cluster = cluster
                    try:
                        await self._follow_both(cluster)
                    finally:
                        self.cluster = None
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Whatever it is (no connection of that id yet, expired credentials, API server down): tasks wait on.
                if asyncio.get_running_loop().time() - started > BACKOFF_MAX_S:
                    backoff = BACKOFF_FIRST_S
                self._report(error)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))  # noqa: S311
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    async def _follow_both(self, cluster: AsyncKube) -> None:
        """Ends with the first error of either watch."""
        self._following.clear()
        managed = f"{job_names.LABEL_MANAGED}=true"
        tasks = [
            asyncio.create_task(self._follow(cluster, JOB, managed)),
            asyncio.create_task(self._follow(cluster, WORKLOAD, KUEUE_JOB_UID_LABEL)),
            asyncio.create_task(self._follow_progress(cluster)),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def shown(self, job: Object) -> Object:
        """`job` with its newest progress."""
        return progress_objects.laid_over(job, self.notes.get(job["metadata"]["uid"]))

    async def _follow_progress(self, cluster: AsyncKube) -> None:
        """Nothing but lines of the log needs it: who may not read it sees what stands on the Jobs."""
        try:
            await self._follow(cluster, PROGRESS, "")
        except (Forbidden, NotFound) as error:
            where = f"connection {self.conn_id}, namespace {self.namespace}"
            log.info("%s: progress is shown at changes of phase only: %s", where, error)

    async def _follow(self, cluster: AsyncKube, kind: Kind, selector: str) -> None:
        while True:
            try:
                items, version = await self._list(cluster, kind, selector)
                self._replace(kind, items)
                del items  # a second copy of everything, for as long as the watch lasts
                await self._watch(cluster, kind, selector, version)
            except Gone:
                log.info("watch of %s in %s is too old, listing again", kind.plural, self.namespace)
                await asyncio.sleep(random.uniform(0.0, 1.0))  # noqa: S311

    async def _list(self, cluster: AsyncKube, kind: Kind, selector: str) -> tuple[list[Object], str]:
        """Everything, in compact form and page by page: a thousand whole objects at once would never be given back."""
        found: list[Object] = []
        more = ""
        while True:
            items, version, more = await cluster.page(kind, self.namespace, selector, PAGE, more)
            found.extend(compact(item) for item in items)
            if not more:
                return found, version

    async def _watch(self, cluster: AsyncKube, kind: Kind, selector: str, version: str) -> None:
        """Follow from `version` over as many connections as it takes. Raises when the watch cannot go on."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            timeout_s = int(WATCH_S * random.uniform(0.8, 1.2))  # noqa: S311
            async for event, obj in cluster.watch(kind, self.namespace, selector, version, timeout_s):
                version = str(obj["metadata"].get("resourceVersion") or version)
                if event != "BOOKMARK":
                    self._apply(kind, event, compact(obj))
            if loop.time() - began < 1.0:  # a server that hangs up at once must not be asked a thousand times a second
                await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311

    def _replace(self, kind: Kind, items: list[Object]) -> None:
        if kind is PROGRESS:
            self.notes = {}
            for item in items:
                self._put_note(item)
            self._notify_all()
            return
        if kind is JOB:
            self.jobs = {item["metadata"]["name"]: item for item in items}
        else:
            self.workloads = {}
            for item in items:
                self._put_workload(item)
        self._synced.add(kind.name)
        self._following.add(kind.name)
        if self.trouble and len(self._following) == 2:  # one of them may still be refused
            log.info("connection %s, namespace %s: following again", self.conn_id, self.namespace)
            self.trouble = ""
        self._notify_all()

    def _put_note(self, obj: Object) -> None:
        text = progress_objects.note_of(obj)
        if text is not None:
            self.notes[progress_objects.uid_of(obj)] = text

    def _apply(self, kind: Kind, event: str, obj: Object) -> None:
        if kind is PROGRESS:
            if event == "DELETED":
                self.notes.pop(progress_objects.uid_of(obj), None)
            else:
                self._put_note(obj)
            self._notify(label(obj, job_names.LABEL_JOB) or "")
            return
        if kind is JOB:
            name = obj["metadata"]["name"]
            if event == "DELETED":
                self.jobs.pop(name, None)
            else:
                self.jobs[name] = obj
            self._notify(name)
            for subscription in self._by_name.get(owned_by(label(obj, LABEL_OWNER) or ""), ()):
                subscription.notify()
            return
        uid = label(obj, KUEUE_JOB_UID_LABEL) or ""
        held = self.workloads.get(uid)
        if event != "DELETED":
            self._put_workload(obj)
        elif held is not None and held["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self.workloads[uid]
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._notify(owner["name"])

    def _put_workload(self, obj: Object) -> None:
        self.workloads[label(obj, KUEUE_JOB_UID_LABEL) or ""] = obj

    def _notify(self, name: str) -> None:
        for subscription in (*self._by_name.get(name, ()), *self._by_name.get(ALL, ())):
            subscription.notify()

    def _notify_all(self) -> None:
        for name in list(self._by_name):
            self._notify(name)

    def _report(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        if not self.trouble:
            expected = isinstance(error, KubeError | OSError)
            log.warning(
                "connection %s, namespace %s: cannot follow, asking again: %s",
                self.conn_id,
                self.namespace,
                text,
                exc_info=None if expected else error,
            )
        self.trouble = text
        self._notify_all()


def compact(obj: Object) -> Object:
    """`obj` without what nobody here reads: who wrote which field, and what the pods are made of.

    That is most of it, and a triggerer holds a thousand of them.
    """
    meta, spec = dict(obj["metadata"]), dict(obj.get("spec") or {})
    meta.pop("managedFields", None)
    kept = dict(meta.get("annotations") or {})
    if kept.pop(job_names.ANN_RESULT, None) is not None:  # read once, by the worker that ends the task
        meta["annotations"] = kept
    for name in ("podFailurePolicy", "selector"):
        spec.pop(name, None)
    if "template" in spec:
        spec["template"] = _template(spec["template"])
    if "podSets" in spec:
        spec["podSets"] = [{key: value for key, value in each.items() if key != "template"} for each in spec["podSets"]]
    small: Object = _strings.shared({**obj, "metadata": meta, "spec": spec})
    return small


def _template(template: Object) -> Object:
    """All that a job's status says about its pods' template."""
    spec = template.get("spec") or {}
    kept = {key: spec[key] for key in ("terminationGracePeriodSeconds", "hostUsers") if key in spec}
    trains = [c for c in spec.get("containers") or () if c.get("name") == job_names.CONTAINER_TRAIN]
    return {"spec": {**kept, "containers": [{"name": c["name"], **states.rights(c)} for c in trains]}}


@asynccontextmanager
async def subscribe(conn_id: str, namespace: str, name: str) -> AsyncIterator[Subscription]:
    """The shared view on Job `name`. The first subscriber of a (connection, namespace) starts the watch, the last one
    ends it."""
    key = (id(asyncio.get_running_loop()), conn_id, namespace)
    informer = _informers.get(key)
    if informer is None:
        informer = _informers[key] = Informer(conn_id, namespace)
        informer.start()
    subscription = Subscription(informer, name)
    subscription.notify()  # what is known already counts as the first change
    informer.add(subscription)
    try:
        yield subscription
    finally:
        informer.remove(subscription)
        if informer.idle and _informers.get(key) is informer:
            del _informers[key]
            await informer.stop()
