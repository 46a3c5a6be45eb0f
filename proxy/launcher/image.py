"""What travels beside CRIU's images: work directory, /dev/shm, and what the launcher must know to restore the rank."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..protocol.messages import MessageError, from_json
from .errors import RestoreError

WORK_TAR = "work.tar"
SHM_TAR = "shm.tar"
RECORD = "rank.json"


@dataclass(frozen=True)
class WrittenFile:
    """A file outside the work directory, open for writing at the dump. CRIU reopens it by path and ignores its size."""

    path: str
    size: int


@dataclass(frozen=True)
class RankRecord:
    rank: int
    root: int
    """PID of the rank's first process, in its slot."""
    step: int
    python: str
    """Version of the interpreter that runs the rank, e.g. "3.14.0"."""
    log_size: int
    """Bytes of stdout.log that were shown by the pod that dumped."""
    written: list[WrittenFile] = field(default_factory=list)


def write_record(folder: Path, record: RankRecord) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(record)))


def read_record(folder: Path) -> RankRecord:
    """Raises RestoreError."""
    try:
        return from_json(RankRecord, (folder / RECORD).read_bytes())
    except (OSError, MessageError) as error:
        raise RestoreError(f"{folder / RECORD} cannot be used: {error}; the image is incomplete") from None


def pack(folder: Path, archive: Path) -> None:
    """Everything in `folder` as a tar. Sockets are left out: CRIU binds them again."""
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".")


def unpack(archive: Path, folder: Path) -> None:
    """The folder exactly as it was: links and permissions are the user's own. Raises RestoreError."""
    folder.mkdir(parents=True, exist_ok=True)
    trusted: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, **trusted)  # noqa: S202 - our own archive, its digest is checked by the sidecar
    except (OSError, tarfile.TarError) as error:
        raise RestoreError(f"{archive} cannot be unpacked: {error}") from None


def rewind(record: RankRecord) -> list[str]:
    """Bring files outside the work directory back to their size at the dump; says what was done.

    Raises RestoreError for a file that is not there: CRIU could not reopen it.
    """
    done = []
    for file in record.written:
        path = Path(file.path)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise RestoreError(
                f"rank {record.rank} had {path} open for writing, which is not in this pod ({error.strerror}); write "
                "below the working directory, or to a volume that every attempt mounts"
            ) from None
        if size > file.size:
            os.truncate(path, file.size)
            done.append(f"{path}: cut from {size} to {file.size} bytes, what the later steps had written")
        elif size < file.size:
            done.append(f"{path}: has {size} bytes, had {file.size} at the checkpoint; somebody else changed it")
    return done
