"""What our copies keep of an object that has just arrived: the fields that are read here, and no others. Pure.

Most of a Job, a pod or a node is for the kubelet: commands, environments, mounts, images. A tenant can make that part
large at no cost, and there are thousands of objects. Who writes a list of an object back (the pod sets of a Workload)
reads the object again before that, as `actions.PatchWorkload` asks for by its guard.

Lists and mappings of a tenant that have no bound of their own get one here: what is longer is summed up or marked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from singularity_proxy.protocol import names

from ..contract import job_names, progress_objects
from ..job import states
from ..kube import quantities
from ..kube.resources import JOBSET, KUEUE_GROUP, TRAINJOB, Object, is_true, label
from ..planner import quota

_IDENTITY = (
    "namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "finalizers", "ownerReferences",
)  # fmt: skip
_DOMAINS = (names.DOMAIN, KUEUE_GROUP, "batch.kubernetes.io", "alpha.jobset.sigs.k8s.io", "jobset.sigs.k8s.io")
"""Of labels and annotations that somebody here reads."""
_POD_CONDITIONS = ("PodScheduled", "DisruptionTarget")
MOST_CONTAINERS = 32
"""Of a template; the others are kept as one that asks for what they ask for together."""
MOST_BYTES = 64 * 1024
"""Of an affinity or a node selector as JSON; of a longer one is known that it is there, and whether it has changed."""


def pod(obj: Object) -> Object:
    """Return what is read of a training pod."""
    status = obj.get("status") or {}
    shown = {key: status[key] for key in ("phase", "podIP") if key in status}
    conditions = [c for c in status.get("conditions") or () if c.get("type") in _POD_CONDITIONS]
    if conditions:
        shown["conditions"] = [_some(c, ("type", "status", "reason")) for c in conditions]
    ended = [_ended(s) for s in status.get("containerStatuses") or () if (s.get("state") or {}).get("terminated")]
    if ended:
        shown["containerStatuses"] = ended
    return {
        **_some(obj, ("apiVersion", "kind")),
        "metadata": _meta(obj),
        "spec": _some(obj.get("spec") or {}, ("nodeName",)),
        "status": shown,
    }


def pod_with_asks(obj: Object) -> Object:
    """Return the same with what the pod asks for; of a pod that is none of ours its node and that alone."""
    spec = obj.get("spec") or {}
    asks = _asks(spec)
    if label(obj, job_names.LABEL_MANAGED) == "true":
        ours = pod(obj)
        return {**ours, "spec": {**ours["spec"], **asks}}
    return {
        "metadata": _some(obj["metadata"], ("namespace", "name", "resourceVersion")),
        "spec": {**_some(spec, ("nodeName",)), **asks},
        "status": _some(obj.get("status") or {}, ("phase",)),
    }


def job(obj: Object) -> Object:
    """Return what is read of a managed Job, JobSet or TrainJob."""
    spec, status = obj.get("spec") or {}, dict(obj.get("status") or {})
    status.pop("uncountedTerminatedPods", None)
    kept = {key: value for key, value in spec.items() if not isinstance(value, (dict, list))}
    if "template" in spec:
        kept["template"] = _template(spec["template"])
    if obj.get("kind") == JOBSET.name and spec.get("replicatedJobs"):
        kept["replicatedJobs"] = [_replicated(each) for each in spec["replicatedJobs"][:MOST_CONTAINERS]]
    if obj.get("kind") == TRAINJOB.name and spec.get("trainer"):
        kept["trainer"] = _trainer(spec["trainer"])
    return {**_some(obj, ("apiVersion", "kind")), "metadata": _meta(obj), "spec": kept, "status": status}


def workload(obj: Object) -> Object:
    """Return what is read of anybody's Workload; of others' what they ask of the quota, once finished their names.

    Finished ones stay in a cluster until their owner goes.
    """
    spec, ours = dict(obj.get("spec") or {}), states.has_our_pods(obj)
    podsets = spec.pop("podSets", None) or ()
    shown = {**obj, "metadata": _meta(obj)}
    if ours:
        return {**shown, "spec": {**spec, "podSets": [{**p, "template": _template(_of(p))} for p in podsets]}}
    if is_true(obj, "Finished"):
        return {**shown, "spec": spec, "status": {"conditions": obj["status"]["conditions"]}}
    asked = [{**podset, "template": {"spec": _asks(_of(podset).get("spec") or {})}} for podset in podsets]
    return {**shown, "spec": {**spec, "podSets": asked}}


def node(obj: Object) -> Object:
    """Return what is read of a node: whether it takes pods, which, how many, and with what level."""
    meta, status = obj["metadata"], obj.get("status") or {}
    handlers = status.get("runtimeHandlers") or ()
    told = [_some(c, ("type", "status")) for c in status.get("conditions") or ()]
    return {
        **_some(obj, ("apiVersion", "kind")),
        "metadata": {**_meta(obj), "labels": meta.get("labels") or {}},
        "spec": _some(obj.get("spec") or {}, ("unschedulable", "taints")),
        "status": {
            "allocatable": status.get("allocatable") or {},
            "conditions": told,
            "nodeInfo": _some(status.get("nodeInfo") or {}, ("kernelVersion",)),
            "runtimeHandlers": [_features(each) for each in handlers if not each.get("name")],
        },
    }


def note(obj: Object) -> Object:
    """Return the progress in a JobProgress."""
    kept = _some(obj["metadata"], ("namespace", "name", "resourceVersion"))
    return {"metadata": kept, progress_objects.KEY: obj.get(progress_objects.KEY)}


# --- parts ----------------------------------------------------------------------------------------------------------
def _features(handler: Mapping[str, Any]) -> dict[str, Any]:
    return {"features": _some(handler.get("features") or {}, ("userNamespaces",))}


def _some(found: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: found[key] for key in keys if key in found}


def _meta(obj: Mapping[str, Any]) -> dict[str, Any]:
    meta = obj.get("metadata") or {}
    kept = _some(meta, _IDENTITY)
    for where in ("labels", "annotations"):
        notes = {key: value for key, value in (meta.get(where) or {}).items() if key.partition("/")[0] in _DOMAINS}
        if notes:
            kept[where] = notes
    return kept


def _of(podset: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = podset.get("template") or {}
    return found


def _ended(status: Mapping[str, Any]) -> dict[str, Any]:
    """How a container has ended."""
    limit = ((status.get("resources") or {}).get("limits") or {}).get("memory")
    terminated = _some(status["state"]["terminated"], ("exitCode", "message", "reason", "finishedAt"))
    kept = {"name": status.get("name"), "state": {"terminated": terminated}}
    return {**kept, "resources": {"limits": {"memory": limit}}} if limit is not None else kept


def _template(template: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of a pod template."""
    spec = template.get("spec") or {}
    kept = _some(spec, ("subdomain", "terminationGracePeriodSeconds", "hostUsers"))
    for key in ("affinity", "nodeSelector"):
        if spec.get(key):
            kept[key] = _bounded(spec[key])
    maps = [{"configMap": _some(v["configMap"], ("name",))} for v in spec.get("volumes") or () if v.get("configMap")]
    if maps:
        kept["volumes"] = maps[:MOST_CONTAINERS]
    asks = _asks(spec, ("name", "image", *_ASKED))
    for made, each in zip(asks.get("containers") or (), spec.get("containers") or (), strict=False):
        made.update(states.rights(each))
    return {"metadata": _meta(template), "spec": {**kept, **asks}}


