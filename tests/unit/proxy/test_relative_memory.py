"""Memory of a process, read to be compared: what can be read, and what a look leaves as it was."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from singularity_proxy.launcher.snapshot import relative_memory
from singularity_proxy.launcher.snapshot.page_stream import PAGE
from singularity_proxy.launcher.snapshot.relative_memory import RelativeMemory

PAGES = 4
READ_AND_WRITE, NO_RIGHTS = mmap.PROT_READ | mmap.PROT_WRITE, 0
SLEEPER = ["sleep", "60"]
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def content() -> Iterator[int]:
    """Address of pages of this process that have known content."""
    memory = mmap.mmap(-1, PAGES * PAGE)
    memory.write(expected())
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    yield address
    assert protect(address, PAGES * PAGE, READ_AND_WRITE) == 0


def expected() -> bytes:
    return b"".join(bytes([1 + page]) * PAGE for page in range(PAGES))


def protect(address: int, size: int, rights: int) -> int:
    return int(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), rights))


def of_us() -> RelativeMemory:
    return RelativeMemory(os.open("/proc/self/mem", os.O_RDONLY))


def test_memory_is_read_at_its_addresses(content: int) -> None:
    found = memoryview(bytearray(2 * PAGE))
    with closing(of_us()) as memory:
        assert memory.read(found, content + PAGE)
    assert found == expected()[PAGE : 3 * PAGE]


def test_pages_that_the_process_may_not_read_itself(content: int) -> None:
    assert protect(content + 2 * PAGE, PAGE, NO_RIGHTS) == 0
    found = memoryview(bytearray(PAGES * PAGE))
    with closing(of_us()) as memory:
        assert memory.read(found, content)
    assert found == expected()


def test_what_is_not_mapped_cannot_be_read(content: int) -> None:
    with closing(of_us()) as memory:
        assert not memory.read(memoryview(bytearray(PAGE)), PAGE)


def test_a_process_that_has_ended_cannot_be_read() -> None:
    with subprocess.Popen(SLEEPER) as process:
        found = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
        with closing(RelativeMemory(found, process.pid)) as memory:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not even reaped
            assert not memory.read(memoryview(bytearray(PAGE)), PAGE)


def test_a_look_ends_no_sharing() -> None:
    """A process that has to be given copies of what it shares would need the memory of its family once more."""
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory.write(expected())
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    child = os.fork()
    if not child:
        signal.pause()
    try:
        assert alone(child, address) == 0
        found = memoryview(bytearray(PAGES * PAGE))
        with closing(RelativeMemory(os.open(f"/proc/{child}/mem", os.O_RDONLY), child)) as relative:
            assert relative.read(found, address)
        assert found == expected()
        assert alone(child, address) == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def alone(pid: int, address: int) -> int:
    """How many of the pages nobody else has: bit 56 of a pagemap, which everybody may see."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        words = struct.unpack(f"={PAGES}Q", os.pread(file.fileno(), PAGES * 8, address // PAGE * 8))
    assert all(word >> 63 for word in words)
    return sum(word >> 56 & 1 for word in words)


def doubtful(address: int) -> bool:
    ranges = relative_memory.lazily_freed(os.getpid())
    return any(low <= address and address + PAGES * PAGE <= high for low, high in ranges)


def test_where_pages_may_vanish() -> None:
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory.write(b"X" * PAGES * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert not doubtful(address)
    memory.madvise(mmap.MADV_FREE)  # the kernel does not count them as LazyFree yet
    assert doubtful(address)
    memory.seek(0)
    memory.write(b"Y" * PAGES * PAGE)
    assert not doubtful(address), "in use again"


@pytest.mark.parametrize(
    "smaps", [None, "1000-2000 rw-p 00000000 00:00 0\nRss:  4 kB\n"], ids=["hidden", "other words"]
)
def test_pages_may_vanish_anywhere_where_nobody_knows(tmp_path: Path, smaps: str | None) -> None:
    (tmp_path / "7").mkdir()
    if smaps is not None:
        (tmp_path / "7/smaps").write_text(smaps)
    found = relative_memory.lazily_freed(7, tmp_path)
    assert found == (relative_memory.EVERYWHERE if smaps is None else ((0x1000, 0x2000),))
