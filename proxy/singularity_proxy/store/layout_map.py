"""The recipe: how the files of one rank are put together from packs. Pure functions, no I/O.

Little-endian 32-bit words. Per file, in the manifest's order: the number of runs, then four words per run. The words
are: pack (1 = the first of the rank's packs, 0 = zeros), first chunk, number of chunks, bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..protocol.manifest import ImageFile

ZEROS: Final = 0
NOWHERE: Final = -1
_RUN: Final = struct.Struct("<IIII")
_COUNT: Final = struct.Struct("<I")
LONGEST: Final = 1 << 31
"""Bytes in one run."""


class RecipeError(ValueError):
    """The bytes are no recipe of these files. The message ends a sentence that begins with the recipe."""


@dataclass(frozen=True, slots=True)
class Run:
    pack: int
    first: int
    count: int
    size: int


def encode(files: Sequence[Sequence[Run]]) -> bytes:
    """Bytes of the recipe."""
    parts: list[bytes] = []
    for runs in files:
        parts.append(_COUNT.pack(len(runs)))
        parts.extend(_RUN.pack(r.pack, r.first, r.count, r.size) for r in runs)
    return b"".join(parts)


def join(places: Iterable[int], sizes: Iterable[int]) -> list[tuple[int, int, int]]:
    """Of chunks in file order, runs: (place of the first, number of chunks, bytes).

    :param places: neighbours in a pack have places that follow each other; `NOWHERE` is zeros
    """
    runs: list[tuple[int, int, int]] = []
    first = count = size = 0
    expected = NOWHERE - 1
    for place, length in zip(places, sizes, strict=True):
        if place == expected and size + length <= LONGEST:
            count += 1
            size += length
        else:
            if count:
                runs.append((first, count, size))
            first, count, size = place, 1, length
        expected = place if place == NOWHERE else place + 1
    if count:
        runs.append((first, count, size))
    return runs


def decode(data: bytes, files: Sequence[ImageFile], packs: int) -> list[list[Run]]:
    """Runs per file, checked against the sizes of `files` and the number of packs. Raises RecipeError."""
    result: list[list[Run]] = []
    at = 0
    for file in files:
        if at + _COUNT.size > len(data):
            raise RecipeError("is too short")
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        end = at + count * _RUN.size
        if end > len(data):
            raise RecipeError("is too short")
        runs = [Run(*words) for words in _RUN.iter_unpack(memoryview(data)[at:end])]
        at = end
        if any(r.pack > packs or r.count < 1 or r.size > LONGEST for r in runs):
            raise RecipeError(f"has a run of {file.path!r} that cannot be")
        if sum(r.size for r in runs) != file.size:
            raise RecipeError(f"has {sum(r.size for r in runs)} bytes for {file.path!r}, which has {file.size}")
        result.append(runs)
    if at != len(data):
        raise RecipeError("goes on after the last file")
    return result