_ASKED = ("resources", "restartPolicy")


def _asks(spec: Mapping[str, Any], keys: Collection[str] = _ASKED) -> dict[str, Any]:
    """What pods of this spec ask for; of its containers these `keys`."""
    asked: dict[str, Any] = {}
    if spec.get("resourceClaims"):
        asked["resourceClaims"] = spec["resourceClaims"][:MOST_CONTAINERS]
    for key in ("containers", "initContainers"):
        found = spec.get(key) or ()
        parts = [_some(each, keys) for each in found[:MOST_CONTAINERS]]
        if len(found) > MOST_CONTAINERS:
            parts.append(_together(key, found[MOST_CONTAINERS:]))
        if parts:
            asked[key] = parts
    return asked


def _together(key: str, containers: Sequence[Object]) -> dict[str, Any]:
    """One container that asks for as much as all of `containers`."""
    total = quota.of_pod({"template": {"spec": {key: containers}}})
    asked = {resource: quantities.text(amount) for resource, amount in total.items()}
    return {"name": "others", "resources": {"requests": asked}, "restartPolicy": "Always"}


def _bounded(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= MOST_BYTES else {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def _replicated(each: Mapping[str, Any]) -> dict[str, Any]:
    inner = (each.get("template") or {}).get("spec") or {}
    kept = _some(inner, ("parallelism", "completions"))
    if "template" in inner:
        kept["template"] = _template(inner["template"])
    return {**_some(each, ("name", "replicas")), "template": {"spec": kept}}


def _trainer(trainer: Mapping[str, Any]) -> dict[str, Any]:
    kept = _some(trainer, ("image", "numNodes"))
    grace = [e for e in trainer.get("env") or () if e.get("name") == names.ENV_GRACE]
    return {**kept, "env": grace[:1]} if grace else kept
