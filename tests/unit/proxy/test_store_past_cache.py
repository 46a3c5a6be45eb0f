"""Files past the page cache, and through it where the file system refuses that."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from store_samples import noise

from singularity_proxy.store import past_cache

SIZES = [0, 1, 4096, past_cache.BLOCK - 1, past_cache.BLOCK, 2 * past_cache.BLOCK + 8192 + 77]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_has_all_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = noise(3, size)
    past_cache.write(tmp_path / "file", memoryview(bytes(5) + data)[5:])
    assert (tmp_path / "file").read_bytes() == data
    with pytest.raises(FileExistsError):
        past_cache.write(tmp_path / "file", b"other")


@pytest.mark.parametrize("refuses", ["the flag", "write", "second write"])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_gets_it_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str, code: int
) -> None:
    stock_fcntl, stock_write, direct, tries = fcntl.fcntl, os.pwrite, [False], [0]

    def flagged(file: int, command: int, flags: int) -> int:
        direct[0] = bool(flags & os.O_DIRECT)
        if direct[0] and refuses == "the flag":
            raise OSError(code, "no direct")
        return stock_fcntl(file, command, flags)

    def written(file: int, data: memoryview, at: int) -> int:
        if direct[0]:
            tries[0] += 1
            if refuses == "write" or tries[0] == 2:
                direct[0] = False  # what the kernel's flag says is looked at below
                raise OSError(code, "no direct")
        assert direct[0] or not stock_fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
        return stock_write(file, data, at)

    monkeypatch.setattr(fcntl, "fcntl", flagged)
    monkeypatch.setattr(os, "pwrite", written)
    data = noise(4, SIZES[-1])
    past_cache.write(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data
    assert tries[0] == {"the flag": 0, "write": 1, "second write": 2}[refuses]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        past_cache.write(tmp_path / "file", noise(4, SIZES[-1]))
