"""Submit, find and delete training jobs. A submit does all or nothing, and the same submit twice makes one Job."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol import decode, names
from singularity_proxy.protocol.messages import Origin, to_json

from ..contract import job_names, kinds
from ..errors import AlreadyExists, ConflictError, Invalid, JobNotFoundError, KubeError, NotFound, SpecError
from ..job.view import Job
from ..kube import conflicts
from ..kube.api import Kube
from ..kube.resources import JOB, Object, kind_of, label, pod_spec, selector
from ..manifests.job_manifests import render
from ..requests import save_time_estimate
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from . import preflight

log = logging.getLogger(__name__)
END: Mapping[str, Any] = {"activeDeadlineSeconds": 1}
"""The change that makes Kubernetes fail a running Job: the only way for a client that may patch Jobs."""
WRITE_TRIES = 8


@dataclass(frozen=True)
class Submitted:
    """The Job that a submit ended at. `adopted`: it was there already, with the same identity."""

    namespace: str
    name: str
    uid: str
    adopted: bool


def validate_only(kube: Kube, spec: TrainSpec, platform: PlatformConfig) -> None:
    """Every check of `submit`, the API server's own included, without creating anything.

    Raises SpecError, PlatformError, ConflictError, KubeError.
    """
    objects = render(spec, preflight.of_queue(kube, platform, spec.namespace, spec.queue))
    if existing(kube, spec) is None:
        preflight.taken(platform, spec.namespace)
        preflight.cluster(kube, spec)
        for obj in objects:
            _create(kube, obj, dry_run=True)


def submit(kube: Kube, spec: TrainSpec, platform: PlatformConfig, start: Origin | None = None) -> Submitted:
    """Create the Job of `spec` with its Service and files, or adopt the one with the same identity.

    A new one begins with the checkpoint `start` of another job, which the caller has held (`time_travel.hold`).

    Raises SpecError (nothing was created), PlatformError, ConflictError (the name belongs to somebody else), KubeError.
    """
    *children, job = render(spec, preflight.of_queue(kube, platform, spec.namespace, spec.queue))
    if start is not None:
        job["metadata"]["annotations"][job_names.ANN_START_FROM] = to_json(start)
    adopted = existing(kube, spec)
    if adopted is None:
        preflight.taken(platform, spec.namespace)
        preflight.cluster(kube, spec)
        try:
            found = _create(kube, job)
        except AlreadyExists:  # somebody was faster: perhaps ourselves, before a crash
            adopted = existing(kube, spec)
            if adopted is None:
                raise
            found = adopted
    else:
        found = adopted
    for text in [*(() if spec.elastic else saved_secrets(job)), *too_short(kube, spec, platform, adopted)]:
        log.warning("%s: %s", spec.name, text)
    meta = found["metadata"]
    # Adopting completes what a submitter left undone when it died. A Job of another name has its own files.
    if _alive(found) and meta["name"] == spec.name:
        try:
            for child in children:
                _ensure_child(kube, child, found)
        except BaseException:
            if adopted is None:
                _drop(kube, found)
            raise
    return Submitted(meta["namespace"], meta["name"], meta["uid"], adopted is not None)


def create(kube: Kube, job: Mapping[str, Any], children: Sequence[Mapping[str, Any]], dry_run: bool = False) -> Object:
    """Create a Job with what belongs to it, or nothing. Raises SpecError, ConflictError, KubeError.

    `dry_run`: only what the API server would say.
    """
    try:
        made = _create(kube, job, dry_run)
    except AlreadyExists:
        meta = job["metadata"]
        raise ConflictError(f"Job {meta['name']!r} in namespace {meta['namespace']!r} exists already") from None
    if dry_run:
        return made
    try:
        for child in children:
            _ensure_child(kube, child, made)
    except BaseException:
        _drop(kube, made)
        raise
    return made


def saved_secrets(job: Mapping[str, Any]) -> list[str]:
    """Return a sentence if each checkpoint of the Job contains Secrets: a rank's environment is part of its image."""
    trains = [c for c in pod_spec(job).get("containers") or () if c["name"] == job_names.CONTAINER_TRAIN]
    keys = [((e.get("valueFrom") or {}).get("secretKeyRef") or {}) for c in trains for e in c.get("env") or ()]
    refs = [*keys, *((e.get("secretRef") or {}) for c in trains for e in c.get("envFrom") or ())]
    secrets = sorted({str(ref["name"]) for ref in refs if ref.get("name")})
    if not secrets:
        return []
    which = f"Secret{'s' if len(secrets) > 1 else ''} {', '.join(secrets)}"
    sidecars = [c for c in pod_spec(job).get("initContainers") or () if c["name"] == job_names.CONTAINER_SIDECAR]
    encrypted = any(e["name"] == names.ENV_STORE_KEYS for c in sidecars for e in c.get("env") or ())
    how = "encrypted" if encrypted else "in clear"
    return [f"variables of {which} will be in each checkpoint, {how}, and come back with a restore (SECURITY.md)"]


