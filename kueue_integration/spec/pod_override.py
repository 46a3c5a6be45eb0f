"""`pod_override`: a user's own piece of a Pod, merged into the training pod. Pure.

It may add what a TrainSpec has no field for (service account, affinity, init containers, secrets as environment, ...).
A field that a checkpoint, the fence or the ranks depend on is refused by its name. The refusal names the parameter to
use instead, where there is one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..contract import job_names
from ..kube import quantities
from ..kube.resources import Object
from . import security_context, store_access
from .platform_config import PlatformConfig
from .train_spec import TrainSpec
from .validation import LAUNCHER_ENV, Problem, metadata, mounts, volumes

BASE = "base"
"""What Airflow's Kubernetes executor and pod operator call the main container: another name for ours."""
_TRAIN = (job_names.CONTAINER_TRAIN, BASE)
_OURS = (job_names.CONTAINER_SIDECAR, job_names.CONTAINER_INSTALL)

_NAMESPACES = "ranks live in PID and mount namespaces of their own, which a checkpoint has to find as it left them"
_ADDRESS = "ranks of different pods find each other by it"
REFUSED_SPEC = {
    "restartPolicy": "a training pod is never restarted in place: the next attempt has a new one",
    "terminationGracePeriodSeconds": "set grace_period_s instead",
    "activeDeadlineSeconds": "it would count time in the queue; limit the whole job instead",
    "automountServiceAccountToken": "training pods get no credentials of the Kubernetes API; for a cloud's workload "
    "identity serviceAccountName is enough",
    "enableServiceLinks": "the environment must not depend on what else runs in the namespace",
    "subdomain": _ADDRESS,
    "hostname": _ADDRESS,
    "hostNetwork": _ADDRESS,
    "hostPID": _NAMESPACES,
    "hostIPC": _NAMESPACES,
    "hostUsers": _NAMESPACES,
    "shareProcessNamespace": _NAMESPACES,
    "nodeName": "Kueue and the scheduler choose the node; use nodeSelector or affinity",
    "schedulingGates": "Kueue keeps pods back by suspending the Job",
    "serviceAccount": "use serviceAccountName",
    "ephemeralContainers": "they can be added to a running pod only",
    "overhead": "it is set by the runtime class",
    "os": "training pods run on Linux",
}
_SPEC = frozenset(
    ("affinity", "containers", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "initContainers",
     "nodeSelector", "preemptionPolicy", "priorityClassName", "resourceClaims", "runtimeClassName", "schedulerName",
     "securityContext", "serviceAccountName", "tolerations", "topologySpreadConstraints", "volumes")
)  # fmt: skip
_PROBE = "ranks that stand still for a checkpoint answer no probe"
_REFUSED_TRAIN = {
    "image": "set image instead",
    "command": "set command or script instead",
    "args": "set command or script_args instead",
    "workingDir": "set workdir instead",
    "lifecycle": "it would take its time from the checkpoint at the end of a pod",
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
}
_FIELDS = {
    job_names.CONTAINER_TRAIN: frozenset(
        ("env", "envFrom", "volumeMounts", "volumeDevices", "resources", "ports", "imagePullPolicy",
         "terminationMessagePath", "terminationMessagePolicy", "securityContext")
    ),
    job_names.CONTAINER_SIDECAR: frozenset(("env", "envFrom", "volumeMounts", "resources", "imagePullPolicy")),
    job_names.CONTAINER_INSTALL: frozenset(("resources", "imagePullPolicy")),
}  # fmt: skip
"""What may be changed in the containers that the platform makes."""
_LISTS = {"volumes": "name", "env": "name", "volumeMounts": "mountPath", "imagePullSecrets": "name"}
"""Lists that are merged by item; an item of the override replaces the one with the same key."""
_ADDED = ("envFrom", "ports", "volumeDevices")
"""Lists that are put behind what is there."""


