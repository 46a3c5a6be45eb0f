"""The kinds that a training job can be, a Job or a JobSet, and how the rest of this package sees a JobSet: as a Job.

A JobSet that is managed has one replicated job of one replica: its pods are those of one Indexed Job, which the JobSet
controller makes, suspends and resumes. Hold, attempts and checkpoint are annotations of the JobSet. Wherever a job is
called by its name (pods' environment, messages, store), a JobSet is called `NAME.jobset`: a Job beside it may have its
name, and the name of a managed Job has no dot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kube import Kube
from .resources import JOB, JOBSET, Kind, Object

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
SUFFIX = ".jobset"
_CONDITIONS = {"Completed": "Complete"}


def is_jobset(obj: Mapping[str, Any]) -> bool:
    return bool(obj.get("kind") == JOBSET.name)


def job_key(obj: Mapping[str, Any]) -> str:
    """What a Job or JobSet is called in messages and paths."""
    name = str(obj["metadata"]["name"])
    return f"{name}{SUFFIX}" if is_jobset(obj) else name


def owner_key(kind: str, name: str) -> str:
    return f"{name}{SUFFIX}" if kind == JOBSET.name else name


def kind_and_name(key: str) -> tuple[Kind, str]:
    """The inverse of `job_key`."""
    return (JOBSET, key.removesuffix(SUFFIX)) if key.endswith(SUFFIX) else (JOB, key)


def find(kube: Kube, namespace: str, key: str) -> Object | None:
    """The Job or JobSet called `key`, seen as a Job; None if there is none. Raises KubeError."""
    kind, name = kind_and_name(key)
    found = kube.find(kind, namespace, name)
    if found is None and kind is JOBSET:
        found = kube.find(JOB, namespace, key)  # a Job of somebody else may have a dot in its name
    return None if found is None else as_job(found)


def pod_labels(key: str) -> dict[str, str]:
    """Labels that all pods of the job have, whatever their attempt."""
    kind, name = kind_and_name(key)
    return {JOBSET_NAME_LABEL if kind is JOBSET else JOB_NAME_LABEL: name}


def as_job(obj: Object) -> Object:
    """`obj` if it is a Job; a JobSet with a Job's parallelism and conditions, else as it is (kind and metadata too)."""
    if not is_jobset(obj):
        return obj
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = [{**c, "type": _CONDITIONS.get(c["type"], c["type"])} for c in status.get("conditions") or ()]
    return {
        **obj,
        "spec": {**spec, "parallelism": sum(map(_pods, spec.get("replicatedJobs") or ()))},
        "status": {**status, "conditions": conditions},
    }


def _pods(replicated: Mapping[str, Any]) -> int:
    inner = (replicated.get("template") or {}).get("spec") or {}
    parallelism = inner.get("parallelism", 1)
    return int(replicated.get("replicas", 1)) * min(int(parallelism), int(inner.get("completions") or parallelism))
