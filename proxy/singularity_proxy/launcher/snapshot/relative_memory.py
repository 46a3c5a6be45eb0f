"""Memory of a process that stands still, read to be compared.

`process_vm_readv` takes two thirds of the time of `/proc/PID/mem`, which copies each page twice. But it names the
process by its PID, and it does not read pages without the right to. So both are used: what the first does not read,
the second does. A PID may be given to another process once its own has ended. A descriptor of the process tells at the
end whether it was there all the time (`check`).

A page that the process has freed with `MADV_FREE` can vanish although the process stands still: the kernel takes it
where memory is scarce, and zeroes are read from then on. `lazily_freed` says where such pages are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import DumpError


class IoVec(ctypes.Structure):
    """`struct iovec`: an address and a number of bytes."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_read_quickly = ctypes.CDLL(None, use_errno=True).process_vm_readv
_read_quickly.restype = ctypes.c_ssize_t
_read_quickly.argtypes = (
    ctypes.c_int, ctypes.POINTER(IoVec), ctypes.c_ulong, ctypes.POINTER(IoVec), ctypes.c_ulong, ctypes.c_ulong,
)  # fmt: skip
NOBODY: Final = 0
Ranges = tuple[tuple[int, int], ...]
"""Of addresses: (from, to), ascending."""
EVERYWHERE: Final[Ranges] = ((0, 1 << 64),)
_MAPPING: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ ([0-9]+)", re.MULTILINE)
"""Its addresses, and the inode of its file, 0 for none."""
_CLEAN: Final = re.compile(rb"^(?:Shared|Private)_Clean: +([0-9]+) kB$", re.MULTILINE)


class RelativeMemory:
    """:param file: its memory, read at addresses. It is closed here
    :param pid: as we see it; NOBODY: the file alone is read
    :raises OSError: there is no such process
    """

    def __init__(self, file: int, pid: int = NOBODY) -> None:
        self._file, self._pid = file, pid
        self._process = os.pidfd_open(pid) if pid else -1
        self.freed = lazily_freed(pid) if pid else ()
        """Where pages may have vanished since this was made."""

    def read(self, buffer: memoryview, address: int) -> bool:
        """Whether all of it could be read: a process may have ended, or forbid it."""
        size = len(buffer)
        if self._pid:
            here = IoVec(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), size)
            if _read_quickly(self._pid, here, 1, IoVec(address, size), 1, 0) == size:
                return True
        with contextlib.suppress(OSError):
            return os.preadv(self._file, [buffer], address) == size
        return False

    def may_vanish(self, address: int, size: int) -> bool:
        """Whether zeroes may be read there where the process had something else before."""
        return any(low < address + size and address < high for low, high in self.freed)

    def check(self) -> None:
        """Raises DumpError if the process has ended: another may have been read in its place."""
        if self._process >= 0 and select.select([self._process], [], [], 0)[0]:
            raise DumpError(f"process {self._pid} ended while its memory was compared")

    def close(self) -> None:
        for descriptor in (self._file, self._process):
            if descriptor >= 0:
                os.close(descriptor)


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
