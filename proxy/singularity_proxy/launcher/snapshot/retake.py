"""`python -m _singularity.launcher.snapshot.retake IMAGES`: restored processes make calls that CRIU does not make.

Their POSIX locks are taken once more, and what a thread has chosen for itself (`settings`) is chosen again.

A process loses its POSIX locks on a file as soon as it closes any descriptor of that file. CRIU maps files after it has
restored the locks, and closes what it has mapped. So databases that map the file that they lock, such as LMDB and
SQLite, were left without locks. Such a lock belongs to the process, so the process itself has to make the call: it is
stopped, and steps through one system call of ours. So has a thread that is bound to CPUs: without CAP_SYS_NICE nobody
may do that for a process of another user. Runs in the slot: only there are the PIDs those of the image.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from ..ranks.traced import Traced
from . import image, protobuf, settings
from .image import Settings
from .protobuf import fields

FILE = "filelocks.img"
_BEGIN = protobuf.magic(0x54323616)
_FLAG, _TYPE, _PID, _DESCRIPTOR, _START, _LENGTH = 1, 2, 3, 4, 5, 6
"""Fields of file_lock_entry."""
_POSIX = 1
_GETREGS, _SETREGS, _STEP = 12, 13, 9
_FCNTL, _SETLK = 72, 6
_SYSCALL = b"\x0f\x05"
_REGISTERS = 27
_ORIG_RAX, _RAX, _RDX, _RSI, _RDI, _RIP, _RSP = 15, 10, 12, 13, 14, 16, 19
"""In `user_regs_struct` of x86_64."""
_BELOW = 512
"""Bytes below the stack pointer: leaf functions may use 128 without moving it."""
_STEPS = 10


def posix(images: Path) -> list[dict[int, int]]:
    """The POSIX locks of a dumped rank: values by field. Raises OSError, ValueError."""
    try:
        data = (images / FILE).read_bytes()
    except FileNotFoundError:
        return []  # a rank without locks
    found = []
    for entry in protobuf.messages(data, _BEGIN):
        values = {f.number: f.value for f in fields(entry) if isinstance(f.value, int)}
        if values.get(_FLAG, 0) & _POSIX:
            found.append(values)
    return found


class Stopped(Traced):
    """A process that stands still, and whose registers and memory are ours. Raises OSError."""

    def __enter__(self) -> Stopped:
        return self

    def call(self, number: int, one: int, two: int | bytes, three: int | bytes) -> int:
        """A system call of three arguments, of which one may be a pointer to bytes. Returns its result, negative for an
        error."""
        content = next((word for word in (two, three) if isinstance(word, bytes)), b"")
        before = self._registers()
        with open(f"/proc/{self._task}/mem", "r+b", buffering=0) as memory:
            at = (before[_RSP] - _BELOW - len(content)) & ~15
            kept = _read(memory.fileno(), at, len(content))
            os.pwrite(memory.fileno(), content, at)
            ours = list(before)
            ours[_RIP] = where = self._instruction(memory.fileno())
            words = (at if isinstance(word, bytes) else word for word in (two, three))
            ours[_RAX], ours[_RDI], (ours[_RSI], ours[_RDX]) = number, one, words
            ours[_ORIG_RAX] = 2**64 - 1  # no other system call is to be made again
            self._set(ours)
            try:
                for _ in range(_STEPS):
                    self.ask(_STEP)
                    self.wait()
                    after = self._registers()
                    if after[_RIP] == where + len(_SYSCALL):
                        return int(struct.unpack("q", struct.pack("Q", after[_RAX]))[0])
                raise OSError(f"process {self._task} does not come through a system call")
            finally:
                os.pwrite(memory.fileno(), kept, at)
                self._set(before)

    def _instruction(self, memory: int) -> int:
        """Address of a system call instruction: the kernel's own page of code has one."""
        for line in Path(f"/proc/{self._task}/maps").read_text().splitlines():
            if line.endswith("[vdso]"):
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                found = _read(memory, begin, end - begin).find(_SYSCALL)
                if found >= 0:
                    return begin + found
        raise OSError(f"process {self._task} has no system call instruction in its vdso")

    def _registers(self) -> list[int]:
        words = (ctypes.c_uint64 * _REGISTERS)()
        self.ask(_GETREGS, ctypes.addressof(words))
        return list(words)

    def _set(self, registers: list[int]) -> None:
        words = (ctypes.c_uint64 * _REGISTERS)(*registers)
        self.ask(_SETREGS, ctypes.addressof(words))


def _read(memory: int, at: int, size: int) -> bytes:
    data = os.pread(memory, size, at)
    if len(data) != size:
        raise OSError(f"{len(data)} of {size} bytes at {at:#x}")
    return data


def problems(locks: list[dict[int, int]]) -> Iterator[str]:
    """Take the locks; a sentence for each that was not had."""
    for lock in locks:
        pid, descriptor = lock[_PID], lock[_DESCRIPTOR]
        words = struct.pack("hhqqi4x", lock.get(_TYPE, 0), os.SEEK_SET, lock.get(_START, 0), lock.get(_LENGTH, 0), 0)
        try:
            with Stopped(pid) as process:
                result = process.call(_FCNTL, descriptor, _SETLK, words)
        except OSError as error:
            yield f"process {pid}, descriptor {descriptor}: {error}"
            continue
        if result < 0:
            yield f"process {pid}, descriptor {descriptor}: {os.strerror(-result)}"


def chosen_again(found: list[Settings]) -> Iterator[str]:
    """Let the threads choose; a sentence for each that could not."""
    for each in found:
        try:
            with Stopped(each.task) as thread:
                results = {call[0]: thread.call(*call) for call in settings.calls(each)}
            if each.core:
                Path(f"/proc/{each.task}/coredump_filter").write_text(f"0x{each.core}")
        except OSError as error:
            yield f"thread {each.task}: {error}"
            continue
        yield from (f"thread {each.task}: {os.strerror(-r)} ({call})" for call, r in results.items() if r < 0)


def main() -> int:
    images = Path(sys.argv[1])
    told = [*problems(posix(images))]
    print("\n".join(told or chosen_again(image.read_record(images).settings)))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
