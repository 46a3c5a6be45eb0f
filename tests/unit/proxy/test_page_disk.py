"""Pages of a dump on the disk: past the page cache where it is fast, through it where it is not."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from module_clock import set_clock

from singularity_proxy.launcher.snapshot import page_disk
from singularity_proxy.launcher.snapshot.page_disk import BLOCK, PageDisk
from singularity_proxy.launcher.snapshot.page_stream import PAGE
from singularity_proxy.protocol import disk_pace

CONTENT = memoryview(bytearray(random.Random(1).randbytes(3 * BLOCK)))


def written(folder: Path, parts: Sequence[Sequence[int]]) -> PageDisk:
    """A file for each list, with parts of so many pages. The disk afterwards."""
    disk = PageDisk(folder)
    try:
        for number, sizes in enumerate(parts):
            disk.open(number)
            for size in sizes:
                disk.write(number, CONTENT[: size * PAGE])
        disk.end(folder)
    finally:
        disk.close()
    return disk


def expected(sizes: Sequence[int]) -> bytes:
    return b"".join(CONTENT[: size * PAGE] for size in sizes)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pace, "TRIED", 4 * BLOCK)
    clock: Iterator[float] = iter(range(1 << 20))
    monkeypatch.setattr(disk_pace, "without_waits", lambda: float(next(clock)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 40), max_size=4), max_size=4))
def test_files_have_what_was_written(tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_disk, "BLOCK", 8 * PAGE)
        written(folder, parts)
    for number, sizes in enumerate(parts):
        assert (folder / f"pages-{number}.img").read_bytes() == expected(sizes)


@pytest.mark.usefixtures("slow")
def test_a_slow_disk_gets_the_rest_through_the_page_cache(tmp_path: Path) -> None:
    sizes = [3 * BLOCK // PAGE] * 3
    assert not written(tmp_path, [sizes]).pace.direct
    assert (tmp_path / "pages-0.img").read_bytes() == expected(sizes)


@pytest.mark.usefixtures("slow")
def test_little_does_not_judge_the_disk(tmp_path: Path) -> None:
    assert written(tmp_path, [[3]]).pace.direct


def test_a_busy_machine_makes_no_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the time that passes between two looks at the clock, the thread waits for a processor."""
    statistics, passed = tmp_path / "schedstat", iter((0, 5, 10))

    def now() -> float:
        seconds = next(passed)
        statistics.write_text(f"1 {seconds * 10**9} 1")
        return 1000.0 + seconds

    monkeypatch.setattr(disk_pace, "SCHEDULED", statistics)
    set_clock(monkeypatch, disk_pace, monotonic=now)
    assert disk_pace.without_waits() == disk_pace.without_waits() == 1000.0
    monkeypatch.setattr(disk_pace, "SCHEDULED", tmp_path / "missing")
    assert disk_pace.without_waits() == 1010.0


@pytest.mark.parametrize("refused", ["open", "write"])
def test_a_file_system_that_cannot_go_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    stock_open, stock_write, direct = os.open, os.pwrite, set()

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        found = stock_open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            direct.add(found)
        return found

    def write(file: int, content: memoryview, at: int) -> int:
        if file in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return stock_write(file, content, at)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "pwrite", write)
    written(tmp_path, [[5, 700], [1]])
    assert [(tmp_path / f"pages-{n}.img").read_bytes() for n in (0, 1)] == [expected([5, 700]), expected([1])]


def test_writes_in_part_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: stock(file, content[: 8 * PAGE], at))
    written(tmp_path, [[5, 700]])
    assert (tmp_path / "pages-0.img").read_bytes() == expected([5, 700])


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, content: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path, [[5]])
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
