"""Where a part of a file lies in packs. Pure functions, no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..protocol.manifest import ImageFile, RankImage, Stored
from . import layout_map, pack


class Range(NamedTuple):
    """Bytes `begin` to `end`, without `end`, of the files that are called `path` in the ranks' images."""

    path: str
    begin: int
    end: int


class Span(NamedTuple):
    """Bytes `begin` to `end`, without `end`, of the content from chunk `first` on."""

    first: int
    begin: int
    end: int

    def blocks(self, head: pack.Head) -> range:
        """Numbers of the blocks that have it. Raises PackError."""
        start, _ = head.span(self.first, 1)
        if start + self.end > head.starts[-1]:
            raise pack.PackError(f"ends at byte {head.starts[-1]} of its content, and has to have {start + self.end}")
        return range(pack.block_at(head, start + self.begin), pack.block_at(head, start + self.end - 1) + 1)


class Run(NamedTuple):
    """Of a file, up to byte `end`, without it: chunks from `first` on of a pack; None: zeros."""

    end: int
    size: int
    stored: Stored | None
    first: int


class FileRuns(NamedTuple):
    size: int
    runs: list[Run]


def of_file(image: RankImage, file: ImageFile, runs: Sequence[layout_map.Run]) -> FileRuns:
    """As its recipe says."""
    ends = accumulate(run.size for run in runs)
    return FileRuns(
        file.size,
        [
            Run(end, run.size, None if run.pack == layout_map.ZEROS else image.packs[run.pack - 1], run.first)
            for run, end in zip(runs, ends, strict=True)
        ],
    )


def series(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of what follows each other, of sorted numbers."""
    first = last = -1
    for number in numbers:
        if first >= 0 and number == last + 1:
            last = number
            continue
        if first >= 0:
            yield first, last
        first = last = number
    if first >= 0:
        yield first, last


def spans(file: FileRuns, begin: int, end: int) -> Iterator[tuple[Stored, Span]]:
    """What bytes `begin` to `end` of a file need of packs."""
    for run in file.runs[bisect_right(file.runs, begin, key=lambda run: run.end) :]:
        start = run.end - run.size
        if start >= end:
            return
        if run.stored is not None:
            yield run.stored, Span(run.first, max(begin, start) - start, min(end, run.end) - start)
