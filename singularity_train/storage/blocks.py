"""Content names and block digests, and which bytes of a stored tensor a box of it needs. Pure.

A blob is hashed in blocks, so a part of it can be read and checked without the rest. Its name is the digest of its
block digests.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 1 << 20
"""Bytes. A smaller one makes manifests longer; a larger one makes reads of a part longer."""
HASH = "sha256"
"""FIPS 180-4. Processors of the last years have instructions for it: 1.65 GiB/s a core here, BLAKE2b 0.85."""


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def name_of(blocks: Sequence[str]) -> str:
    """Of a blob, from the hexadecimal digests of its blocks."""
    return digest(b"".join(map(bytes.fromhex, blocks)))


@dataclass(frozen=True)
class Blob:
    """A file of bytes that never change.

    :param blocks: digests of its blocks, in order; the last block may be shorter
    """

    name: str
    bytes: int
    blocks: tuple[str, ...]


def describe(data: memoryview) -> Blob:
    """Hash all of `data`."""
    blocks = tuple(digest(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))
    return Blob(name_of(blocks), len(data), blocks)


def runs(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], int]:
    """Elements of a box of a row-major tensor: starts of its contiguous runs, and the length of each.

    :param shape: of the stored tensor; `offsets` and `lengths` give the box and have as many numbers
    """
    if math.prod(lengths) == 0:
        return [], 0
    dimension = len(shape)
    length = 1
    while dimension and lengths[dimension - 1] == shape[dimension - 1]:
        dimension -= 1
        length *= shape[dimension]
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    if dimension:
        dimension -= 1
        length = lengths[dimension] * strides[dimension]
    starts = [sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))]
    for at in range(dimension):
        starts = [start + step * strides[at] for start in starts for step in range(lengths[at])]
    return starts, length
