"""What a job leaves behind for others: files that its ranks wrote into `$OUTPUTS`, at a URL of the job's owner.

The manifest is written last: without it nothing is complete, with it everything that it names is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Final

from .decode import Count, Record, Spelled, UnixTime
from .messages import AnyId

MANIFEST: Final = "singularity-outputs.json"
"""Below the URL. A rank's file of this name is left out."""
MANIFEST_BYTES: Final = 64 << 20
MOST_FILES: Final = 50_000
FORMAT: Final = 1
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f\\]{1,255}")
Digest = Annotated[str, Spelled(r"[0-9a-f]{64}", "a sha256")]


@dataclass(frozen=True)
class OutputFile(Record):
    """One file, and the rank that wrote it."""

    path: str
    """Relative to `$OUTPUTS`, and to the URL."""
    size: Count
    sha256: Digest
    rank: Count = 0


@dataclass(frozen=True)
class LeftOut(Record):
    """What a rank wrote that is not stored, and why not."""

    path: str
    rank: Count
    why: str


@dataclass(frozen=True)
class OutputsManifest(Record):
    """Content of the manifest."""

    format: Count
    namespace: str
    job: str
    attempt: Count
    step: Count
    """Steps that the job has done."""
    checkpoint: AnyId
    """The last one; "": there is none."""
    files: list[OutputFile]
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True)
class StoredOutputs(Record):
    """What stands on the Job, once the manifest is written."""

    url: str
    files: Count
    bytes: Count
    sha256: Digest
    """Of the manifest."""
    attempt: Count
    step: Count
    checkpoint: AnyId = ""
    left_out: Count = 0
    stored_at: UnixTime = 0.0
    """By the controller's clock."""


def problem(path: str) -> str:
    """Why nothing can have this name below the URL; "" if it can."""
    parts = path.split("/")
    if path == MANIFEST:
        return "the name is the manifest's"
    if any(part in ("", ".", "..") or not _NAME.fullmatch(part) for part in parts) or len(path.encode()) > 900:
        return "not a name that every store can have (at most 900 bytes, no control characters, no backslash)"
    return ""


def together(listed: Sequence[OutputFile]) -> tuple[list[OutputFile], list[LeftOut]]:
    """The files of all ranks as one folder. Of a name that several have, the lowest rank's file counts. Pure.

    One with the same content is the same file; another is left out, as is a file where a lower rank has a folder.
    """
    taken: dict[str, OutputFile] = {}
    folders: set[str] = set()
    left: list[LeftOut] = []
    for file in sorted(listed, key=lambda each: (each.rank, each.path)):
        above = [str(parent) for parent in PurePosixPath(file.path).parents][:-1]
        there = taken.get(file.path)
        if there is not None:
            if (there.sha256, there.size) != (file.sha256, file.size):
                left.append(LeftOut(file.path, file.rank, f"rank {there.rank} has another file of this name"))
            continue
        clash = next((taken[name] for name in above if name in taken), None)
        if clash is not None or file.path in folders:
            other = (
                f"{clash.path} of rank {clash.rank} is a file" if clash else "a lower rank has a folder of this name"
            )
            left.append(LeftOut(file.path, file.rank, other))
            continue
        taken[file.path] = file
        folders.update(above)
    return sorted(taken.values(), key=lambda each: each.path), left
