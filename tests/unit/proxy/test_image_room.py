"""How much images may take: the disk's room, and the limit of the volume that they lie in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from singularity_proxy.protocol import image_room as room
from singularity_proxy.protocol import names

MIB = 2**20


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


def test_without_a_limit_the_disk_decides(tmp_path: Path) -> None:
    there = room.of(tmp_path, None)

    def free() -> int:
        found = os.statvfs(tmp_path)
        return found.f_bavail * found.f_frsize

    # Others write to this disk at the same time.
    assert any(free() == room.of(tmp_path, None).left for _ in range(200))
    assert "MiB free" in there.words and "node's disk" in there.fix


def test_what_lies_there_counts_once_and_the_rest_is_left(tmp_path: Path) -> None:
    write(tmp_path / "old/rank-0/pages-1.img", 3 * MIB)
    (tmp_path / "old/rank-1").mkdir()
    os.link(tmp_path / "old/rank-0/pages-1.img", tmp_path / "old/rank-1/layer.tar")
    there = room.of(tmp_path, room.RESERVE + 10 * MIB)
    assert there.left == pytest.approx(7 * MIB, abs=64 * 1024)
    assert there.words == f"{tmp_path} may hold 7 MiB more: its limit is 26 MiB"
    assert room.of(tmp_path, MIB).left == 0, "never less than nothing"


def test_a_limit_beyond_the_disk_is_none(tmp_path: Path) -> None:
    assert "MiB free" in room.of(tmp_path, 1 << 60).words


@pytest.mark.parametrize(("text", "most"), [(None, None), ("", None), ("1048576", MIB)])
def test_the_limit_of_the_volume(text: str | None, most: int | None) -> None:
    assert room.limit({} if text is None else {names.ENV_IMAGE_ROOM: text}) == most


@pytest.mark.parametrize("text", ["1Gi", "-1", "1.5", "\u0661"])
def test_a_limit_that_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=names.ENV_IMAGE_ROOM):
        room.limit({names.ENV_IMAGE_ROOM: text})
