"""Files of images that are written in runs, by several threads, past the page cache or through it."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import JOB, MIB, NAMESPACE, commit, manifest, noise, same

from singularity_proxy.errors import StoreError
from singularity_proxy.protocol import disk_pace
from singularity_proxy.protocol.disk_pace import PAGE
from singularity_proxy.store import Store, download, image_writer
from singularity_proxy.store.image_writer import Disk

SIZE = 40 * PAGE
CONTENT = random.Random(1).randbytes(SIZE)
Run = tuple[int, int]
"""Begin and end, of pages and a bit."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_writer, "ROOM", 8 * PAGE)
    monkeypatch.setattr(image_writer, "LEAST", 2 * PAGE)


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    os.truncate(path, SIZE)
    return path


def put(disk: Disk, path: Path, runs: list[Run], step: int) -> None:
    writer, good = disk.writer(), False
    try:
        for begin, end in runs:
            for at in range(begin, end, step):
                writer.put(path, at, memoryview(CONTENT)[at : min(at + step, end)])
        good = True
    finally:
        writer.close(good)


edges = st.lists(st.integers(0, SIZE), min_size=2, max_size=8, unique=True).map(sorted)


@settings(max_examples=80, deadline=None)
@given(edges, st.integers(1, 5 * PAGE), st.booleans(), st.randoms())
def test_files_have_what_was_put_and_holes_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, found: list[int], step: int, direct: bool, chance: random.Random
) -> None:
    path = empty(tmp_path_factory.mktemp("image") / "pages")
    runs = list(itertools.pairwise(found))[::2]
    chance.shuffle(runs)
    put(Disk(direct), path, runs, max(step, 64))
    expected = bytearray(SIZE)
    for begin, end in runs:
        expected[begin:end] = CONTENT[begin:end]
    assert path.read_bytes() == expected


def test_threads_that_share_pages_of_a_file(tmp_path: Path) -> None:
    disk, path = Disk(True), empty(tmp_path / "pages")
    cuts = [0, *sorted(random.Random(2).sample(range(1, SIZE), 30)), SIZE]
    runs = list(itertools.pairwise(cuts))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: put(disk, path, runs[number::4], 3000), range(4)))
    assert path.read_bytes() == CONTENT


def test_a_writer_goes_from_file_to_file(tmp_path: Path) -> None:
    disk, paths = Disk(True), [empty(tmp_path / name) for name in "abc"]
    writer = disk.writer()
    for begin in range(0, SIZE, 10 * PAGE + 64):
        for path in paths:
            writer.put(path, begin, memoryview(CONTENT)[begin : begin + 10 * PAGE + 64])
    writer.close(True)
    assert [path.read_bytes() for path in paths] == [CONTENT] * 3


def refuses(monkeypatch: pytest.MonkeyPatch, where: str, number: int) -> list[bool]:
    """Past the page cache `fcntl` or the third `pwrite` fails. Returns whether each write was past it."""
    stock_set, stock_write, past, seen = image_writer.fcntl.fcntl, os.pwrite, set[int](), list[bool]()

    def set_flags(file: int, command: int, flags: int) -> int:
        if flags and where == "fcntl":
            raise OSError(number, os.strerror(number))
        (past.add if flags else past.discard)(file)
        return stock_set(file, command, flags)

    def write(file: int, content: memoryview, at: int) -> int:
        seen.append(file in past)
        if file in past and where == "pwrite" and sum(seen) >= 3:
            raise OSError(number, os.strerror(number))
        return stock_write(file, content, at)

    monkeypatch.setattr(image_writer.fcntl, "fcntl", set_flags)
    monkeypatch.setattr(os, "pwrite", write)
    return seen


@pytest.mark.parametrize("where", ["fcntl", "pwrite"])
def test_a_file_system_that_cannot_go_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    disk, path = Disk(True), empty(tmp_path / "pages")
    refuses(monkeypatch, where, errno.EINVAL)
    put(disk, path, [(77, SIZE - 99)], 5000)
    assert path.read_bytes() == bytes(77) + CONTENT[77:-99] + bytes(99)
    assert not disk.pace.direct


def test_a_full_disk_is_told_and_the_writer_is_of_use_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = Disk(True), empty(tmp_path / "pages")
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with monkeypatch.context() as patch:
        refuses(patch, "pwrite", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            put(disk, path, [(0, SIZE)], 5000)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    put(disk, path, [(0, SIZE)], 5000)
    assert path.read_bytes() == CONTENT


def test_writes_in_part_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: stock(file, content[:PAGE], at))
    path = empty(tmp_path / "pages")
    put(Disk(True), path, [(5, SIZE)], 7000)
    assert path.read_bytes() == bytes(5) + CONTENT[5:]


def test_a_slow_disk_gets_the_rest_through_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pace, "TRIED", 20 * PAGE)
    clock = iter(range(1000))
    tick: Callable[[], float] = lambda: float(next(clock))  # noqa: E731
    monkeypatch.setattr(disk_pace, "without_waits", tick)
    disk, path = Disk(True), empty(tmp_path / "pages")
    put(disk, path, [(0, SIZE)], 5000)
    assert path.read_bytes() == CONTENT
    assert not disk.pace.direct


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = empty(tmp_path / "other")
    (tmp_path / "pages").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        put(Disk(True), tmp_path / "pages", [(0, SIZE)], 5000)
    assert target.read_bytes() == bytes(SIZE)


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_what_a_store_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """Images of two ranks that share most of their content, at other places, with holes."""
    monkeypatch.setattr(download, "DIRECT", least)
    store, folders = Store(f"file://{tmp_path}/store"), {}
    for rank in range(2):
        folders[rank] = tmp_path / f"rank-{rank}"
        folders[rank].mkdir()
        shift = noise(5 + rank, 4096 * rank + 64)
        pages = shift + noise(1, 11 * MIB) + bytes(3 * MIB + 77) + noise(2, 6 * MIB) + b"text of a heap " * 50_000
        (folders[rank] / "pages-1.img").write_bytes(pages)
        (folders[rank] / "core.img").write_bytes(noise(rank, 777))
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", folders)
    store.fetch_ranks(manifest(put.images), {rank: tmp_path / f"back-{rank}" for rank in folders})
    for rank, folder in folders.items():
        assert same(folder, tmp_path / f"back-{rank}")
        assert (tmp_path / f"back-{rank}" / "pages-1.img").stat().st_blocks * 512 < 20 * MIB, "zeros are holes"


def test_a_disk_that_fills_while_images_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DIRECT", 0)
    store, folder = Store(f"file://{tmp_path}/store"), tmp_path / "image"
    folder.mkdir()
    (folder / "pages-1.img").write_bytes(noise(1, 20 * MIB))
    made = commit(store, folder)
    with monkeypatch.context() as patch:
        refuses(patch, "pwrite", errno.ENOSPC)
        with pytest.raises(StoreError, match="No space left on device"):
            store.fetch_ranks(made, {0: tmp_path / "back"})
    store.fetch_ranks(made, {0: tmp_path / "again"})
    assert same(folder, tmp_path / "again")
