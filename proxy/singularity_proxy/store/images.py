"""The files of ranks' images: listed once, and then checked to be the same files at every read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from .beneath import Beneath


@dataclass(frozen=True)
class File:
    path: Path
    name: str
    size: int
    changed: int
    """mtime in nanoseconds."""
    inode: tuple[int, int]
    """Device and number: another file in its place is noticed."""
    names: int
    """How many names the file has: hard links."""


def walk(beneath: Beneath, root: Path) -> list[File]:
    """Every file below `root`, sorted. Raises StoreError."""
    return [
        File(path, path.relative_to(root).as_posix(), s.st_size, s.st_mtime_ns, (s.st_dev, s.st_ino), s.st_nlink)
        for path, s in beneath.files(root)
    ]


def require_own(files: Iterable[File]) -> None:
    """Raises StoreError for a file that has a name elsewhere, too: it may be no image."""
    files = list(files)
    count = Counter(file.inode for file in files)
    for file in files:
        if file.names > count[file.inode]:
            raise StoreError(f"{file.path} is a hard link to a file that is not among the images: refused")


def open_listed(beneath: Beneath, file: File) -> int:
    """A descriptor of the very file that was listed. Raises StoreError."""
    try:
        source = beneath.open(file.path)
    except FileNotFoundError as error:
        raise StoreError(f"image file {file.path} went away while it was stored") from error
    state = os.fstat(source)
    if (state.st_dev, state.st_ino) != file.inode:
        os.close(source)
        raise StoreError(f"image file {file.path} changed while it was stored: it is another file")
    return source


def require_unchanged(beneath: Beneath, file: File) -> None:
    """Raises StoreError for a file that was written or replaced since it was listed."""
    try:
        state = beneath.state(file.path)
    except FileNotFoundError as error:
        raise StoreError(f"image file {file.path} went away while it was stored") from error
    if (state.st_size, state.st_mtime_ns, (state.st_dev, state.st_ino)) != (file.size, file.changed, file.inode):
        raise StoreError(f"image file {file.path} changed while it was stored")
