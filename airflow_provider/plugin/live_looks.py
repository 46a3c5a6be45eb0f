"""What a cluster says now of the jobs that open tabs show: one look at a cluster at a time, for all tabs together.

A look asks for all wanted jobs of a namespace at once: Jobs, Workloads, pods, and the queues in which they wait.
Whoever asks for a job meanwhile is served by the next look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kueue_integration.contract import job_names, progress_objects
from kueue_integration.errors import KubeError
from kueue_integration.jobs import queue_position
from kueue_integration.jobs.queue_position import Position
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, KUEUE_JOB_UID_LABEL, WORKLOAD, Object, is_true, label

from ..identity import TaskKey
from ..lineage import document
from .actions import Clients, NotTheJobError, checked
from .flights import Flights

FRESH_S = 2.0
"""Answers of so long ago are given again."""
KEPT_S = 60.0
"""An answer may stand in for so long for one that does not come."""
LIMIT_S = 5.0
"""Nobody waits longer for a cluster."""
TOGETHER = 50
"""Jobs in one request."""

Document = dict[str, Any]
Claim = Mapping[str, Any]


@dataclass
class _Place:
    """One connection. `wanted` are the jobs of the next look, `began` when the present one began."""

    answers: dict[TaskKey, tuple[float, Document]] = field(default_factory=dict)
    wanted: dict[TaskKey, tuple[Claim, Future[Document]]] = field(default_factory=dict)
    looked_at: dict[TaskKey, Future[Document]] = field(default_factory=dict)
    began: float | None = None


class LiveLooks:
    """For several threads. `clock` is monotonic."""

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients, self._clock = clients, clock
        self._lock = threading.Lock()
        self._flights = Flights(most=2)  # the next one may begin while the last one ends
        self._places: dict[str, _Place] = {}

    def ask(self, key: TaskKey, claim: Claim) -> Future[Document]:
        """The lineage document as the cluster has it, at most FRESH_S old. Raises in the Future: NotTheJobError,
        KubeError, and what the connection's hook raises. BusyError is raised at once."""
        conn_id = str(claim["conn_id"])
        with self._lock:
            place = self._places.setdefault(conn_id, _Place())
            at, seen = place.answers.get(key, (float("-inf"), {}))
            if self._clock() - at < FRESH_S:
                future: Future[Document] = Future()
                future.set_result(seen)
                return future
            if key in place.looked_at:
                return place.looked_at[key]
            future = place.wanted[key][1] if key in place.wanted else Future()
            place.wanted[key] = (claim, future)
            if place.began is None:
                try:
                    self._flights.start(conn_id, lambda: self._look(conn_id, place))
                except BaseException:  # nobody looks: the next who asks tries again
                    place.wanted.clear()
                    raise
                place.began = self._clock()
            return future

    def last(self, key: TaskKey, claim: Claim) -> Document | None:
        """The newest answer of the last KEPT_S seconds."""
        with self._lock:
            place = self._places.get(str(claim["conn_id"]))
            found = None if place is None else place.answers.get(key)
        return None if found is None or self._clock() - found[0] > KEPT_S else found[1]

    def silent_for(self, conn_id: str) -> float:
        """Seconds since the look that is under way began, 0 if there is none."""
        with self._lock:
            place = self._places.get(conn_id)
            return 0.0 if place is None or place.began is None else self._clock() - place.began

    def _look(self, conn_id: str, place: _Place) -> None:
        """Look until nobody wants anything any more."""
        while True:
            with self._lock:
                now, some = self._clock(), place.wanted
                place.answers = {key: value for key, value in place.answers.items() if now - value[0] < KEPT_S}
                place.wanted, place.looked_at = {}, {key: future for key, (_, future) in some.items()}
                place.began = now if some else None
            if not some:
                return
            try:
                found = dict(_seen(self._clients.kube(conn_id), {key: claim for key, (claim, _) in some.items()}))
            except Exception as error:  # a connection that is missing or broken raises whatever its provider likes
                self._clients.forget(conn_id)
                found = dict.fromkeys(some, error)
            with self._lock:
                now = self._clock()
                place.answers |= {key: (now, seen) for key, seen in found.items() if isinstance(seen, dict)}
                place.looked_at = {}
            for key, (_, future) in some.items():
                seen = found[key]
                if isinstance(seen, Exception):
                    future.set_exception(seen)
                else:
                    future.set_result(seen)


