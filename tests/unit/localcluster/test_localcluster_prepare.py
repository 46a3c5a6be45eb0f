"""What is built before which command: a demo waits for nothing that only tests need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from localcluster import debian_tools, host, prepare
from localcluster.images import gobuild, rootfs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the programs that were asked for; nothing is built."""
    made: list[str] = []

    def one(part: gobuild.GoPart, cache: Path, progress: object) -> Path:
        made.append(part.name)
        return gobuild.folder(part, cache)

    monkeypatch.setattr(host, "check_root", lambda: None)
    monkeypatch.setattr(host, "check", lambda cache, progress: None)

    def tool(which: debian_tools.Tool, cache: Path, progress: object) -> Path:
        made.append(which.name)
        return tmp_path

    monkeypatch.setattr(gobuild, "build", one)
    monkeypatch.setattr(debian_tools, "made", tool)
    for name in ("debian", "torch"):
        monkeypatch.setattr(rootfs, name, lambda cache, progress: tmp_path)
    return made


@pytest.mark.parametrize(
    ("arguments", "with_it"), [([], True), (["--demo"], False), (["--env"], True), (["--env", "--demo"], True)]
)
def test_only_a_demo_does_without_the_server_that_tests_need(
    built: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], with_it: bool
) -> None:
    monkeypatch.setattr("sys.argv", ["prepare", *arguments])
    assert prepare.main() == 0
    for name in (gobuild.FAKE_GCS.name, *(tool.name for tool in debian_tools.TOOLS)):
        assert (name in built) is with_it
    assert {part.name for part in gobuild.PARTS} <= set(built)


@pytest.mark.parametrize(("goals", "wanted"), [("demo", "--demo"), ("test", ""), ("demo test", ""), ("bench", "")])
def test_make_says_which_command_it_prepares_for(goals: str, wanted: str) -> None:
    asked = ["make", "--no-print-directory", "-n", *goals.split()]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120).stdout
    line = next(line for line in said.splitlines() if "PARTS_OF=" in line)
    assert f'PARTS_OF="{wanted}"' in line
