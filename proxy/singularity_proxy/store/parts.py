"""Files of a checkpoint that are fetched in parts, when somebody needs them. Each block is read once at most."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Final

from ..errors import CorruptChunkError, DamageError, RestoreRefusedError, StoreError
from ..protocol.image_room import Room
from ..protocol.manifest import Manifest, RankImage, Stored, content_of
from . import download, layout, pack
from .backend import Backend
from .download import Placement
from .keys import JobKeys
from .part_runs import FileRuns, Range, Span, of_file, series, spans

FIRST: Final = 32 << 10
"""Bytes: the heads of most packs are shorter."""


class _Pack:
    """What is known of a pack. One thread at a time fetches from it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.head: pack.Head | None = None
        self.done: set[int] = set()
        """Numbers of blocks that lie in the files."""


class _Budget:
    """Bytes that one call may write."""

    def __init__(self, room: Room | None) -> None:
        self._room, self._left, self._lock = room, 0 if room is None else room.left, threading.Lock()

    def take(self, size: int, checkpoint: str) -> None:
        """Raises RestoreRefusedError where the limit of the volume is in the way, else StoreError."""
        if self._room is None:
            return
        with self._lock:
            self._left -= size
            if self._left >= 0:
                return
        raise (RestoreRefusedError if self._room.limited else StoreError)(
            f"No space left on device for what the ranks need of checkpoint {checkpoint}: {self._room.words}. "
            f"{self._room.fix}"
        )


