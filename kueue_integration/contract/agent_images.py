"""The ConfigMap of the agent images that the guard of pods trusts. The controller keeps it, the policies read it.

`data`: TRUSTED_IMAGES_KEY, an image on each line, and LAST_USED, a JSON object: image -> Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from proxy.protocol import decode

from ..kube.resources import Object
from . import job_names

LAST_USED = "lastUsed"


def of_job(job: Object) -> str | None:
    """Return the agent image of the Job's pods; None if none of our containers is in them."""
    pod = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    found = [c.get("image") for c in pod.get("initContainers") or () if c.get("name") == job_names.CONTAINER_INSTALL]
    return str(found[0]) if found else None


def read(data: Mapping[str, str]) -> dict[str, float | None]:
    """Return the trusted images of the ConfigMap's `data`, each with its last use (Unix seconds, None: unknown)."""
    told = decode.json_value(data.get(LAST_USED) or "{}")
    times = told if isinstance(told, dict) else {}
    known = {image: at for image, at in times.items() if isinstance(at, (int, float)) and not isinstance(at, bool)}
    return {image: known.get(image) for image in data.get(job_names.TRUSTED_IMAGES_KEY, "").split("\n") if image}


def data(images: Mapping[str, float]) -> dict[str, str]:
    """Return the ConfigMap's `data` for these images, each with the Unix seconds of its last use."""
    times = {image: int(at) for image, at in images.items()}
    return {job_names.TRUSTED_IMAGES_KEY: "\n".join(images), LAST_USED: json.dumps(times)}
