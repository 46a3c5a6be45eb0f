"""Our copies of the cluster's objects as a `ClusterSnapshot`. An object that cannot be read is named and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ...contract import attempt_records, job_names, kinds, leaves, priority, saveable
from ...contract.record_types import AttemptRecord, JobRequest, RequestStatus
from ...drain import nodes as drained
from ...job import states
from ...kube import quantities, server_time
from ...kube.resources import Object, condition, is_true, label
from ...manifests.pod_placement import asks_for_topology
from ...planner import job as planned
from ...planner import measure, model, quota
from ...planner.job import JobKey
from ...planner.model import ClusterSnapshot
from ...requests.user_requests import Exchange
from .. import attempt_history
from ..cache import World
from ..forever import Skips
from ..snapshot import Job, Pod, UnreadableAnnotation, Workload, of_attempt, readable_or, required


@dataclass(frozen=True)
class Seen:
    """A snapshot, and the objects that it was made of: a write is void if they have changed since."""

    snapshot: ClusterSnapshot
    raw: dict[JobKey, tuple[Object, Object | None]] = field(default_factory=dict)
    """Job and Workload."""


class Eyes:
    """Looks, again and again. What has not changed is not parsed again."""

    def __init__(self, world: World, skips: Skips) -> None:
        self._world, self._skips = world, skips
        self._known: dict[str, tuple[object, planned.Workload]] = {}
        """UID -> (version, queue and whether that is stopped; what it says)."""

    def look(
        self, now: float, nodes: Sequence[Object] = (), conditions: Sequence[str] = (), taints: Sequence[str] = ()
    ) -> Seen:
        """`nodes`: of the cluster, where a policy asks for them; `conditions`: types that make a node one to leave, and
        `taints`: keys that make it one that is about to go."""
        queues: dict[str, model.Queue] = {}
        for raw in self._world.cluster_queues.all():
            name = str(raw["metadata"]["name"])
            with self._skips.over("plan", f"ClusterQueue {name}"):
                queues[name] = read_queue(raw)
        workloads = self._workloads()
        jobs: dict[JobKey, planned.Job] = {}
        objects: dict[JobKey, tuple[Object, Object | None]] = {}
        ended: list[planned.Ended] = []
        for raw in self._world.all_jobs():
            key = kinds.place(raw)
            with self._skips.over("plan", f"Job {'/'.join(key)}"):
                if states.failing(raw):
                    ended += _ended(raw, now)
                    continue
                workload = self._world.workload_of(*key)
                pods = [Pod.parse(pod) for pod in self._world.pods_of(*key)]
                found = read_job(raw, workload, pods, workloads)
                if found is not None:
                    jobs[key], objects[key] = found, (raw, workload)
        places = {str(n["metadata"]["name"]): _node(n, conditions, taints) for n in nodes}
        seen = ClusterSnapshot(now, queues, tuple(workloads.values()), jobs, places, ended=ended)
        return Seen(seen, objects)

    def _workloads(self) -> dict[str, planned.Workload]:
        """By UID."""
        found: dict[str, planned.Workload] = {}
        known: dict[str, tuple[object, planned.Workload]] = {}
        for raw in self._world.workloads.all():
            meta = raw["metadata"]
            with self._skips.over("plan", f"Workload {meta['name']}"):
                if is_true(raw, "Finished"):
                    continue
                uid, queue = str(meta["uid"]), self._world.cluster_queue_of(raw) or ""
                stopped = self._world.stopped(raw)
                version = (meta.get("resourceVersion"), queue, stopped)
                before = self._known.get(uid)
                old = before[1] if before is not None and before[0] == version else None
                workload = old if old is not None else read_workload(raw, queue, stopped)
                known[uid], found[uid] = (version, workload), workload
        self._known = known
        return found


def read_queue(raw: Object) -> model.Queue:
    """Of a ClusterQueue. Raises ValueError, LookupError, TypeError: it is not as it should be."""
    spec = raw.get("spec") or {}
    cohort = str(spec.get("cohortName") or spec.get("cohort") or "")
    name, may = str(raw["metadata"]["name"]), spec.get("preemption") or {}
    preempts, reclaims = (str(may.get(field) or "Never") for field in ("withinClusterQueue", "reclaimWithinCohort"))
    return model.Queue(
        name, cohort, quota.groups(raw), quota.reported(raw), stopped=quota.stopped(raw),
        preempts=preempts, reclaims=reclaims,
    )  # fmt: skip


def read_workload(raw: Object, queue: str, stopped: bool = False) -> planned.Workload:
    """`queue`: the ClusterQueue of its LocalQueue, "" if that is not known; `stopped`: the LocalQueue is.

    Raises ValueError, LookupError, TypeError: it is not as it should be.
    """
    meta, spec = raw["metadata"], raw.get("spec") or {}
    given = states.admission(raw)
    checks = (raw.get("status") or {}).get("admissionChecks") or ()
    podsets: Sequence[Object] = spec.get("podSets") or ()
    only = podsets[0] if len(podsets) == 1 else {}
    active = spec.get("active", True) is not False
    comes_back = Workload.parse(raw).reshape_reason is not None
    return planned.Workload(
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        queue=given.cluster_queue if given is not None else queue,
        priority=int(spec.get("priority") or 0),
        created=states.created(raw),
        holds=quota.usage(raw) if given is not None else None,
        asks={**quota.requests(raw), quota.PODS: Fraction(quota.pods(raw))},
        waits=given is None and (active or comes_back) and not meta.get("deletionTimestamp"),
        leaves=is_true(raw, "Evicted") or any(c.get("state") in ("Retry", "Rejected") for c in checks),
        pods=int(only.get("minCount") or only.get("count") or 0),
        per_pod=quota.of_pod(only),
        level=str((only.get("topologyRequest") or {}).get("required") or ""),
        devices_per_pod=quota.devices_of(raw) if only else 0,
        stopped=stopped,
    )


def read_job(
    raw: Object, workload: Object | None, pods: Sequence[Pod], workloads: dict[str, planned.Workload]
) -> planned.Job | None:
    """None: it has ended, or is another cluster's to move. Raises BadAnnotationError and others: it cannot be read."""
    if states.failing(raw) or states.delegated(raw) or states.copied(raw) or raw["metadata"].get("deletionTimestamp"):
        return None
    job = Job.parse(raw)
    if any(isinstance(part, UnreadableAnnotation) for part in (job.history, job.workers_wanted, job.placement)):
        return None
    seen = None if workload is None else Workload.parse(workload)
    quota_seen = None if seen is None else workloads.get(seen.uid)
    history = required(job.history)
    last = attempt_history.last(history)
    running = seen is not None and _runs(job, seen)
    mark = priority.read(workload)
    given = seen.admission if seen is not None and running else None
    saved, progress = readable_or(job.checkpoint, None), attempt_records.progress(raw)
    own = progress is not None and last is not None and progress.attempt == last.attempt
    wanted = required(job.workers_wanted)
    leaving = leaves.of_attempt(raw, last.attempt) if last is not None and running else None
    template = ((seen.podset if seen is not None else None) or {}).get("template") or {}
    topology = asks_for_topology(template)
    return planned.Job(
        key=kinds.place(raw),
        uid=str(raw["metadata"]["uid"]),
        created=job.created,
        kind=str(raw.get("kind") or "Job"),
        workload=quota_seen,
        given=None if given is None else _given(given),
        priority_class=label(raw, job_names.KUEUE_PRIORITY_LABEL) or "",
        own_priority=priority.unplanned(mark, quota_seen.priority if quota_seen is not None else 0),
        boosted_by=mark.policy if mark is not None else "",
        lowered=mark.attempt if mark is not None else 0,
        lowered_at=mark.at if mark is not None else 0.0,
        wanted=wanted,
        fewest=readable_or(job.fewest_workers, wanted),
        ranks=readable_or(job.ranks(wanted), None) or wanted,
        resizable=kinds.is_job(raw) and job.tied and job.world_size is not None and not topology,
        topology=topology,
        node_selector=bool((template.get("spec") or {}).get("nodeSelector")),
        held=job.armed,
        flavors=required(job.placement).flavors,
        devices_per_pod=quota.devices_of(seen.raw) if seen is not None else 1,
        attempts=history,
        runs_since=_trains_since(raw, last) if running else None,
        whole=running and last is not None and _whole(pods, last),
        nodes=frozenset(str(pod.node) for pod in pods if pod.node and pod.can_write),
        unplaced=_unplaced(pods, last) if running and last is not None else 0,
        change=_request(job.change),
        save=_request(job.checkpoint_request),
        paused=seen is not None and not seen.active and seen.paused,
        paused_by=seen.paused_by if seen is not None else "",
        saved_at=saved.created_at if saved is not None else None,
        saved_bytes=saved.bytes if saved is not None else None,
        steps_done=progress.step if progress is not None and own else None,
        steps_seen_at=progress.at if progress is not None and own else None,
        steps_total=progress.total if progress is not None else None,
        steps_printed=progress.printed if progress is not None else None,
        leaving=leaving.why if leaving is not None and leaving.live else "",
        unsaved=saveable.barred(raw),
    )


