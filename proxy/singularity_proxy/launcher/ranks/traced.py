"""A task under ptrace: it stands still, and the kernel tells of it, or changes it."""

from __future__ import annotations

import ctypes
import os

from . import libc

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000


class Traced:
    """A process or thread from now until the end of the `with`. Afterwards it is stopped if it was before. Every method
    raises OSError.

    One thread of ours does all of that: the kernel knows the tracer as a thread.
    """

    def __init__(self, task: int) -> None:
        self._task, self._libc = task, libc.load()
        self._libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        self._libc.ptrace.restype = ctypes.c_long
        self.ask(_SEIZE)
        self.ask(_INTERRUPT)
        self.wait()

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask(_DETACH)

    def wait(self) -> None:
        """Wait until the task has come to its next stop."""
        os.waitpid(self._task, _WALL)

    def ask(self, request: int, data: int = 0, address: int = 0) -> int:
        """Make one call of ptrace."""
        result = int(self._libc.ptrace(request, self._task, address or None, data or None))
        libc.check(min(result, 0), f"ptrace {request:#x} of {self._task}")
        return result
