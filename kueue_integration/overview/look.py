"""One look at the cluster: a few lists in parts, and one request for each queue in which somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from ..contract import job_names, kinds, progress_objects
from ..errors import ChartError, Forbidden, Gone, KubeError, NotFound, PlatformError
from ..jobs import queue_position
from ..jobs.queue_position import Position
from ..kube.api import Kube
from ..kube.resources import (
    CLUSTER_QUEUE,
    COHORT,
    EVENT,
    JOB,
    KUEUE_JOB_UID_LABEL,
    LOCAL_QUEUE,
    WORKLOAD,
    Kind,
    Object,
    label,
    selector,
)
from ..spec import platform_config
from . import objects
from .model import Claim, Cluster, Promises, Training, Unreadable

T = TypeVar("T")
ASKED_QUEUES = 50
"""Queues that are asked who waits where: each is a request of its own."""
ROUNDS = 3
"""Times that a list is begun again, whose moment the API server has forgotten while it was read."""
MANAGED = selector({job_names.LABEL_MANAGED: "true"})


def look(kube: Kube, now: float, namespace: str | None = None, keep: Collection[str] = ()) -> Cluster:
    """What the caller may see; the right for what is missing is named in `notes`. `namespace` None: all of them.

    `keep` names annotations of training jobs that the caller wants back.

    Raises PlatformError: Kueue is not served here, or nothing may be read. KubeError: no answer.
    """
    reader = _Reader(kube, namespace)
    queues = reader.read(CLUSTER_QUEUE, objects.queue, "quota, flavors and cohorts")
    cohorts = None if queues is None else reader.read(COHORT, objects.cohort, "quota of cohorts, cohorts of cohorts")
    local = reader.read(LOCAL_QUEUE, _target, "which ClusterQueue waiting Workloads are for")
    jobs = reader.jobs()
    by_uid = {str(job["metadata"].get("uid")): job for job in jobs or ()}
    trainings = None if jobs is None else reader.trainings(jobs, keep)
    claims = reader.read(
        WORKLOAD,
        lambda workload: objects.claim(workload, by_uid.get(label(workload, KUEUE_JOB_UID_LABEL) or "")),
        "who holds quota and who waits",
    )
    steps = reader.read(EVENT, objects.step, "what the planner did and proposes", job_names.LABEL_PLANNER)
    if queues is None and claims is None and jobs is None:
        raise PlatformError("nothing of the cluster may be read: " + "; ".join(reader.notes))
    targets = None if local is None else dict(local)
    return Cluster(
        at=now,
        namespace=namespace,
        queues=queues,
        cohorts=cohorts or (),
        local_queues=targets,
        claims=claims,
        trainings=trainings,
        places=reader.places(claims or (), targets or {}),
        steps=steps or (),
        promises=reader.promises(),
        notes=reader.notes,
        unreadable=reader.unreadable,
    )


def _target(queue: Object) -> tuple[tuple[str, str], str]:
    meta = queue["metadata"]
    return (str(meta["namespace"]), str(meta["name"])), str((queue.get("spec") or {}).get("clusterQueue") or "")


class _Reader:
    """The lists of one look, and what went wrong with them."""

    def __init__(self, kube: Kube, namespace: str | None) -> None:
        self._kube, self._namespace = kube, namespace
        self.notes: list[str] = []
        self.unreadable: list[Unreadable] = []

    def read(
        self, kind: Kind, take: Callable[[Object], T | None], shows: str, query: str | None = None
    ) -> list[T] | None:
        """Values of all objects of a kind, None if they may not be listed. Raises PlatformError."""
        try:
            return self._listed(kind, take, query)
        except Forbidden as error:
            self._denied(kind, shows, error)
        except NotFound as error:
            if kind is not COHORT:  # Kueue has no quota of cohorts where it does not serve this kind
                raise PlatformError(
                    f"Kueue is not here, or does not serve {kind.api_version} {kind.plural}: {error}. Install Kueue "
                    "0.19 or later; `singularityctl doctor` says what else is missing"
                ) from error
        return None

    def jobs(self) -> list[Object] | None:
        """All managed jobs seen as Jobs, None if even Jobs may not be listed."""
        found: list[Object] = []
        for kind in kinds.KINDS:
            try:
                found += self._listed(kind, kinds.as_job, MANAGED)
            except (Forbidden, NotFound) as error:
                if kind is not JOB:
                    continue  # not served here, or not for this user
                self._denied(kind, "training jobs, their attempts and goodput", error)
                return None
        return progress_objects.all_shown(self._kube, self._namespace, found)

    def promises(self) -> Promises:
        try:
            found = platform_config.load(self._kube)
        except ChartError as error:
            return Promises(unknown=error.why)
        return Promises(found.tiers, found.tiers_window_s)

    def trainings(self, jobs: Iterable[Object], keep: Collection[str] = ()) -> list[Training]:
        found = []
        for job in jobs:
            read = self._taken(JOB, job, lambda each: objects.training(each, keep))
            if read is not None:
                found.append(read[0])
                self.unreadable += read[1]
        return found

    def places(self, claims: Iterable[Claim], targets: dict[tuple[str, str], str]) -> dict[tuple[str, str], Position]:
        """(namespace, Workload) -> place. A tenant may ask for its own LocalQueues only, so with a namespace these."""
        waiting = [c for c in claims if c.holds is None and c.active]
        asked: list[tuple[str, str | None]]
        if self._namespace is not None:
            asked = [(queue, self._namespace) for queue in sorted({c.local_queue for c in waiting})]
        else:
            to = {targets.get((c.namespace, c.local_queue), "") for c in waiting}
            asked = [(queue, None) for queue in sorted(to) if queue]
        found: dict[tuple[str, str], Position] = {}
        for queue, namespace in asked[:ASKED_QUEUES]:
            try:
                found |= queue_position.places(self._kube, queue, namespace)
            except KubeError as error:
                self.notes.append(f"places in the queues are not known: {error}")
                return found
            except objects.BROKEN as error:
                self._spoilt("Queue", queue, error)
        if len(asked) > ASKED_QUEUES:
            self.notes.append(f"places are asked for in {ASKED_QUEUES} of {len(asked)} queues")
        return found

    def _listed(self, kind: Kind, take: Callable[[Object], T | None], query: str | None = None) -> list[T]:
        where = self._namespace if kind.namespaced else None
        for left in reversed(range(ROUNDS)):
            known, found = len(self.unreadable), []
            try:
                for page, _ in self._kube.pages(kind, where, query):
                    found += [value for obj in page if (value := self._taken(kind, obj, take)) is not None]
                return found
            except Gone:
                del self.unreadable[known:]
                if not left:
                    raise
        raise AssertionError("not reached")

    def _taken(self, kind: Kind, obj: Object, take: Callable[[Object], T | None]) -> T | None:
        try:
            return take(obj)
        except objects.BROKEN as error:  # one object that is not as it should be hides no other one
            meta = obj.get("metadata") or {}
            parts = (meta.get("namespace"), meta.get("name"))
            self._spoilt(kind.name, "/".join(str(part) for part in parts if part), error)
            return None

    def _spoilt(self, kind: str, name: str, error: Exception) -> None:
        self.unreadable.append(Unreadable(kind, name, "", f"{type(error).__name__}: {error}"[:200]))

    def _denied(self, kind: Kind, shows: str, error: KubeError) -> None:
        cluster_wide = self._namespace is None or not kind.namespaced
        where = "in all namespaces" if kind.namespaced else "cluster-wide"
        scope = where if cluster_wide else f"in namespace {self._namespace}"
        plural = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        self.notes.append(f"not shown: {shows}. The right to list {plural} {scope} is missing ({error})")
