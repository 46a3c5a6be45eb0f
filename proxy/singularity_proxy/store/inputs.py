"""A folder at a URL, as files of this pod: for ranks to read. A marker beside it is written last.

Others wrote what lies there: no link is followed, and a name that leads elsewhere is an error.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ..errors import StoreAwayError, StoreError
from ..protocol import outputs
from .backend import PATIENCE_S, Backend
from .beneath import Beneath
from .outputs import AT_ONCE, LARGE, Progress, walk

MOST_FILES: Final = 200_000
ROOM: Final = 64 << 20
"""Bytes of the disk that stay free."""
_PIECE: Final = 64 << 20
log = logging.getLogger(__name__)


class Input:
    """What is below `url`, at `target`, a folder that nobody else writes to. Methods raise StoreError. Not for the
    event loop.

    :param cancelled: once true, nothing is tried again
    """

    def __init__(
        self, url: str, target: Path, patience_s: float = PATIENCE_S, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self.url, self._target, self._cancelled = url.rstrip("/"), target, cancelled
        self._backend = Backend(self.url, patience_s, cancelled)
        self._beneath = Beneath(Path("/"))
        self._left: dict[str, int] | None = None
        """What is still to be fetched: name -> size."""

    @property
    def marker(self) -> Path:
        """Has the URL, once all is there."""
        return self._target.with_name(f".{self._target.name}.complete")

    @property
    def complete(self) -> bool:
        """Whether all of it is there, of this URL."""
        try:
            return self.marker.read_text() == self.url
        except (OSError, ValueError):
            return False

    def fetch(self, progress: Progress = lambda done, total: None) -> tuple[int, int]:
        """Fetch all of it; what an earlier call of this object has fetched is not fetched again. Returns the number of
        files and of bytes."""
        if self._left is None:
            self.marker.unlink(missing_ok=True)
            shutil.rmtree(self._target, ignore_errors=True)  # half of it, of a process before this one
            self._files = self._listed()
            self._require_room(sum(self._files.values()))
            self._target.mkdir(parents=True)
            self._left = dict(self._files)
        total = sum(self._files.values())
        done = total - sum(self._left.values())
        progress(done, total)
        small = [name for name, size in self._left.items() if size < LARGE]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name in pool.map(self._fetch, small):
                done += self._left.pop(name)
                progress(done, total)
        for name in list(self._left):
            self._fetch(name)
            done += self._left.pop(name)
            progress(done, total)
        self._open_to_all()
        self.marker.write_text(self.url)
        return len(self._files), total

    def _listed(self) -> dict[str, int]:
        if self._backend.local:
            found = dict(self._walk())
        else:
            found = {path: size for path, (size, _) in self._backend.find("").items()}
        above = {str(parent) for path in found for parent in Path(path).parents}
        # Some tools make an empty object where a folder is.
        files = {path: size for path, size in found.items() if path not in above and path != outputs.MANIFEST}
        for path in files:
            if text := outputs.problem(path):
                raise StoreError(f"{self.url}: {path!r} cannot be a file here: {text}")
        for path in above & found.keys():
            if found[path]:
                raise StoreError(f"{self.url}: {path!r} is a file, and other names lie below it")
        if not files:
            raise StoreError(f"{self.url}: nothing lies below it; give the URL of a folder that has files")
        if len(files) > MOST_FILES:
            raise StoreError(f"{self.url}: has {len(files)} files, at most {MOST_FILES} are fetched; pack them")
        return dict(sorted(files.items()))

    def _walk(self) -> Iterator[tuple[str, int]]:
        folder = Path(self._backend.root)
        for path, why in walk(self._beneath, folder):
            if why:
                log.warning("%s: %s is left out: %s", self.url, path.relative_to(folder), why)
                continue
            yield str(path.relative_to(folder)), self._beneath.state(path).st_size

    def _require_room(self, total: int) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._target.parent)
        free = disk.f_bavail * disk.f_frsize
        if total + ROOM > free:
            raise StoreError(f"{self.url}: has {total} bytes, and the disk of this pod has {free} left for it")

    def _fetch(self, name: str) -> str:
        path, size = self._target / name, self._files[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb") as target:
                for piece in self._pieces(name, size):
                    target.write(piece)
        except OSError as error:
            raise StoreError(f"{self.url}: cannot write {name}: {error}") from error
        return name

    def _pieces(self, name: str, size: int) -> Iterator[bytes | memoryview]:
        source = self._beneath.open(Path(self._backend.path(name))) if self._backend.local else None
        at = 0
        try:
            while at < size:
                if self._cancelled():
                    raise StoreAwayError(f"{self.url}: {name} was not fetched: it was cancelled")
                end = min(size, at + _PIECE)
                piece = os.pread(source, end - at, at) if source is not None else self._backend.view(name, at, end)
                if not piece or (source is None and len(piece) != end - at):
                    raise StoreError(f"{self.url}: {name} was changed while it was fetched")
                yield piece
                at += len(piece)
        finally:
            if source is not None:
                os.close(source)

    def _open_to_all(self) -> None:
        """Ranks of any user read it, whatever this process's umask is."""
        for path in (self._target, *self._target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
