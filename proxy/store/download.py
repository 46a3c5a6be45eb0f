"""From packs back to files. Every byte is verified before it is used; each pack is read once for all ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptChunkError, StoreError
from ..protocol.manifest import Manifest, RankImage, Stored
from . import layout, pack, recipe
from .backend import Backend
from .progress import Count, Progress


@dataclass(frozen=True)
class _Piece:
    """A run of grains and where it goes."""

    path: Path
    offset: int
    run: recipe.Run


def read_recipe(backend: Backend, folder: str, image: RankImage, where: str) -> list[list[recipe.Run]]:
    """Runs per file. Raises CorruptChunkError, StoreError."""
    stored = image.recipe
    data = backend.read(layout.object_path(folder, "recipes", stored.name))
    if data is None:
        raise CorruptChunkError("recipe", stored.name, where, "is missing")
    if len(data) != stored.size or hashlib.sha256(data).hexdigest() != stored.name:
        raise CorruptChunkError("recipe", stored.name, where, "does not match its digest")
    try:
        return recipe.decode(data, image.files, len(image.packs))
    except recipe.RecipeError as error:
        raise CorruptChunkError("recipe", stored.name, where, str(error)) from None


def read_pack(backend: Backend, folder: str, stored: Stored, where: str) -> tuple[pack.Head, bytes]:
    """A pack, of which the head is verified. Raises CorruptChunkError, StoreError."""
    data = backend.read(layout.object_path(folder, "packs", stored.name))
    if data is None:
        raise CorruptChunkError("pack", stored.name, where, "is missing")
    if len(data) != stored.size:
        raise CorruptChunkError("pack", stored.name, where, f"has {len(data)} bytes instead of {stored.size}")
    try:
        head = pack.read_head(stored.name, data)
    except pack.PackError as error:
        raise CorruptChunkError("pack", stored.name, where, str(error)) from None
    if head.size != stored.size:
        raise CorruptChunkError("pack", stored.name, where, f"has {len(data)} bytes, its head says {head.size}")
    return head, data


def fetch(
    backend: Backend,
    folder: str,
    manifest: Manifest,
    targets: Mapping[int, Path],
    threads: int,
    cancelled: Callable[[], bool],
    progress: Progress,
) -> int:
    """See `Store.fetch_ranks`."""
    images = {image.rank: image for image in manifest.ranks}
    pieces: dict[Stored, list[_Piece]] = {}
    total = 0
    for rank, target in targets.items():
        if rank not in images:
            raise StoreError(f"checkpoint {manifest.id} has no rank {rank}, only 0..{manifest.world_size - 1}")
        total += sum(f.size for f in images[rank].files)
        runs = read_recipe(backend, folder, images[rank], f"checkpoint {manifest.id}, rank {rank}")
        try:
            _plan(images[rank], runs, target, pieces)
        except OSError as error:
            raise StoreError(f"cannot write images of rank {rank} to {target}: {error}") from error
    count = Count(progress, total)
    holes = total - sum(p.run.size for group in pieces.values() for p in group)
    count.add(holes)

    def work(item: tuple[Stored, list[_Piece]]) -> None:
        if cancelled():
            raise StoreError(f"download of checkpoint {manifest.id} was cancelled")
        where = f"checkpoint {manifest.id}, file {item[1][0].path.name}"
        head, data = read_pack(backend, folder, item[0], where)
        try:
            _write(head, data, item[1], count)
        except pack.PackError as error:
            raise CorruptChunkError("pack", item[0].name, where, str(error)) from None
        except OSError as error:
            raise StoreError(f"cannot write images to {item[1][0].path}: {error}") from error

    with ThreadPoolExecutor(threads, thread_name_prefix="store-get") as pool:
        futures = [pool.submit(work, item) for item in pieces.items()]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
        for future in futures:
            if not future.cancelled():
                future.result()
    return total


def _plan(image: RankImage, runs: list[list[recipe.Run]], target: Path, pieces: dict[Stored, list[_Piece]]) -> None:
    """Make the files, all holes, and note what goes where."""
    target.mkdir(parents=True, exist_ok=True)
    for file, of_file in zip(image.files, runs, strict=True):
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, file.size)
        finally:
            os.close(fd)
        offset = 0
        for run in of_file:
            if run.pack != recipe.ZEROS:
                pieces.setdefault(image.packs[run.pack - 1], []).append(_Piece(path, offset, run))
            offset += run.size


def _write(head: pack.Head, data: bytes, pieces: list[_Piece], count: Count) -> None:
    contents: dict[int, bytes] = {}
    opened: Path | None = None
    fd = -1
    try:
        for piece in pieces:
            begin, end = head.span(piece.run.first, piece.run.count)
            if end - begin != piece.run.size:
                raise pack.PackError(f"has {end - begin} bytes where the recipe says {piece.run.size}")
            if piece.path != opened:
                if fd >= 0:
                    os.close(fd)
                fd = -1
                fd = os.open(piece.path, os.O_WRONLY | os.O_NOFOLLOW)
                opened = piece.path
            at = begin
            while at < end:
                number = pack.block_at(head, at)
                block = head.blocks[number]
                if number not in contents:
                    contents[number] = pack.read_block(block, data)
                part = memoryview(contents[number])[at - block.begin : end - block.begin]
                _pwrite(fd, part, piece.offset + at - begin)
                at += len(part)
            count.add(piece.run.size)
    finally:
        if fd >= 0:
            os.close(fd)


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
