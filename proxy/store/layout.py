"""Paths inside a store (see `proxy.protocol.manifest`): pure functions that refuse names which could leave it."""

from __future__ import annotations

import re
from typing import Final

from ..errors import StoreError

CHUNKS: Final = "chunks"
JOBS: Final = "jobs"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def chunk_path(digest: str) -> str:
    """Where the chunk `digest` lies. Raises StoreError for anything but a sha256 in lower-case hex."""
    if not _DIGEST.fullmatch(digest):
        raise StoreError(f"{digest!r} is not a sha256: it cannot name a chunk")
    return f"{CHUNKS}/{digest[:2]}/{digest}"


def job_folder(namespace: str, job: str) -> str:
    """Folder of a job's manifests. Raises StoreError for a name that is not one of Kubernetes'."""
    for field, value in (("namespace", namespace), ("job", job)):
        if not _NAME.fullmatch(value) or ".." in value:
            raise StoreError(f"{field} = {value!r}: not a Kubernetes name, it cannot name a folder of the store")
    return f"{JOBS}/{namespace}/{job}"


def manifest_path(namespace: str, job: str, checkpoint_id: str) -> str:
    """Where a manifest lies. Raises StoreError for a bad name."""
    if not _NAME.fullmatch(checkpoint_id) or ".." in checkpoint_id:
        raise StoreError(f"checkpoint id = {checkpoint_id!r}: lower-case letters, digits and '-' only")
    return f"{job_folder(namespace, job)}/{checkpoint_id}.json"
