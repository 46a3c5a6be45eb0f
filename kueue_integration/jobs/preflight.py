"""What a cluster must have before a job is created: Kueue, the queue, the fence, the priority class, the namespace.

A check that the submitter lacks the permission for is left out: the cluster will say so itself, only later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..contract import job_names
from ..errors import Forbidden, NotFound, PlatformError, SpecError
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    KUEUE_GROUP,
    KUEUE_VERSION,
    LOCAL_QUEUE,
    NAMESPACE,
    PRIORITY_CLASS,
    Kind,
    Object,
    admission_checks,
    label,
)
from ..requests import placement
from ..spec import engine, privileges
from ..spec.platform_config import PlatformConfig
from ..spec.secret_text import has_secrets
from ..spec.train_spec import TrainSpec
from . import place_check

POD_SECURITY = "pod-security.kubernetes.io/enforce"


def cluster(kube: Kube, spec: TrainSpec) -> None:
    """Raise SpecError or PlatformError when `spec` cannot run on this cluster."""
    queue = _local_queue(kube, spec)
    name = str(queue.get("spec", {}).get("clusterQueue", ""))
    target = _readable(kube, CLUSTER_QUEUE, None, name)
    problems = [*_priority(kube, spec), *place_check.problems(kube, spec, target or None)]
    if problems:
        raise SpecError(problems)
    _namespace(kube, spec)
    _fence(kube, spec, name, target)


def taken(platform: PlatformConfig, namespace: str) -> None:
    """Raise PlatformError when the controller begins no job of `namespace`, by what it has published."""
    if platform.guard_problem:
        raise PlatformError(disarmed(platform.guard_problem))
    if platform.namespaces and namespace not in platform.namespaces:
        raise PlatformError(
            f"namespace {namespace!r} is not one of those whose jobs the controller follows (chart value "
            f"controller.namespaces: {', '.join(platform.namespaces)}); use one of these, or have it added"
        )


def of_queue(kube: Kube, platform: PlatformConfig, namespace: str, queue: str) -> PlatformConfig:
    """`platform` with what is known of the flavors of this queue only: of all, where the submitter may not look."""
    if not platform.user_namespaces:
        return platform
    local = _readable(kube, LOCAL_QUEUE, namespace, queue)
    target = local and _readable(kube, CLUSTER_QUEUE, None, str((local.get("spec") or {}).get("clusterQueue", "")))
    if not target:
        return platform
    return privileges.narrowed(platform, set(placement.flavor_names(target)))


def _local_queue(kube: Kube, spec: TrainSpec) -> Object:
    try:
        queues = {q["metadata"]["name"]: q for q in kube.list(LOCAL_QUEUE, spec.namespace)}
    except NotFound:
        raise PlatformError(_no_kueue(kube)) from None
    if spec.queue in queues:
        return queues[spec.queue]
    if not queues and _readable(kube, NAMESPACE, None, spec.namespace) is False:
        raise SpecError([("namespace", spec.namespace, "does not exist in this cluster; create it or use another")])
    there = f"use one of: {', '.join(sorted(queues))}" if queues else "it has none; ask the platform team for one"
    raise SpecError([("queue", spec.queue, f"is not a LocalQueue of namespace {spec.namespace!r}; {there}")])


def _no_kueue(kube: Kube) -> str:
    wanted = LOCAL_QUEUE.api_version
    try:
        group = kube.get_path(f"/apis/{KUEUE_GROUP}")
    except NotFound:
        return f"this cluster has no Kueue (nobody serves {wanted}): install Kueue 0.15 or later"
    served = ", ".join(str(version.get("version")) for version in group.get("versions") or ())
    if KUEUE_VERSION in served.split(", "):
        return f"this cluster's Kueue lacks LocalQueues in {wanted}: apply all CRDs of your Kueue release again"
    return f"this cluster's Kueue serves {served} only, not {KUEUE_VERSION}: upgrade it to 0.15 or later"


def _priority(kube: Kube, spec: TrainSpec) -> list[tuple[str, object, str]]:
    if spec.priority_class is None:
        return []
    try:
        known = sorted(c["metadata"]["name"] for c in kube.list(PRIORITY_CLASS))
    except Forbidden:
        return []
    if spec.priority_class in known:
        return []
    there = f"use one of: {', '.join(known)}" if known else "the cluster has none; leave it out"
    return [("priority_class", spec.priority_class, f"is not a WorkloadPriorityClass of this cluster; {there}")]


def _namespace(kube: Kube, spec: TrainSpec) -> None:
    namespace = spec.namespace
    found = _readable(kube, NAMESPACE, None, namespace)
    if not found:
        return
    if label(found, job_names.LABEL_TRAINING) != job_names.TRAINING_ENABLED:
        raise PlatformError(unguarded(namespace))
    level = label(found, POD_SECURITY)
    if level in ("baseline", "restricted") and not spec.elastic:
        name = engine.chosen(spec).name
        raise PlatformError(
            f"namespace {namespace!r} enforces Pod Security level {level!r}, which refuses the capabilities that "
            f"engine {name!r} needs; label it {POD_SECURITY}=privileged, use another namespace, or engine 'state'"
        )


_GUARDED = f"{job_names.LABEL_TRAINING}={job_names.TRAINING_ENABLED}"
_NOTHING_KEEPS = "nothing would keep its pods from hostPath, host namespaces and capabilities"


def why_unguarded(namespace: str) -> str:
    """Return why no job begins in a namespace without the guard."""
    return f"namespace {namespace} has no label {_GUARDED}, so {_NOTHING_KEEPS}"


def guard_command(namespace: str) -> str:
    """Return the command that puts the guard in force in a namespace."""
    return f"kubectl label namespace {namespace} {_GUARDED}"


def unguarded(namespace: str) -> str:
    """Return both in one sentence."""
    return f"{why_unguarded(namespace)}: {guard_command(namespace)}"


def disarmed(problem: str) -> str:
    """Return why no job begins anywhere, with the command that mends it: `problem` says what of the guard is wrong."""
    return f"the guard of pods is not in force ({problem}), so {_NOTHING_KEEPS}: {job_names.UPGRADE}"


def _fence(kube: Kube, spec: TrainSpec, cluster_queue: str, found: Any) -> None:
    """`found`: the ClusterQueue as `_readable` has it."""
    if found is None:
        return
    if found is False:
        raise PlatformError(f"LocalQueue {spec.queue!r} points to ClusterQueue {cluster_queue!r}, which does not exist")
    try:
        controllers = {
            check["metadata"]["name"]: check.get("spec", {}).get("controllerName")
            for check in kube.list(ADMISSION_CHECK)
        }
    except Forbidden:
        controllers = {job_names.ADMISSION_CHECK_NAME: job_names.ADMISSION_CHECK_CONTROLLER}
    there = {controllers.get(name) for name in _admission_checks(found)}
    # Behind a MultiKueue check the job runs in another cluster, whose queue has the fence.
    if not there & {job_names.ADMISSION_CHECK_CONTROLLER, job_names.MULTIKUEUE_CONTROLLER}:
        raise PlatformError(
            f"ClusterQueue {cluster_queue!r} of queue {spec.queue!r} lacks the admission check "
            f"{job_names.ADMISSION_CHECK_NAME!r}, which tells pods their attempt and checkpoint; "
            "add it to spec.admissionChecksStrategy.admissionChecks"
        )
    if job_names.MULTIKUEUE_CONTROLLER in there and has_secrets(spec):
        fix = (
            "runs jobs in another cluster (MultiKueue), which gets no Secret of the job: name a Secret that is there, "
            "in pod_override (envFrom), instead of the secret values in env, command or files"
        )
        raise SpecError([("queue", spec.queue, fix)])


def _admission_checks(queue: Mapping[str, Any]) -> set[str]:
    return {check["name"] for check in admission_checks(queue)} | set(queue["spec"].get("admissionChecks") or ())


def _readable(kube: Kube, kind: Kind, namespace: str | None, name: str) -> Any:
    """The object, False if it does not exist, None if we may not look."""
    try:
        return kube.get(kind, namespace, name)
    except NotFound:
        return False
    except Forbidden:
        return None