def too_short(kube: Kube, spec: TrainSpec, platform: PlatformConfig, adopted: Object | None = None) -> list[str]:
    """Limits of `spec` (of the `adopted` Job) shorter than what a checkpoint of this program took before, with the fix.

    Before: the adopted Job itself, else the youngest Job of the queue with the same name, identity or program that has
    saved one. Empty when none has, or the submitter may not look.
    """
    if adopted is not None:
        return save_time_estimate.warnings(
            save_time_estimate.of_job(adopted), save_time_estimate.limits_of(adopted, platform.max_budget_s)
        )
    query = selector({job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: spec.queue})
    try:
        known = kube.list(JOB, spec.namespace, query)
    except KubeError:
        return []  # only advice hangs on it
    known.sort(key=lambda job: str(job["metadata"].get("creationTimestamp", "")), reverse=True)
    seconds = next(
        (s for s in map(save_time_estimate.of_job, (j for j in known if _alike(j, spec))) if s is not None), None
    )
    limits = save_time_estimate.Limits(
        spec.checkpoint_budget_s if spec.hold else 0, spec.grace_period_s, platform.max_budget_s
    )
    return save_time_estimate.warnings(seconds, limits)


def _alike(job: Object, spec: TrainSpec) -> bool:
    """Whether `job` runs, or ran, what `spec` asks for."""
    if job["metadata"]["name"] == spec.name or (
        spec.identity and label(job, job_names.LABEL_IDENTITY) == spec.identity
    ):
        return True
    containers = pod_spec(job).get("containers") or ()
    env = {
        e["name"]: e.get("value")
        for c in containers
        if c["name"] == job_names.CONTAINER_TRAIN
        for e in c.get("env") or ()
    }
    command = decode.json_value(env.get(names.ENV_COMMAND) or "null")
    return bool(command == list(spec.command) and Job.parse(job).world_size == spec.ranks)


def search(kube: Kube, namespace: str, identity: str) -> list[Object]:
    """Managed Jobs with that identity, oldest first."""
    query = selector({job_names.LABEL_MANAGED: "true", job_names.LABEL_IDENTITY: identity})
    return sorted(kube.list(JOB, namespace, query), key=lambda job: str(job["metadata"].get("creationTimestamp", "")))


def delete(kube: Kube, namespace: str, name: str, uid: str | None = None, propagation: str = "Foreground") -> bool:
    """Delete a managed job (`kinds.job_key`) with its pods, Service and files; with `uid` only that very one.

    Returns False if it (or that uid) is not there any more. Foreground keeps the name taken until the pods are gone, so
    that a later Job of that name never meets them. Raises JobNotFoundError for a Job that is not ours, KubeError.
    """
    job = kinds.find(kube, namespace, name)
    if job is None or (uid is not None and job["metadata"]["uid"] != uid):
        return False
    if label(job, job_names.LABEL_MANAGED) != "true":
        where = f"{job['kind']} {name!r} in namespace {namespace!r}"
        raise JobNotFoundError(f"{where} is not a training job of this platform")
    try:
        kube.delete(
            kind_of(job), namespace, job["metadata"]["name"], uid=job["metadata"]["uid"], propagation=propagation
        )
    except NotFound:
        return False
    return True


