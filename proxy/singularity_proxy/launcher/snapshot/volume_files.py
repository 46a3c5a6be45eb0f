"""Files of volumes that a rank has open, or mapped as data: others may change them between its dump and its restore.

CRIU opens them by path, and refuses a file of another size. But for whoever has it open, a file that has only grown is
the same: a data set that somebody collects, a log. So its size is left out of the image, and compared here. A file that
is gone or shorter may come back: the restore is tried again. What a rank runs as code must not change at all
(`mapped_files`). Fields: `regfile.proto` of CRIU 4.2.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ...protocol import exit_codes
from ..errors import RestoreError
from ..ranks import process_scan
from ..ranks.process_scan import PROC
from . import files_image, mapped_files
from .image import VolumeFile
from .protobuf import Field

_KERNELS = tuple(map(Path, ("/proc", "/sys", "/dev")))
_FILE_REGULAR = 3
"""Field of file_entry."""
_NAME, _SIZE, _MODE = 6, 8, 10
"""Fields of reg_file_entry."""
SHOWN = 3


def held(pids: Sequence[int], volumes: Collection[str], own: Path, proc: Path = PROC) -> list[VolumeFile]:
    """What the processes have open or mapped, without their programs and libraries.

    :param volumes: mount points
    :param own: folder of the launcher: what is below it travels, wherever the folder itself is mounted
    """
    mapped = dict[str, str]()
    for pid in pids:
        for path, access in mapped_files.mappings(pid, proc):
            mapped[path] = mapped.get(path, "") + access
    data = {path for path, access in mapped.items() if "x" not in access}
    paths = {path for pid in pids for path in _opened(pid, proc)} - mapped.keys() | data
    foreign = (path for path in sorted(paths) if _is_below(Path(path), volumes) and not Path(path).is_relative_to(own))
    found = ((path, _size(path)) for path in foreign)
    return [VolumeFile(path, size, path in data) for path, size in found if size is not None]


def _opened(pid: int, proc: Path) -> Iterator[str]:
    for descriptor, target in process_scan.open_files(pid, proc):
        try:
            status = (proc / str(pid) / "fd" / str(descriptor)).stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 0:
            yield target


def _is_below(path: Path, volumes: Collection[str]) -> bool:
    if any(path.is_relative_to(folder) for folder in _KERNELS):
        return False
    return any(path.is_relative_to(volume) for volume in volumes)


def _size(path: str) -> int | None:
    """Bytes; None for what is not there, or is no file with content."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def free(images: Path, paths: Collection[str]) -> None:
    """Let these files of the dumped rank have another size and mode when they are opened again.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    if paths:
        files_image.rewrite(images / files_image.FILES, lambda data: freed(data, paths))


def freed(data: bytes, paths: Collection[str]) -> bytes:
    """files.img without sizes and modes of these files. Pure. Raises ValueError."""
    names = {path.lstrip("/").encode(errors="surrogateescape") for path in paths}

    def change(entry: list[Field]) -> list[Field]:
        name = next((f.value for f in entry if f.number == _NAME and isinstance(f.value, bytes)), b"")
        return [f for f in entry if f.number not in (_SIZE, _MODE)] if name.lstrip(b"/") in names else entry

    return files_image.mapped(data, _FILE_REGULAR, change)


def check(ranks: Mapping[int, Sequence[VolumeFile]]) -> list[str]:
    """Sentences about files that have grown. Raises RestoreError for those that are not as the ranks need them."""
    problems, grown = dict[str, str](), dict[str, str]()
    for rank, files in sorted(ranks.items()):
        for file in files:
            problem, text = _compared(rank, file)
            if problem:
                problems.setdefault(file.path, problem)
            elif text:
                grown.setdefault(file.path, text)
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise RestoreError(
            f"files of a volume are not as the checkpoint needs them: {'; '.join([*problems.values()][:SHOWN])}{more}. "
            "Put them back as they were: the next attempt tries again",
            exit_codes.LOST,
        )
    return list(grown.values())


def _compared(rank: int, had: VolumeFile) -> tuple[str, str]:
    """What is wrong with the file, and what has changed otherwise."""
    here = _size(had.path)
    if here is None:
        return f"{had.path} ({had.size} bytes), which rank {rank} has open or mapped, is not in this pod", ""
    if here < had.size:
        return f"{had.path}, which rank {rank} has open or mapped, has {here} bytes, and had {had.size}", ""
    return "", f"{had.path} has grown from {had.size} to {here} bytes since the checkpoint" if here > had.size else ""
