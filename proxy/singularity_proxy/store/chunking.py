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
SPARSE: Final = 0.25
"""A stretch in which so many lattice lines begin with a word that has a byte of zero is cut finely. Of weights in
float32, 2 % do so."""
KEY_SIZE: Final = 16
Bytes = bytes | bytearray | memoryview
DIGEST: Final = "blake3"
"""That of all that is stored today."""
DIGESTS: Final[Mapping[str, Callable[[Bytes], bytes]]] = {
    "blake3": lambda data: blake3(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
"""Digests of content by name, each of 32 bytes. sha256 is that of packs of version 2."""
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
    first = np.ascontiguousarray(words[:, 0])
    marks = _marks(words[:, -1], first)
    # 1, not 0: lines of zeros are no boundaries. A boundary of stretches is one of fine chunks, too.
    apart = STRETCH.bits - FINE.bits
    fine = np.flatnonzero(marks >> np.uint64(apart) == 1)
    coarse = fine[marks[fine] == 1 << apart]
    stretches = list(_walk((coarse * LATTICE).tolist(), 0, len(data), STRETCH))
    if final and len(data) > (stretches[-1] if stretches else 0):
        stretches.append(len(data))
    sparse = np.concatenate(([0], np.cumsum(_has_zero(first))))
    found: list[int] = []
    begin = 0
    for end in stretches:
        lower, upper = begin // LATTICE, end // LATTICE
        if sparse[upper] - sparse[lower] >= SPARSE * (upper - lower):
            inside = fine[np.searchsorted(fine, lower, "right") : np.searchsorted(fine, upper)]
            found.extend(_walk((inside * LATTICE).tolist(), begin, end, FINE))
        found.append(end)
        begin = end
    return found


def _marks(last: npt.NDArray[np.uint64], first: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """STRETCH.bits for each lattice line, which depend on its first and last word."""
    import numpy as np

    # In place: new arrays at each step cost as much as the arithmetic.
    mixed = last * np.uint64(_MULTIPLIER)
    mixed ^= first
    mixed *= np.uint64(_MULTIPLIER)
    mixed >>= np.uint64(64 - STRETCH.bits)
    return mixed


def _has_zero(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether one of the eight bytes is zero. Source: Warren, Hacker's Delight, "Find first 0-byte"."""
    import numpy as np

    found = words - np.uint64(_ONES)
    found &= ~words
    found &= np.uint64(_HIGHS)
    return found != 0


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


def is_zero(chunk: Bytes) -> bool:
    """Nothing but zeros: a hole in the file is the same content."""
    return not chunk[0] and bytes(chunk) == _ZEROS[: len(chunk)]
