"""`adopted`: a user's Job with our parts in it. Pure. Nothing of the user's is lost but the container's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singularity_proxy.protocol import names

from ..contract import job_names
from ..errors import SpecError
from ..kube.resources import Object, annotation
from ..kube.resources import pod_spec as pod_of
from ..manifests.job_manifests import failure_rules
from ..manifests.pod import LAUNCHER, leveled, pod_spec
from ..spec import privileges, security_context, store_access
from ..spec.platform_config import NODE, USER_NAMESPACE, PlatformConfig
from ..spec.train_spec import TrainSpec

PER_JOB = (names.ENV_JOB, names.ENV_WORLD_SIZE, names.ENV_STORE, names.ENV_STORE_KEYS, names.ENV_GRACE)
"""Environment that differs between Jobs; everything else of the parts is the platform's."""
AGENT_LIB = f"{names.AGENT_DIR}/lib"
BUDGET_DEFAULT = 120
GRACE_LEAST = 90
"""Seconds: the checkpoint's time when a pod is deleted without Kueue."""
SHM = "/dev/shm"  # noqa: S108 - a mount path


def parts(platform: PlatformConfig, namespace: str = "") -> Object:
    """The pod spec of a managed Job with only our parts: init containers, volumes, `train` without anything of a Job.

    The same for every Job of the namespace. Of level `node`: `leveled` adds what a user namespace needs.
    """
    platform = replace(platform, privileges=NODE)
    spec = pod_spec(TrainSpec(name="any", namespace=namespace, queue="any", command=("any",), image="any"), platform)
    (train,) = spec["containers"]
    for container in (train, spec["initContainers"][1]):
        container["env"] = [e for e in container["env"] if e["name"] not in (*PER_JOB, names.ENV_COMMAND)]
    for entry in train["env"]:
        if entry["name"] == names.ENV_WORKDIR:
            entry["value"] = "."  # the image's or the Job's own working directory, where the launcher starts too
    kept = {key: train[key] for key in ("name", "image", "env", "volumeMounts", "securityContext")}
    account = "serviceAccountName"
    return {
        **({account: spec[account]} if account in spec else {}),
        "restartPolicy": "Never",
        "initContainers": spec["initContainers"],
        "containers": [kept],
        "volumes": spec["volumes"],
    }


def wish(job: Mapping[str, Any]) -> str | None:
    """Return the level that the Job's owner wishes; None: the platform's."""
    return annotation(job, job_names.ANN_PRIVILEGES)


def managed(job: Mapping[str, Any]) -> bool:
    """Whether the Job has our sidecar."""
    return any(c.get("name") == job_names.CONTAINER_SIDECAR for c in pod_of(job).get("initContainers") or ())


def adopted(job: Mapping[str, Any], platform: PlatformConfig, key: str | None = None) -> Object:
    """A new Job manifest: `job` as its owner wrote it, with our parts.

    Which Jobs fit is the chart's to say (`adoption.yaml`): the API server has judged this one, or nobody has. Raises
    SpecError where there is no program to put our launcher before, or the platform lacks the wished level.
    `key` is what the job is called by its pods (`kinds.job_key`); None: its name.
    """
    if managed(job):
        raise SpecError(
            [("spec.template.spec.initContainers", job_names.CONTAINER_SIDECAR, "is there: adopted already")]
        )
    containers = pod_of(job).get("containers") or []
    if len(containers) != 1 or not containers[0].get("command"):
        named = [container.get("name") for container in containers]
        raise SpecError([("spec.template.spec.containers", named, "must be exactly one, with its command")])
    wished = wish(job)
    if text := privileges.problem(wished, platform):
        raise SpecError([(f"metadata.annotations[{job_names.ANN_PRIVILEGES}]", wished, text)])
    ours = parts(platform, job["metadata"].get("namespace") or "default")
    made = _with_parts(job, ours, platform, key or job["metadata"]["name"])
    plain: Object = json.loads(json.dumps(made))  # shares nothing with the platform
    return plain


