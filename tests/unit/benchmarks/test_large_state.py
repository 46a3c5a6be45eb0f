"""Sizes that fit, and how speeds of a large state are told."""

from __future__ import annotations

import pytest

from benchmarks import large_state


def test_a_state_is_as_large_as_memory_and_disk_allow():
    assert large_state.fitting(8.0, memory=24e9, disk=64e9) == 8.0
    assert large_state.fitting(8.0, memory=13e9, disk=64e9) == 5.0, "the rank and the server are in memory"
    assert large_state.fitting(8.0, memory=24e9, disk=12e9) == 5.0, "images and a copy of them are on the disk"
    with pytest.raises(RuntimeError, match=r"3\.1 GB of memory, 64\.0 GB of disk are free; give 3 GB and twice"):
        large_state.fitting(8.0, memory=3.1e9, disk=64e9)


def test_a_folder_is_the_store_where_a_server_has_no_room_beside_the_rank():
    assert not large_state.needs_folder(12.0, memory=30e9, disk=64e9), "both fit"
    assert large_state.needs_folder(12.0, memory=22e9, disk=40e9)
    assert not large_state.needs_folder(12.0, memory=14e9, disk=40e9), "not even the rank fits"
    assert not large_state.needs_folder(12.0, memory=22e9, disk=20e9), "the disk is too small"


def test_speeds_are_told_with_the_bytes_that_each_has_moved():
    seconds = {"sequential_write": [2.0], "dump_and_put": [4.0, 6.0], "plain_upload": [1.0, 3.0], "cp": [8.0]}
    told = large_state.speeds(seconds, {"cp": 4_000_000_000, "": 10_000_000_000}, 8e9)
    assert told == "sequential write 4, dump and put 2, plain upload 4, cp 0.5"


@pytest.mark.parametrize("tool", ["fio", "dd"])
def test_a_plain_file_is_written_and_read(tmp_path, monkeypatch, tool):
    if tool == "dd":
        monkeypatch.setattr(large_state.shutil, "which", lambda name: None)
    elif large_state.shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    used, seconds = large_state.sequential(tmp_path / "plain", 2)
    assert used.startswith(tool)
    assert seconds.keys() == {"sequential_write", "sequential_read"}
    assert (tmp_path / "plain").stat().st_size == 2 << 20


def test_a_copy_for_which_the_disk_has_no_room_is_left_out(tmp_path, monkeypatch):
    image = tmp_path / "image"
    image.mkdir()
    (image / "pages.img").write_bytes(b"x" * 1000)
    seconds, said = {}, []
    monkeypatch.setattr(large_state, "SPARE_DISK", 0.0)
    assert large_state.beside([image], tmp_path / "cp", seconds, said.append) == 1000
    assert "cp" in seconds and not said
    monkeypatch.setattr(large_state, "SPARE_DISK", 1e18)
    assert large_state.beside([image], tmp_path / "cp", {}, said.append) == 1000
    assert said == ["no room on the disk for a copy of the images: cp is left out"]
