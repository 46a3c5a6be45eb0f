"""Memory of a process that stands still, read to be compared.

It is read through `/proc/PID/mem`, and not with `process_vm_readv`. That one pins the pages, and the kernel gives a
process a copy of its own of each page that it pins and finds shared (`FAULT_FLAG_UNSHARE`). So a look at what relatives
have in common would end that: the pod would need its memory once more, and each new page costs more than the look. A
file of a process's memory is also never another's, as a PID may be.

A page that the process has freed with `MADV_FREE` can vanish although the process stands still: the kernel takes it
where memory is scarce, and zeroes are read from then on. `lazily_freed` says where such pages are.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NOBODY: Final = 0
Ranges = tuple[tuple[int, int], ...]
"""Of addresses: (from, to), ascending."""
EVERYWHERE: Final[Ranges] = ((0, 1 << 64),)
_MAPPING: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ ([0-9]+)", re.MULTILINE)
"""Its addresses, and the inode of its file, 0 for none."""
_CLEAN: Final = re.compile(rb"^(?:Shared|Private)_Clean: +([0-9]+) kB$", re.MULTILINE)


class RelativeMemory:
    """:param file: its memory, read at addresses. It is closed here
    :param pid: as we see it; NOBODY: no page of it may vanish
    """

    def __init__(self, file: int, pid: int = NOBODY) -> None:
        self._file = file
        self.freed = lazily_freed(pid) if pid else ()
        """Where pages may have vanished since this was made."""

    def read(self, buffer: memoryview, address: int) -> bool:
        """Whether all of it could be read: a process may have ended, or forbid it."""
        with contextlib.suppress(OSError):
            return os.preadv(self._file, [buffer], address) == len(buffer)
        return False

    def may_vanish(self, address: int, size: int) -> bool:
        """Whether zeroes may be read there where the process had something else before."""
        return any(low < address + size and address < high for low, high in self.freed)

    def close(self) -> None:
        os.close(self._file)


def lazily_freed(pid: int, proc: Path = Path("/proc")) -> Ranges:
    """Mappings of a process that stands still with pages that the kernel may take from it (`MADV_FREE`): anonymous ones
    with pages that are not dirty. `LazyFree` says less: the kernel counts a page there some time after it was freed.

    Hardly any program has some. Pages that came back from the swap space look the same.
    """
    try:
        smaps = (proc / f"{pid}/smaps").read_bytes()
    except OSError:
        return EVERYWHERE
    heads = [*_MAPPING.finditer(smaps)]
    ends = [*(head.start() for head in heads[1:]), len(smaps)]
    return tuple(
        (int(head[1], 16), int(head[2], 16))
        for head, end in zip(heads, ends, strict=False)  # who has ended has none
        if head[3] == b"0" and not _only_dirty(_CLEAN.findall(smaps, head.end(), end))
    )


def _only_dirty(clean: Sequence[bytes]) -> bool:
    """:param clean: kilobytes of shared and of private pages"""
    return len(clean) == 2 and not any(map(int, clean))
