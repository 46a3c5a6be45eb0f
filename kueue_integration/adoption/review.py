"""`reviewed`: what the API server is told about a new Job that is to be adopted. Pure.

The chart's MutatingWebhookConfiguration sends Jobs that hold its rules (`adoption.yaml`) and lack our parts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from ..errors import SpecError
from ..kube.resources import JOB, Object
from ..spec.platform_config import PlatformConfig
from .patch import adopted

NAME = "singularity-adoption"
"""Of the MutatingWebhookConfiguration, and of the policy that says why a Job does not fit."""
PATH = "/v1/adopt"
VERSION = "admission.k8s.io/v1"
CHANGED = ("labels", "annotations")
"""Of a Job's metadata."""


def reviewed(review: object, platform: PlatformConfig) -> Object:
    """The AdmissionReview with our answer. Raises SpecError that names what is not as the API server sends it."""
    request = review.get("request") if isinstance(review, Mapping) else None
    job = request.get("object") if isinstance(request, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(job, Mapping) or job.get("kind") != JOB.name:
        raise SpecError([("request.object", type(job).__name__, f"must be a {JOB.name}, in an AdmissionReview")])
    meta = {**(job.get("metadata") or {}), "namespace": request.get("namespace")}
    answer: Object = {"uid": str(request.get("uid") or ""), "allowed": True}
    try:
        patch = _difference(adopted({**job, "metadata": meta}, platform))
    except SpecError as error:
        answer |= {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": str(error)}}
    else:
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": answer}


def _difference(made: Object) -> list[Object]:
    """A JSON patch. Whole parts: `adopted` keeps whatever else is there."""
    changed = [(f"/metadata/{name}", made["metadata"][name]) for name in CHANGED]
    return [{"op": "add", "path": path, "value": value} for path, value in (*changed, ("/spec", made["spec"]))]
