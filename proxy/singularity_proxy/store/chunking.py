"""Where files are cut into chunks, the units of deduplication, and how chunks are named: pure functions, no I/O.

Cut by content, on a lattice of 64 bytes. For data that does not move, 4 KiB pages of a process image would be enough.
But in different replicas, the same parameter lies at different offsets within its page. The allocator hands out
multiples of 64 bytes, and the history of each heap differs. Boundaries that depend on content alone find it at any such
offset.

A file is cut into stretches first, of 90 KiB on average. Tensors are dense: hardly a byte of theirs is zero. A stretch
of dense content is one chunk, because each chunk costs time and memory, and a tensor of replicas is the same as a
whole. All else (heaps, libraries) is full of pointers and small numbers, and differs here and there. Such a stretch is
cut into chunks of 6 KiB on average. The content of a stretch alone decides, so replicas are cut alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Grain(NamedTuple):
    """Bytes of the smallest and the largest chunk. One lattice line in 2**bits begins a chunk."""

    smallest: int
    largest: int
    bits: int


LATTICE: Final = 64
"""Bytes; torch aligns CPU tensors to this."""
STRETCH: Final = Grain(32 << 10, 256 << 10, 10)
FINE: Final = Grain(2048, 16384, 6)
"""6 KiB on average. Boundaries of stretches are boundaries of fine chunks, too."""
LARGEST: Final = STRETCH.largest
"""Bytes. The last chunk of a stretch may be smaller than the smallest."""
SAMPLED: Final = 8
SPARSE: Final = 0.25
"""One lattice line in eight is looked at, as its content decides. If this part of a stretch's begins with a word that
has a byte of zero, the stretch is cut finely. Of weights in float32, 2 % do so."""
KEY_SIZE: Final = 16
Bytes = bytes | bytearray | memoryview
DIGEST: Final = "blake3"
"""That of all that is stored today."""
DIGESTS: Final[Mapping[str, Callable[[Bytes], bytes]]] = {
    "blake3": lambda data: blake3(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
"""Digests of content by name, each of 32 bytes. sha256 is that of packs of version 2."""
_AT_ONCE: Final = 8192
"""Lines, which a processor's cache holds."""
_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_ONES: Final = 0x0101010101010101
_HIGHS: Final = 0x8080808080808080
_ZEROS: Final = bytes(LARGEST)


def ends(data: Bytes, final: bool) -> list[int]:
    """Offsets at which the chunks of `data` end, ascending.

    :param data: begins where a stretch begins
    :param final: the file ends here. Otherwise the rest after the last end belongs to a stretch that is not complete.
    """
    import numpy as np  # `memory.load`

    lines = len(data) // LATTICE
    words = np.frombuffer(data, dtype="<u8", count=lines * LATTICE // 8).reshape(lines, LATTICE // 8)
    low = np.empty(lines, dtype=np.uint16)
    for at in range(0, lines, _AT_ONCE):
        part = words[at : at + _AT_ONCE]
        # In place: new arrays at each step cost as much as the arithmetic.
        mixed = part[:, -1] * np.uint64(_MULTIPLIER)
        mixed ^= part[:, 0]
        mixed *= np.uint64(_MULTIPLIER)
        mixed >>= np.uint64(64 - STRETCH.bits)
        low[at : at + _AT_ONCE] = mixed
    # 1, not 0: lines of zeros are no boundaries. A boundary of stretches is one of fine chunks, too.
    apart = STRETCH.bits - FINE.bits
    fine = np.flatnonzero(low >> apart == 1)
    coarse = fine[low[fine] == 1 << apart]
    stretches = list(_walk((coarse * LATTICE).tolist(), 0, len(data), STRETCH))
    if final and len(data) > (stretches[-1] if stretches else 0):
        stretches.append(len(data))
    found: list[int] = []
    begin = first = 0
    candidates = (fine * LATTICE).tolist()
    for end, sparse, last in zip(
        stretches,
        _are_sparse(words[:, 0], low, stretches),
        np.searchsorted(fine, np.array(stretches, dtype=np.int64) // LATTICE).tolist(),
        strict=True,
    ):
        if sparse:
            found.extend(_walk(candidates[first:last], begin, end, FINE))
        found.append(end)
        begin, first = end, last
    return found


def _are_sparse(first: npt.NDArray[np.uint64], low: npt.NDArray[np.uint16], stretches: list[int]) -> list[bool]:
    """Of stretches that end there, whether many of their lines begin with a word that has a byte of zero.

    Source: Warren, Hacker's Delight, "Find first 0-byte".
    :param first: the first word of each line
    :param low: says which lines are looked at
    """
    import numpy as np

    lines = np.flatnonzero(low < (1 << STRETCH.bits) // SAMPLED)
    words = first[lines]
    zero = (words - np.uint64(_ONES)) & ~words & np.uint64(_HIGHS) != 0
    ends = np.searchsorted(lines, np.array(stretches, dtype=np.int64) // LATTICE)
    seen = np.diff(ends, prepend=0)
    with_zero = np.diff(np.concatenate(([0], np.cumsum(zero)))[ends], prepend=0)
    sparse: list[bool] = (with_zero >= SPARSE * seen).tolist()
    return sparse


def _walk(candidates: Iterable[int], last: int, until: int, grain: Grain) -> Iterator[int]:
    """Ends of chunks from `last` on, before `until`."""
    for at in (*candidates, until):
        while at - last > grain.largest:
            last += grain.largest
            yield last
        if at - last >= grain.smallest and at != until:
            yield at
            last = at


def key_of(chunk: Bytes, digest: str = DIGEST) -> bytes:
    """Identity of a chunk within one job's part of the store: the beginning of its digest."""
    return DIGESTS[digest](chunk)[:KEY_SIZE]


def keys_of(data: memoryview, ends: Iterable[int]) -> list[bytes]:
    """`key_of` each chunk of `data` that ends there, b"" for zeros."""
    keys: list[bytes] = []
    begin, hasher = 0, blake3()  # one for all: to make one costs as much as a digest of 1 KiB
    for end in ends:
        chunk = data[begin:end]
        # The first byte rules out nearly every chunk that is not all zeros, without a call.
        if chunk[0] or not is_zero(chunk):
            hasher.update(chunk)
            keys.append(hasher.digest(KEY_SIZE))
            hasher.reset()
        else:
            keys.append(b"")
        begin = end
    return keys


def is_zero(chunk: Bytes) -> bool:
    """Nothing but zeros: a hole in the file is the same content."""
    return bytes(chunk[:LATTICE]) == _ZEROS[: len(chunk[:LATTICE])] and bytes(chunk) == _ZEROS[: len(chunk)]
