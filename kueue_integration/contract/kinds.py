"""The kinds that a training job can be (Job, JobSet, TrainJob), and how the rest of this package sees them: as Jobs.

A managed JobSet has one replicated job of one replica. So its pods are those of one Indexed Job, which the JobSet
controller makes, suspends and resumes. A managed TrainJob has one such JobSet, of its own name. Hold, attempts and
checkpoint are annotations of the JobSet or TrainJob. Wherever a job is called by its name (pods' environment, messages,
store, command line), these are called `NAME.jobset` and `NAME.trainjob`. A Job beside them may have their name, and the
name of a managed Job has no dot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import whole

from ..errors import Forbidden, NotFound
from ..kube.api import Kube
from ..kube.resources import JOB, JOBSET, TRAINJOB, Kind, Object, label, selector
from . import job_names

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""On the pods of a TrainJob too: its JobSet has its name."""
CONTAINER_NODE = "node"
"""What Trainer calls the training container: only that one gets `spec.trainer`."""
KINDS = (JOB, JOBSET, TRAINJOB)
log = logging.getLogger(__name__)
_SUFFIXES = {JOBSET.name: ".jobset", TRAINJOB.name: ".trainjob"}
MAX_GRACE_S = 10**6
_CONDITIONS = {"Completed": "Complete"}


def is_job(obj: Mapping[str, Any]) -> bool:
    """A Job, whose pod template is its own. Objects without a kind are Jobs."""
    return obj.get("kind") not in _SUFFIXES


def job_key(obj: Mapping[str, Any]) -> str:
    """What a Job, JobSet or TrainJob is called in messages and paths."""
    return owner_key(str(obj.get("kind")), str(obj["metadata"]["name"]))


def place(job: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace, and `job_key`."""
    return str(job["metadata"]["namespace"]), job_key(job)


def owner_key(kind: str, name: str) -> str:
    return f"{name}{_SUFFIXES.get(kind, '')}"


def kind_and_name(key: str) -> tuple[Kind, str]:
    """The inverse of `job_key`."""
    for kind in KINDS:
        suffix = _SUFFIXES.get(kind.name)
        if suffix and key.endswith(suffix):
            return kind, key.removesuffix(suffix)
    return JOB, key


def key_of_pod(pod: Mapping[str, Any]) -> str | None:
    """What the pod's job is called, by its labels alone, which whoever makes a pod chooses."""
    jobset = label(pod, JOBSET_NAME_LABEL)
    if not jobset:
        return label(pod, JOB_NAME_LABEL)
    trainjob = owner_key(TRAINJOB.name, jobset)
    return trainjob if label(pod, job_names.LABEL_JOB) == trainjob else owner_key(JOBSET.name, jobset)


def find(kube: Kube, namespace: str, key: str) -> Object | None:
    """The job called `key`, seen as a Job; None if there is none. Raises KubeError."""
    kind, name = kind_and_name(key)
    found = kube.find(kind, namespace, name)
    if found is None and kind is not JOB:
        found = kube.find(JOB, namespace, key)  # a Job of somebody else may have a dot in its name
    return None if found is None else as_job(found)


def named(kube: Kube, namespace: str, name: str) -> Object | None:
    """The managed job that a user calls `name`: by its key, or just by its name. None if there is none.

    A Job comes before a JobSet, that before a TrainJob of the same name. Raises KubeError.
    """
    for kind, own in dict.fromkeys((kind_and_name(name), *((kind, name) for kind in KINDS))):
        try:
            found = kube.find(kind, namespace, own)
        except Forbidden:
            if kind is JOB:
                raise
            continue  # also the answer for a kind that is not served to one who may not look
        if label(found, job_names.LABEL_MANAGED) == "true" and found is not None:
            return as_job(found)
    return None


def list_managed(kube: Kube, namespace: str | None, labels: str | None = None) -> list[Object]:
    """All managed jobs of a namespace (None: of all), seen as Jobs, by what they are called. Raises KubeError.

    `labels`: a selector that they match, too.
    """
    managed = selector({job_names.LABEL_MANAGED: "true"}) + (f",{labels}" if labels else "")
    found = kube.list(JOB, namespace, managed)
    for kind in KINDS[1:]:
        try:
            listed = kube.list(kind, namespace, managed)
        except (NotFound, Forbidden):
            continue  # not served here, or not for this user
        for obj in listed:
            try:
                found.append(as_job(obj))
            except (TypeError, ValueError, LookupError, AttributeError) as error:  # the others are still to be shown
                log.warning("%s %s is not what it should be: %r", kind.name, obj["metadata"]["name"], error)
    return sorted(found, key=job_key)


def pod_labels(key: str) -> dict[str, str]:
    """Labels that all pods of the job have, whatever their attempt."""
    kind, name = kind_and_name(key)
    return {JOB_NAME_LABEL if kind is JOB else JOBSET_NAME_LABEL: name}


def train_container(key: str) -> str:
    """Name of the container that trains, in the pods of the job called `key`."""
    return CONTAINER_NODE if kind_and_name(key)[0] is TRAINJOB else job_names.CONTAINER_TRAIN


def as_job(obj: Object) -> Object:
    """`obj` if it is a Job; else with a Job's parallelism, pod template, counts and conditions (kind, metadata stay).

    Counts: a JobSet counts Jobs, of which it has one, so `ready` is all workers or none.
    """
    if is_job(obj):
        return obj
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if obj["kind"] == JOBSET.name:
        parallelism, template = _of_jobset(spec)
        counts = status.get("replicatedJobsStatus")
    else:
        parallelism, template = _of_trainjob(spec)
        counts = status.get("jobsStatus")
    conditions = [{**c, "type": _CONDITIONS.get(c["type"], c["type"])} for c in status.get("conditions") or ()]
    seen = {
        "active": _total(counts, "active"),
        "ready": parallelism if _total(counts, "ready") else 0,
        "conditions": conditions,
    }
    return {
        **obj,
        "spec": {**spec, "parallelism": parallelism, "template": template},
        "status": {**status, **seen},
    }


def _total(counts: Iterable[Mapping[str, Any]] | None, name: str) -> int:
    return sum(int(entry.get(name) or 0) for entry in counts or ())


def _of_jobset(spec: Mapping[str, Any]) -> tuple[int, Object]:
    """(pods, pod template of the first replicated job)."""
    replicated = spec.get("replicatedJobs") or ()
    templates = [((r.get("template") or {}).get("spec") or {}).get("template") or {} for r in replicated]
    return sum(map(_pods, replicated)), next(iter(templates), {})


def _pods(replicated: Mapping[str, Any]) -> int:
    inner = (replicated.get("template") or {}).get("spec") or {}
    parallelism = inner.get("parallelism", 1)
    return int(replicated.get("replicas", 1)) * min(int(parallelism), int(inner.get("completions") or parallelism))


def _of_trainjob(spec: Mapping[str, Any]) -> tuple[int, Object]:
    """(pods, what the TrainJob itself says of their template: the rest is the runtime's)."""
    trainer = spec.get("trainer") or {}
    kept = {key: trainer[key] for key in ("image", "command", "args", "env") if trainer.get(key)}
    pod: Object = {"containers": [{"name": CONTAINER_NODE, **kept}]}
    grace = [e.get("value") for e in trainer.get("env") or () if e.get("name") == names.ENV_GRACE]
    seconds = whole(grace[0], most=MAX_GRACE_S) if grace else None
    if isinstance(seconds, int):
        pod["terminationGracePeriodSeconds"] = seconds
    return int(trainer.get("numNodes") or 1), {"spec": pod}