def _with_parts(job: Mapping[str, Any], ours: Object, platform: PlatformConfig, key: str) -> Object:
    result: Object = json.loads(json.dumps(job))
    meta, spec = result["metadata"], result["spec"]
    workers = int(spec.get("parallelism", 1))
    access = store_access.of(platform, meta.get("namespace") or "default")
    own = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: key}
    meta["labels"] = {**(meta.get("labels") or {}), **own}
    defaults = {
        job_names.ANN_BUDGET: str(BUDGET_DEFAULT),
        job_names.ANN_WORLD_SIZE: str(workers),
        job_names.ANN_STORE: access.url,
    }
    given = {**defaults, **(meta.get("annotations") or {})}
    least = annotation(job, job_names.MIN_PARALLELISM)
    meta["annotations"] = {
        **given,
        job_names.ANN_WORKERS: str(workers),
        job_names.ANN_MIN_WORKERS: str(workers) if least is None else least,
        job_names.COMPLETIONS_EQUAL_PARALLELISM: "true",
        job_names.ANN_HOLD: job_names.HOLD_ARMED,
    }
    spec["suspend"] = True
    spec["podReplacementPolicy"] = "Failed"
    spec["podFailurePolicy"] = {"rules": failure_rules()}
    template = spec["template"]
    labels = template.setdefault("metadata", {})
    labels["labels"] = {**(labels.get("labels") or {}), **own}
    pod = template["spec"]
    pod["terminationGracePeriodSeconds"] = max(pod.get("terminationGracePeriodSeconds", 30), GRACE_LEAST)
    if "serviceAccountName" in ours:
        pod.setdefault("serviceAccountName", ours["serviceAccountName"])
    for flag in ("automountServiceAccountToken", "enableServiceLinks"):
        pod.setdefault(flag, False)
    per_job = [
        {"name": names.ENV_JOB, "value": key},
        {"name": names.ENV_WORLD_SIZE, "value": given[job_names.ANN_WORLD_SIZE]},
        {"name": names.ENV_STORE, "value": given[job_names.ANN_STORE]},
        {"name": names.ENV_GRACE, "value": str(pod["terminationGracePeriodSeconds"])},
    ]
    installer, sidecar = ours["initContainers"]
    keys = [{"name": names.ENV_STORE_KEYS, "value": store_access.KEYS_DIR}] if access.keys else []
    sidecar["env"] = [*sidecar["env"], *per_job, *keys]
    pod["initContainers"] = [installer, sidecar, *(pod.get("initContainers") or ())]
    pod["volumes"] = [*(pod.get("volumes") or ()), *ours["volumes"]]
    (user,) = pod["containers"]
    (train,) = ours["containers"]
    mounts = user.get("volumeMounts") or []
    has_shm = any(mount["mountPath"] == SHM for mount in mounts)
    user.update(
        {
            "name": job_names.CONTAINER_TRAIN,
            "command": [*LAUNCHER, *user["command"]],
            "env": _env(train["env"], [*per_job, *security_context.env(pod, user)], user.get("env") or []),
            "volumeMounts": [*(m for m in train["volumeMounts"] if not (has_shm and m["mountPath"] == SHM)), *mounts],
            "securityContext": train["securityContext"],
        }
    )
    level = privileges.chosen(wish(job), platform, ours)
    if level.name == USER_NAMESPACE:
        level = privileges.chosen(wish(job), platform, pod)
    leveled(pod, level.name)
    meta["annotations"][job_names.ANN_PRIVILEGES_WHY] = level.why
    return result


def _env(ours: list[Object], per_job: list[Object], theirs: list[Object]) -> list[Object]:
    """Theirs wins over the platform's; PYTHONPATH is the agent's, then theirs, then the platform's."""
    taken = {entry["name"] for entry in theirs}
    path = next(str(entry["value"]) for entry in ours if entry["name"] == "PYTHONPATH")
    for entry in theirs:
        if entry["name"] == "PYTHONPATH" and entry.get("value"):
            path = path.replace(AGENT_LIB, f"{AGENT_LIB}:{entry['value']}", 1)
    return [
        {"name": "PYTHONPATH", "value": path},
        *(entry for entry in ours if entry["name"] != "PYTHONPATH" and entry["name"] not in taken),
        *per_job,
        *(entry for entry in theirs if entry["name"] != "PYTHONPATH"),
    ]
