"""Guests of a cluster: known with their children, ended for good, never confused with another process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from localcluster.errors import NotReadyError
from localcluster.namespaces import guests
from localcluster.namespaces.procfs import HOST_PROC, identify

PARENT_WITH_CHILD = "sleep 300 & echo started; wait"


def start(command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    return process


def test_a_guest_is_known_with_its_children_and_ended_with_them(tmp_path: Path) -> None:
    process = start(PARENT_WITH_CHILD)
    home = tmp_path / "airflow"
    guests.register(home, "part", process.pid)
    assert process.pid in guests.running(home)
    assert len(guests.running(home)) == 2
    assert guests.running(tmp_path) == guests.running(home)
    guests.stop(tmp_path)
    assert guests.running(home) == []
    process.wait(120)


def test_children_are_ended_after_their_leader_was_killed(tmp_path: Path) -> None:
    process = start(PARENT_WITH_CHILD)
    guests.register(tmp_path, "part", process.pid)
    process.kill()
    process.wait(120)
    assert len(guests.running(tmp_path)) == 1
    guests.stop(tmp_path)
    assert guests.running(tmp_path) == []


def test_a_guest_that_does_not_hear_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "STOP_TIMEOUT_S", 0.5)
    process = start("trap '' TERM; echo started; while :; do sleep 0.05; done")
    guests.register(tmp_path, "part", process.pid)
    guests.stop(tmp_path)
    assert process.wait(120) == -9


def test_a_guest_that_cannot_be_killed_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(guests, "KILL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(guests, "_signal", lambda pids, number: None)  # as if in an uninterruptible wait
    process = start(PARENT_WITH_CHILD)
    try:
        guests.register(tmp_path, "part", process.pid)
        with pytest.raises(NotReadyError, match=str(process.pid)):
            guests.stop(tmp_path)
    finally:
        os.killpg(process.pid, 9)
        process.wait(120)


def test_another_process_with_a_recorded_number_is_left_alone(tmp_path: Path) -> None:
    process = start(PARENT_WITH_CHILD)
    try:
        known = identify(HOST_PROC, process.pid)
        assert known is not None
        folder = tmp_path / guests.FOLDER
        folder.mkdir()
        (folder / "part").write_text(f"{known.pid} {known.started - 1}")
        assert guests.running(tmp_path) == []
        guests.stop(tmp_path)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, 9)
        process.wait(120)


def test_nothing_recorded_is_no_error(tmp_path: Path) -> None:
    guests.stop(tmp_path / "never-there")
    folder = tmp_path / guests.FOLDER
    folder.mkdir()
    (folder / "half-written").write_text("")
    assert guests.running(tmp_path) == []
