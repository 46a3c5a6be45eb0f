"""What stands on the platform's own objects: a request for new keys, and what a published object was made of."""

from __future__ import annotations

from ..kube.resources import Object, annotation
from . import job_names


def rotation_request(secret: Object) -> str:
    """Return the text that asks for new keys; "" for none."""
    return annotation(secret, job_names.KEYS_ROTATE) or ""


def made_of(obj: Object) -> str:
    """Return the digest of what a published object was made of; "" if it says none."""
    return annotation(obj, job_names.MADE_OF) or ""
