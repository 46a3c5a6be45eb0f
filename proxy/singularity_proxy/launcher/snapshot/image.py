"""What travels beside CRIU's images: work directory, /dev/shm, files, and what the launcher must know to restore."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ...protocol import decode, exit_codes
from ...protocol.decode import Unreadable
from ..errors import RestoreError
from .archive import Archive, give_attributes

WORK_TAR = "work.tar"
SHM_TAR = "shm.tar"
LAYER_TAR = "layer.tar"
RECORD = "rank.json"
LARGEST_RECORD = 16 << 20
"""Bytes: a rank has thousands of files open or mapped at most."""


@dataclass(frozen=True)
class WrittenFile:
    """A file outside the work directory, open for writing at the dump. CRIU reopens it by path and ignores its size."""

    path: str
    size: int


@dataclass(frozen=True)
class VolumeFile:
    """A file of a volume that a rank has open, or mapped as data (`volume_files`). `size`: bytes."""

    path: str
    size: int
    mapped: bool = False


@dataclass(frozen=True)
class MappedFile:
    """A file of the container image that a process of the rank has mapped (`mapped_files`). `size`: bytes."""

    path: str
    size: int
    head: str
    """Hex digest of its first bytes."""


@dataclass(frozen=True)
class FileLock:
    """A lock that a rank held on a file which has a name (`locks`). `kind`: flock, posix, ofd."""

    path: str
    kind: str
    exclusive: bool
    start: int = 0
    size: int = 0
    """Bytes; 0: up to the end."""


@dataclass(frozen=True)
class Settings:
    """What a thread has chosen for itself, and CRIU does not save (`settings`). `task`: its id in the slot."""

    task: int
    cpus: list[int] = field(default_factory=list)
    """It runs on these alone; empty: on all of the pod."""
    disk: int = 0
    """Priority for disks (ioprio_set); 0: that of the launcher."""
    numa: str = ""
    """Memory policy, as the kernel writes it; "": that of the launcher."""
    core: str = ""
    """What a core file has (coredump_filter); "": as for the launcher."""


@dataclass(frozen=True)
class RankRecord:
    rank: int
    root: int
    """PID of the rank's first process, in its slot."""
    step: int
    log_size: int
    """Bytes of stdout.log that were shown by the pod that dumped."""
    written: list[WrittenFile] = field(default_factory=list)
    held: bool = False
    """The rank was stopped where it was, and goes on without a command."""
    state: int = 0
    """Of the barrier page (page.STATE_...), for a rank that was held."""
    occupied: list[str] = field(default_factory=list)
    """Addresses and connections that its sockets take up (`sockets.occupied`)."""
    pod: str = ""
    """Host name of the pod that dumped: ranks of that pod have shared one network already."""
    mapped: list[MappedFile] = field(default_factory=list)
    """What the next pod must have, unchanged."""
    cut: list[str] = field(default_factory=list)
    """Its connections to servers outside the job, which are closed in this image (`connections`)."""
    uid: int = 0
    gid: int = 0
    """Of all its processes."""
    locks: list[FileLock] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)
    """Files and folders that it watches (inotify)."""
    volume: list[VolumeFile] = field(default_factory=list)
    """What must be there, and may have grown."""
    asleep: list[int] = field(default_factory=list)
    """Processes, by their PID in the slot, that the program had stopped itself: they are not let go."""
    settings: list[Settings] = field(default_factory=list)


def write_record(folder: Path, record: RankRecord) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(record)))


def read_record(folder: Path) -> RankRecord:
    """Raises RestoreError."""
    try:
        found = decode.message(RankRecord, (folder / RECORD).read_bytes(), LARGEST_RECORD, halves=True)
    except OSError as error:
        found = Unreadable(str(error))
    if isinstance(found, Unreadable):
        raise RestoreError(f"{folder / RECORD} cannot be used: {found.why}; the image is incomplete")
    return found


def occupied(folder: Path) -> list[str]:
    """Return what a rank that was just dumped takes up of its pod's addresses. Raises RestoreError.

    Nothing of one that the state engine saved, whose record is another one: its program starts anew. Nor of a trial.
    """
    try:
        record = decode.json_value((folder / RECORD).read_bytes(), LARGEST_RECORD, halves=True)
    except FileNotFoundError:
        return []
    return [] if isinstance(record, dict) and "engine" in record else read_record(folder).occupied