def end(kube: Kube, namespace: str, name: str, uid: str) -> bool:
    """Fail that very Job, which stays with all that is written on it. Its pods get SIGTERM and their grace period.

    One that waits for quota fails when it starts. Returns False if it is not there any more, or has ended. Raises
    KubeError.
    """

    def attempt() -> bool:
        job = kube.find(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != uid or not _alive(job):
            return False
        if not ends(job):
            try:
                kube.patch(JOB, namespace, name, {"spec": {**END}}, resource_version=job["metadata"]["resourceVersion"])
            except NotFound:
                return False
        return True

    return conflicts.outlasted(WRITE_TRIES, attempt)  # the controller writes on it, too


def ends(job: Mapping[str, Any]) -> bool:
    """Whether somebody has asked for that."""
    return bool((job.get("spec") or {}).get("activeDeadlineSeconds") == END["activeDeadlineSeconds"])


def existing(kube: Kube, spec: TrainSpec) -> Object | None:
    """The Job that `spec` must adopt. Raises ConflictError when the name is taken by another, KubeError."""
    if spec.identity is not None:
        ours = [job for job in search(kube, spec.namespace, spec.identity) if not _leaving(job)]
        if ours:
            return ours[-1]
    job = kube.find(JOB, spec.namespace, spec.name)
    if job is None:
        return None
    where = f"Job {spec.name!r} in namespace {spec.namespace!r}"
    if _leaving(job):
        raise ConflictError(f"{where} is being deleted; submit again when it is gone, or under another name")
    owner = label(job, job_names.LABEL_IDENTITY)
    raise ConflictError(
        f"{where} exists already and belongs to {owner or 'somebody who gave no identity'}; "
        "choose another name, or delete it first"
    )


def _leaving(job: Mapping[str, Any]) -> bool:
    return bool(job["metadata"].get("deletionTimestamp"))


def _alive(job: Mapping[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)


def _create(kube: Kube, obj: Mapping[str, Any], dry_run: bool = False) -> Object:
    try:
        return kube.create(obj, dry_run=dry_run)
    except Invalid as error:
        raise SpecError([(str(obj["kind"]), obj["metadata"]["name"], f"the API server refused it: {error}")]) from error


def _ensure_child(kube: Kube, child: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    owner = {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }
    owned = {**child, "metadata": {**child["metadata"], "ownerReferences": [{**owner, "controller": True}]}}
    kind, namespace, name = kind_of(child), child["metadata"]["namespace"], child["metadata"]["name"]
    for _ in range(2):
        try:
            _create(kube, owned)
            return
        except AlreadyExists:
            other = kube.find(kind, namespace, name)
        if other is None:
            continue
        owners = {reference.get("uid") for reference in other["metadata"].get("ownerReferences") or ()}
        if job["metadata"]["uid"] in owners:
            return
        if not owners or label(other, job_names.LABEL_JOB) != job["metadata"]["name"]:
            raise ConflictError(f"{kind.name} {name!r} in namespace {namespace!r} exists already and is not ours")
        # Left over from a deleted Job of this name; the garbage collector just has not come by yet.
        try:
            kube.delete(kind, namespace, name, uid=other["metadata"]["uid"])
        except NotFound:
            continue
    raise ConflictError(f"{kind.name} {name!r} in namespace {namespace!r} is still being deleted; submit again")


def _drop(kube: Kube, job: Mapping[str, Any]) -> None:
    """Take back a Job whose Service or files could not be made; they go with it. The first error is the one to tell."""
    meta = job["metadata"]
    try:
        kube.delete(JOB, meta["namespace"], meta["name"], uid=meta["uid"])
    except KubeError as error:
        raise KubeError(
            f"Job {meta['name']!r} was created but not completed, and could not be deleted again: {error}. "
            f"Delete it: singularityctl delete {meta['name']} --namespace {meta['namespace']}"
        ) from error
