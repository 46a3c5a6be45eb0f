"""Uploads and garbage collection keep out of each other's way, over nothing but files in the job's folder.

Each announces itself first and looks for the other second, so at least one of the two sees the other: an upload waits
for a collection (seconds), a collection gives way to an upload. Ages are by the store's clock.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from ..errors import StoreError
from .backend import Backend

UPLOAD_S: Final = 86400.0
"""An upload that was announced longer ago has died."""
COLLECTION_S: Final = 30.0
"""A collection deletes nothing any more after this time; what is left is left to the next one."""
COLLECTION_GONE_S: Final = 90.0
"""A collection that was announced longer ago has ended, or will delete nothing any more."""
POLL_S: Final = 0.2
_POD = "upload-pod-"


def pod_upload(checkpoint: str, part: int) -> str:
    """Name of the announcement of a pod's upload; `end_pod_uploads` ends it."""
    return f"{_POD}{checkpoint}.{part}"


def announce_upload(backend: Backend, folder: str, name: str, cancelled: Callable[[], bool]) -> None:
    """From here on nothing that is in the store is deleted, until `withdraw`. Raises StoreError."""
    backend.write(f"{folder}/locks/{name}", b"")
    began = time.monotonic()
    while True:
        found = backend.find(f"{folder}/locks")
        mine = found.get(f"{folder}/locks/{name}")
        now = (mine[1] if mine else time.time()) + time.monotonic() - began
        if not any("/locks/gc-" in path and now - at < COLLECTION_GONE_S for path, (_, at) in found.items()):
            return
        if cancelled():
            withdraw(backend, folder, name)
            raise StoreError("the upload was cancelled")
        time.sleep(POLL_S)


def withdraw(backend: Backend, folder: str, name: str) -> None:
    """The end of an upload or collection."""
    backend.delete(f"{folder}/locks/{name}")


def end_pod_uploads(backend: Backend, folder: str) -> None:
    """All that pods announced: committed just now, or of attempts that cannot commit any more."""
    for path in backend.find(f"{folder}/locks"):
        if path.startswith(f"{folder}/locks/{_POD}"):
            backend.delete(path)


def announce_collection(backend: Backend, folder: str) -> tuple[str, list[str]]:
    """Name of the announcement, and the uploads that run: if there is one, nothing may be deleted."""
    name = f"gc-{uuid.uuid4().hex}"
    path = f"{folder}/locks/{name}"
    backend.write(path, b"")
    found = backend.find(f"{folder}/locks")
    now = found[path][1] if path in found else time.time()
    uploads: list[str] = []
    for other, (_, at) in found.items():
        if "/locks/upload-" in other and now - at < UPLOAD_S:
            uploads.append(other.rsplit("/", 1)[1])
        elif "/locks/upload-" in other or now - at > UPLOAD_S:
            backend.delete(other)
    return name, uploads