def merged(template: Object, override: Mapping[str, Any] | None, rootless: bool = False) -> Object:
    """`template` (metadata and spec of a pod) with `override`, which must have no `problems`.

    :param rootless: the pod itself runs as the wanted user, and not only the program in it
    """
    if not override:
        return template
    given = {part: override.get(part) or {} for part in ("metadata", "spec")}
    renamed = [
        {**c, "name": job_names.CONTAINER_TRAIN} if c.get("name") in _TRAIN else c
        for c in given["spec"].get("containers") or ()
    ]
    (train,) = (c for c in renamed if c["name"] == job_names.CONTAINER_TRAIN) if renamed else ({},)
    rest = [{key: value for key, value in c.items() if key != "securityContext"} for c in renamed]
    spec = merge(template["spec"], {**given["spec"], "containers": rest})
    (ours,) = spec["containers"]
    if rootless:
        own = train.get("securityContext") or {}
        wanted = {name: own[name] for name in security_context.KEPT[:2] if own.get(name) is not None}
        spec["securityContext"] = {**spec["securityContext"], **wanted}
    else:
        ours["env"] = [*ours["env"], *security_context.env(given["spec"], train)]
    meta = {
        part: {**template["metadata"].get(part, {}), **(given["metadata"].get(part) or {})}
        for part in ("labels", "annotations")
    }
    return {**template, "metadata": {**template["metadata"], **meta}, "spec": spec}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """A piece of a Pod with another one over it."""
    result = dict(base)
    for key, value in over.items():
        held = result.get(key)
        if value is None:
            continue  # what a V1Pod says about fields that nobody has set
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            result[key] = merge(held, value)
        elif key in ("containers", "initContainers") and held:
            theirs = {item["name"]: item for item in value}
            result[key] = [merge(item, theirs.pop(item["name"], {})) for item in held] + list(theirs.values())
        elif key in _LISTS and held:
            by = _LISTS[key]
            theirs = {item[by]: item for item in value}
            result[key] = [theirs.pop(item[by], item) for item in held] + list(theirs.values())
        elif key in _ADDED and held:
            result[key] = [*held, *value]
        else:
            result[key] = value
    return result


def problems(spec: TrainSpec, platform: PlatformConfig | None = None) -> list[Problem]:
    """Everything in `spec.pod_override` that cannot be merged, by field."""
    return [(f"pod_override.{where}" if where else "pod_override", value, text)
            for where, value, text in _problems(spec, platform)]  # fmt: skip


