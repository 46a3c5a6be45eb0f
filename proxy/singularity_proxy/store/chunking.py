"""Where files are cut into chunks, the units of deduplication: pure functions, no I/O.

Cut by content, on a lattice of 64 bytes. For data that does not move, 4 KiB pages of a process image would be enough.
But in different replicas, the same parameter lies at different offsets within its page. The allocator hands out
multiples of 64 bytes, and the history of each heap differs. Boundaries that depend on content alone find it at any such
offset.
"""

from __future__ import annotations

import hashlib
from typing import Final

LATTICE: Final = 64
"""Bytes; torch aligns CPU tensors to this."""
SMALLEST: Final = 2048
LARGEST: Final = 16384
"""Bytes. The last chunk of a file may be smaller."""
BITS: Final = 6
"""One lattice line in 2**BITS begins a chunk: 6 KiB on average."""
KEY_SIZE: Final = 16
Bytes = bytes | bytearray | memoryview
_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_ZEROS: Final = bytes(LARGEST)


def ends(data: Bytes, final: bool) -> list[int]:
    """Offsets at which the chunks of `data` end, ascending.

    :param data: begins where a chunk begins
    :param final: the file ends here. Otherwise the rest after the last end belongs to a chunk that is not complete.
    """
    import numpy as np  # `memory.load`

    multiplier, shift = np.uint64(_MULTIPLIER), np.uint64(64 - BITS)
    lines = len(data) // LATTICE
    words = np.frombuffer(data, dtype="<u8", count=lines * LATTICE // 8).reshape(lines, LATTICE // 8)
    # In place: new arrays at each step cost as much as the arithmetic.
    mixed = words[:, -1] * multiplier
    mixed ^= words[:, 0]
    mixed *= multiplier
    mixed >>= shift
    # 1, not 0: lines of zeros are no boundaries.
    candidates: list[int] = (np.flatnonzero(mixed == 1) * LATTICE).tolist()
    found: list[int] = []
    last = 0
    for at in (*candidates, len(data)):
        while at - last > LARGEST:
            last += LARGEST
            found.append(last)
        if at - last >= SMALLEST and at != len(data):
            found.append(at)
            last = at
    if final and last < len(data):
        found.append(len(data))
    return found


def key_of(chunk: Bytes) -> bytes:
    """Identity of a chunk within one job's part of the store: the first 16 bytes of its sha256."""
    return hashlib.sha256(chunk).digest()[:KEY_SIZE]


def is_zero(chunk: Bytes) -> bool:
    """Nothing but zeros: a hole in the file is the same content."""
    return not chunk[0] and bytes(chunk) == _ZEROS[: len(chunk)]
