"""The folder that pods share: whoever makes the store's folders, pods of another user may write there."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localcluster import shared_folder

NOBODY = 65532
WRITE = 'umask 077; mkdir -p "$1" && echo x >>"$1/f"'


def write(folder: Path, user: int) -> int:
    """Exit status of a process that makes the folder and appends to a file in it, under a strict umask."""
    return subprocess.run(["sh", "-c", WRITE, "sh", folder], user=user, group=user, extra_groups=[]).returncode


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("becomes another user: needs root")
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)  # pytest's own folders are of one user
    return tmp_path / "shared"


@pytest.mark.parametrize(("first", "second"), [(0, NOBODY), (NOBODY, 1001)])
def test_what_one_user_makes_in_the_store_another_may_write(shared: Path, first: int, second: int) -> None:
    shared_folder.prepare(shared)
    shared_folder.prepare(shared)
    place = shared / shared_folder.STORE / "jobs" / "default"
    assert write(place / "a", first) == 0
    assert write(place / "b", second) == 0
    assert write(place / "a", second) == 0, "also in a folder of the other, whatever the umask of the other was"
    assert write(shared / "mine", second) == 0
    assert write(shared / "mine", 1002 if second == NOBODY else NOBODY) != 0, "elsewhere a folder is its maker's"


def test_a_file_system_without_acls_still_has_a_store_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refused)
    shared_folder.prepare(tmp_path / "shared")
    assert (tmp_path / "shared" / shared_folder.STORE).stat().st_mode & 0o777 == 0o777


def test_another_failure_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(OSError, match="broken"):
        shared_folder.prepare(tmp_path / "shared")
