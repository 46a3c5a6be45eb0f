"""Locks exclude, time out with a sentence, and leave no file."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.locks import locked


def test_only_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside = 0
    most = 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locked(path, timeout=30):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not path.exists()


def test_the_holder_removes_the_folder_with_its_last_lock(tmp_path: Path) -> None:
    path, waits = tmp_path / "clusters" / "lock", threading.Event()
    got: list[bool] = []

    def wait_for_it() -> None:
        with locked(path, timeout=30, on_wait=waits.set):
            got.append(path.exists())

    second = threading.Thread(target=wait_for_it)
    with locked(path, timeout=30):
        second.start()
        assert waits.wait(120)
        path.unlink()  # as at the end of the block, but the second one may not come in between
        path.parent.rmdir()
    second.join(120)
    assert got == [True] and not path.exists()


def test_held_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from localcluster.locks import locked\n"
        "with locked(Path(sys.argv[1]), timeout=5): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        told: list[str] = []
        with (
            pytest.raises(LocalClusterError, match=r"has held .*lock for 0 s"),
            locked(path, timeout=0.3, on_wait=lambda: told.append("waiting")),
        ):
            pytest.fail("the lock was given twice")
        assert told == ["waiting"]
        holder.kill()  # the kernel drops the lock; the file stays and must not be in the way
    with locked(path, timeout=5):
        pass
    assert not path.exists()