def _problems(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    override = spec.pod_override
    if override is None:
        return
    if not isinstance(override, Mapping):
        yield "", override, 'must be a Pod: {"metadata": {...}, "spec": {...}}'
        return
    try:
        json.dumps(override)
    except (TypeError, ValueError) as error:
        yield "", type(override).__name__, f"is not plain data ({error})"
        return
    for key, value in override.items():
        if key in ("apiVersion", "kind"):
            if value not in (None, "v1", "Pod"):
                yield key, value, "must be that of a Pod"
        elif key == "status" and value is not None:
            yield key, value, "a Pod that is to be made has none; leave it out"
        elif key not in ("metadata", "spec", "status"):
            yield key, value, "is not a part of a Pod; use metadata and spec"
        elif value is not None and not isinstance(value, Mapping):
            yield key, value, "must be a mapping"
    meta, body = (override.get(part) or {} for part in ("metadata", "spec"))
    if isinstance(meta, Mapping):
        yield from _metadata(meta)
    if isinstance(body, Mapping):
        yield from _spec(spec, body, platform)


def _metadata(meta: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in meta.items():
        if key in ("labels", "annotations"):
            if isinstance(value, Mapping):
                yield from metadata(f"metadata.{key}", value)
            elif value is not None:
                yield f"metadata.{key}", value, "must be a mapping"
        elif value is not None:
            yield f"metadata.{key}", value, "is set by the Job; only labels and annotations can be given"


def _spec(spec: TrainSpec, body: Mapping[str, Any], platform: PlatformConfig | None) -> Iterator[Problem]:
    for key, value in body.items():
        where = f"spec.{key}"
        if value is None:
            continue
        if key in REFUSED_SPEC:
            yield where, value, f"cannot be overridden: {REFUSED_SPEC[key]}"
        elif key not in _SPEC:
            near = difflib.get_close_matches(key, _SPEC, 1)
            yield where, value, "is not a field that can be set" + (f"; did you mean {near[0]}?" if near else "")
        elif key in ("containers", "initContainers", "volumes") and not _objects(value):
            yield where, value, "must be a list of mappings"
    lists = {key: body[key] for key in ("containers", "initContainers", "volumes") if _objects(body.get(key))}
    access = store_access.of(platform, spec.namespace)
    theirs = [*(platform.volumes if platform else ()), *access.volumes, *spec.volumes]
    train: Mapping[str, Any] = {}
    inner = "spec.containers[0]"
    for number, container in enumerate(lists.get("containers", ())):
        if container.get("name") in _TRAIN:
            train, inner = container, f"spec.containers[{number}]"
    yield from security_context.problems(body, train, "spec", inner)
    if spec.elastic:
        yield from security_context.rooted(body, train, "spec", inner)
    own = lists.get("volumes", ())
    yield from volumes("spec.volumes", own, theirs)
    # Without the platform its volumes are not known.
    known = {v.get("name") for v in (*theirs, *own)} if platform else None
    for key in ("containers", "initContainers"):
        seen: set[object] = set()
        for number, container in enumerate(lists.get(key, ())):
            name, where = container.get("name"), f"spec.{key}[{number}]"
            name = job_names.CONTAINER_TRAIN if key == "containers" and name in _TRAIN else name
            if name in seen:
                yield f"{where}.name", name, "is there twice"
            seen.add(name)
            yield from _container(spec, key, where, name, container, known, platform)


def _container(
    spec: TrainSpec, key: str, where: str, name: object, container: Mapping[str, Any],
    known: set[Any] | None, platform: PlatformConfig | None,
) -> Iterator[Problem]:  # fmt: skip
    if key == "containers" and name != job_names.CONTAINER_TRAIN:
        fix = (
            f"is not the training container ({job_names.CONTAINER_TRAIN!r} or {BASE!r}); what runs beside the training "
            "goes into initContainers with restartPolicy Always, so that it ends with it"
        )
        yield f"{where}.name", name, fix
        return
    if key == "initContainers" and (not isinstance(name, str) or name in _TRAIN):
        yield f"{where}.name", name, "is not a name that an init container can have here"
        return
    ours = key == "containers" or name in _OURS
    for field, value in container.items() if ours else ():
        if value is None or field == "name" or field in _FIELDS[str(name)]:
            continue
        why = _REFUSED_TRAIN.get(field) if name == job_names.CONTAINER_TRAIN else "it belongs to the platform"
        yield f"{where}.{field}", value, f"cannot be overridden: {why or 'it is not a field that can be set'}"
    taken: list[Mapping[str, Any]] = [*(platform.volume_mounts if platform else ()), *spec.volume_mounts]
    mine = container.get("volumeMounts")
    if _objects(mine):
        yield from mounts(f"{where}.volumeMounts", mine or (), known, taken if ours else ())
    elif mine is not None:
        yield f"{where}.volumeMounts", mine, "must be a list of mappings"
    if ours:
        yield from _env(where, str(name), container.get("env"))
    for part in ("requests", "limits"):
        for resource, value in ((container.get("resources") or {}).get(part) or {}).items():
            try:
                quantities.parse(value)
            except ValueError:
                yield f"{where}.resources.{part}[{resource!r}]", value, "is not a quantity, as '500m', '2' or '2Gi' are"


def _env(where: str, container: str, entries: Any) -> Iterator[Problem]:
    if entries is not None and not _objects(entries):
        yield f"{where}.env", entries, "must be a list of mappings"
        return
    for number, entry in enumerate(entries or ()):
        name, field = str(entry.get("name") or ""), f"{where}.env[{number}].name"
        if not name:
            yield field, entry.get("name"), "is missing"
        elif name.startswith("SINGULARITY_") or name in LAUNCHER_ENV:
            yield field, name, "is set by the platform; choose another name"
        elif container == job_names.CONTAINER_SIDECAR and name.startswith(("PYTHON", "LD_")):
            yield field, name, "would change the platform's own program"
        elif container == job_names.CONTAINER_TRAIN and name == "PYTHONPATH":
            yield field, name, "the platform's own has to come first; set it in env instead"


def _objects(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, Mapping) for item in value)
    )
