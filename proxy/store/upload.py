"""One pod's upload: files -> grains -> packs, with bounded memory.

The caller's thread reads, cuts and hashes; `threads` others compress, write and sync. At most `threads + 1` packs are
in memory: the caller waits for a free draft (back-pressure), so a slow store slows the reading down.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import StoreError
from ..protocol.manifest import ImageFile, RankImage, Stored, object_name
from . import layout, layout_map, pack, segments
from .backend import Backend
from .beneath import Beneath
from .chunk_index import SLOT_BITS, Known
from .draft import Draft
from .progress import Count

WEAK: Final = 0.125
"""A pack of an earlier checkpoint of which a rank would use less than this part is not used: it can be deleted with
that checkpoint, instead of being kept for ever by a few grains."""
STRETCH_BITS: Final = 5
"""One grain in 2**STRETCH_BITS begins a stretch, the unit in which replicas divide the work."""
_SLOT_MASK: Final = (1 << SLOT_BITS) - 1
_SIZE_BITS: Final = 15
_OFFSET_BITS: Final = 48
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1


@dataclass(frozen=True)
class File:
    path: Path
    name: str
    size: int
    changed: int
    """mtime in nanoseconds."""
    inode: tuple[int, int]
    """Device and number: another file in its place is noticed."""
    names: int
    """How many names the file has: hard links."""


class Upload:
    """:param name: of this upload, drawn for it: the names of all that it writes end in it
    :param beneath: where the files are
    :param doomed: objects that nobody may rely on any more (`locks.announce`)
    :param part: (i, n): this is upload i of n that run at the same time. Each begins with another part of what is
    new and looks for what the others have stored meanwhile, so that equal content is stored once.
    :param count: of the bytes of the images that the store has
    """

    def __init__(
        self,
        backend: Backend,
        folder: str,
        name: str,
        doomed: frozenset[str],
        beneath: Beneath,
        pool: ThreadPoolExecutor,
        threads: int,
        part: tuple[int, int],
        cancelled: Callable[[], bool],
        count: Count,
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._name = name
        self.beneath = beneath
        self._pool = pool
        self._drafts: queue.LifoQueue[Draft] = queue.LifoQueue()
        for _ in range(threads + 1):
            self._drafts.put(Draft())
        self.part = part
        self._cancelled = cancelled
        self._count = count
        self._known = Known(backend, folder, pool, doomed)
        self._earlier = len(self._known.packs)
        self._pending: list[Future[None]] = []
        self._ranks: list[tuple[int, list[ImageFile], list[int], bytes]] = []
        self._lock = threading.Lock()
        self.stored = 0
        """Bytes written to the store."""
        self.seen: dict[Path, list[segments.Segment]] = {}
        """What files began with while they were written (`ahead`)."""

    def put(self, rank: int, files: list[File]) -> None:
        """Read one rank's files and hand what is new to the writers. Raises StoreError."""
        layouts, where = self._scan(files)
        fresh = self._fresh(where)
        new = sum(where[key] & _SIZE_MASK for key in fresh)
        self._count.add(sum(f.size for f in files) - new)
        for batch in self._batches(fresh, where):
            new -= sum(where[key] & _SIZE_MASK for key in batch)
            draft = self.draft()
            self._fill(draft, files, where, batch)
            self.store(draft)
        self._count.add(new)  # stored by others meanwhile
        for file in files:
            try:
                _check_unchanged(file, self.beneath.state(file.path))
            except FileNotFoundError as error:
                raise StoreError(f"image file {file.path} went away while it was stored") from error
        numbers, runs = self._runs(layouts, where)
        self._ranks.append((rank, [ImageFile(f.name, f.size) for f in files], numbers, layout_map.encode(runs)))

    def finish(self) -> list[RankImage]:
        """Wait until everything is in the store. Raises the first error."""
        for future in self._pending:
            future.result()
        images: list[RankImage] = []
        for rank, files, numbers, data in self._ranks:
            packs = [p for n in numbers if (p := self._known.packs[n]) is not None]
            assert len(packs) == len(numbers), "every pending write has ended well"
            name = object_name(hashlib.sha256(data).hexdigest(), self._name)
            self._backend.write(layout.object_path(self._folder, "recipes", name), data)
            self.stored += len(data)
            images.append(RankImage(rank, files, packs, Stored(name, len(data))))
        return images

    # --- finding out what is new ------------------------------------------------------------------------------------
    def _scan(self, files: list[File]) -> tuple[list[list[bytes | int]], dict[bytes, int]]:
        """Per file its grains (key, or length of zeros), and where each key's content can be read."""
        layouts: list[list[bytes | int]] = []
        where: dict[bytes, int] = {}
        for index, file in enumerate(files):
            found: list[bytes | int] = []
            offset = 0
            for grains in segments.read(self._open(file), file.path, self.seen.pop(file.path, ()), self.check):
                for key, size in grains:
                    found.append(key or size)
                    if key:
                        where.setdefault(key, (index << _OFFSET_BITS | offset) << _SIZE_BITS | size)
                    offset += size
            if offset != file.size:
                raise StoreError(f"image file {file.path} changed while it was stored: {offset} of {file.size} bytes")
            layouts.append(found)
        return layouts, where

    def _fresh(self, where: dict[bytes, int]) -> list[bytes]:
        """Keys that have to be stored, in the order of the files."""
        places = self._known.places
        used: dict[int, int] = {}
        for key in where:
            if (place := places.get(key)) is not None:
                used[place >> SLOT_BITS] = used.get(place >> SLOT_BITS, 0) + 1
        few = {n for n, count in used.items() if n < self._earlier and count < WEAK * self._known.grains[n]}
        self._known.forget(few)
        places = self._known.places
        return [key for key in where if key not in places]

    def _batches(self, fresh: list[bytes], where: dict[bytes, int]) -> Iterator[list[bytes]]:
        """Keys for one pack after the other; what others stored meanwhile is left out."""
        part, parts = self.part
        groups: list[list[bytes]] = [[] for _ in range(parts)]
        group = part
        for key in fresh:
            group = self.turn(key, group)
            groups[group].append(key)
        for turn in range(parts):
            batch: list[bytes] = []
            size = 0
            for key in groups[(part + turn) % parts]:
                if not batch and parts > 1:
                    self._known.refresh_if_cheap()
                if self.has(key):
                    continue
                batch.append(key)
                size += where[key] & _SIZE_MASK
                if size >= pack.CONTENT_SIZE or len(batch) == pack.MOST_GRAINS:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch

    def turn(self, key: bytes, now: int) -> int:
        """Which of the uploads stores this grain first, after one of upload `now`."""
        return key[1] % self.part[1] if key[0] >> (8 - STRETCH_BITS) == 0 else now

    def has(self, key: bytes) -> bool:
        """Whether the store has it, or is about to get it."""
        return key in self._known.places

    # --- storing ----------------------------------------------------------------------------------------------------
    def draft(self) -> Draft:
        """An empty one, once there is one. Raises StoreError once the upload was cancelled."""
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                return self._drafts.get(timeout=0.5)

    def give_back(self, draft: Draft) -> None:
        """It is of use for another pack."""
        draft.clear()
        self._drafts.put(draft)

    def store(self, draft: Draft, counts: bool = True) -> None:
        """Hand one pack to the writers. Raises StoreError, also for packs before this one.

        :param counts: as progress
        """
        self._pending.append(self._pool.submit(self._write, self._known.add(draft.keys), draft, counts))
        for future in [f for f in self._pending if f.done()]:
            future.result()
            self._pending.remove(future)

    def _write(self, number: int, draft: Draft, counts: bool) -> None:
        try:
            self.check()
            digest, data = draft.build()
            name = object_name(digest, self._name)
            self._backend.write(layout.object_path(self._folder, "packs", name), data)
            with self._lock:
                self._known.written(number, Stored(name, len(data)))
                self.stored += len(data)
            if counts:
                self._count.add(draft.size)
        finally:
            self.give_back(draft)

    def _runs(
        self, layouts: list[list[bytes | int]], where: dict[bytes, int]
    ) -> tuple[list[int], list[list[layout_map.Run]]]:
        """Numbers of the packs that a rank needs, and its runs per file."""
        numbers: dict[int, int] = {}
        places = self._known.places
        runs: list[list[layout_map.Run]] = []
        for grains_of_file in layouts:
            found: list[tuple[int, int, int]] = []
            for grain in grains_of_file:
                if isinstance(grain, int):
                    found.append((layout_map.ZEROS, 0, grain))
                else:
                    place = places[grain]
                    pack_index = numbers.setdefault(place >> SLOT_BITS, len(numbers) + 1)
                    found.append((pack_index, place & _SLOT_MASK, where[grain] & _SIZE_MASK))
            runs.append(layout_map.join(found))
        return list(numbers), runs

    def _open(self, file: File) -> int:
        """A descriptor of the very file that was listed. Raises StoreError."""
        try:
            source = self.beneath.open(file.path)
        except FileNotFoundError as error:
            raise StoreError(f"image file {file.path} went away while it was stored") from error
        state = os.fstat(source)
        if (state.st_dev, state.st_ino) != file.inode:
            os.close(source)
            raise StoreError(f"image file {file.path} changed while it was stored: it is another file")
        return source

    def _fill(self, draft: Draft, files: list[File], where: dict[bytes, int], keys: list[bytes]) -> None:
        """With the content of every key. What lies side by side is read at once. Raises StoreError."""
        opened, source = -1, -1
        try:
            done = 0
            for place, lengths in _stretches(keys, where):
                index, offset = place >> _OFFSET_BITS, place & (1 << _OFFSET_BITS) - 1
                if index != opened:
                    if source >= 0:
                        os.close(source)
                    opened, source = index, -1
                    source = self._open(files[index])
                target = draft.add(keys[done : done + len(lengths)], lengths)
                done += len(lengths)
                if os.preadv(source, [target], offset) != len(target):
                    raise StoreError(f"image file {files[index].path} changed while it was stored")
        except OSError as error:
            raise StoreError(f"cannot read image file {files[opened].path}: {error}") from error
        finally:
            if source >= 0:
                os.close(source)

    def check(self) -> None:
        """Raises StoreError once the upload was cancelled."""
        if self._cancelled():
            raise StoreError("the upload was cancelled")


