"""What could be saved and not be restored: it is refused at the dump by name, or mended. Real CRIU.

Files of volumes belong to others, too: what they may do to one that a rank has open, and what they may not.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_failure_policy import action
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from program_runs import PROGRAMS

from kueue_integration.manifests.job_manifests import failure_rules
from singularity_proxy.launcher.snapshot import death_signals, files_image, protobuf, volume_files
from singularity_proxy.launcher.snapshot.protobuf import Field
from singularity_proxy.protocol import exit_codes, messages

criu = [pytest.mark.criu]
FULL = pytest.mark.full
Make = Callable[..., Pod]
Run = Callable[..., Pod]
G = 5
READ, WRITE, COPY = mmap.ACCESS_READ, mmap.ACCESS_WRITE, mmap.ACCESS_COPY
SEAL_SHRINK, SEAL_WRITE = 2, 8
SIGTERM = 15
USES = [
    ["opened", "rb"], ["opened", "r+b"], ["opened", "ab"], ["mapped", READ, False], ["mapped", READ, True],
    ["mapped", WRITE, True], ["mapped", COPY, True],
]  # fmt: skip
"""Ways to use a file of a volume."""
FILES = [f"/shared/{number}" for number in range(len(USES))]
ON_VOLUME = [[kind, path, *how] for path, (kind, *how) in zip(FILES, USES, strict=True)]
MENDED = [
    ["death", SIGTERM], ["widow", True, True], ["memfd", SEAL_WRITE, mmap.MAP_PRIVATE, False],
    ["memfd", SEAL_WRITE, 0, False], ["memfd", SEAL_SHRINK, mmap.MAP_SHARED, True],
]  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    for path in FILES:
        (folder / Path(path).name).write_bytes(b"before" * 1000)
    return folder


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path, shared: Path) -> Run:
    def make(name: str, things: Sequence[Any], source: Pod | None = None) -> Pod:
        plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
        if source is not None:
            plan = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, G, "c")
        command = ["python3", "edges.py", json.dumps(things, separators=(",", ":"))]
        pod = make_pod(name, rootfs=rootfs, torch=None, plan=plan, command=command, criu=criu_bundle, shared=shared)
        shutil.copy(PROGRAMS / "edges.py", pod.volumes / "source/edges.py")
        if source is not None:
            pod.bring(source, "c", 0)
        return pod.start()

    return make


def asked(pod: Pod, number: int) -> Any:
    cwd = pod.work(0) / "cwd"
    until(cwd.exists, "it starts", pod)
    (cwd / f"ask-{number}").touch()
    until(lambda: (cwd / f"state-{number}").exists(), "an answer", pod)
    return json.loads((cwd / f"state-{number}").read_text())


def saved(run: Run, name: str, things: Sequence[Any]) -> tuple[Pod, Any]:
    pod = run(name, things)
    before = asked(pod, 0)
    event = dump_anywhere(pod, G)
    assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
    pod.delete()
    return pod, before


class TestFilesOfAVolume:
    pytestmark = criu

    def test_what_has_only_grown_is_opened_again(self, run: Run, shared: Path) -> None:
        old, before = saved(run, "old", [*ON_VOLUME, *MENDED])
        for path in FILES:
            with (shared / Path(path).name).open("ab") as file:
                file.write(b"more" * 100)
        new = run("new", [], old)
        new.wait_event("restored")
        assert asked(new, 1) == before
        assert "/shared/0 has grown from 6000 to 6400 bytes since the checkpoint" in new.log()

    @pytest.mark.parametrize("change", ["gone", *(pytest.param(how, marks=FULL) for how in ("shorter", "a folder"))])
    def test_what_is_gone_or_shorter_is_waited_for_by_name(self, run: Run, shared: Path, change: str) -> None:
        """The attempt is lost and not the job; the same checkpoint is restored once the file is back."""
        old, before = saved(run, "old", ON_VOLUME)
        file = shared / "3"
        content = file.read_bytes()
        file.unlink()
        if change == "shorter":
            file.write_bytes(content[:-1])
        elif change == "a folder":
            file.mkdir()
        pod = run("lost", [], old)
        code = pod.wait()
        assert (code, action(failure_rules(), code)) == (exit_codes.LOST, "Ignore"), pod.log()
        event = pod.wait_event_after_end("restore_failed")
        said = "has 5999 bytes, and had 6000" if change == "shorter" else "(6000 bytes), which rank 0"
        assert "/shared/3" in event.message and said in event.message and event.code == exit_codes.LOST
        assert "another image" not in event.message and not pod.work(0).exists(), "nothing was begun"
        if change == "a folder":
            file.rmdir()
        file.write_bytes(content)
        new = run("new", [], old)
        new.wait_event("restored")
        assert asked(new, 1) == before

    def test_two_jobs_that_change_one_file(self, run: Run, shared: Path) -> None:
        """Each is restored with what the other one has written meanwhile."""
        things = [["appends", "/shared/0"], ["opened", "/shared/0", "rb"], ["mapped", "/shared/0", READ, False]]
        one, other = saved(run, "one", things), saved(run, "other", things)
        for name, (source, before) in (("other-2", other), ("one-2", one)):
            new = run(name, [], source)
            new.wait_event("restored")
            assert asked(new, 1) == before
            new.delete()
        assert (shared / "0").read_bytes() == b"before" * 1000 + b"a line\n" * 4


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (["widow", True, False], "has a connection over /tmp/True-False.sock (descriptor "),
        pytest.param(["widow", False, False], "has a connection over /tmp/False-False.sock (descriptor ", marks=FULL),
        pytest.param(["memfd", SEAL_WRITE, mmap.MAP_SHARED, False], "has mapped /memfd:sealed", marks=FULL),
        (["memfd", SEAL_WRITE | SEAL_SHRINK, mmap.MAP_SHARED, True], "has mapped /memfd:sealed"),
    ],
)
class TestRefused:
    pytestmark = criu

    def test_it_is_named_and_goes_on(self, run: Run, thing: list[Any], said: str) -> None:
        pod = run("pod", [thing])
        before = asked(pod, 0)
        event = dump_anywhere(pod, G)
        assert event.kind == "dump_failed"
        assert f"rank 0: python3 edges.py [[\"{thing[0]}\"" in event.message and said in event.message
        assert " (pid 1000) " in event.message
        pod.sidecar.command("resume", generation=G)
        assert asked(pod, 1) == before


# --- the images -------------------------------------------------------------------------------------------------------
def test_only_these_files_lose_their_size() -> None:
    def regular(name: str) -> bytes:
        entry = [Field(1, 0, 7), Field(6, 2, name.encode()), Field(8, 0, 6000), Field(10, 0, 0o644), Field(3, 0, 9)]
        return protobuf.encode([Field(1, 0, 1), Field(2, 0, 7), Field(3, 2, protobuf.encode(entry))])

    data = protobuf.image(files_image.BEGIN, [regular("/shared/a"), regular("shared/b"), regular("/shared/c")])
    found = files_image.entries(volume_files.freed(data, ["/shared/a", "/shared/b"]), 3)
    assert [[f.number for f in entry] for entry in found] == [[1, 6, 3], [1, 6, 3], [1, 6, 8, 10, 3]]
    assert volume_files.freed(data, ["/shared"]) == data


def _tree(*processes: tuple[int, int, list[int]]) -> bytes:
    entries = [
        protobuf.encode([Field(1, 0, pid), Field(2, 0, parent), *(Field(5, 0, thread) for thread in threads)])
        for pid, parent, threads in processes
    ]
    return protobuf.image(death_signals._TREE, entries)


def test_the_signal_of_the_first_process_is_left_out_and_no_other(tmp_path: Path) -> None:
    (tmp_path / death_signals.TREE).write_bytes(_tree((1000, 0, [1000, 1002]), (1001, 1000, [1001])))
    thread = [Field(1, 0, 5), Field(8, 0, SIGTERM), Field(13, 2, b"python3")]
    core = protobuf.image(
        death_signals._CORE, [protobuf.encode([Field(1, 0, 1), Field(5, 2, protobuf.encode(thread)), Field(3, 2, b"")])]
    )
    for number in (1000, 1001, 1002):
        (tmp_path / f"core-{number}.img").write_bytes(core)
    death_signals.leave_out(tmp_path)
    [kept] = protobuf.messages((tmp_path / "core-1002.img").read_bytes(), death_signals._CORE)
    inner = [f.value for f in protobuf.fields(kept) if f.number == 5]
    assert inner == [protobuf.encode([thread[0], thread[2]])]
    assert (tmp_path / "core-1000.img").read_bytes() == (tmp_path / "core-1002.img").read_bytes()
    assert (tmp_path / "core-1001.img").read_bytes() == core


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=5))
def test_files_are_compared_with_what_is_there(tmp_path_factory: pytest.TempPathFactory, sizes: Any) -> None:
    """Sparse files of any size, had and found: shorter ones are refused together, grown ones told."""
    folder = tmp_path_factory.mktemp("volume")
    had = []
    for number, (before, now) in enumerate(sizes):
        path = folder / str(number)
        with path.open("wb") as file:
            file.truncate(now)
        had.append(volume_files.VolumeFile(str(path), before))
    shorter = [f.path for f, (before, now) in zip(had, sizes, strict=True) if now < before]
    if shorter:
        with pytest.raises(volume_files.RestoreError) as raised:
            volume_files.check({0: had})
        assert raised.value.exit_code == exit_codes.LOST and shorter[0] in str(raised.value)
    else:
        grown = [f.path for f, (before, now) in zip(had, sizes, strict=True) if now > before]
        assert [line.split(" ")[0] for line in volume_files.check({0: had})] == grown


def test_what_is_below_the_launchers_folder_travels_also_where_that_lies_on_a_volume(tmp_path: Path) -> None:
    own, beside = tmp_path / "own", tmp_path / "beside"
    for folder in (own, beside):
        folder.mkdir()
        (folder / "losses").write_text("1\n")
    with (own / "losses").open("a"), (beside / "losses").open("a"):
        for volumes in ([str(tmp_path)], [str(tmp_path), str(own)]):
            held = volume_files.held([os.getpid()], volumes, own)
            assert [file.path for file in held] == [str(beside / "losses")]
