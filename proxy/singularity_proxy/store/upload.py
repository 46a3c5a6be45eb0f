"""One pod's upload: files -> chunks -> packs, with bounded memory.

The caller's thread reads, cuts and hashes; `threads` others compress, write and sync. At most `threads + 1` packs are
in memory: the caller waits for a free draft (back-pressure), so a slow store slows the reading down.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

from ..errors import StoreError
from ..protocol import decode, page_frames
from ..protocol.manifest import ImageFile, RankImage, Stored, object_name
from . import layout, layout_map, sealing, segments
from .backend import Backend
from .beneath import Beneath
from .chunk_index import SLOT_BITS, Believed, Known
from .draft import Draft
from .images import File, open_listed, require_unchanged
from .key_index import ABSENT
from .keys import JobKeys
from .later import Later, Reader
from .packer import Packer
from .progress import Count
from .spill import Spill

WEAK: Final = 0.125
"""If the last checkpoint uses less than this part of a pack, the next one does not use the pack. It can then be deleted
with that checkpoint, instead of being kept for ever by a few chunks."""
STRETCH_BITS: Final = 3
"""One chunk in 2**STRETCH_BITS begins a stretch, the unit in which replicas divide the work: 50 KiB to 700 KiB."""
_LONGEST_LIST: Final = 1 << 20
"""Bytes of `page_frames.LIST`."""
_SLOT_MASK: Final = (1 << SLOT_BITS) - 1


@dataclass(frozen=True)
class Streamed:
    """A file of a rank's image that came over a socket: it is on no disk, and all of its chunks are taken care of."""

    name: str
    size: int
    chunks: segments.Packed