def _ended(raw: Object, now: float) -> list[planned.Ended]:
    """A job that has ended, if that was within the hour; older histories are not even parsed."""
    at = server_time.transition(states.finished(raw))
    if at is not None and at <= now - measure.HOUR_S:
        return []
    history = readable_or(Job.parse(raw).history, ())
    return [planned.Ended(str(raw["metadata"]["namespace"]), str(raw["metadata"]["uid"]), history)]


def _runs(job: Job, workload: Workload) -> bool:
    held = workload.is_true("Admitted") and not workload.is_true("Evicted") and not workload.is_true("Finished")
    return held and not job.suspended


def _trains_since(raw: Object, last: AttemptRecord | None) -> float | None:
    if last is None or last.ended_by is not None:
        return None
    return attempt_records.trains_since(raw, last)


def _whole(pods: Sequence[Pod], last: AttemptRecord) -> bool:
    """All pods run and train: then the cost of a move is known, and we never interrupt a start."""
    running = [pod for pod in of_attempt(pods, last.attempt) if pod.phase == "Running"]
    return last.ended_by is None and all(not pod.deleting for pod in running) and len(running) == last.pods


def _unplaced(pods: Sequence[Pod], last: AttemptRecord) -> int:
    """Pods of the current attempt that the scheduler finds no node for."""
    waiting = [pod for pod in of_attempt(pods, last.attempt) if not pod.node and not pod.deleting]
    return sum((condition(pod.raw, "PodScheduled") or {}).get("reason") == "Unschedulable" for pod in waiting)


