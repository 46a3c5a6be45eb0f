"""Memory of a pod into which a checkpoint goes from which its ranks train on. Pure.

It is the sidecar's, and the sidecar requests it where the ranks request memory, so that the node has it and the queue
counts it. Kueue admits no Workload that requests a resource which its ClusterQueue does not cover. So where the ranks
request none, neither does the sidecar.
"""

from __future__ import annotations

from singularity_proxy.protocol import names

from ..contract import job_names
from ..kube import quantities
from ..kube.resources import Object


def given(template: Object, wish: str | None, elastic: bool) -> Object:
    """`template`, a whole pod template of a training job, with the memory. `wish` is a valid quantity or nothing.

    :param elastic: the ranks copy their state themselves, so nothing is taken in
    """
    size = 0 if elastic or not wish else int(quantities.parse(wish))
    if not size:
        return template
    spec = template["spec"]
    (train,) = (c for c in spec["containers"] if c["name"] == job_names.CONTAINER_TRAIN)
    resources = train.get("resources") or {}
    counted = any("memory" in (resources.get(kind) or {}) for kind in ("limits", "requests"))
    inits = [_told(c, size, counted) if c["name"] == job_names.CONTAINER_SIDECAR else c for c in spec["initContainers"]]
    return {**template, "spec": {**spec, "initContainers": inits}}


def _told(container: Object, size: int, counted: bool) -> Object:
    told = {**container, "env": [*container["env"], {"name": names.ENV_CHECKPOINT_MEMORY, "value": str(size)}]}
    if not counted:
        return told
    resources = container.get("resources") or {}
    return {**told, "resources": {**resources, "requests": {"memory": str(size), **(resources.get("requests") or {})}}}