class Upload:
    """:param name: unique name of this upload: the names of all objects that it writes end in it
    :param beneath: where the files are
    :param doomed: objects that no upload may rely on any more (`locks.announce`)
    :param believed: which packs it may rely on
    :param seal_key: seals the packs that it writes; b"": they have no seal
    :param keys: say what it is encrypted with
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
        believed: Believed,
        seal_key: bytes,
        keys: JobKeys,
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
        self._data_key, reused = keys.writing()
        self._drafts: queue.LifoQueue[Draft] = queue.LifoQueue()
        self._seal_key = seal_key
        for _ in range(threads + 1):
            self._drafts.put(Draft(seal_key, self._data_key))
        self.part = part
        self._cancelled = cancelled
        self._count = count
        self._known = Known(backend, folder, pool, doomed, believed, keys.of, reused)
        self._pending: list[Future[None]] = []
        self._ranks: list[tuple[int, list[ImageFile], list[int], bytes]] = []
        self._lock = threading.Lock()
        self.stored = 0
        """Bytes written to the store."""
        self.streamed: dict[int, dict[str, Streamed]] = {}
        """Per rank, by name."""
        self.spill: Spill | None = None
        """Streamed content that another upload stores first."""

    def give_up(self, used: Mapping[str, int]) -> None:
        """Decide which packs are not used any more, before the first look at content.

        :param used: pack -> how many of its chunks the last checkpoint uses. See `WEAK`
        """
        packs = enumerate(zip(self._known.packs, self._known.chunk_counts, strict=True))
        self._known.forget({n for n, (p, chunks) in packs if p and p.name in used and used[p.name] < WEAK * chunks})

    def put_spill(self) -> None:
        """Hand what the stream has left to other uploads to the writers, if these have not stored it. Raises
        StoreError."""
        if self.spill is None:
            return
        spill, (part, parts) = self.spill, self.part
        packer = Packer(self.draft, partial(self.store, counts=False))
        begin = len(spill.blocks) * part // parts  # replicas have the same: each begins with another part of it
        for block in spill.blocks[begin:] + spill.blocks[:begin]:
            self._known.refresh_if_cheap()
            wanted = [place == ABSENT for place in self._known.places.find(block.keys)]
            content, at = spill.read(block) if any(wanted) else memoryview(b""), 0
            for key, size, want in zip(block.keys, block.sizes, wanted, strict=True):
                room = packer.room(key, size) if want else None
                if room is not None:
                    room[:] = content[at : at + size]
                at += size
        packer.flush()
        spill.close()
        self.spill = None

    def put(self, rank: int, files: list[File]) -> None:
        """Read one rank's files and hand what is new to the writers. Raises StoreError."""
        streamed = self._complete(rank, files)
        self._count.add(sum(f.size for f in streamed))
        packer, later, group = Packer(self.draft, self.store), Later(), self.part[0]
        layouts: list[segments.Packed] = []
        for number, file in enumerate(files):
            found, group = self._read(number, file, group, packer, later)
            layouts.append(found)
        packer.flush()  # other pods may look for it
        self._read_later(files, later, packer)
        packer.flush()
        for file in files:
            require_unchanged(self.beneath, file)
        numbers, runs = self._runs([*layouts, *(file.chunks for file in streamed)])
        names = [ImageFile(f.name, f.size) for f in files] + [ImageFile(f.name, f.size) for f in streamed]
        self._ranks.append((rank, names, numbers, layout_map.encode(runs)))

    def _complete(self, rank: int, files: list[File]) -> list[Streamed]:
        """The streamed files of a rank. Raises StoreError if its image is not complete with them."""
        listed = next((file for file in files if file.name == page_frames.LIST), None)
        came = self.streamed.get(rank, {})
        found: object = {}
        if listed is not None:
            with open(open_listed(self.beneath, listed), "rb") as source:
                found = decode.json_value(source.read(_LONGEST_LIST + 1), _LONGEST_LIST)
        if not isinstance(found, dict):
            raise StoreError(f"{listed.path if listed else rank}: not a list of files of pages")
        here = {file.name: file.size for file in files}
        for name, size in found.items():
            got = here[name] if name in here else came[name].size if name in came else None
            if got != size or (name in here and name in came):
                raise StoreError(
                    f"rank {rank}: {name} has {size} bytes, and {'none' if got is None else got} of them came: the "
                    "pages went to a sidecar that is gone. They have to be dumped again"
                )
        if any(name not in found for name in came):
            raise StoreError(f"rank {rank}: pages came that its dump does not know of: {sorted(came)}")
        return list(came.values())

    def finish(self) -> list[RankImage]:
        """Wait until everything is in the store. Raises the first error."""
        for future in self._pending:
            future.result()
        images: list[RankImage] = []
        for rank, files, numbers, recipe in self._ranks:
            data = sealing.sealed(self._data_key, recipe)
            packs = [p for n in numbers if (p := self._known.packs[n]) is not None]
            assert len(packs) == len(numbers), "every pending write has ended well"
            name = object_name(hashlib.sha256(data).hexdigest(), self._name)
            self._backend.write(layout.object_path(self._folder, "recipes", name), data)
            self.stored += len(data)
            images.append(RankImage(rank, files, packs, Stored(name, len(data))))
        return images

    # --- finding out what is new ------------------------------------------------------------------------------------
    def _read(self, number: int, file: File, group: int, packer: Packer, later: Later) -> tuple[segments.Packed, int]:
        """The chunks of file `number`, and the upload of the last one. What is new goes to `packer`, or is left for
        `later`."""
        found, size = segments.Packed(), 0
        source = open_listed(self.beneath, file)
        for chunks, data in segments.read(source, file.path, self.check):
            if self.part[1] > 1:
                self._known.refresh_if_cheap()
            wanted, group = self.missing(chunks.keys, group)
            ends = list(accumulate(chunks.sizes)) if wanted else []
            new = 0
            for index, first in wanted:
                key, length, end = chunks.keys[index], chunks.sizes[index], ends[index]
                if not first:
                    new += length if later.add(key, number, size + end - length, length) else 0
                elif (room := packer.room(key, length)) is not None:
                    room[:] = data[end - length : end]
                    new += length
            self._count.add(len(data) - new)
            found.extend(chunks)
            size += len(data)
        if size != file.size:
            raise StoreError(f"image file {file.path} changed while it was stored: {size} of {file.size} bytes")
        return found, group

    def _read_later(self, files: list[File], later: Later, packer: Packer) -> None:
        """Store what other uploads had to store first, and have not."""
        reader = Reader(files, self.beneath)
        try:
            for some in later.parts(*self.part):
                self.check()
                self._known.refresh_if_cheap()
                places = self._known.places.find([*some])
                for (key, (number, offset, size)), place in zip(some.items(), places, strict=True):
                    room = packer.room(key, size) if place == ABSENT else None
                    if room is not None:
                        reader.read(number, offset, room)
                    else:
                        self._count.add(size)  # stored by others meanwhile
        finally:
            reader.close()

    def turn(self, key: bytes, now: int) -> int:
        """Which of the uploads stores this chunk first, after one of upload `now`."""
        return key[1] % self.part[1] if key[0] >> (8 - STRETCH_BITS) == 0 else now

    def missing(self, keys: list[bytes], group: int) -> tuple[list[tuple[int, bool]], int]:
        """Which of these chunks, which follow each other, the store does not have: (index, whether this upload stores
        it first), each key once. Also the upload of the last one.

        :param group: the upload of the chunk before
        """
        part, parts = self.part
        content = [(index, key) for index, key in enumerate(keys) if key]
        places = self._known.places.find([key for _, key in content])
        found: dict[bytes, tuple[int, bool]] = {}
        for (index, key), place in zip(content, places, strict=True):
            group = group if parts == 1 else self.turn(key, group)
            if place == ABSENT:
                found.setdefault(key, (index, group == part))
        return [*found.values()], group

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
        free = True
        try:
            self.check()
            digest, data = draft.build()
            name = object_name(digest, self._name)
            free = False
            free = self._backend.write(layout.object_path(self._folder, "packs", name), data)
            with self._lock:
                self._known.written(number, Stored(name, len(data)))
                self.stored += len(data)
            if counts:
                self._count.add(draft.size)
        finally:
            # A request that was given up may still send what is there.
            self.give_back(draft if free else Draft(self._seal_key, self._data_key))

    def _places(self, chunks: segments.Packed) -> Iterator[int]:
        """Where each chunk of a file is stored, `layout_map.NOWHERE` for zeros."""
        for part in chunks.parts():
            found = self._known.places.find([key for key in part.keys if key])
            assert ABSENT not in found, "every chunk is stored, or was before"
            places = iter(found)
            yield from (next(places) if key else layout_map.NOWHERE for key in part.keys)

    def _runs(self, layouts: list[segments.Packed]) -> tuple[list[int], list[list[layout_map.Run]]]:
        """Numbers of the packs that a rank needs, and its runs per file."""
        numbers: dict[int, int] = {}
        runs: list[list[layout_map.Run]] = []
        for chunks in layouts:
            of_file: list[layout_map.Run] = []
            for place, count, size in layout_map.join(self._places(chunks), chunks.sizes):
                if place == layout_map.NOWHERE:
                    of_file.append(layout_map.Run(layout_map.ZEROS, 0, count, size))
                else:
                    number = numbers.setdefault(place >> SLOT_BITS, len(numbers) + 1)
                    of_file.append(layout_map.Run(number, place & _SLOT_MASK, count, size))
            runs.append(of_file)
        return list(numbers), runs

    def check(self) -> None:
        """Raises StoreError once the upload was cancelled."""
        if self._cancelled():
            raise StoreError("the upload was cancelled")
