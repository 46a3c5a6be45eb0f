"""Adopt a Job that exists already. A Job's pod template cannot be changed, so the Job is created again under its name.

Only a Job that has never started is touched. A ConfigMap keeps the old Job from before the delete until after the
create. So after a crash at any line, the same call finishes the work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from singularity_proxy.protocol import decode

from ..contract import job_names
from ..errors import (
    AlreadyExists,
    Conflict,
    ConflictError,
    JobNotFoundError,
    KubeError,
    NotFound,
    SpecError,
)
from ..jobs import preflight
from ..kube.api import Kube
from ..kube.resources import CONFIG_MAP, JOB, JOBSET, POD, TRAINJOB, Object, label, selector
from ..manifests.live_job import as_written
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from . import judge
from .jobset import adopted_jobset
from .judge import judged
from .patch import adopted, managed
from .trainjob import adopted_trainjob

KEY = "job.json"
MAX_KEPT = 2 << 20
"""Bytes: a ConfigMap has one MiB at most."""
GONE_S = 60.0


def backup_name(job: str) -> str:
    return f"{job}-before-adoption"


def started(job: Mapping[str, Any]) -> str:
    """Why the Job cannot be replaced, "" if it has never started. Pure."""
    status = job.get("status") or {}
    if not job["spec"].get("suspend"):
        return "is running, and its processes cannot be given our parts; let it end, or delete it and adopt its file"
    if status.get("startTime") or any(status.get(count) for count in ("active", "terminating", "succeeded", "failed")):
        return "has been started before, and what it has done would be lost; delete it and adopt its file"
    if status.get("conditions") and any(
        c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in status["conditions"]
    ):
        return "has ended"
    return ""


def cluster_checks(kube: Kube, job: Mapping[str, Any]) -> None:
    """Queue, priority class, fence, Pod Security. Raises SpecError, PlatformError."""
    meta = job["metadata"]
    spec = TrainSpec(
        name=meta["name"],
        queue=label(job, job_names.KUEUE_QUEUE_LABEL) or "",
        namespace=meta["namespace"],
        priority_class=label(job, job_names.KUEUE_PRIORITY_LABEL),
        command=("adopted",),
    )
    preflight.cluster(kube, spec)


def manifest(job: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """The adopted form of a Job, JobSet or TrainJob that was judged. Raises SpecError."""
    if job.get("kind") == JOBSET.name:
        return adopted_jobset(job, platform)
    return adopted_trainjob(job, platform) if job.get("kind") == TRAINJOB.name else adopted(job, platform)


def unjudged(job: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """The same without a cluster: nobody has looked at any field. Raises SpecError."""
    try:
        return manifest(job, platform)
    except SpecError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        name = job["metadata"].get("name")
        raise SpecError([(str(job.get("kind")), name, f"is none of the API: {error!r}")]) from None


def made_of(kube: Kube, job: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """The adopted form of a manifest, which the API server has judged. Raises SpecError, PlatformError, KubeError."""
    judged(kube, job, platform)
    return manifest(job, _of_queue(kube, platform, job))


def create(kube: Kube, job: Mapping[str, Any], platform: PlatformConfig, dry_run: bool = False) -> Object:
    """Create the adopted form of a manifest. Raises SpecError, PlatformError, ConflictError, KubeError."""
    made = made_of(kube, job, platform)
    preflight.taken(platform, made["metadata"]["namespace"])
    cluster_checks(kube, made)
    return judge.create(kube, made, dry_run)


def _of_queue(kube: Kube, platform: PlatformConfig, job: Mapping[str, Any]) -> PlatformConfig:
    """The platform as far as it is the job's queue's."""
    if job.get("kind") == TRAINJOB.name:  # whose level is that of its runtime, one for all queues
        return platform
    queue = label(job, job_names.KUEUE_QUEUE_LABEL)
    return preflight.of_queue(kube, platform, str(job["metadata"]["namespace"]), queue) if queue else platform


def preview(kube: Kube, namespace: str, name: str, platform: PlatformConfig) -> Object:
    """What `recreate` would create. Raises PlatformError, JobNotFoundError, ConflictError, SpecError, KubeError."""
    preflight.taken(platform, namespace)
    job = kube.find(JOB, namespace, name)
    if job is None:
        raise JobNotFoundError(f"there is no Job {name!r} in namespace {namespace!r}")
    reason = started(job) or _has_pods(kube, namespace, name)
    if reason:
        raise ConflictError(f"Job {name!r} in namespace {namespace!r} {reason}")
    return made_of(kube, as_written(job), platform)


def recreate(kube: Kube, namespace: str, name: str, platform: PlatformConfig) -> Object:
    """Replace Job `name` by its adopted form.

    Raises JobNotFoundError, ConflictError, SpecError, PlatformError, KubeError. Until the old Job is deleted every
    error leaves it as it was; after that, the same call finishes what is left.
    """
    kept = kube.find(CONFIG_MAP, namespace, backup_name(name))
    job = kube.find(JOB, namespace, name)
    if job is None and kept is not None:  # an earlier call ended between delete and create
        old = _manifest(kept)
        return _finish(kube, old, _of_queue(kube, platform, old))
    if job is None:
        raise JobNotFoundError(f"there is no Job {name!r} in namespace {namespace!r}")
    if kept is not None and managed(job):  # ... or between create and clean-up
        _forget(kube, namespace, name)
        return job
    reason = started(job) or _has_pods(kube, namespace, name)
    if reason:
        raise ConflictError(f"Job {name!r} in namespace {namespace!r} {reason}")
    old = as_written(job)
    platform = _of_queue(kube, platform, job)
    judged(kube, old, platform)
    new = adopted(old, platform)
    cluster_checks(kube, new)
    probe = {**new, "metadata": {**new["metadata"], "name": f"{name[:45]}-probe"}}
    judge.create(kube, probe, dry_run=True)  # what the API server would refuse, it refuses before anything is deleted
    _keep(kube, old)
    try:
        kube.delete(
            JOB, namespace, name, uid=job["metadata"]["uid"], resource_version=job["metadata"]["resourceVersion"]
        )
    except Conflict:
        _forget(kube, namespace, name)
        raise ConflictError(
            f"Job {name!r} was changed or started in this moment; it was left alone, try again"
        ) from None
    except NotFound:
        pass
    _await_gone(kube, namespace, name, job["metadata"]["uid"])
    return _finish(kube, old, platform)


def _finish(kube: Kube, old: Object, platform: PlatformConfig) -> Object:
    namespace, name = old["metadata"]["namespace"], old["metadata"]["name"]
    try:
        made = judge.create(kube, adopted(old, platform), dry_run=False)
    except (KubeError, SpecError) as error:
        raise ConflictError(
            f"Job {name!r} was deleted but not made again: {error}. Its manifest is in ConfigMap "
            f"{backup_name(name)!r}, key {KEY}; `singularityctl adopt {name} --recreate -n {namespace}` tries again"
        ) from error
    _forget(kube, namespace, name)
    return made


def _has_pods(kube: Kube, namespace: str, name: str) -> str:
    pods = kube.list(POD, namespace, selector({"batch.kubernetes.io/job-name": name}))
    return f"has pods ({pods[0]['metadata']['name']}, ...): it has been started before" if pods else ""


def _keep(kube: Kube, old: Object) -> None:
    namespace, name = old["metadata"]["namespace"], old["metadata"]["name"]
    kept = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": backup_name(name), "namespace": namespace},
        "data": {KEY: json.dumps(old)},
    }
    try:
        kube.create(kept)
    except AlreadyExists:  # of an earlier call that ended before the delete
        kube.patch(CONFIG_MAP, namespace, backup_name(name), {"data": kept["data"]})


def _manifest(kept: Mapping[str, Any]) -> Object:
    """Raises ConflictError: whoever may write ConfigMaps may have spoilt it."""
    old = decode.json_value((kept.get("data") or {}).get(KEY), MAX_KEPT)
    if not isinstance(old, dict) or old.get("kind") != JOB.name or not isinstance(old.get("metadata"), dict):
        why = f": {old.why}" if isinstance(old, decode.Unreadable) else ""
        raise ConflictError(
            f"ConfigMap {kept['metadata']['name']} should hold the manifest of a Job under {KEY}, and does not{why}. "
            "Create the Job again from its own file, then delete the ConfigMap"
        )
    return old


def _forget(kube: Kube, namespace: str, name: str) -> None:
    try:
        kube.delete(CONFIG_MAP, namespace, backup_name(name))
    except NotFound:
        return


def _await_gone(kube: Kube, namespace: str, name: str, uid: str) -> None:
    deadline = time.monotonic() + GONE_S
    while True:
        job = kube.find(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != uid:
            return
        if time.monotonic() >= deadline:
            raise ConflictError(
                f"Job {name!r} is still being deleted after {GONE_S:.0f} s (finalizers: "
                f"{job['metadata'].get('finalizers')}); `adopt {name} --recreate` goes on when it is gone"
            )
        _, version = kube.list_versioned(JOB, namespace)
        for event, changed in kube.watch(JOB, namespace, None, version, timeout_s=2.0):
            if event == "DELETED" and changed["metadata"]["uid"] == uid:
                return