def _given(given: states.Admission) -> planned.Given:
    amounts = {resource: quantities.parse(text) for resource, text in given.usage.items()}
    return planned.Given(given.count, given.flavor, given.flavors, amounts)


def _request(exchange: Exchange) -> planned.Request | None:
    request: JobRequest | None = exchange.request
    if request is None:
        return None
    answer: RequestStatus | None = exchange.answer
    memory = tuple(request.memory)
    pins = request.flavor is not None
    frees = request.op == "migrate" and not pins and not request.node
    if answer is None:
        return planned.Request(request.op, request.by, "asked", pins=pins, frees=frees, memory=memory)
    at = answer.finished_at if answer.finished_at is not None else answer.at
    return planned.Request(request.op, request.by, answer.state, answer.attempt, at, pins, frees, memory)


def _node(raw: Object, conditions: Sequence[str], taints: Sequence[str]) -> model.Node:
    told = (raw.get("status") or {}).get("conditions") or ()
    types = frozenset(str(c.get("type")) for c in told if c.get("status") == "True")
    name, leaving = str(raw["metadata"]["name"]), drained.leaving(raw, conditions, taints)
    marks, ending = (drained.marked(raw), drained.marked_at(raw)), bool(drained.ending(raw, taints))
    return model.Node(name, leaving, "Ready" in types, types - {"Ready"}, *marks, ending=ending)
