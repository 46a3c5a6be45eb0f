"""Memory of a process, read to be compared: the quick way, the other way, and a process that ends meanwhile."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from singularity_proxy.launcher.errors import DumpError
from singularity_proxy.launcher.snapshot import relative_memory
from singularity_proxy.launcher.snapshot.page_stream import PAGE
from singularity_proxy.launcher.snapshot.relative_memory import NOBODY, RelativeMemory

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


def of_us(pid: int) -> RelativeMemory:
    return RelativeMemory(os.open("/proc/self/mem", os.O_RDONLY), pid)


def of_child(pid: int) -> RelativeMemory:
    return RelativeMemory(os.open(f"/proc/{pid}/mem", os.O_RDONLY), pid)


@pytest.mark.parametrize("known", [False, True], ids=["by its memory", "by its PID"])
def test_memory_is_read_at_its_addresses(content: int, known: bool) -> None:
    found = memoryview(bytearray(2 * PAGE))
    with closing(of_us(os.getpid() if known else NOBODY)) as memory:
        assert memory.read(found, content + PAGE)
        memory.check()
    assert found == expected()[PAGE : 3 * PAGE]


def test_the_quick_way_needs_no_other(content: int) -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    found = memoryview(bytearray(PAGES * PAGE))
    with closing(RelativeMemory(nothing, os.getpid())) as memory:
        assert memory.read(found, content)
    assert found == expected()


def test_pages_that_the_process_may_not_read_itself(content: int) -> None:
    """The quick way ends before them. Half of it would be taken for all."""
    assert protect(content + 2 * PAGE, PAGE, NO_RIGHTS) == 0
    found = memoryview(bytearray(PAGES * PAGE))
    with closing(of_us(os.getpid())) as memory:
        assert memory.read(found, content)
    assert found == expected()


def test_what_is_not_mapped_cannot_be_read(content: int) -> None:
    with closing(of_us(os.getpid())) as memory:
        assert not memory.read(memoryview(bytearray(PAGE)), PAGE)


def test_a_process_that_ends_fails_the_dump() -> None:
    """Its PID may be another's by now, whose memory would have been read."""
    with subprocess.Popen(SLEEPER) as process, closing(of_child(process.pid)) as memory:
        memory.check()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not even reaped
        assert not memory.read(memoryview(bytearray(PAGE)), PAGE)
        with pytest.raises(DumpError, match=f"process {process.pid} ended"):
            memory.check()


def test_a_kernel_that_refuses_the_quick_way(content: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative_memory, "_read_quickly", lambda *_: -1)
    found = memoryview(bytearray(PAGES * PAGE))
    with closing(of_us(os.getpid())) as memory:
        assert memory.read(found, content)
    assert found == expected()


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