def _stretches(keys: list[bytes], where: dict[bytes, int]) -> Iterator[tuple[int, list[int]]]:
    """Of grains that follow each other in a file, as long as they do: where the first lies, and their lengths."""
    begin = end = -1
    lengths: list[int] = []
    for key in keys:
        size, place = where[key] & _SIZE_MASK, where[key] >> _SIZE_BITS
        if place != end:
            if lengths:
                yield begin, lengths
            begin, lengths = place, []
        lengths.append(size)
        end = place + size
    if lengths:
        yield begin, lengths


def walk(beneath: Beneath, root: Path) -> list[File]:
    """Every file below `root`, sorted. Raises StoreError."""
    return [
        File(path, path.relative_to(root).as_posix(), s.st_size, s.st_mtime_ns, (s.st_dev, s.st_ino), s.st_nlink)
        for path, s in beneath.files(root)
    ]


def require_own(files: Iterable[File]) -> None:
    """Raises StoreError for a file that has a name elsewhere, too: it may be no image."""
    files = list(files)
    count = Counter(file.inode for file in files)
    for file in files:
        if file.names > count[file.inode]:
            raise StoreError(f"{file.path} is a hard link to a file that is not among the images: refused")


def _check_unchanged(file: File, state: os.stat_result) -> None:
    if (state.st_size, state.st_mtime_ns, (state.st_dev, state.st_ino)) != (file.size, file.changed, file.inode):
        raise StoreError(f"image file {file.path} changed while it was stored")
