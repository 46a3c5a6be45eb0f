"""Reading what others have put into a folder, and nothing else: no link is followed, no pipe or device is opened.

Ranks can write where their images lie. A symbolic link there could lead to a secret that only the sidecar may read; a
pipe would keep the sidecar waiting. So the path is walked one name after the other, from a folder that ranks cannot
replace. The file's kind is checked before it is opened.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import StoreError

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


class Beneath:
    """Files below `base`, which nobody else can replace. Paths are absolute. Raises StoreError that names the path."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def open(self, path: Path) -> int:
        """A descriptor for reading a regular file; the caller closes it. Raises FileNotFoundError, StoreError."""
        found = self._find(path)
        try:
            _require(stat.S_ISREG, os.fstat(found).st_mode, path, "not a regular file")
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot read image file {path}: {error}") from error
        finally:
            os.close(found)

    def files(self, folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
        """Every regular file below a folder, sorted. Raises StoreError, also for what is neither file nor folder."""
        for path, state in self.entries(folder):
            if stat.S_ISDIR(state.st_mode):
                yield from self.files(path)
            else:
                _require(stat.S_ISREG, state.st_mode, path, "not a regular file: an image directory holds files only")
                yield path, state

    def entries(self, folder: Path, pattern: str = "*") -> list[tuple[Path, os.stat_result]]:
        """What a folder holds under such names, whatever it is, sorted. Raises StoreError."""
        try:
            found = self._find(folder)
        except FileNotFoundError:
            raise StoreError(f"{folder} is not a directory: there is no image to store") from None
        try:
            _require(stat.S_ISDIR, os.fstat(found).st_mode, folder, "not a directory: there is no image to store")
            names = sorted(p.name for p in Path(f"/proc/self/fd/{found}").iterdir() if fnmatch.fnmatch(p.name, pattern))
            return [(folder / name, os.stat(name, dir_fd=found, follow_symlinks=False)) for name in names]
        except OSError as error:
            raise StoreError(f"image directory {folder} changed while it was read: {error}") from error
        finally:
            os.close(found)

    def state(self, path: Path) -> os.stat_result:
        """Of a file, which is not opened. Raises FileNotFoundError, StoreError."""
        found = self._find(path)
        try:
            return os.fstat(found)
        finally:
            os.close(found)

    def _find(self, path: Path) -> int:
        """A descriptor that names what is there."""
        at = os.open(self._base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        done = self._base
        try:
            for name in path.relative_to(self._base).parts:
                if name == "..":
                    raise StoreError(f"{path} leads out of {self._base}: refused")
                if done != self._base:
                    _require(stat.S_ISDIR, os.fstat(at).st_mode, done, "not a directory")
                found = os.open(name, _LOOK, dir_fd=at)
                os.close(at)
                at, done = found, done / name
        except BaseException as error:
            os.close(at)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise StoreError(f"cannot look at {path}: {error}") from error
            raise
        return at


def _require(kind: object, mode: int, path: Path, problem: str) -> None:
    if not kind(mode):  # type: ignore[operator]
        what = next((f" ({name})" for is_it, name in _KINDS if is_it(mode)), "")
        raise StoreError(f"{path} is {problem}{what}")
