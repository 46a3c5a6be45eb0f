"""From packs back to files. Every byte is verified before it is used; each pack is read once for all ranks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ..errors import CorruptChunkError, DamageError, RestoreRefusedError, StoreError
from ..protocol.image_room import Room
from ..protocol.manifest import Manifest, RankImage, Stored, content_of
from . import layout, layout_map, pack, sealing
from .backend import Backend
from .image_writer import Disk
from .keys import JobKeys
from .progress import Count, Progress

SECOND_LOOK_S: Final = 1.0
DIRECT: Final = 256 << 20
"""Bytes of content from which on a download goes past the page cache: CRIU then reads it from the disk."""
T = TypeVar("T")


class _Piece(NamedTuple):
    """A run of chunks and where it goes."""

    file: int
    """Index into `Placement.files`."""
    offset: int
    first: int
    chunks: int
    size: int


class Placement:
    """What goes where, by pack, so that each pack is read once for all ranks. 40 bytes per run: a large image that
    changed here and there has many."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.packs: dict[Stored, array[int]] = {}
        self.size = 0
        """Bytes that packs hold; the rest of the files are holes."""

    def note(
        self,
        image: RankImage,
        runs: list[list[layout_map.Run]],
        target: Path,
        wanted: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """What goes where below `target`, of a rank; only files whose path is `wanted`."""
        for file, of_file in zip(image.files, runs, strict=True):
            if not wanted(file.path):
                continue
            offset = 0
            for run in of_file:
                if run.pack != layout_map.ZEROS:
                    words = self.packs.setdefault(image.packs[run.pack - 1], array("Q"))
                    words.extend((len(self.files), offset, run.first, run.count, run.size))
                    self.size += run.size
                offset += run.size
            self.files.append(target / file.path)

    def pieces(self, stored: Stored) -> Iterator[_Piece]:
        """Of one pack, in the order of the files."""
        words = self.packs[stored]
        width = len(_Piece._fields)
        return (_Piece(*words[at : at + width]) for at in range(0, len(words), width))


def make_hole(path: Path, size: int, keep: bool = False) -> None:
    """Make a file of `size` bytes, all of it a hole. Raises OSError.

    :param keep: one that is there keeps its content
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if keep else os.O_TRUNC), 0o600)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def twice(look: Callable[[], T]) -> T:
    """`look`, again after a moment if what it found is damaged: a wire or a cache may have done that.

    A checkpoint that is reported as damaged is abandoned, together with the work since the checkpoint before it.
    """
    try:
        return look()
    except DamageError:
        time.sleep(SECOND_LOOK_S)
        return look()


def read_recipe(
    backend: Backend, folder: str, keys: JobKeys, image: RankImage, where: str
) -> list[list[layout_map.Run]]:
    """Runs per file. Raises CorruptChunkError, KeyLostError, StoreError."""
    stored = image.recipe
    data = backend.read(layout.object_path(folder, "recipes", stored.name), stored.size + 1)
    if data is None:
        raise CorruptChunkError("recipe", stored.name, where, "is missing")
    if len(data) != stored.size or hashlib.sha256(data).hexdigest() != content_of(stored.name):
        raise CorruptChunkError("recipe", stored.name, where, "does not match its digest")
    try:
        return layout_map.decode(sealing.opened(data, keys.of)[0], image.files, len(image.packs))
    except (layout_map.RecipeError, sealing.SealError) as error:
        raise CorruptChunkError("recipe", stored.name, where, str(error)) from None


def read_pack(backend: Backend, folder: str, keys: JobKeys, stored: Stored, where: str) -> tuple[pack.Head, memoryview]:
    """A pack, of which the head is verified. Raises CorruptChunkError, KeyLostError, StoreError."""
    data = backend.view(layout.object_path(folder, "packs", stored.name), 0, stored.size + 1)
    if data is None:
        raise CorruptChunkError("pack", stored.name, where, "is missing")
    if len(data) != stored.size:
        short = f"has {len(data)} bytes instead of {stored.size}"
        problem = short if len(data) < stored.size else f"is longer than its {stored.size} bytes"
        raise CorruptChunkError("pack", stored.name, where, problem)
    try:
        head = pack.read_head(content_of(stored.name), data, keys.of)
    except pack.PackError as error:
        raise CorruptChunkError("pack", stored.name, where, str(error)) from None
    if head.size != stored.size:
        raise CorruptChunkError("pack", stored.name, where, f"has {len(data)} bytes, its head says {head.size}")
    return head, data


def fetch(
    backend: Backend,
    folder: str,
    keys: JobKeys,
    manifest: Manifest,
    targets: Mapping[int, Path],
    threads: int,
    cancelled: Callable[[], bool],
    progress: Progress,
    room: Room | None,
    wanted: Callable[[str], bool],
) -> int:
    """See `Store.fetch_ranks`."""
    images = {image.rank: image for image in manifest.ranks}
    plan = Placement()
    total = 0
    for rank, target in targets.items():
        if rank not in images:
            raise StoreError(f"checkpoint {manifest.id} has no rank {rank}, only 0..{manifest.world_size - 1}")
        total += sum(f.size for f in images[rank].files if wanted(f.path))
        where = f"checkpoint {manifest.id}, rank {rank}"
        runs = twice(partial(read_recipe, backend, folder, keys, images[rank], where))
        plan.note(images[rank], runs, target, wanted)
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in images[rank].files:
                if wanted(file.path):
                    make_hole(target / file.path, file.size)
        except OSError as error:
            raise StoreError(f"cannot write images of rank {rank} to {target}: {error}") from error
    if room is not None and plan.size > room.left:
        raise (RestoreRefusedError if room.limited else StoreError)(
            f"No space left on device for the images of checkpoint {manifest.id}: they take {plan.size / 2**20:.0f} "
            f"MiB, and {room.words}. {room.fix}"
        )
    count = Count(progress, total)
    count.add(total - plan.size)
    disk = Disk(direct=plan.size >= DIRECT)
    damage: list[CorruptChunkError] = []

    def work(stored: Stored) -> None:
        if cancelled():
            raise StoreError(f"download of checkpoint {manifest.id} was cancelled")
        where = f"checkpoint {manifest.id}"
        try:
            count.add(place(backend, folder, keys, plan, stored, where, disk, again=not damage))
        except CorruptChunkError as error:
            # The other packs are checked all the same: later uploads have to know every damaged pack.
            damage.append(error)

    with ThreadPoolExecutor(threads, thread_name_prefix="store-get") as pool:
        futures = [pool.submit(work, stored) for stored in plan.packs]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
        for future in futures:
            if not future.cancelled():
                future.result()
    if damage:
        raise min(damage, key=lambda error: error.digest)
    return total


def place(
    backend: Backend,
    folder: str,
    keys: JobKeys,
    plan: Placement,
    stored: Stored,
    checkpoint: str,
    disk: Disk,
    again: bool = True,
) -> int:
    """Read a pack and write all of its pieces; their bytes. Damage is noted in the store, for later uploads.

    :param again: look twice before it counts as damaged
    :raises CorruptChunkError: it is missing or altered
    :raises StoreError: anything else
    """
    first = plan.files[next(plan.pieces(stored)).file]
    where = f"{checkpoint}, file {first.name}"

    def once() -> int:
        head, data = read_pack(backend, folder, keys, stored, where)
        try:
            block_of = cache(lambda number: pack.read_block(head, number, data))
            return write(head, block_of, plan.files, plan.pieces(stored), disk=disk)
        except pack.PackError as error:
            raise CorruptChunkError("pack", stored.name, where, str(error)) from None
        except OSError as error:
            raise StoreError(f"cannot write images to {first.parent}: {error}") from error

    try:
        return twice(once) if again else once()
    except CorruptChunkError:
        with contextlib.suppress(StoreError):
            backend.write(layout.damage_path(folder, stored.name), b"")
        raise


def write(
    head: pack.Head,
    block_of: Callable[[int], memoryview],
    files: list[Path],
    pieces: Iterator[_Piece],
    only: Collection[int] | None = None,
    disk: Disk | None = None,
) -> int:
    """Write a pack's pieces; their bytes. Raises PackError, OSError.

    :param block_of: verified content of a block, by number
    :param only: what lies in these blocks; None: all of it
    :param disk: where the files are; None: they go through the page cache
    """
    total, good = 0, False
    writer = (disk or Disk(direct=False)).writer()
    try:
        for piece in pieces:
            begin, end = head.span(piece.first, piece.chunks)
            if end - begin != piece.size:
                raise pack.PackError(f"has {end - begin} bytes where the recipe says {piece.size}")
            at = begin
            while at < end:
                number = pack.block_at(head, at)
                block = head.blocks[number]
                size = min(block.begin + block.length, end) - at
                if only is None or number in only:
                    part = block_of(number)[at - block.begin : at - block.begin + size]
                    writer.put(files[piece.file], piece.offset + at - begin, part)
                    total += size
                at += size
        good = True
    finally:
        writer.close(good)
    return total