def _seen(kube: Kube, wanted: Mapping[TaskKey, Claim]) -> Iterator[tuple[TaskKey, Document | Exception]]:
    """Each job's document, or why there is none: what is wrong with one namespace is not with the others."""
    for namespace in sorted({str(claim["namespace"]) for claim in wanted.values()}):
        here = {key: claim for key, claim in wanted.items() if claim["namespace"] == namespace}
        for keys in _batches(here, TOGETHER):
            try:
                yield from list(_of_namespace(kube, namespace, {key: here[key] for key in keys}))
            except Exception as error:
                yield from ((key, error) for key in keys)


def _of_namespace(
    kube: Kube, namespace: str, wanted: Mapping[TaskKey, Claim]
) -> Iterator[tuple[TaskKey, Document | Exception]]:
    names = f"{job_names.LABEL_JOB} in ({','.join(sorted({str(claim['name']) for claim in wanted.values()}))})"
    jobs = {str(job["metadata"]["name"]): job for job in kube.list(JOB, namespace, names)}
    own: dict[TaskKey, Object] = {}
    for key, claim in wanted.items():
        try:
            own[key] = checked(jobs.get(str(claim["name"])), key, claim)
        except NotTheJobError as error:
            yield key, error
    if not own:
        return
    pods: dict[str | None, list[Object]] = {}
    for pod in kube.list_pods(namespace, names):
        pods.setdefault(label(pod, job_names.LABEL_JOB), []).append(pod)
    shown = progress_objects.all_shown(kube, namespace, own.values(), names)
    own = dict(zip(own, shown, strict=True))
    workloads = _workloads(kube, namespace, list(own.values()))
    places = _places(kube, namespace, list(workloads.values()))
    for key, job in own.items():
        workload = workloads.get(job["metadata"]["uid"])
        place = None if workload is None else places.get(str(workload["metadata"]["name"]))
        yield key, document(summarise(job, workload, pods.get(str(wanted[key]["name"]), []), place))


def _workloads(kube: Kube, namespace: str, jobs: Sequence[Object]) -> dict[str, Object]:
    """Kueue's Workloads by the Job's UID; where there are two, the one that stays, and the youngest of these."""
    uids = ",".join(sorted(str(job["metadata"]["uid"]) for job in jobs))
    found = kube.list(WORKLOAD, namespace, f"{KUEUE_JOB_UID_LABEL} in ({uids})")
    found.sort(key=_staying)
    return {str(label(workload, KUEUE_JOB_UID_LABEL)): workload for workload in found}


def _staying(workload: Object) -> tuple[bool, str]:
    meta = workload["metadata"]
    return not meta.get("deletionTimestamp"), str(meta.get("creationTimestamp", ""))


def _places(kube: Kube, namespace: str, workloads: Iterable[Object]) -> dict[str, Position]:
    """By Workload, of those that wait; of a queue that does not tell, none."""
    waiting = (w for w in workloads if not is_true(w, "QuotaReserved") and not is_true(w, "Finished"))
    found: dict[str, Position] = {}
    for queue in sorted({str((w.get("spec") or {}).get("queueName") or "") for w in waiting} - {""}):
        try:
            found |= {name: place for (_, name), place in queue_position.places(kube, queue, namespace).items()}
        except KubeError:
            continue
    return found


def _batches(keys: Iterable[TaskKey], size: int) -> Iterator[list[TaskKey]]:
    rest = iter(keys)
    while some := list(islice(rest, size)):
        yield some
