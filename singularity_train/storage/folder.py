"""The folder: blobs by content, one folder for each checkpoint, the manifest last. All I/O of the storage is here.

    blobs/<digest>                  written under another name, fsynced, renamed
    checkpoints/<id>/manifest.json  likewise; before it is there, the checkpoint is not
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from .blocks import BLOCK, Blob, describe, digest
from .errors import DamagedError, FormatError, StateStorageError, of_write
from .manifest import Manifest, from_bytes, to_bytes

MANIFEST = "manifest.json"
BLOBS = "blobs"
TEMPORARY = ".tmp"
WRITE = 32 << 20
"""Bytes of one write call."""


class Folder:
    """:param root: made if it is not there"""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs, self.checkpoints = root / BLOBS, root / "checkpoints"
        self.known: set[str] = set()
        """Blobs that this process has written or read whole since it began; the last save's at least."""

    def make(self) -> None:
        """:raises FormatError: a folder of torch.distributed.checkpoint; :raises WriteError: it cannot be made"""
        if (self.root / ".metadata").exists():
            raise FormatError(
                f"root = {self.root}: this is a checkpoint of torch.distributed.checkpoint; give another folder"
            )
        try:
            self.blobs.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise of_write(self.root, error) from error

    # --- blobs ------------------------------------------------------------------------------------------------------
    def put(self, data: memoryview) -> tuple[Blob, int]:
        """The blob of `data`, and how many bytes had to be written for it: 0 where it is there already.

        One that another process has written is read once: nothing is built on a damaged blob.

        :raises WriteError: the folder cannot be written, or is full
        """
        blob = describe(data)
        there = self.has(blob) and (blob.name in self.known or self._intact(blob))
        if not there:
            _write(self.blobs / blob.name, data)
        self.known.add(blob.name)
        return blob, 0 if there else blob.bytes

    def sync_blobs(self) -> None:
        """Make the names of blobs durable."""
        _sync_folder(self.blobs)

    def read_into(self, blob: Blob, start: int, target: memoryview) -> int:
        """Fill `target` with the bytes of `blob` from `start` on; the number of bytes that were read for it.

        Each block that holds one of them is read and checked as a whole.

        :raises DamagedError: the blob is not there, is shorter, or has other bytes
        """
        path = self.blobs / blob.name
        if start < 0 or start + len(target) > blob.bytes:
            raise DamagedError(f"{path}: bytes {start} to {start + len(target)} are asked of a blob of {blob.bytes}")
        done, got = 0, 0
        try:
            with path.open("rb", buffering=0) as file:
                while done < len(target):
                    number, skip = divmod(start + done, BLOCK)
                    whole = min(BLOCK, blob.bytes - number * BLOCK)
                    wanted = min(whole - skip, len(target) - done)
                    direct = wanted == whole
                    part = target[done : done + whole] if direct else memoryview(bytearray(whole))
                    _read(file.fileno(), number * BLOCK, part, path)
                    if digest(part) != blob.blocks[number]:
                        raise DamagedError(
                            f"{path}: block {number} (of {BLOCK} bytes) is damaged: its digest is another; "
                            "load another checkpoint"
                        )
                    if not direct:
                        target[done : done + wanted] = part[skip : skip + wanted]
                    done, got = done + wanted, got + whole
        except OSError as error:
            raise DamagedError(f"{path}: the blob cannot be read: {error}; load another checkpoint") from error
        return got

    def _intact(self, blob: Blob) -> bool:
        buffer = memoryview(bytearray(min(BLOCK, blob.bytes)))
        try:
            for start in range(0, blob.bytes, BLOCK):
                self.read_into(blob, start, buffer[: blob.bytes - start])
        except DamagedError:
            return False
        return True

    def has(self, blob: Blob) -> bool:
        with contextlib.suppress(OSError):
            return (self.blobs / blob.name).stat().st_size == blob.bytes
        return False

    # --- checkpoints ------------------------------------------------------------------------------------------------
    def ids(self) -> list[str]:
        """Of committed checkpoints, the oldest first. A folder without a manifest is none."""
        return sorted(path.parent.name for path in self.checkpoints.glob(f"*/{MANIFEST}"))

    def next_id(self, step: int) -> tuple[str, int]:
        """A name that no checkpoint had, also none that was broken off, and its number; its folder is made."""
        numbers = [int(head) for path in self.checkpoints.iterdir() if (head := path.name.partition("-")[0]).isdigit()]
        sequence = max(numbers, default=0) + 1
        made = f"{sequence:08d}-step-{step}-{uuid.uuid4().hex[:8]}"
        path = self.checkpoints / made
        try:
            path.mkdir()
        except OSError as error:
            raise of_write(path, error) from error
        return made, sequence

    def path(self, checkpoint: str) -> Path:
        return self.checkpoints / checkpoint / MANIFEST

    def commit(self, manifest: Manifest) -> Path:
        """:raises WriteError: the folder cannot be written, or is full"""
        path = self.path(manifest.id)
        _write(path, memoryview(to_bytes(manifest)))
        _sync_folder(path.parent)
        _sync_folder(self.checkpoints)
        _sync_folder(self.root)
        return path

    def manifest(self, checkpoint: str) -> Manifest:
        """:raises DamagedError, FormatError: it cannot be used"""
        path = self.path(checkpoint)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedError(
                f"{path}: there is no manifest ({error.strerror}): the checkpoint was never committed, or is removed; "
                "take one of latest()"
            ) from error
        return from_bytes(data, str(path))

    def sweep(self, keep: int) -> None:
        """Remove all but the newest `keep` checkpoints, then what no checkpoint refers to. Nobody may be writing.

        Where a manifest cannot be read, nothing is removed: what it refers to is not known.
        """
        known = self.ids()
        kept = known[max(len(known) - keep, 0) :]
        try:
            used = {name for each in kept for name in self.manifest(each).blobs}
        except StateStorageError:
            return
        for path in self.checkpoints.iterdir():
            if path.name not in kept:
                # The manifest goes first: without it, the rest is no checkpoint.
                _remove([path / MANIFEST])
                _remove(path.glob("*"))
                with contextlib.suppress(OSError):
                    path.rmdir()
        _sync_folder(self.checkpoints)
        _remove(path for path in self.blobs.iterdir() if path.name not in used)


def _write(path: Path, data: memoryview) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    try:
        try:
            with temporary.open("xb", buffering=0) as file:
                for start in range(0, len(data), WRITE):
                    part = data[start : start + WRITE]
                    while part:
                        part = part[file.write(part) :]
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise of_write(path, error) from error


def _read(file: int, start: int, target: memoryview, path: Path) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:]], start + done)
        if not count:
            raise DamagedError(f"{path}: the blob ends at byte {start + done}, too early; load another checkpoint")
        done += count


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise of_write(path, error) from error
    finally:
        os.close(descriptor)


def _remove(paths: Iterable[Path] | Sequence[Path]) -> None:
    for path in list(paths):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
