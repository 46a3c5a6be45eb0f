"""Objects as the API server would show them, for the controller's tests. `at(n)` is n seconds after a fixed moment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord, Preemptor
from kueue_integration.controller import decide as decide_module
from kueue_integration.controller.actions import Decision
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.machines import MachinesOf, unknown
from kueue_integration.controller.snapshot import Snapshot, Surroundings, Workload
from kueue_integration.guard.names import POLICIES
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import ADMISSION_POLICY, ADMISSION_POLICY_BINDING, KUEUE_JOB_UID_LABEL
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import CheckpointRef, to_json

T0 = 1_800_000_000.0
NS = "team"
CHECK = job_names.ADMISSION_CHECK_NAME
JOB_UID = "11111111-aaaa-bbbb-cccc-000000000001"
WL_UID = "22222222-aaaa-bbbb-cccc-000000000001"
PREEMPTED = "Preempted to accommodate a workload (UID: 99-wl, JobUID: 99-job) due to prioritization in the ClusterQueue"


def at(seconds: float) -> str:
    return server_time.to_whole(T0 + seconds)


def job(
    name: str = "train",
    *,
    annotations: dict[str, str] | None = None,
    managed: bool = True,
    suspend: bool = True,
    parallelism: int = 2,
    conditions: list[dict[str, Any]] | None = None,
    uid: str = JOB_UID,
) -> dict[str, Any]:
    labels = {job_names.KUEUE_QUEUE_LABEL: "q", **({job_names.LABEL_MANAGED: "true"} if managed else {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": NS,
            "uid": uid,
            "resourceVersion": "7",
            "creationTimestamp": at(0),
            "labels": labels,
            "annotations": dict(annotations or {}),
        },
        "spec": {"suspend": suspend, "parallelism": parallelism, "completions": parallelism},
        "status": {"conditions": conditions or []},
    }


def condition(type_: str, status: bool, seconds: float, reason: str = "", message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(seconds),
    }


def workload(
    name: str = "job-train-1",
    *,
    reserved_at: float | None = 10,
    state: str | None = "Pending",
    evicted: tuple[str, str, float] | None = None,
    admitted: bool = False,
    count: int = 2,
    wanted: int = 2,
    flavor: str = "ondemand",
    cpu: str = "500m",
    queue: str = "training",
    priority: int = 10,
    owner: str | None = "train",
    uid: str = WL_UID,
    job_uid: str = JOB_UID,
    extra_conditions: list[dict[str, Any]] | None = None,
    other_checks: list[dict[str, Any]] | None = None,
    request: str = "250m",
    created: float = 0,
) -> dict[str, Any]:
    conditions = list(extra_conditions or [])
    status: dict[str, Any] = {}
    if reserved_at is not None:
        conditions.append(condition("QuotaReserved", True, reserved_at, "QuotaReserved"))
        status["admission"] = {
            "clusterQueue": queue,
            "podSetAssignments": [
                {"name": "main", "count": count, "flavors": {"cpu": flavor}, "resourceUsage": {"cpu": cpu}}
            ],
        }
    if evicted is not None:
        conditions.append(condition("Evicted", True, evicted[2], evicted[0], evicted[1]))
    if admitted:
        conditions.append(condition("Admitted", True, (reserved_at or 0) + 1, "Admitted"))
    if state is not None:
        ours = {"name": CHECK, "state": state, "message": "", "lastTransitionTime": at(reserved_at or 0)}
        status["admissionChecks"] = [*(other_checks or []), ours]
    status["conditions"] = conditions
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": job_uid}] if owner else []
    container = {"name": "train", "resources": {"requests": {"cpu": request}}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": NS,
            "uid": uid,
            "resourceVersion": "9",
            "creationTimestamp": at(created),
            "labels": {KUEUE_JOB_UID_LABEL: job_uid},
            "ownerReferences": owners,
        },
        "spec": {
            "queueName": "q",
            "priority": priority,
            "podSets": [{"name": "main", "count": wanted, "template": {"spec": {"containers": [container]}}}],
        },
        "status": status,
    }


def guard(*names: str) -> list[dict[str, Any]]:
    """The chart's guard policies, or those named, with their bindings, as far as the controller looks."""
    made = ((ADMISSION_POLICY, {"failurePolicy": "Fail"}), (ADMISSION_POLICY_BINDING, {"validationActions": ["Deny"]}))
    return [
        {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, "spec": dict(spec)}
        for name in names or POLICIES
        for kind, spec in made
    ]


