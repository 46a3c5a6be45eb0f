"""Where the content of chunks can be read: at which byte of a rank's files, counted over all files in order.

In one number with the length, because there is one for each chunk. The work on columns is left to numpy and `map`: a
loop in Python costs several times as much.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from ..errors import StoreError
from .beneath import Beneath
from .draft import Draft
from .images import File, open_listed
from .segments import Chunks

_SIZE_BITS: Final = 20
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1
Sources = dict[bytes, int]


def add(sources: Sources, chunks: Chunks, begin: int) -> int:
    """Note where these chunks lie, the first at `begin`; of equal chunks the first counts. Returns where the last chunk
    ends.

    The key of zeros is added, too.
    """
    import numpy as np  # `memory.load`

    sizes = np.array(chunks.sizes, dtype=np.int64)
    ends = sizes.cumsum() + begin
    packed = (ends - sizes) << _SIZE_BITS | sizes
    deque(map(sources.setdefault, chunks.keys, packed.tolist()), maxlen=0)
    return begin + int(sizes.sum())


def length(sources: Sources, key: bytes) -> int:
    """Bytes of a chunk."""
    return sources[key] & _SIZE_MASK


def total(sources: Sources, keys: Iterable[bytes]) -> int:
    """Bytes of all these chunks."""
    return sum(sources[key] & _SIZE_MASK for key in keys)


def fill(draft: Draft, keys: Sequence[bytes], sources: Sources, files: Sequence[File], beneath: Beneath) -> None:
    """Read the content of every key; neighbours are read together. Raises StoreError."""
    edges = list(accumulate((file.size for file in files), initial=0))
    opened, source, done = -1, -1, 0
    try:
        for begin, lengths in _stretches(keys, sources, frozenset(edges)):
            index = bisect_right(edges, begin) - 1
            if index != opened:
                if source >= 0:
                    os.close(source)
                opened, source = index, -1
                source = open_listed(beneath, files[index])
            target = draft.add(keys[done : done + len(lengths)], lengths)
            done += len(lengths)
            if os.preadv(source, [target], begin - edges[index]) != len(target):
                raise StoreError(f"image file {files[index].path} changed while it was stored")
    except OSError as error:
        raise StoreError(f"cannot read image file {files[opened].path}: {error}") from error
    finally:
        if source >= 0:
            os.close(source)


def _stretches(keys: Iterable[bytes], sources: Sources, edges: frozenset[int]) -> Iterator[tuple[int, list[int]]]:
    """Of chunks that follow each other within a file: where the first lies, and their lengths."""
    begin = end = -1
    lengths: list[int] = []
    for key in keys:
        size, place = sources[key] & _SIZE_MASK, sources[key] >> _SIZE_BITS
        if place != end or place in edges:
            if lengths:
                yield begin, lengths
            begin, lengths = place, []
        lengths.append(size)
        end = place + size
    if lengths:
        yield begin, lengths
