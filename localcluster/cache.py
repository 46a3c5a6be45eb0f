"""Things that are made once, kept under a key of everything that went into them, and shared by concurrent callers."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .locks import locked

Progress = Callable[[str], None]
LOCK_TIMEOUT = 3600.0


def digest(parts: Iterable[bytes | str]) -> str:
    """Twelve hex digits that change with any of `parts`, their order and their boundaries."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()[:12]


def tree_files(paths: Iterable[Path]) -> list[Path]:
    """Files below `paths`, sorted, without what Python and editors leave there."""
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path)
        elif path.is_dir():
            found.update(entry for entry in path.rglob("*") if entry.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc")


def tree_digest(root: Path, paths: Iterable[Path], *extra: str) -> str:
    """Key of the names, modes and contents of all files below `paths`; names are relative to `root`."""
    parts: list[bytes | str] = list(extra)
    for path in tree_files(paths):
        parts += [str(path.relative_to(root)), oct(path.stat().st_mode & 0o777), path.read_bytes()]
    return digest(parts)


def made_once(
    directory: Path,
    make: Callable[[Path], None],
    *,
    what: str,
    progress: Progress,
    finish: Callable[[Path], None] = lambda path: None,
) -> Path:
    """`directory`, made by `make(draft)` unless it is there.

    `make` fills a folder of another name, which is renamed when complete: `directory` is whole or absent. Others
    that want the same thing wait. Drafts of interrupted attempts are removed.

    :param finish: called with the draft when `make` failed or was interrupted, before its removal
    """
    if directory.exists():
        return directory
    lock = directory.parent / f".{directory.name}.lock"
    with locked(lock, timeout=LOCK_TIMEOUT, on_wait=lambda: progress(f"waiting for another process to make {what}")):
        if directory.exists():
            return directory
        draft = directory.parent / f".{directory.name}.draft"
        if draft.exists():
            finish(draft)
            shutil.rmtree(draft)
        draft.mkdir(parents=True)
        began = time.monotonic()
        progress(f"making {what}")
        try:
            make(draft)
        except BaseException:
            finish(draft)
            shutil.rmtree(draft, ignore_errors=True)
            raise
        draft.rename(directory)
        progress(f"made {what} in {time.monotonic() - began:.0f} s")
    return directory
