"""What an image of a rank keeps beside its memory, and what is read of `/proc` for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singularity_proxy.launcher import reap
from singularity_proxy.launcher.errors import (
    RestoreError,
)
from singularity_proxy.launcher.ranks import process_scan
from singularity_proxy.launcher.snapshot import archive, container_layer, image, sockets


# --- images -----------------------------------------------------------------------------------------------------------
def record(**changes: object) -> image.RankRecord:
    fields: dict[str, object] = {"rank": 1, "root": 1000, "step": 7, "log_size": 10}
    return image.RankRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_record_comes_back(tmp_path: Path) -> None:
    wanted = record(written=[image.WrittenFile("/data/out", 5)], mapped=[image.MappedFile("/lib/libc.so.6", 9, "0a")])
    image.write_record(tmp_path, wanted)
    assert image.read_record(tmp_path) == wanted


@pytest.mark.parametrize("text", [None, "{", '{"rank": 1}', '{"rank": "1"}'])
def test_a_broken_record_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / image.RECORD).write_text(text)
    with pytest.raises(RestoreError, match="the image is incomplete"):
        image.read_record(tmp_path)


def test_folders_travel_with_links_and_permissions_without_sockets(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "tmp").mkdir(parents=True)
    (work / "run.sh").write_text("x")
    (work / "run.sh").chmod(0o750)
    (work / "latest").symlink_to("/data/elsewhere")
    os.link(work / "run.sh", work / "same")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "tmp/s"))
        image.pack(work, tmp_path / "work.tar")
    image.unpack(tmp_path / "work.tar", tmp_path / "new")
    assert (tmp_path / "new/run.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "new/latest").readlink() == Path("/data/elsewhere")
    assert (tmp_path / "new/same").samefile(tmp_path / "new/run.sh")
    assert not (tmp_path / "new/tmp/s").exists()


@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 50_000)), max_size=5),
    st.integers(0, 1 << 21),
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9), st.binary(max_size=9)
    ),
)
@settings(deadline=None)
def test_holes_and_attributes_come_back(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], size: int, attributes: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("holes")
    (folder / "work").mkdir()
    file = folder / "work/file"
    with file.open("wb") as out:
        for at, length in writes:
            out.seek(at)
            out.write(os.urandom(length))
        out.truncate(max(size, out.tell()))
    (folder / "work/next").write_text("behind it")
    for name, value in attributes.items():
        os.setxattr(file, f"user.{name}", value)
    image.pack(folder / "work", folder / "work.tar")
    image.unpack(folder / "work.tar", folder / "new")
    new = folder / "new/file"
    assert new.read_bytes() == file.read_bytes() and (folder / "new/next").read_text() == "behind it"
    assert archive.extents(new) == archive.extents(file)
    assert {name: os.getxattr(new, name) for name in os.listxattr(new)} == {
        f"user.{name}": value for name, value in attributes.items()
    }
    for pair in ("work", "new"):
        container_layer.pack([folder / pair / "file"], folder / f"{pair}.layer", folder / pair)
    assert container_layer.difference(folder / "work.layer", folder / "new.layer") is None


def test_a_file_with_large_holes_is_as_small_as_its_data(tmp_path: Path) -> None:
    """And another content between the same holes is seen."""
    (tmp_path / "work").mkdir()
    packed = []
    for name, content in (("one", b"end"), ("other", b"END")):
        with (tmp_path / "work/file").open("wb") as file:
            file.truncate(100 << 30)
            os.pwrite(file.fileno(), content, 99 << 30)
        assert container_layer.sizes([tmp_path / "work/file"])[tmp_path / "work/file"] < 1 << 20
        packed.append(tmp_path / name)
        container_layer.pack([tmp_path / "work/file"], packed[-1], tmp_path / "work")
        assert packed[-1].stat().st_size < 1 << 20
    assert container_layer.difference(*packed) == "/file"


def test_only_attributes_of_a_user_are_taken_from_an_archive() -> None:
    """A checkpoint could give a program a capability otherwise."""
    member = tarfile.TarInfo("file")
    names = ("user.a", "system.posix_acl_access", "security.capability", "trusted.overlay.opaque")
    member.pax_headers = {f"SCHILY.xattr.{name}": "x" for name in names}
    assert [*archive.attributes(member)] == ["user.a", "system.posix_acl_access"]


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "work.tar").write_bytes(b"x" * 2000)
    with pytest.raises(RestoreError, match=r"work\.tar cannot be unpacked"):
        image.unpack(tmp_path / "work.tar", tmp_path / "new")


def test_files_outside_keep_what_others_have_written(tmp_path: Path) -> None:
    grown, same, less = (tmp_path / n for n in ("grown", "same", "less"))
    for path, size in ((grown, 9), (same, 5), (less, 2)):
        path.write_bytes(b"x" * size)
    said = image.differing(record(written=[image.WrittenFile(str(p), 5) for p in (grown, same, less)]))
    assert [p.stat().st_size for p in (grown, same, less)] == [9, 5, 2]
    assert len(said) == 2
    assert "has 9 bytes, had 5 at the checkpoint, and is left so" in said[0]
    with pytest.raises(RestoreError, match="had /no/such open for writing, which is not in this pod"):
        image.differing(record(written=[image.WrittenFile("/no/such", 5)]))


# --- /proc ------------------------------------------------------------------------------------------------------------
def test_sockets_and_files_of_a_process_are_found(tmp_path: Path) -> None:
    projected = tmp_path / "..2026_11_20_21_00_00.123"
    projected.mkdir()
    (projected / "token").write_text("t")
    code = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())\n"
        "keep = [open(p, m) for p, m in zip(sys.argv[1:5], 'rwaw')]; gone = open(sys.argv[4] + 'x', 'w')\n"
        "import os; os.unlink(gone.name)\n"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()\n"
    )
    inside = tmp_path / "work"
    inside.mkdir()
    files = [projected / "token", tmp_path / "out", tmp_path / "log", inside / "mine"]
    argv = [sys.executable, "-c", code, *map(str, files)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        kept = sockets.kept([process.pid])
        assert any(f"(pid {process.pid}) listens on 127.0.0.1:{port}" in text for text in kept)
        refused = sockets.refused([process.pid])
        assert len(refused) == 1  # the server has not accepted: the other end is nobody's yet
        assert f"to 127.0.0.1:{port} (descriptor " in refused[0]
        assert [str(files[0]) in text for text in process_scan.projected_files([process.pid])] == [True]
        assert process_scan.written_files([process.pid], inside) == sorted([tmp_path / "out", tmp_path / "log"])
        assert process.pid in process_scan.processes(os.getpid())
        process.communicate("")
    assert sockets.refused([process.pid]) == sockets.kept([process.pid]) == []
    assert process.pid not in process_scan.processes(os.getpid())


def test_only_orphans_are_reaped() -> None:
    """As pid 1 would: a child of ours is left to its owner, a grandchild whose parent died is collected."""
    code = (
        "import ctypes, os, subprocess, sys, time\n"
        "from singularity_proxy.launcher import reap\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n"  # subreaper
        "own = reap.spawn(['sh', '-c', 'exit 7'])\n"
        "parent = reap.spawn(['sh', '-c', 'sleep 0.2 & echo $!'], stdout=subprocess.PIPE)\n"
        "orphan = int(parent.stdout.read()); parent.wait(); reap.forget(parent)\n"
        "end = time.monotonic() + 120; got = []\n"
        "own.wait(); reap.forget(own)\n"
        "while orphan not in got and time.monotonic() < end:\n"
        "    got += reap.orphans(); time.sleep(0.01)\n"
        "print(orphan in got, own.returncode)\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, text=True, capture_output=True,
        timeout=200, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "7"]
    assert reap.orphans() == []


def test_a_stop_under_ptrace_is_left_to_the_thread_that_waits_for_it() -> None:
    """The launcher looks for orphans while a thread of it looks at restored ranks."""
    code = (
        "import os, subprocess, time\n"
        "from singularity_proxy.launcher import reap\n"
        "from singularity_proxy.launcher.ranks import traced\n"
        "class Late(traced.Traced):\n"
        "    def wait(self):\n"
        "        end = time.monotonic() + 120\n"
        "        while open(f'/proc/{self._task}/stat').read().rpartition(')')[2].split()[0] != 't':\n"
        "            assert time.monotonic() < end, 'it does not stop'\n"
        "        assert reap.orphans() == []\n"
        "        assert os.waitpid(self._task, traced._WALL | os.WNOHANG)[0] == self._task\n"
        "process = subprocess.Popen(['sleep', '60'])\n"
        "with Late(process.pid):\n"
        "    pass\n"
        "process.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