class Parts:
    """The images of all ranks of a checkpoint, as one folder: a path that several ranks have has one content.

    Thread-safe. Files are made when the first part of them comes; what has not come is a hole.

    :param target: the folder
    :param wanted: whether a path is one of the folder's
    :param submit: runs a call in a thread
    :param room: says what may be written now; None: nobody knows
    :raises CorruptChunkError, StoreError: the recipes cannot be read
    """

    def __init__(
        self,
        backend: Backend,
        keys: JobKeys,
        manifest: Manifest,
        target: Path,
        wanted: Callable[[str], bool],
        submit: Callable[..., Future[int]],
        room: Callable[[], Room] | None = None,
    ) -> None:
        self._backend, self._keys, self._manifest, self._target = backend, keys, manifest, target
        self._wanted, self._submit, self._room = wanted, submit, room
        self._folder = layout.job_folder(manifest.namespace, manifest.job)
        self._plan = Placement()
        self._files: dict[str, FileRuns] = {}
        self._of_rank: dict[int, frozenset[str]] = {}
        self._packs: dict[Stored, _Pack] = {}
        self._lock = threading.Lock()
        self.bytes_fetched = 0
        """As the store keeps them."""
        for image in manifest.ranks:
            self._note(image)

    def paths(self, ranks: Iterable[int] | None = None) -> frozenset[str]:
        """Of all files, or of those that some ranks have."""
        wanted = self._of_rank if ranks is None else set(ranks)
        return frozenset[str]().union(*(paths for rank, paths in self._of_rank.items() if rank in wanted))

    def problem(self, ranges: Iterable[Range]) -> str:
        """Why `fetch` cannot bring them, whatever the store does; "" if it can."""
        for path, begin, end in ranges:
            file = self._files.get(path)
            if file is None or not 0 <= begin <= end <= file.size:
                return f"checkpoint {self._manifest.id} has no bytes {begin} to {end} of {path[:200]!r}"
        return ""

    def fetch(self, ranges: Iterable[Range]) -> int:
        """Bring what is not there yet, and wait for it; the bytes that were read for it.

        :raises RestoreRefusedError: more than the limit of the volume leaves
        :raises CorruptChunkError: an object is missing or altered
        :raises StoreError: anything else; to be called again
        """
        wanted: dict[Stored, list[Span]] = defaultdict(list)
        for each in ranges:
            problem = self.problem([each])
            if problem:
                raise StoreError(problem)
            for stored, span in spans(self._files[each.path], each.begin, each.end):
                wanted[stored].append(span)
        budget = _Budget(self._room() if self._room is not None and wanted else None)
        with self._lock:
            packs = {stored: self._packs.setdefault(stored, _Pack()) for stored in wanted}
        calls = [self._submit(self._bring, stored, packs[stored], wanted[stored], budget) for stored in wanted]
        got, failed = 0, list[StoreError]()
        for call in calls:
            try:
                got += call.result()
            except StoreError as error:
                failed.append(error)
        if failed:
            raise next((error for error in failed if isinstance(error, DamageError)), failed[0])
        return got

    def fetch_files(self, paths: Iterable[str]) -> int:
        """All of some files, of which empty ones are made too. Raises as `fetch` does."""
        wanted = [Range(path, 0, self._files[path].size) for path in paths]
        try:
            for each in wanted:
                self._make(each.path)
        except OSError as error:
            raise StoreError(f"cannot write {self._target}: {error}") from error
        return self.fetch(wanted)

    # ------------------------------------------------------------------------------------------------------------------
    def _note(self, image: RankImage) -> None:
        where = f"checkpoint {self._manifest.id}, rank {image.rank}"
        runs = download.twice(lambda: download.read_recipe(self._backend, self._folder, self._keys, image, where))
        self._plan.note(image, runs, self._target, self._wanted)
        for file, found in zip(image.files, runs, strict=True):
            if not self._wanted(file.path):
                continue
            known = self._files.setdefault(file.path, of_file(image, file, found))
            if known.size != file.size:
                raise StoreError(f"{where}: {file.path} has {file.size} bytes, and {known.size} in another rank")
        self._of_rank[image.rank] = frozenset(file.path for file in image.files if self._wanted(file.path))

    def _bring(self, stored: Stored, known: _Pack, wanted: Sequence[Span], budget: _Budget) -> int:
        with known.lock:
            try:
                return download.twice(lambda: self._blocks(stored, known, wanted, budget))
            except CorruptChunkError:
                with contextlib.suppress(StoreError):
                    self._backend.write(layout.damage_path(self._folder, stored.name), b"")
                raise

    def _blocks(self, stored: Stored, known: _Pack, wanted: Sequence[Span], budget: _Budget) -> int:
        """Fetch the blocks that have `wanted`, and put them in place in all files."""
        where = f"checkpoint {self._manifest.id}"
        got = 0
        try:
            data = memoryview(b"")
            if known.head is None:
                # One request where most of it is wanted, and else two: the second one for the blocks.
                most = sum(span.end - span.begin for span in wanted) * 2 >= stored.size
                data = self._read(stored, 0, stored.size if most else min(stored.size, FIRST), where)
                if len(data) < min(pack.head_size(data), stored.size):
                    got += len(data)
                    data = self._read(stored, 0, min(stored.size, pack.head_size(data)), where)
                got += len(data)
                known.head = pack.read_head(content_of(stored.name), data, self._keys.of)
            head = known.head
            missing = sorted({n for span in wanted for n in span.blocks(head)} - known.done)
            for first, last in series(missing):
                blocks = head.blocks[first : last + 1]
                budget.take(sum(block.length for block in blocks), self._manifest.id)
                begin, end = blocks[0].offset, blocks[-1].offset + blocks[-1].stored
                if end <= len(data):
                    self._place(stored, head, first, last, data[begin:end])
                else:
                    part = self._read(stored, begin, end, where)
                    got += len(part)
                    self._place(stored, head, first, last, part)
                known.done.update(range(first, last + 1))
        except pack.PackError as error:
            raise CorruptChunkError("pack", stored.name, where, str(error)) from None
        except OSError as error:
            raise StoreError(f"cannot write {self._target}: {error}") from error
        finally:
            with self._lock:
                self.bytes_fetched += got
        return got

    def _read(self, stored: Stored, begin: int, end: int, where: str) -> memoryview:
        """Raises CorruptChunkError, StoreError."""
        data = self._backend.view(layout.object_path(self._folder, "packs", stored.name), begin, end)
        if data is None:
            raise CorruptChunkError("pack", stored.name, where, "is missing")
        if len(data) != end - begin:
            raise CorruptChunkError("pack", stored.name, where, f"ends before byte {end}")
        return data

    def _place(self, stored: Stored, head: pack.Head, first: int, last: int, data: memoryview) -> None:
        """Blocks `first` to `last`, whose stored bytes are `data`. Raises PackError, OSError."""
        base = head.blocks[first].offset

        @cache
        def block_of(number: int) -> memoryview:
            return pack.read_block(head, number, data, base)

        begin, end = head.blocks[first].begin, head.blocks[last].begin + head.blocks[last].length
        pieces = [
            piece
            for piece in self._plan.pieces(stored)
            if head.starts[piece.first] < end and begin < head.starts[piece.first] + piece.size
        ]
        for path in {self._plan.files[piece.file] for piece in pieces}:
            self._make(path.relative_to(self._target).as_posix())
        download.write(head, block_of, self._plan.files, iter(pieces), range(first, last + 1))

    def _make(self, path: str) -> None:
        download.make_hole(self._target / path, self._files[path].size, keep=True)
