"""Files that a rank has mapped from its image (program, libraries): the next pod must have the same ones.

CRIU maps them again by path, and the file that it finds there becomes the rank's code. It refuses a file that is
missing, has another size or another build ID, and compares nothing else. It does so in its own words, and when much is
restored already. This module says it before anything is touched. It does not compare files that travel with the rank,
and files that the rank maps to write and share.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import RestoreError
from ..ranks.process_scan import PROC
from ..ranks.slot import ROOT
from .image import MappedFile

HEAD = 4096
"""Bytes that are compared: they are in memory, mapped as they are. Of an ELF file they say where its parts lie and how
large they are, and have its build ID if there is one."""
SHOWN = 3


def files(
    pids: Sequence[int], travels: Collection[str], own: Path, root: Path = ROOT, proc: Path = PROC
) -> list[MappedFile]:
    """What the processes have mapped.

    :param travels: paths that need not be there in the next pod
    :param own: folder of the launcher, whose files are not the image's
    :param root: of what the processes see
    """
    paths = {path for pid in pids for path in _mapped(pid, proc)} - {*travels}
    found = (_look(path, root) for path in sorted(paths) if not Path(path).is_relative_to(own))
    return [file for file in found if file is not None]


def _mapped(pid: int, proc: Path) -> set[str]:
    return {path for path, access in mappings(pid, proc) if (access[1], access[3]) != ("w", "s")}


def mappings(pid: int, proc: Path = PROC) -> Iterator[tuple[str, str]]:
    """Path and access (as `r-xp`) of each part of a file with a name that a process has mapped."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="surrogateescape").split("\n")
    except OSError:
        return
    for line in filter(None, lines):
        _, access, _, _, inode, *rest = line.split(maxsplit=5)
        if rest and inode != "0" and not rest[0].endswith(" (deleted)"):
            yield rest[0].replace("\\012", "\n"), access


def _look(path: str, root: Path = ROOT) -> MappedFile | None:
    """None for what is not there, or is no file with content, such as a device."""
    try:
        place = root / path.lstrip("/")
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        with place.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return None
    return MappedFile(path, status.st_size, hashlib.sha256(head).hexdigest()[:16])


def check(ranks: Mapping[int, Sequence[MappedFile]], mounts: Collection[str]) -> None:
    """Raises RestoreError that names files which are not here as the ranks had them.

    :param mounts: where something is mounted in this pod
    """
    here = {path: _look(path) for path in {file.path for found in ranks.values() for file in found}}
    problems: dict[str, str] = {}
    for rank, found in sorted(ranks.items()):
        for file in found:
            if file != here[file.path]:
                problems.setdefault(file.path, _difference(rank, file, here[file.path]))
    if not problems:
        return
    inside = sorted({point for point in mounts for path in problems if path == point or path.startswith(f"{point}/")})
    volume = f"; what is mounted at {', '.join(inside[:SHOWN])} must be the same, too" if inside else ""
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    shown = "; ".join([*problems.values()][:SHOWN])
    raise RestoreError(
        f"this pod has another image than the checkpoint: {shown}{more}. The ranks go on in the middle of the code "
        "that they were running, so it must be the same: name the image that the checkpoint was made with by its "
        f"digest (IMAGE@sha256:...), as a tag may have been pushed again{volume}"
    )


def _difference(rank: int, had: MappedFile, here: MappedFile | None) -> str:
    if here is None:
        return f"{had.path} ({had.size} bytes), which rank {rank} runs, is not here"
    if here.size != had.size:
        return f"{had.path} has {here.size} bytes here, and {had.size} in rank {rank}"
    return f"{had.path} begins with other bytes here (digest {here.head}) than in rank {rank} ({had.head})"
