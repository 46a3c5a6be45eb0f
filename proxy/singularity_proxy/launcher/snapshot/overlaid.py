"""Files that a rank has mapped from below its view (`views`): an overlay over the overlay that the container is.

The kernel names such a file by a mount that is in no namespace, and CRIU would refuse it. So CRIU takes it as a file
that somebody else brings, under a name for that mount. In the image this name becomes the path again, which every
new pod has.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..ranks.process_scan import PROC
from . import files_image
from .protobuf import BYTES, Field

_FILE_REGULAR = 3
"""Field of file_entry."""
_NAME, _EXTERNAL = 6, 9
"""Fields of reg_file_entry."""
_MOUNT = re.compile(r"^mnt_id:\s+(\d+)$", re.MULTILINE)


def mapped(init: int, pids: Sequence[int], proc: Path = PROC) -> dict[str, str]:
    """CRIU's name of each mapped file whose mount the slot of `init` does not have -> its path. Raises OSError."""
    there = {line.split()[0] for line in (proc / str(init) / "mountinfo").read_text().splitlines()}
    return {
        f"file[{int(mount):x}:{inode:x}]": path
        for pid in pids
        for mount, inode, path in _files(proc / str(pid) / "map_files")
        if mount not in there and path.startswith("/") and not path.endswith(" (deleted)")
    }


def _files(folder: Path) -> Iterator[tuple[str, int, str]]:
    """(mount, inode number, path) of each mapping; nothing for a process that has ended."""
    for name in _names(folder):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / name, os.O_PATH)
            try:
                mount = _MOUNT.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
                if mount is not None:
                    yield mount[1], os.fstat(descriptor).st_ino, str((folder / name).readlink())
            finally:
                os.close(descriptor)


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in folder.iterdir()]
    return []


def name(images: Path, files: Mapping[str, str]) -> None:
    """Give the files of `mapped` their paths in the dumped rank.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    if files:
        files_image.rewrite(images / files_image.FILES, lambda data: named(data, files))


def named(data: bytes, files: Mapping[str, str]) -> bytes:
    """files.img with their paths. Pure. Raises ValueError."""
    paths = {name.encode(): os.fsencode(path) for name, path in files.items()}

    def changed(entry: list[Field]) -> list[Field]:
        name = next((f.value for f in entry if f.number == _NAME), b"")
        if not isinstance(name, bytes) or name not in paths:
            return entry
        kept = (f for f in entry if f.number != _EXTERNAL)
        return [Field(_NAME, BYTES, paths[name]) if f.number == _NAME else f for f in kept]

    return files_image.mapped(data, _FILE_REGULAR, changed)
