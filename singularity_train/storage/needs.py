"""Which bytes of which blobs a load reads: known before the first of them is read. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from . import memory
from .blocks import BLOCK, Blob, runs
from .manifest import Manifest
from .writer import PACK

Span = tuple[int, int]
"""First byte, and the byte after the last."""


def is_pack(items: int, blob: Blob) -> bool:
    """Whether a blob of which `items` are wanted is read as a whole, once for all of them."""
    return items > 1 and blob.bytes <= PACK


def apart(starts: Sequence[int], size: int) -> bool:
    """Whether runs of `size` bytes are read one by one. Shorter ones share blocks, and are read as one span."""
    return size >= 4 * BLOCK or len(starts) == 1


def of(items: Iterable[ReadItem], manifest: Manifest) -> Iterator[tuple[str, Span]]:
    """(name of a blob, span of whole blocks), merged where spans touch."""
    wanted: dict[str, list[list[Span]]] = defaultdict(list)
    pieces = {(n, p.offsets): (t, p) for n, t in manifest.tensors.items() for p in t.pieces}
    for item in items:
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            each = manifest.objects[name]
            if each.blob:
                wanted[each.blob].append([(each.at, each.at + each.bytes)])
            continue
        tensor, piece = pieces[name, tuple(item.storage_index.offset)]
        size = memory.dtype_of_name(tensor.dtype).itemsize
        starts, length = runs(piece.sizes, item.storage_offsets, item.lengths)
        found = [(piece.at + start * size, piece.at + (start + length) * size) for start in starts]
        if found and not apart(starts, length * size):
            found = [(found[0][0], found[-1][1])]
        wanted[piece.blob].append(found)
    for name, parts in wanted.items():
        blob = manifest.blobs[name]
        spans = [(0, blob.bytes)] if is_pack(len(parts), blob) else [span for part in parts for span in part]
        for span in _merged(spans, blob):
            yield name, span


def _merged(spans: Iterable[Span], blob: Blob) -> list[Span]:
    made: list[Span] = []
    for begin, end in sorted(spans):
        first, last = begin // BLOCK * BLOCK, min(-(-end // BLOCK) * BLOCK, blob.bytes)
        if made and first <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], last)
        elif last > first:
            made.append((first, last))
    return made
