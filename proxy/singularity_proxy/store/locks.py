"""Uploads and garbage collection keep out of each other's way, over nothing but files in the job's folder.

    locks/upload-pod-<checkpoint id>.<part>.<upload>   a pod's upload, until its checkpoint is there or given up
    locks/upload-import-<upload>                       an import, which relies on nothing that was there before it
    locks/gc-<collection>                              a mark: the objects that a collection is about to delete

No object that somebody needs is deleted. Three rules ensure that, and none of them needs a clock:

- A name is used once. The name of an object ends in the name of its upload. So a delete that arrives late removes
  nothing of value.
- An upload announces itself, then reads the marks, then lists the packs. It relies on no object that a mark names. A
  collection writes its mark, then lists the uploads. It deletes nothing while a pod's upload runs, and no objects of a
  running import. At least one of the two sees the other.
- An announcement is removed by its exact name, by its owner or by a process that knows that the upload has ended. That
  is the writer of the manifest, or the leader of a later attempt. A mark stays until nothing that it names is left.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .backend import TEMPORARY, Backend

COLLECTION_S: Final = 30.0
"""A collection sends no delete after this time; the next collection deletes the rest."""
_POD = "upload-pod-"
_IMPORT = "upload-import-"
_MARK = "gc-"


def draw() -> str:
    """A unique random name of an upload, or of a collection."""
    return uuid.uuid4().hex[:16]


def pod_upload(checkpoint: str, part: int, upload: str) -> str:
    """Name of the announcement of a pod's upload."""
    return f"{_POD}{checkpoint}.{part}.{upload}"


def import_upload(upload: str) -> str:
    """Name of the announcement of an import."""
    return f"{_IMPORT}{upload}"


def announce(backend: Backend, folder: str, name: str) -> frozenset[str]:
    """Announce an upload. From here on, no object in the store is deleted unless a mark names it.

    Returns what marks name: `packs/<name>` and `recipes/<name>`. Raises StoreError.
    """
    backend.write(f"{folder}/locks/{name}", b"")
    return frozenset(line for lines in marks(backend, folder).values() for line in lines)


def withdraw(backend: Backend, folder: str, name: str) -> None:
    """The end of an upload or of a collection. Raises StoreError."""
    backend.delete(f"{folder}/locks/{name}")


def uploads(backend: Backend, folder: str) -> list[str]:
    """Announcements of pods' uploads and of imports. Raises StoreError."""
    return [name for name in _names(backend, folder) if name.startswith((_POD, _IMPORT))]


def pod_uploads(backend: Backend, folder: str, checkpoint: str = "", part: int | None = None) -> list[str]:
    """Announcements of pods' uploads: all, those for a checkpoint, or that of one of its parts. Raises StoreError."""
    start = _POD + (f"{checkpoint}." if checkpoint else "") + (f"{part}." if part is not None else "")
    return [name for name in _names(backend, folder) if name.startswith(start)]


@dataclass(frozen=True)
class Running:
    """What is under way in a job's folder."""

    pods: list[str]
    """Announcements of pods' uploads."""
    imports: frozenset[str]
    """Names of the uploads of imports."""


def mark(backend: Backend, folder: str, objects: Iterable[str]) -> tuple[str, Running]:
    """Write a mark: what is about to be deleted (`packs/<name>`, ...). Returns the mark's name, and the running
    uploads. Raises StoreError.

    If a pod's upload runs, nothing may be deleted.
    """
    name = f"{_MARK}{draw()}"
    backend.write(f"{folder}/locks/{name}", "\n".join(objects).encode())
    found = _names(backend, folder)
    imports = frozenset(other.removeprefix(_IMPORT) for other in found if other.startswith(_IMPORT))
    return name, Running(sorted(other for other in found if other.startswith(_POD)), imports)


def marks(backend: Backend, folder: str) -> dict[str, list[str]]:
    """What each mark names. Raises StoreError."""
    return {name: marked(backend, folder, name) for name in _names(backend, folder) if name.startswith(_MARK)}


def marked(backend: Backend, folder: str, name: str) -> list[str]:
    """What a mark names; nothing if it is gone. Raises StoreError."""
    return (backend.read(f"{folder}/locks/{name}") or b"").decode(errors="replace").splitlines()


def running_pods(paths: Iterable[str], folder: str) -> list[str]:
    """Announcements of pods' uploads among the files of a job's folder."""
    return sorted(name for name in _among(paths, folder) if name.startswith(_POD))


def _names(backend: Backend, folder: str) -> list[str]:
    return _among(backend.find(f"{folder}/locks"), folder)


def _among(paths: Iterable[str], folder: str) -> list[str]:
    """Announcements and marks, except those that are still being written."""
    names = (path.removeprefix(f"{folder}/locks/") for path in paths if path.startswith(f"{folder}/locks/"))
    return [name for name in names if TEMPORARY not in name]
