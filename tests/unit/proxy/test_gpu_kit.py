"""The GPU kit from its folder, on a machine with python3 and torch only and no network, against the fake driver."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from kit_world import run_kit
from waits import until

from gpukit import build, report, runner
from gpukit.kit import Check, Kit, PartError, Result, SkipPartError
from gpukit.parts import limits

QUICK = ("facts", "cycle", "limits", "userns")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Path:
    """Without packages, which come from a network."""
    target = tmp_path_factory.mktemp("kit") / "gpu-kit"
    archive = build.build(target, "3.14", rootfs, packages=False)
    assert archive.stat().st_size < build.LIMIT
    return target


def read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / report.JSON).read_text()))


def play(rootfs: Path, agent_rootfs: Path, torch_env: Path, folder: Path, *wanted: str) -> dict[str, Any]:
    """Carry the kit with packages to a machine and run these parts, or all; what the report says of them."""
    kit, out = folder / "gpu-kit", folder / "report"
    python = (rootfs / "usr/bin/python3").readlink().name.removeprefix("python")
    assert build.build(kit, python, agent_rootfs).stat().st_size < build.LIMIT
    done = run_kit(kit, rootfs, torch_env, out, *wanted, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    parts: dict[str, Any] = read(out)["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(wanted or runner.PARTS, "passed")
    assert all(part["checks"] for part in parts.values())
    what_they_say(parts)
    text = (out / report.MARKDOWN).read_text()
    assert "fake driver" in text and "GB/s" not in text
    return parts


@pytest.mark.criu
def test_parts_of_each_kind(rootfs: Path, agent_rootfs: Path, torch_env: Path, tmp_path: Path) -> None:
    """The machine, the driver, and what is refused; the other parts play moves."""
    play(rootfs, agent_rootfs, torch_env, tmp_path, *QUICK)


@pytest.mark.criu
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_part_and_a_second_run(rootfs: Path, agent_rootfs: Path, torch_env: Path, tmp_path: Path) -> None:
    parts = play(rootfs, agent_rootfs, torch_env, tmp_path)
    again = run_kit(tmp_path / "gpu-kit", rootfs, torch_env, tmp_path / "report")
    assert again.returncode == 0 and again.stdout.count("passed in an earlier run") == len(runner.PARTS)
    assert read(tmp_path / "report")["parts"]["move"]["seconds"] == parts["move"]["seconds"]


def what_they_say(parts: dict[str, Any]) -> None:
    figures = parts["facts"]["figures"]
    assert "version: 4." in figures["criu"] and "SYS_ADMIN: True" in figures["capabilities"]
    assert "80.0 GiB used, 50 % busy" in figures["NVML, GPU 0"]
    assert any("no NVIDIA GPU" in note for note in parts["facts"]["notes"])
    assert sum("every bit is back" in check["name"] for check in parts["cycle"]["checks"]) >= 3
    for moved in parts.get("nccl", {"checks": []})["checks"]:
        assert moved["name"] == "ddp: stopped in place, then moved" and "600 losses" in moved["detail"]
    refused = [check["name"] for check in parts["limits"]["checks"]]
    assert [name for name in refused if name.startswith("MPS")] == ["MPS is refused with the sentence"]


@pytest.mark.criu
def test_a_part_that_hangs_is_ended_with_all_that_it_has_started(
    kit: Path, torch_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`move` waits for ranks that never come: this interpreter has no torch."""
    monkeypatch.setenv("PYTHONPATH", str(kit / "code"))
    monkeypatch.setattr(runner, "GRACE_S", 2.0)
    mine = f"{tmp_path}/parts"
    (tmp_path / "parts").mkdir()
    monkeypatch.setenv("TMPDIR", mine)
    monkeypatch.setattr("tempfile.tempdir", mine)
    (kit / "code/gpukit/programs/train.py").write_text("import time\ntime.sleep(600)\n")
    found = runner._bounded(kit, "move", fake=True, limit=8.0)
    assert found.status == "failed" and "had not ended after 8 s" in found.sentence
    assert list(Path(mine).iterdir()) == []
    until(lambda: not _with_word(mine), "its processes have ended", pace_s=0.1, detail=lambda: str(_with_word(mine)))


