"""Files of ranks at a URL of the job's owner: plain files under their own names, and a manifest that is written last.

All of it can be done again: names and content are the same, so a second time changes nothing. Ranks wrote these files:
no link is followed, and what is no file is left out by name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ..errors import StoreError
from ..protocol import decode, outputs
from ..protocol.messages import to_json
from ..protocol.outputs import LeftOut, OutputFile, OutputsManifest
from .backend import PATIENCE_S, Backend
from .beneath import Beneath

PROBE_S: Final = 20.0
AT_ONCE: Final = 8
"""Files that are sent at the same time; large ones one after the other."""
LARGE: Final = 16 << 20
DEEPEST: Final = 64
_PIECE: Final = 8 << 20
Progress = Callable[[int, int], None]
log = logging.getLogger(__name__)


def listed(folders: Mapping[int, Path], below: Path) -> tuple[list[OutputFile], list[LeftOut]]:
    """What the ranks' folders hold, with digests, and what of it cannot be stored. Raises StoreError.

    :param below: folder that no rank can replace
    """
    files: list[OutputFile] = []
    left: list[LeftOut] = []
    beneath = Beneath(below)
    for rank, folder in sorted(folders.items()):
        for path, why in walk(beneath, folder):
            name = os.fsencode(path.relative_to(folder)).decode("utf-8", "replace")
            why = why or ("its name is no UTF-8" if "\ufffd" in name else outputs.problem(name))
            if not why and len(files) == outputs.MOST_FILES:
                why = f"more than {outputs.MOST_FILES} files"
            if why:
                left.append(LeftOut(name, rank, why))
                continue
            size, sha256 = _digest(beneath, path)
            files.append(OutputFile(name, size, sha256, rank))
    return files, left


def walk(beneath: Beneath, folder: Path, depth: int = 0) -> Iterator[tuple[Path, str]]:
    """Every file, and why another thing is none. Raises StoreError."""
    try:
        entries = beneath.entries(folder)
    except StoreError:
        if depth == 0:
            return  # the rank had no such folder, or has replaced it
        raise
    for path, state in entries:
        if stat.S_ISDIR(state.st_mode) and depth < DEEPEST:
            yield from walk(beneath, path, depth + 1)
        else:
            yield path, "" if stat.S_ISREG(state.st_mode) else "neither file nor folder"


def _digest(beneath: Beneath, path: Path) -> tuple[int, str]:
    source, size, digest = beneath.open(path), 0, hashlib.sha256()
    try:
        while piece := os.pread(source, _PIECE, size):
            digest.update(piece)
            size += len(piece)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    finally:
        os.close(source)
    return size, digest.hexdigest()


class Outputs:
    """The folder at `url`. Methods raise StoreError. Not for the event loop.

    :param cancelled: once true, nothing is tried again
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.url = url.rstrip("/")
        self._backend = Backend(self.url, patience_s, cancelled)

    def probe(self) -> None:
        """Write a small file and delete it: whether the outputs of a long training can be stored is asked before it."""
        backend = Backend(self.url, min(PROBE_S, self._backend.patience_s))
        name = f".probe-{uuid.uuid4().hex}"
        try:
            _write(backend, name, b"singularity")
            backend.delete(name)
        except StoreError as error:
            raise type(error)(
                f"outputs = {self.url}: {error}. Give a place that the sidecar may write to and delete from"
            ) from error

    def withdraw(self) -> list[str]:
        """Delete the manifest of whoever stored there before; from now on nothing is complete. Returns what it
        named."""
        text = self._backend.read(outputs.MANIFEST, outputs.MANIFEST_BYTES)
        if text is None:
            return []
        self._backend.delete(outputs.MANIFEST)
        found = decode.message(OutputsManifest, text, outputs.MANIFEST_BYTES)
        if isinstance(found, decode.Unreadable):
            log.warning("the manifest at %s cannot be read (%s): what it named stays", self.url, found.why)
            return []
        return [file.path for file in found.files if not outputs.problem(file.path)]

    def put(
        self,
        files: Sequence[OutputFile],
        folders: Mapping[int, Path],
        below: Path,
        progress: Progress = lambda done, total: None,
    ) -> None:
        """Store these files of the ranks' folders. One that is not as it was listed is an error."""
        beneath, done, total = Beneath(below), 0, sum(file.size for file in files)
        progress(done, total)
        small = [file for file in files if file.size < LARGE]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for file in pool.map(lambda each: self._put(each, folders[each.rank], beneath), small):
                done += file.size
                progress(done, total)
        for file in files:
            if file.size >= LARGE:
                self._put(file, folders[file.rank], beneath)
                done += file.size
                progress(done, total)

    def _put(self, file: OutputFile, folder: Path, beneath: Beneath) -> OutputFile:
        path = folder / file.path
        try:
            source = beneath.open(path)
        except FileNotFoundError as error:
            raise StoreError(f"{path} is gone since it was listed") from error
        try:
            self._backend.write_file(file.path, source, file.size)
        finally:
            os.close(source)
        if _digest(beneath, path) != (file.size, file.sha256):
            raise StoreError(f"{path} was changed while it was stored: a process of the program still writes it")
        return file

    def complete(self, manifest: OutputsManifest, before: Collection[str] = ()) -> str:
        """Write the manifest, then delete what the one before named and this one does not. Returns its sha256."""
        text = to_json(manifest).encode()
        _write(self._backend, outputs.MANIFEST, text)
        for name in sorted({*before} - {file.path for file in manifest.files}):
            self._backend.delete(name)
        return hashlib.sha256(text).hexdigest()

    def manifest(self) -> OutputsManifest | None:
        """The manifest that is there; None: nothing is complete."""
        text = self._backend.read(outputs.MANIFEST, outputs.MANIFEST_BYTES)
        if text is None:
            return None
        found = decode.message(OutputsManifest, text, outputs.MANIFEST_BYTES)
        if isinstance(found, decode.Unreadable):
            raise StoreError(f"{self.url}/{outputs.MANIFEST} cannot be read: {found.why}")
        return found


def _write(backend: Backend, name: str, data: bytes) -> None:
    source = os.memfd_create("outputs")
    try:
        os.write(source, data)
        backend.write_file(name, source, len(data))
    finally:
        os.close(source)