def pod(
    index: int,
    *,
    attempt: int = 1,
    phase: str = "Running",
    job_name: str = "train",
    deleting: bool = False,
    created: float = 11,
    tracked: bool = False,
    ip: str = "",
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": f"{job_name}-{index}-a{attempt}",
        "namespace": NS,
        "uid": f"{index:04d}{attempt:02d}{int(created) % 100:02d}-pod-{job_name}",
        "resourceVersion": "3",
        "creationTimestamp": at(created),
        "labels": {
            job_names.LABEL_MANAGED: "true",
            "batch.kubernetes.io/job-name": job_name,
            "batch.kubernetes.io/controller-uid": JOB_UID,
        },
        "annotations": {
            job_names.ANN_ATTEMPT: str(attempt),
            "batch.kubernetes.io/job-completion-index": str(index),
        },
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": job_name, "uid": JOB_UID, "controller": True}
        ],
    }
    if deleting:
        meta["deletionTimestamp"] = at(created + 1)
    if tracked:
        meta["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    status: dict[str, Any] = {"phase": phase}
    if ip:
        status["podIP"] = ip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": status}


def record(attempt: int = 1, **fields: Any) -> AttemptRecord:
    base: dict[str, Any] = {
        "attempt": attempt,
        "reservation": f"{WL_UID}/{at(10)}",
        "flavor": "ondemand",
        "pods": 2,
        "ranks": 2,
        "admitted_at": T0 + 10,
    }
    return AttemptRecord(**{**base, **fields})


def history(*records: AttemptRecord) -> dict[str, str]:
    """The annotations that go with a history."""
    return {
        job_names.ANN_HISTORY: to_json(list(records)),
        job_names.ANN_ATTEMPT: str(records[-1].attempt),
    }


def roster(*pods: dict[str, Any], attempt: int = 1) -> dict[str, str]:
    """The annotation that says with which pods the attempt trains."""
    return {job_names.ANN_PODS: json.dumps({"attempt": attempt, "uids": [p["metadata"]["uid"][:8] for p in pods]})}


def checkpoint(attempt: int = 1, sequence: int = 1, step: int = 100) -> CheckpointRef:
    return CheckpointRef(
        id=f"train-a{attempt}-g{sequence}",
        generation=attempt * 1_000_000 + sequence,
        attempt=attempt,
        step=step,
        world_size=2,
        url="file:///shared/checkpoints",
        bytes=1000,
        bytes_stored=500,
        created_at=T0 + 50,
        sha256=hashlib.sha256(b"%d %d" % (attempt, sequence)).hexdigest(),
    )


def stored(job_annotations: Any) -> list[AttemptRecord]:
    """The history that an action writes."""
    found = decode.messages(AttemptRecord, job_annotations[job_names.ANN_HISTORY])
    assert isinstance(found, list), found
    return found


def nobody(uid: str) -> Preemptor | None:
    return None


def preemptors(names: Mapping[str, str]) -> Callable[[str], Preemptor | None]:
    """Who has these UIDs; of each only the name of its Workload is known."""
    return {uid: Preemptor(name, NS, "Job", name, "q", 1000) for uid, name in names.items()}.get


def check(workload: dict[str, Any]) -> Any:
    """Our admission check's state in the Workload, {} without one."""
    return Workload.parse(workload).checks.get(CHECK, {})


def decide(
    job: Any,
    workload: Any,
    pods: Sequence[Any],
    now: float,
    settings: Settings | None = None,
    find: Callable[[str], Preemptor | None] = nobody,
    flavors_of: Callable[[Any], Sequence[str] | None] = lambda job: None,
    machines_of: MachinesOf = unknown,
    seen_at: float | None = None,
) -> Decision:
    """One look at these objects."""
    seen = Snapshot.parse(job, workload, pods, seen_at, Surroundings(find, flavors_of, machines_of))
    return decide_module.decide(seen, settings or Settings(), now)