def pack(folder: Path, archive: Path, without: str = "") -> None:
    """Everything in `folder` except the file `without`, as a tar. Sockets are left out: CRIU binds them again."""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if entry.name == f"./{without}" else entry

    with Archive.open(archive, "w") as tar:
        tar.add(folder, arcname=".", filter=wanted)


def unpack(archive: Path, folder: Path) -> None:
    """The folder as it was. Raises RestoreError, also for an archive that `pack` cannot have made."""
    folder.mkdir(parents=True, exist_ok=True)
    with opened(archive) as tar:
        for member in checked(tar, archive):
            extract(tar, member, folder)


@contextlib.contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """For reading. Whatever goes wrong with it is a RestoreError."""
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (OSError, tarfile.TarError) as error:
        raise RestoreError(f"{archive} cannot be unpacked: {error}") from None


def checked(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """The members, each of which stays below the folder it is extracted to, whatever was extracted before.

    Links are the user's own and may point anywhere; nothing is ever written through one. Raises RestoreError.
    """
    links: set[PurePosixPath] = set()
    for member in tar:
        path = PurePosixPath(member.name)
        problem = _problem(member, path)
        if not problem and any(parent in links for parent in path.parents):
            problem = "lies behind a symbolic link"
        if problem:
            raise RestoreError(f"{archive}: {member.name!r} {problem}; the checkpoint was not made by this launcher")
        if member.issym():
            links.add(path)
        yield member


def _problem(member: tarfile.TarInfo, path: PurePosixPath) -> str:
    if path.is_absolute() or ".." in path.parts:
        return "leads out of its folder"
    linked = PurePosixPath(member.linkname)
    if member.islnk() and (linked.is_absolute() or ".." in linked.parts):
        return f"is a link to {member.linkname!r}, out of its folder"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk() or member.isfifo()):
        return "is neither a file, a directory, a link nor a pipe"
    return ""


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One member of `checked`, in place of what is there. Raises RestoreError if `folder` would lead elsewhere."""
    target = folder / member.name
    for parent in reversed(target.relative_to(folder).parents):
        if (folder / parent).is_symlink():
            raise RestoreError(f"{target}: {folder / parent} is a symbolic link here, and was a directory; refused")
    if member.isdir():
        if target.is_symlink():
            raise RestoreError(f"{target} is a symbolic link here, and was a directory; refused")
    elif target.is_symlink() or (target.exists() and not target.is_dir()):
        target.unlink()
    trusted: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    # By number: a user or a group may have no name in this image, or another one's.
    tar.extract(member, folder, numeric_owner=True, **trusted)
    if member.isreg() or member.isdir():
        give_attributes(target, member)
    if member.islnk() and not os.path.lexists(target):  # tarfile says nothing
        raise RestoreError(f"{target} cannot be a link to {member.linkname!r}: that is not here, or in a volume")


def differing(record: RankRecord, root: Path = Path("/"), volumes: Collection[str] = ()) -> list[str]:
    """Which files outside the work directory have another size than at the dump, in sentences. None is changed.

    Data added to a file since the dump may come from the rank or from another job. Nothing shows which, so nothing is
    cut.

    :param root: the rank's file system, but for the files below the mount points `volumes`
    Raises RestoreError for a file that is not there: CRIU could not reopen it.
    """
    done = []
    for file in record.written:
        path = Path(file.path)
        on_volume = any(path.is_relative_to(point) for point in volumes)
        there = path if on_volume else root / path.relative_to("/")
        if ".." in path.parts or Path(os.path.realpath(there)) != there:
            raise RestoreError(
                f"rank {record.rank} had {path} open for writing, which leads to {os.path.realpath(there)} in this "
                "pod; refused, as the checkpoint must not change another file"
            )
        try:
            size = there.stat().st_size
        except OSError as error:
            raise RestoreError(
                f"rank {record.rank} had {path} open for writing, which is not in this pod ({error.strerror}); write "
                "below the working directory, or to a volume that every attempt mounts",
                exit_codes.LOST if on_volume else None,  # it may come back
            ) from None
        if size > file.size:
            done.append(
                f"{path}: has {size} bytes, had {file.size} at the checkpoint, and is left so, as others may write to "
                "it: what the steps since then have appended comes a second time"
            )
        elif size < file.size:
            done.append(f"{path}: has {size} bytes, had {file.size} at the checkpoint; somebody else changed it")
    return done
