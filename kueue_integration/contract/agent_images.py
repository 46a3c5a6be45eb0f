"""The Lease that holds the agent images which the guard of pods trusts. The controller keeps it, the policies read it.

A Lease and not a ConfigMap, because the API server's copies of Leases are kept going by the hold: seen with Kubernetes
1.36, the copies of a kind stop when the last policy that takes it as parameter goes (a rollback to a release without
it), and do not start again with the next one. From then on every pod is refused, and none loses its finalizers, until
the API server restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from singularity_proxy.protocol import decode

from ..kube.resources import Object, annotation, pod_spec
from . import job_names


def of_job(job: Object) -> str | None:
    """Return the agent image of the Job's pods; None if none of our containers is in them."""
    pod = pod_spec(job)
    found = [c.get("image") for c in pod.get("initContainers") or () if c.get("name") == job_names.CONTAINER_INSTALL]
    return str(found[0]) if found else None


def read(lease: Object) -> dict[str, float | None]:
    """Return the trusted images of the Lease, each with its last use (Unix seconds, None: unknown)."""
    told = decode.json_value(annotation(lease, job_names.LEASE_IMAGES_USED) or "{}")
    times = told if isinstance(told, dict) else {}
    known = {image: at for image, at in times.items() if isinstance(at, (int, float)) and not isinstance(at, bool)}
    return {image: known.get(image) for image in (annotation(lease, job_names.LEASE_TRUSTED_IMAGES) or "").split()}


def to_annotations(images: Mapping[str, float]) -> dict[str, str]:
    """Return the annotations of the Lease for these images, each with the Unix seconds of its last use."""
    times = {image: int(at) for image, at in images.items()}
    return {job_names.LEASE_TRUSTED_IMAGES: " ".join(images), job_names.LEASE_IMAGES_USED: json.dumps(times)}
