"""How much disk the images of a checkpoint may take in a pod: a limit of the volume that they lie in. Pure.

The kubelet evicts a pod whose volume grows over its limit. So the launcher knows the limit too, and refuses a dump that
would not fit. The sidecar refuses such a restore. Kueue admits no Workload that requests a resource which its
ClusterQueue does not cover. So nothing is requested here: `resources["ephemeral-storage"]` is the wish of who knows
that the queues cover it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from singularity_proxy.protocol import names

from ..contract import job_names
from ..kube import quantities
from ..kube.resources import Object
from .pod import IMAGES_VOLUME

UNLIMITED: Final = "unlimited"
SETS: Final = 2
"""Of images: those that are still uploaded, or were restored, and the next ones."""
FILES: Final = 10 * 2**30
"""Bytes of files that travel: what the launcher lets one rank take along (`SINGULARITY_FILE_LIMIT`)."""
_TOLD: Final = (job_names.CONTAINER_TRAIN, job_names.CONTAINER_SIDECAR)
_NO_DEVICE: Final = frozenset(("cpu", "memory", "ephemeral-storage"))


def bounded(template: Object, wish: str | None, ranks: int) -> Object:
    """`template`, a whole pod template of a training job, with the limit. `wish` is a valid quantity, UNLIMITED or
    nothing; then the limit follows from the memory of the training container. `ranks` are those of the job."""
    spec = template["spec"]
    (train,) = (c for c in spec["containers"] if c["name"] == job_names.CONTAINER_TRAIN)
    room = derived(train, ranks) if not wish else None if wish == UNLIMITED else quantities.parse(wish)
    if room is None:
        return template
    limit = int(room)
    volumes = [
        {**volume, "emptyDir": {**volume["emptyDir"], "sizeLimit": str(limit)}}
        if volume.get("name") == IMAGES_VOLUME and "emptyDir" in volume
        else volume
        for volume in spec["volumes"]
    ]
    told = {
        kind: [_told(c, limit) if c["name"] in _TOLD else c for c in spec[kind]]
        for kind in ("containers", "initContainers")
    }
    return {**template, "spec": {**spec, "volumes": volumes, **told}}


def _told(container: Object, limit: int) -> Object:
    return {**container, "env": [*container["env"], {"name": names.ENV_IMAGE_ROOM, "value": str(limit)}]}


def derived(train: Mapping[str, Any], ranks: int) -> Fraction | None:
    """Bytes that no images of this container can exceed; None where that is not known.

    What is mapped cannot be more than the memory limit, and shared pages are written once. A resize can put all ranks
    into one pod, each with its files. Memory of devices counts nowhere: a pod that has any has no such limit.
    """
    resources = train.get("resources") or {}
    limits = resources.get("limits") or {}
    asked = {*limits, *(resources.get("requests") or {})}
    if limits.get("memory") is None or resources.get("claims") or not asked <= _NO_DEVICE:
        return None
    return SETS * quantities.parse(limits["memory"]) + FILES * ranks
