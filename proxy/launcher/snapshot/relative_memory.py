"""Memory of a process that stands still, read to be compared.

`process_vm_readv` takes two thirds of the time of `/proc/PID/mem`, which copies each page twice. But it names the
process by its PID, and it does not read pages without the right to. So both are used: what the first does not read,
the second does. A PID may be given to another process once its own has ended. A descriptor of the process tells at the
end whether it was there all the time (`check`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
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


class RelativeMemory:
    """:param file: its memory, read at addresses. It is closed here
    :param pid: as we see it; NOBODY: the file alone is read
    :raises OSError: there is no such process
    """

    def __init__(self, file: int, pid: int = NOBODY) -> None:
        self._file, self._pid = file, pid
        self._process = os.pidfd_open(pid) if pid else -1

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

    def check(self) -> None:
        """Raises DumpError if the process has ended: another may have been read in its place."""
        if self._process >= 0 and select.select([self._process], [], [], 0)[0]:
            raise DumpError(f"process {self._pid} ended while its memory was compared")

    def close(self) -> None:
        for descriptor in (self._file, self._process):
            if descriptor >= 0:
                os.close(descriptor)
