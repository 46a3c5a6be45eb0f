"""Objects that the tests of this folder share: a platform, a spec, and Jobs and Workloads as Kueue leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_JOB_UID_LABEL, KUEUE_VERSION, Object
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, to_json

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIB1zCCAX2gAwIBAgIUCZnzpG9XUBFXqbkt+5uEnZjWiFwwCgYIKoZIzj0EAwIw
RzFFMEMGA1UEAww8c2luZ3VsYXJpdHktY29udHJvbGxlci1jYS05OTlmM2E0NmY1
NzUwMTE1N2E5YjkyZGZiOWI4NDlkOThkMCAXDTE5MTIzMTIzMDAwMFoYDzIxMTkx
MjA4MDAwMDAwWjBHMUUwQwYDVQQDDDxzaW5ndWxhcml0eS1jb250cm9sbGVyLWNh
LTk5OWYzYTQ2ZjU3NTAxMTU3YTliOTJkZmI5Yjg0OWQ5OGQwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAAQr3FWHgZbO4TTIfWNvgWhsH2c3tsJAXCYp4bQXrPDHMwfm
IFunbomecem7Sm0Bvb86m89gVMlfkthSxtwxlQq5o0UwQzAdBgNVHQ4EFgQUNb3s
6bt6pEzqdPJA0ozqlctgPwswEgYDVR0TAQH/BAgwBgEB/wIBADAOBgNVHQ8BAf8E
BAMCAQYwCgYIKoZIzj0EAwIDSAAwRQIhAJm+SkNEyZhu90XnaPSW116B4A1AC+2S
Cvi3OwmdJU6WAiBcJZOIT7fl0XB5xjY6rMuI646LT3lqlOMAcnrN1pxNtw==
-----END CERTIFICATE-----
"""
"""The certificate of an authority whose key nobody has any more; it ends in 2119."""
PLATFORM = PlatformConfig(
    agent_image="example/agent:1",
    controller_url="https://singularity-controller.singularity-system.svc:443",
    controller_ca=AUTHORITY,
    train_image="example/train:1",
    store="file:///shared/checkpoints",
    volumes=(
        {"name": "shared", "hostPath": {"path": "/srv/shared"}},
        {"name": "torch", "hostPath": {"path": "/srv/t"}},
    ),
    volume_mounts=(
        {"name": "shared", "mountPath": "/shared"},
        {"name": "torch", "mountPath": "/opt/torch", "readOnly": True},
    ),
    env={"PYTHONPATH": "/opt/torch", "OMP_NUM_THREADS": "1"},
)


STORE_PODS = {
    "volumes": [{"name": "store", "hostPath": {"path": "/srv/store"}}],
    "volumeMounts": [{"name": "store", "mountPath": "/store"}],
}
"""`store_pods` of a platform whose store the sidecars alone have."""


def spec(**changes: Any) -> TrainSpec:
    """A valid spec with `changes`."""
    values: dict[str, Any] = {
        "name": "digits",
        "queue": "training",
        "command": ["python3", "train.py", "--steps", "900"],
        "workers": 4,
        "min_workers": 2,
        "resources": {"cpu": "250m", "memory": "1Gi"},
        "files": {"train.py": "print('hello')\n", "lib/model.py": "WIDTH = 8\n"},
        "priority_class": "low",
        "identity": "abc123",
    }
    return TrainSpec(**{**values, **changes})


def namespace(name: str = "default") -> Object:
    """Return a namespace where the guard of pods is in force, as one that trains must be."""
    labels = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def cluster(*extra: Mapping[str, Any]) -> FakeKube:
    """An API server with queue, fence and priority classes, as the chart's samples make them."""
    kueue = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
    fence = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    return FakeKube(
        namespace(),
        {
            "apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "training", "namespace": "default"},
            "spec": {"clusterQueue": "training"},
        },
        {
            "apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "training"},
            "spec": {"admissionChecksStrategy": fence},
        },
        {
            "apiVersion": kueue, "kind": "AdmissionCheck", "metadata": {"name": job_names.ADMISSION_CHECK_NAME},
            "spec": {"controllerName": job_names.ADMISSION_CHECK_CONTROLLER},
        },
        {"apiVersion": kueue, "kind": "WorkloadPriorityClass", "metadata": {"name": "low"}, "value": 10},
        {"apiVersion": kueue, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 1000},
        *extra,
    )  # fmt: skip


def conditions(*items: tuple[Any, ...]) -> list[dict[str, Any]]:
    """`(type, status[, reason[, message]])` as conditions."""
    keys = ("type", "status", "reason", "message")
    return [dict(zip(keys, item, strict=False)) for item in items]


def workload(*items: tuple[Any, ...], annotations: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    """A Workload with these conditions."""
    return {
        "apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}",
        "kind": "Workload",
        "metadata": {
            "name": "job-digits-1a2b3",
            "namespace": "default",
            "labels": {KUEUE_JOB_UID_LABEL: "u-1"},
            "annotations": annotations or {},
        },
        "spec": {"active": True},
        "status": {"conditions": conditions(*items), **status},
    }


def job(
    *items: tuple[Any, ...],
    suspend: bool = False,
    history: list[AttemptRecord] | None = None,
    checkpoint: CheckpointRef | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A managed Job with these conditions and records."""
    notes = {
        job_names.ANN_WORKERS: "4",
        job_names.ANN_MIN_WORKERS: "2",
        job_names.ANN_WORLD_SIZE: "4",
        job_names.ANN_HOLD: "armed",
    }
    if history is not None:
        notes[job_names.ANN_HISTORY] = to_json(history)
        notes[job_names.ANN_ATTEMPT] = str(history[-1].attempt)
    if checkpoint is not None:
        notes[names.ANN_CHECKPOINT] = to_json(checkpoint)
    labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: "digits", job_names.KUEUE_QUEUE_LABEL: "training"}
    meta = {"name": "digits", "namespace": "default", "uid": "u-1", "labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "annotations": {**notes, **(annotations or {})}},
        "spec": {"suspend": suspend, "parallelism": 4},
        "status": {"conditions": conditions(*items), **status},
    }


def attempt(number: int = 1, **changes: Any) -> AttemptRecord:
    """An attempt on 4 ondemand pods."""
    values: dict[str, Any] = {
        "attempt": number, "reservation": f"r{number}", "flavor": "ondemand", "pods": 4, "ranks": 4,
        "admitted_at": 100.0 * number,
    }  # fmt: skip
    return AttemptRecord(**{**values, **changes})


def saved(number: int = 1, step: int = 61) -> CheckpointRef:
    """A committed checkpoint of attempt `number`."""
    return CheckpointRef(
        id=f"digits-a{number}-g1", generation=number * 1_000_000 + 1, attempt=number, step=step, world_size=4,
        url="file:///shared/checkpoints", bytes=4_000_000, bytes_stored=1_500_000, created_at=150.0,
        sha256="5" * 64,
    )  # fmt: skip
