"""Storing images while they are still being dumped, so that less is left to do when the dump has ended.

Nothing that is found here counts by itself. Packs of content are stored, as those of an upload that was broken off are:
nobody refers to them yet. When the images are complete, `Upload.put` reads everything again. It takes over the early
result of a segment only if the bytes still have the same fingerprint. So the writer of the images may change what it
has written (CRIU appends to pages-*.img and does not). A change costs time, never a byte.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ..errors import StoreError
from . import chunking, memory, segments
from .fingerprint import Fingerprint
from .packer import Packer
from .upload import Upload

PATTERN: Final = "pages-*.img"
"""What CRIU writes memory to: nearly all of an image."""
LEAST: Final = 1 << 20
"""Bytes that must have come for a look to be worth it."""
POLL_S: Final = 0.05


@dataclass
class _Growing:
    at: int = 0
    """Bytes that were looked at."""
    group: int = 0
    """Of the pods that divide the work, the one whose turn it is at `at`."""
    seen: list[segments.Segment] = field(default_factory=list)


class Ahead:
    """Follows growing files, for one upload whose `put` comes later. Memory: three segments.

    :param folders: of the ranks; they need not be there yet
    """

    def __init__(self, upload: Upload, folders: Iterable[Path]) -> None:
        self._upload = upload
        self._folders = list(folders)
        self._files: dict[Path, _Growing] = {}
        self._room = memory.room(segments.READ_SIZE)
        self._fingerprint = Fingerprint(segments.READ_SIZE)
        self._packer = Packer(upload.draft, partial(upload.store, counts=False))

    @property
    def stored(self) -> int:
        """Bytes handed to the writers."""
        return self._packer.stored

    def follow(self, growing: Callable[[], bool]) -> None:
        """Until `growing()` is false. Raises StoreError: the store failed, or the upload was cancelled."""
        while growing():
            self._upload.check()
            moved = False
            for path in self._paths():
                if not growing():
                    break
                # Entries that are no regular file of their own are left to `put`, which names them.
                with contextlib.suppress(FileNotFoundError):
                    moved |= self._advance(path)
            if not moved:
                time.sleep(POLL_S)
        rest = self._packer.drop()
        if rest is not None:
            self._upload.give_back(rest)
        self._upload.seen = {path: file.seen for path, file in self._files.items()}
        self._upload.fingerprint = self._fingerprint

    def _paths(self) -> list[Path]:
        """Of regular files with one name."""
        found: list[Path] = []
        for folder in self._folders:
            with contextlib.suppress(StoreError):  # not there yet
                entries = self._upload.beneath.entries(folder, PATTERN)
                found += [path for path, state in entries if stat.S_ISREG(state.st_mode) and state.st_nlink == 1]
        return found

    def _advance(self, path: Path) -> bool:
        """One segment of a file, if so much is there."""
        file = self._files.setdefault(path, _Growing(group=self._upload.part[0]))
        source = self._upload.beneath.open(path)
        try:
            data = self._room[: os.preadv(source, [self._room], file.at)]
        finally:
            os.close(source)
        if len(data) < LEAST:
            return False
        ends = chunking.ends(data, final=False)
        data = data[: ends[-1]]
        chunks = segments.keyed(data, ends)
        wanted, file.group = self._upload.missing(chunks.keys, file.group)
        for index, first in wanted:
            # Content that another pod should store first is left to `put`: it may be in the store by then.
            size = chunks.sizes[index]
            room = self._packer.room(chunks.keys[index], size) if first else None
            if room is not None:
                room[:] = data[ends[index] - size : ends[index]]
        file.at += len(data)
        file.seen.append(segments.Segment(len(data), self._fingerprint.of(data), chunks))
        return True
