"""The objects of a running job with a long history, as its creator, Kueue, Kubernetes and our controller leave them."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import AttemptRecord, Preemptor
from kueue_integration.controller import attempt_history
from kueue_integration.controller.sidecar_api.pod_identity import CONTROLLER_UID_LABEL
from kueue_integration.job.pods import INDEX_ANNOTATION
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_JOB_UID_LABEL, KUEUE_VERSION, Object
from kueue_integration.manifests import job_manifests
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import CheckpointRef, Gpus, Needs, to_json

ATTEMPTS = 20
NAMESPACES = 10
STORE = "s3://bench/checkpoints"
QUEUE = "training"
APART_S = 4000.0
_FEATURES = [f"avx512{end}" for end in ("f", "bw", "cd", "dq", "vl", "vnni", "bf16", "ifma", "vbmi", "vbmi2")] + [
    "adx", "aesni", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma3", "gfni", "lzcnt", "movbe", "popcnt", "sha", "sse4",
]  # fmt: skip
_PLATFORM = PlatformConfig("bench/agent:1", "https://controller:443", "none", train_image="bench/train:1", store=STORE)


def namespace_of(number: int) -> str:
    return f"team-{number % NAMESPACES}"


@functools.cache
def _began() -> float:
    return time.time() - (ATTEMPTS + 1) * APART_S


def _record(attempt: int) -> AttemptRecord:
    at = _began() + attempt * APART_S
    last = attempt == ATTEMPTS
    gpus = Gpus(8, 87.3, 70_000_000_000, 85_899_345_920, 0, 0, throttled=0.4)
    by = Preemptor("job-urgent-finetune-da95c", "team-nlp", "Job", "urgent-finetune", QUEUE, 1000)
    record = AttemptRecord(
        attempt, f"0a1b2c3d-1111-2222-3333-{attempt:012d}/{server_time.to_text(at)}", "a3-highgpu", 1, 1, at,
        queued_at=at - 60, reserved_at=at - 1, running_at=at + 20, first_step=attempt * 100, first_step_at=at + 25,
        last_step=attempt * 100 + (0 if last else 99), restored_from=_id(attempt - 1) if attempt > 1 else None,
        held=True, gpus=gpus, price=3.2,
    )  # fmt: skip
    if last:
        return record
    ended: dict[str, Any] = {
        "ended_by": "Preempted", "preempted_by": by.workload, "preemptor": by, "evicted_at": at + 3000,
        "barrier_at": at + 3001, "committed_at": at + 3030, "pods_gone_at": at + 3033, "released_at": at + 3034,
        "checkpoint": _id(attempt),
    }  # fmt: skip
    return AttemptRecord(**{**{f: getattr(record, f) for f in AttemptRecord.__dataclass_fields__}, **ended})


def _id(attempt: int) -> str:
    return f"a{attempt}-g{attempt:06d}-8f3c2b1d9e7a"


def _checkpoint(attempt: int) -> CheckpointRef:
    return CheckpointRef(
        _id(attempt), page.generation(attempt, 1), attempt, (attempt + 1) * 100, 1, STORE, 9_876_543_210, 1_234_567_890,
        _began() + attempt * APART_S + 3030, "a" * 64, Needs("amd64", _FEATURES),
    )  # fmt: skip


@functools.cache
def _notes() -> dict[str, str]:
    refs = [_checkpoint(attempt) for attempt in range(1, ATTEMPTS)]
    note = attempt_records.ProgressNote(ATTEMPTS, ATTEMPTS * 100, time.time(), "running")
    stored = attempt_history.stored([_record(attempt) for attempt in range(1, ATTEMPTS + 1)])
    return {
        job_names.ANN_ATTEMPT: str(ATTEMPTS),
        **{name: text for name, text in stored.items() if text is not None},
        names.ANN_CHECKPOINT: to_json(refs[-1]),
        job_names.ANN_CHECKPOINT_COPY: to_json(refs[-1]),
        job_names.ANN_CHECKPOINTS: attempt_history.listed(refs),
        job_names.ANN_PROGRESS: to_json(note),
        job_names.ANN_CURVE: json.dumps([[step * 37, 2.3456] for step in range(200)], separators=(",", ":")),
    }


def job(number: int) -> Object:
    resources = {"cpu": "8", "memory": "64Gi"}
    spec = TrainSpec(
        f"train-{number:05d}", QUEUE, ["python", "train.py"], namespace=namespace_of(number), resources=resources
    )
    made: Object = json.loads(json.dumps(job_manifests.job(spec, _PLATFORM)))
    made["metadata"]["annotations"] |= _notes()
    made["spec"]["suspend"] = False
    return made


def job_status() -> Object:
    return {"active": 1, "ready": 1, "startTime": server_time.to_text(_began() + ATTEMPTS * APART_S)}


def workload(number: int, uid: str) -> Object:
    """As Kueue has admitted it. `uid`: of its Job."""
    at = server_time.to_text(_began() + ATTEMPTS * APART_S)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"train-{number:05d}", "uid": uid, "controller": True}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "so it is", "lastTransitionTime": at}
        for kind in ("QuotaReserved", "Admitted", "PodsReady")
    ]
    check = {"name": job_names.ADMISSION_CHECK_NAME, "state": "Ready", "message": "", "lastTransitionTime": at}
    usage = {"cpu": "8", "memory": "64Gi"}
    podset = {"name": "main", "count": 1, "flavors": dict.fromkeys(usage, "a3-highgpu"), "resourceUsage": usage}
    meta = {
        "name": f"job-train-{number:05d}-1a2b3", "namespace": namespace_of(number), "ownerReferences": [owner],
        "labels": {KUEUE_JOB_UID_LABEL: uid},
    }  # fmt: skip
    template = job(number)["spec"]["template"]
    return {
        "apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}",
        "kind": "Workload",
        "metadata": meta,
        "spec": {"queueName": QUEUE, "active": True, "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {
            "conditions": conditions,
            "admissionChecks": [check],
            "admission": {"clusterQueue": "bench", "podSetAssignments": [podset]},
        },
    }


def pod(number: int, made: Object) -> Object:
    """Its one pod; `made`: the Job as the API server has it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    template = made["spec"]["template"]
    labels = {
        **template["metadata"]["labels"], CONTROLLER_UID_LABEL: owner["uid"],
        "batch.kubernetes.io/job-name": owner["name"],
    }  # fmt: skip
    notes = {job_names.ANN_ATTEMPT: str(ATTEMPTS), INDEX_ANNOTATION: "0", names.ANN_CHECKPOINT: _id(ATTEMPTS - 1)}
    meta = {
        "name": f"{owner['name']}-0", "namespace": namespace_of(number), "labels": labels, "annotations": notes,
        "ownerReferences": [owner],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def pod_status() -> Object:
    at = server_time.to_text(time.time())
    started = {"running": {"startedAt": at}}
    container = {"name": job_names.CONTAINER_TRAIN, "ready": True, "restartCount": 0, "image": "a", "imageID": "a"}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
    return {
        "phase": "Running", "podIP": "10.0.0.1", "startTime": at, "conditions": [ready],
        "containerStatuses": [{**container, "state": started}],
    }  # fmt: skip
