"""Paths inside a store (see `protocol.manifest`): pure functions that refuse names which could leave it."""

from __future__ import annotations

import re
from typing import Final, Literal

from ..errors import StoreError
from ..protocol import manifest, names

JOBS: Final = "jobs"
Kind = Literal["packs", "recipes"]
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def namespace_folder(namespace: str) -> str:
    """Where all that jobs of a namespace store lies, with a `/`; "" of none. Raises StoreError for a bad name."""
    return f"{job_folder(namespace, 'any').rpartition('/')[0]}/" if namespace else ""


def job_folder(namespace: str, job: str) -> str:
    """Folder of all that a job stores. Raises StoreError for a name that is not one of Kubernetes'."""
    for field, value in (("namespace", namespace), ("job", job)):
        if not _NAME.fullmatch(value) or ".." in value:
            raise StoreError(f"{field} = {value!r}: not a Kubernetes name, it cannot name a folder of the store")
    return f"{JOBS}/{namespace}/{job}"


def object_path(folder: str, kind: Kind, name: str) -> str:
    """Where a pack or a recipe lies below a job's folder. Raises StoreError for a name that is no
    `manifest.object_name`."""
    return f"{folder}/{kind}/{_object(name)}"


def damage_path(folder: str, name: str) -> str:
    """The empty file that says that a pack was found damaged: no upload relies on it. Raises StoreError."""
    return f"{folder}/damaged/{_object(name)}"


def manifest_path(namespace: str, job: str, checkpoint_id: str) -> str:
    """Where a manifest lies. Raises StoreError for a bad name."""
    return f"{job_folder(namespace, job)}/{checked_id(checkpoint_id)}.json"


def pin_path(namespace: str, job: str, checkpoint_id: str) -> str:
    """The empty file that keeps a checkpoint from being pruned. Raises StoreError for a bad name."""
    return f"{job_folder(namespace, job)}/pins/{checked_id(checkpoint_id)}"


def hold_path(namespace: str, job: str, checkpoint_id: str, holder: str) -> str:
    """The empty file that keeps a checkpoint for `holder`: a job that was forked from it, or
    `names.HOLD_REWIND`.

    Raises StoreError for a bad name. An id has no dot, so no pin is called like a hold.
    """
    if holder != names.HOLD_REWIND:
        job_folder(namespace, holder)
    return f"{pin_path(namespace, job, checkpoint_id)}.{holder}"


def _object(name: str) -> str:
    if not manifest.is_object(name):
        raise StoreError(f"{name!r} is not a sha256 and an upload: it cannot name an object")
    return name


def checked_id(checkpoint_id: str) -> str:
    """The same. Raises StoreError for what cannot be part of a path."""
    if not _NAME.fullmatch(checkpoint_id) or ".." in checkpoint_id:
        raise StoreError(f"checkpoint id = {checkpoint_id!r}: lower-case letters, digits and '-' only")
    return checkpoint_id