def _with_word(word: str) -> list[str]:
    """Command lines and environments of processes that name it, but our own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in text and folder.name != str(os.getpid()):
            found.append(text.decode(errors="replace")[:200])
    return found


# --- the runner, without root -----------------------------------------------------------------------------------------
class Parts:
    """Stands in for the processes of the parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.becomes: dict[str, Result] = {}
        self.killed_at = ""
        monkeypatch.setattr(runner, "_bounded", self._run)

    def _run(self, root: Path, name: str, fake: bool, limit: float) -> Result:
        if name == self.killed_at:
            raise KeyboardInterrupt
        self.ran.append(name)
        return self.becomes.get(name) or Result("passed", f"{name} is well")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def test_a_second_run_goes_on_where_the_first_ended(parts: Parts, tmp_path: Path) -> None:
    parts.killed_at = "nccl"
    with pytest.raises(KeyboardInterrupt):
        runner.run(tmp_path, tmp_path, [], True, False)
    assert read(tmp_path)["running"] == "nccl"
    parts.killed_at, first = "", list(parts.ran)
    assert runner.run(tmp_path, tmp_path, [], True, False) == 0
    assert parts.ran == list(runner.PARTS) and len(first) == 3
    assert runner.run(tmp_path, tmp_path, ["cycle"], True, False) == 0  # asked for by name
    assert parts.ran[len(runner.PARTS) :] == ["cycle"]
    assert "running" not in read(tmp_path)


def test_a_part_that_fails_does_not_end_the_others(parts: Parts, tmp_path: Path) -> None:
    parts.becomes["cycle"] = Result("failed", "no | device", [Check("a", True), Check("b", False, "why")])
    parts.becomes["many"] = Result("skipped", "one GPU")
    assert runner.run(tmp_path, tmp_path, [], True, False) == 1
    assert parts.ran == list(runner.PARTS)
    text = (tmp_path / report.MARKDOWN).read_text()
    assert "| cycle | failed | 0 | no \\| device |" in text and "- **FAILED**: b: why" in text
    assert report.read(tmp_path)["cycle"] == parts.becomes["cycle"]


@pytest.mark.parametrize("spoiled", ["", "[]", '{"parts": 3}', '{"parts": {"cycle": {"status": "passed"}}}'])
def test_a_report_that_cannot_be_read_is_begun_anew(parts: Parts, tmp_path: Path, spoiled: str) -> None:
    (tmp_path / report.JSON).write_text(spoiled)
    assert runner.run(tmp_path, tmp_path, ["facts"], True, False) == 0
    assert list(read(tmp_path)["parts"]) == ["facts"]


@pytest.mark.parametrize(
    ("ends", "status", "sentence"),
    [
        (None, "passed", ""),
        (PartError("no barrier"), "failed", "PartError: no barrier"),
        (SkipPartError("one GPU"), "skipped", "one GPU"),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError: x"),
        ("check", "failed", "bits: at step 3"),
    ],
)
def test_how_a_part_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Any, status: str, sentence: str
) -> None:
    from gpukit.parts import facts

    def run(kit: Kit, result: Result) -> None:
        result.check("bits", ends != "check", "at step 3")
        if isinstance(ends, Exception):
            raise ends

    monkeypatch.setattr(facts, "run", run)
    answer = tmp_path / "answer"
    assert runner.part(tmp_path, "facts", answer, 60.0, True) == 0
    found = Result.from_dict(json.loads(answer.read_text()))
    assert (found.status, found.sentence) == (status, sentence)


def test_packages_for_another_python_are_left_alone(tmp_path: Path) -> None:
    from gpukit.kit import own_packages

    assert "without packages" in own_packages(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/PYTHON").write_text("2.7\n")
    assert "make gpu-kit PYTHON=" in own_packages(tmp_path)


# --- a daemon of MPS that is ours -------------------------------------------------------------------------------------
def mps_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Kit:
    """A machine whose control daemon is a shell script."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / limits.MPS
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.delenv(limits.MPS_DIRECTORY, raising=False)
    return Kit(tmp_path, tmp_path, fake=False, until=time.monotonic() + 60)


def test_clients_of_mps_get_a_daemon_of_their_own_which_ends_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = mps_of(
        tmp_path, monkeypatch, f'echo $$ > "{tmp_path}/pid"; : > "$CUDA_MPS_PIPE_DIRECTORY/control"; exec sleep 60'
    )
    with limits._mps(kit) as variables:
        assert variables is not None and Path(variables[limits.MPS_DIRECTORY]).parent == tmp_path
        pid = int((tmp_path / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("lines", "sentence"), [("exit 3", "ended with code 3"), ("exec sleep 60", "no control file")])
def test_a_daemon_of_mps_that_does_not_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, sentence: str
) -> None:
    monkeypatch.setattr(limits, "CONTROL_S", 0.5)
    with pytest.raises(PartError, match=sentence), limits._mps(mps_of(tmp_path, monkeypatch, lines)):
        pass


def test_a_machine_without_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = mps_of(tmp_path, monkeypatch, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with limits._mps(kit) as variables:
        assert variables is None
