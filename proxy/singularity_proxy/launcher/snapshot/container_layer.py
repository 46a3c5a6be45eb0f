"""Files that the job made or changed in the container's own file system, which a new pod does not have.

The time of the last status change, which no program can set back, shows what has changed since the launcher started.
Mounted volumes are not included. Deleted files of the image are not recorded either: they exist again in a new pod.
"""

from __future__ import annotations

import filecmp
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import CommandError, DumpError, RestoreError
from ..ranks import mounts
from . import image
from .archive import Archive, attributes, data_bytes, parts_of

ENV_LIMIT = "SINGULARITY_FILE_LIMIT"
DEFAULT_LIMIT = "10Gi"
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_OWN = ("run/criu.kdat", "run/criu.kdat.tmp")
"""What the launcher's tools leave there."""
_PIECE = 1 << 20


def limit(env: Mapping[str, str]) -> int:
    """Bytes of files that may travel with a rank. Raises CommandError."""
    text = env.get(ENV_LIMIT) or DEFAULT_LIMIT
    found = re.fullmatch(r"(\d+)([kMGT]?|[KMGT]i)", text)
    if found is None:
        raise CommandError(f"{ENV_LIMIT} = {text!r}: wanted a number of bytes, or one with a unit, such as 20Gi")
    return int(found.group(1)) * _UNITS[found.group(2)]


def mount_points(root: Path = Path("/"), mountinfo: Path = Path("/proc/self/mountinfo")) -> set[str]:
    """Where something is mounted, without `root` itself."""
    try:
        lines = mountinfo.read_text().splitlines()
    except FileNotFoundError:
        return set()
    points = {mounts.unescaped(line.split()[4]) for line in lines}
    return points - {str(root)}


def changed(since: float, root: Path = Path("/"), without: Iterable[str] = ()) -> list[Path]:
    """Files, links and directories below `root` that were made or changed at `since` (Unix seconds) or later."""
    skip = {*without, *(str(root / own) for own in _OWN)}
    return sorted(_walk(root, since, skip))


def _walk(folder: Path, since: float, skip: set[str]) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, PermissionError):
        return
    for entry in entries:
        if entry.path in skip:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        kind = status.st_mode
        if status.st_ctime >= since and not stat.S_ISSOCK(kind) and not stat.S_ISCHR(kind) and not stat.S_ISBLK(kind):
            yield Path(entry.path)
        if stat.S_ISDIR(kind):
            yield from _walk(Path(entry.path), since, skip)


def check_size(rank: int, files: Mapping[Path, int], most: int) -> None:
    """Raises DumpError that names the largest files when they are more than `most` bytes."""
    total = sum(files.values())
    if total <= most:
        return
    largest = sorted(files, key=lambda path: -files[path])[:3]
    shown = ", ".join(f"{path} ({files[path] / 2**20:.1f} MiB)" for path in largest)
    raise DumpError(
        f"files of rank {rank} are {total / 2**20:.1f} MiB, more than the {most / 2**20:.1f} MiB that travel with a "
        f"checkpoint; the largest: {shown}. Write large files to a mounted volume, or raise {ENV_LIMIT} (now {most})"
    )


def sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """Bytes of each that is a regular file, without its holes."""
    found = {}
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[path] = data_bytes(path, status)
    return found


def pack(paths: Iterable[Path], archive: Path, root: Path = Path("/")) -> None:
    """The named entries, without what lies below them."""
    with Archive.open(archive, "w") as tar:
        for path in paths:
            tar.add(path, arcname=str(path.relative_to(root)), recursive=False)


def unpack(archive: Path, root: Path, mounted: Iterable[str] = ()) -> None:
    """Bring the files of an archive into the file system at `root`.

    :param mounted: where the ranks will see volumes
    Raises RestoreError: a file is not as it was packed, or lies in a volume here.
    """
    points = tuple(mounted)
    with image.opened(archive) as tar:
        for member in image.checked(tar, archive):
            path = f"/{member.name}"
            if any(path == point or path.startswith(f"{point}/") for point in points):
                raise RestoreError(f"{path} was a file of the container at the checkpoint, and is in a volume here")
            image.extract(tar, member, root)


def alike(archives: Mapping[int, Path]) -> list[list[int]]:
    """The ranks whose archives have the same files, wherever they come from. Raises RestoreError."""
    found: list[list[int]] = []
    for rank in sorted(archives):
        for group in found:
            if difference(archives[group[0]], archives[rank]) is None:
                group.append(rank)
                break
        else:
            found.append([rank])
    return found


def difference(one: Path, other: Path) -> str | None:
    """A path at which two archives differ, other than in times; None: they have the same files. Raises RestoreError."""
    if filecmp.cmp(one, other, shallow=False):
        return None  # both come from one pod
    with image.opened(one) as mine, image.opened(other) as theirs:
        here, there = ({f"/{member.name}": member for member in tar} for tar in (mine, theirs))
        for path in sorted({*here, *there}):
            if path not in here or path not in there or _looks(here[path]) != _looks(there[path]):
                return path
        for path, member in here.items():
            if member.isreg() and not _same(mine, member, theirs, there[path]):
                return path
    return None


def _looks(member: tarfile.TarInfo) -> tuple[object, ...]:
    size = member.size if member.isreg() else 0
    return member.type, member.mode, member.uid, member.gid, member.linkname, size, attributes(member)


def _same(mine: tarfile.TarFile, one: tarfile.TarInfo, theirs: tarfile.TarFile, other: tarfile.TarInfo) -> bool:
    here, there = mine.extractfile(one), theirs.extractfile(other)
    if here is None or there is None:
        return here is there
    # Two files with the same holes are compared where they have data: the holes may be larger than any disk.
    parts = (parts_of(one) if parts_of(one) == parts_of(other) else None) or [(0, one.size)]
    with here, there:
        for at, size in parts:
            for file in (here, there):
                file.seek(at)
            for left in range(size, 0, -_PIECE):
                if here.read(min(left, _PIECE)) != there.read(min(left, _PIECE)):
                    return False
    return True
