"""Tar archives that keep holes of files and extended attributes, which those of Python's `tarfile` do not.

Holes are written as GNU tar's sparse files (PAX, 0.1), which `tarfile` reads, and attributes as star and GNU tar have
them. `user.*` and POSIX access lists travel; others belong to the system that made them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_HEADER = "SCHILY.xattr."
_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")
_PARTS = "sparse"
"""Attribute of a TarInfo: offset and bytes of what is no hole, or None."""
_MAP, _SIZE = "GNU.sparse.map", "GNU.sparse.size"
_MOST = 8 << 30
"""Bytes of data from which on `tarfile` does not read a sparse file of this format: such a one is written with zeros in
its holes."""
_NONE = (errno.ENOTSUP, errno.EPERM, errno.ENODATA, errno.ENOENT)


class Archive(tarfile.TarFile):
    """For writing."""

    def gettarinfo(self, name: Any = None, arcname: str | None = None, fileobj: IO[bytes] | None = None) -> Any:
        found: tarfile.TarInfo | None = super().gettarinfo(name, arcname, fileobj)
        if found is None or not (found.isreg() or found.isdir()):  # none: a socket
            return found
        found.pax_headers = {**found.pax_headers, **_attributes(name)}
        parts = extents(name) if found.isreg() else [(0, found.size)]
        data = sum(size for _, size in parts)
        if data < min(found.size, _MOST):
            words = [str(number) for part in parts or [(0, 0)] for number in part]
            found.pax_headers |= {_MAP: ",".join(words), _SIZE: str(found.size)}
            found.size = data
            setattr(found, _PARTS, parts)
        return found

    def addfile(self, tarinfo: tarfile.TarInfo, fileobj: Any = None) -> None:
        parts = parts_of(tarinfo)
        data: Any = fileobj if parts is None or fileobj is None else _Data(fileobj, parts)
        super().addfile(tarinfo, data)


class _Data:
    """The data of a file without its holes."""

    def __init__(self, file: IO[bytes], parts: list[tuple[int, int]]) -> None:
        self._file, self._parts = file, list(reversed(parts))

    def read(self, length: int = -1, /) -> bytes:
        found, most = b"", sum(size for _, size in self._parts) if length < 0 else length
        while self._parts and len(found) < most:
            at, size = self._parts.pop()
            self._file.seek(at)
            piece = self._file.read(min(size, most - len(found)))
            if not piece:
                break  # it is shorter than it was: `tarfile` says so
            found += piece
            if len(piece) < size:
                self._parts.append((at + len(piece), size - len(piece)))
        return found


def extents(path: str | os.PathLike[str]) -> list[tuple[int, int]]:
    """Offset and bytes of each part of a regular file that is no hole. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if status.st_blocks * 512 >= status.st_size:
            return [(0, status.st_size)]
        return list(_parts(descriptor, status.st_size))
    finally:
        os.close(descriptor)


def _parts(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        yield begin, end - begin


def data_bytes(path: Path, status: os.stat_result) -> int:
    """Bytes of a regular file without its holes, of one that cannot be read with them."""
    if status.st_blocks * 512 >= status.st_size or not stat.S_ISREG(status.st_mode):
        return status.st_size
    try:
        return sum(size for _, size in extents(path))
    except OSError:
        return status.st_size


def parts_of(member: tarfile.TarInfo) -> list[tuple[int, int]] | None:
    """Offset and bytes of what is no hole in a member; None for one without holes."""
    found: list[tuple[int, int]] | None = getattr(member, _PARTS)
    return found


def _attributes(path: str | os.PathLike[str]) -> dict[str, str]:
    found = {}
    with contextlib.suppress(OSError):  # the file system has none
        for name in filter(_travels, os.listxattr(path, follow_symlinks=False)):
            value = os.getxattr(path, name, follow_symlinks=False)
            found[_HEADER + name] = value.decode(errors="surrogateescape")
    return found


def attributes(member: tarfile.TarInfo) -> dict[str, bytes]:
    """Extended attributes of a member that may be given to its file."""
    named = ((key.removeprefix(_HEADER), value) for key, value in member.pax_headers.items() if key.startswith(_HEADER))
    return {name: value.encode(errors="surrogateescape") for name, value in named if _travels(name)}


def _travels(name: str) -> bool:
    return name.startswith("user.") or name in _ACCESS_LISTS


def give_attributes(path: Path, member: tarfile.TarInfo) -> None:
    """To a file or folder that was just extracted, where its file system takes them. Raises OSError."""
    for name, value in attributes(member).items():
        try:
            os.setxattr(path, name, value, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NONE:
                raise
