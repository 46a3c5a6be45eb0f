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
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import CommandError, DumpError, RestoreError
from . import image

ENV_LIMIT = "SINGULARITY_FILE_LIMIT"
DEFAULT_LIMIT = "10Gi"
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_OWN = ("run/criu.kdat", "run/criu.kdat.tmp")
"""What the launcher's tools leave there."""


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
    points = {re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), line.split()[4]) for line in lines}
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
    """Bytes of each that is a regular file."""
    found = {}
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[path] = status.st_size
    return found


def pack(paths: Iterable[Path], archive: Path, root: Path = Path("/")) -> None:
    """The named entries, without what lies below them."""
    with tarfile.open(archive, "w") as tar:
        for path in paths:
            tar.add(path, arcname=str(path.relative_to(root)), recursive=False)


def unpack(
    archives: Mapping[int, Path],
    written: Mapping[int, set[str]],
    say: Callable[[str], None],
    root: Path = Path("/"),
    mounted: Iterable[str] = (),
) -> None:
    """Bring the files of ranks that may come from several pods into this one's file system.

    If two ranks have a file with different contents, the file of the lower rank stays.

    :param written: paths that each rank held open for writing
    Raises RestoreError: a file is not as it was packed, lies in a volume here, or two ranks were writing it.
    """
    first: dict[str, int] = {}
    points = tuple(mounted)
    for rank, archive in sorted(archives.items()):
        if any(filecmp.cmp(archive, archives[other], shallow=False) for other in sorted(archives) if other < rank):
            continue  # both come from one pod
        with image.opened(archive) as tar:
            for member in image.checked(tar, archive):
                path = str(root / member.name)
                if any(path == point or path.startswith(f"{point}/") for point in points):
                    raise RestoreError(f"{path} was a file of the container at the checkpoint, and is in a volume here")
                if path in first and not member.isdir() and not _same(tar, member, Path(path)):
                    if path in written.get(rank, set()) | written.get(first[path], set()):
                        raise RestoreError(
                            f"ranks {first[path]} and {rank} both write {path}, in two pods until now, and cannot "
                            "share it: write below the working directory, or keep as many workers as before"
                        )
                    say(f"{path}: rank {first[path]}'s is kept, rank {rank} had another in its own pod")
                    continue
                first.setdefault(path, rank)
                image.extract(tar, member, root)


def _same(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bool:
    if not member.isreg():
        return member.issym() and path.is_symlink() and str(path.readlink()) == member.linkname
    source = tar.extractfile(member)
    if source is None or path.is_symlink() or not path.is_file() or path.stat().st_size != member.size:
        return False
    with source, tempfile.NamedTemporaryFile() as copy:
        while data := source.read(1 << 20):
            copy.write(data)
        copy.flush()
        return filecmp.cmp(copy.name, path, shallow=False)
