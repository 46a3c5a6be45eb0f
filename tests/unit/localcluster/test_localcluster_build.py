"""Which build is which, and what is said when it cannot be made."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from localcluster.errors import CommandError, HostError
from localcluster.images import gobuild
from localcluster.shell import run

PART = gobuild.GoPart("tool", [("theirs", "ours")], ["build", "-o", "{bin}/theirs", "."])
MODULE = "module example.test/tool\n\ngo 1.21\n"
PROGRAM = 'package main\n\nfunc main() { println("it runs") }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "go" / "tool"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(MODULE)
    (folder / "main.go").write_text(PROGRAM)
    monkeypatch.setattr(gobuild, "SOURCES", tmp_path / "go")
    return tmp_path / "go"


def test_key_changes_with_files_and_flags(sources: Path) -> None:
    keys = {gobuild.part_key(PART, sources)}
    (sources / "tool" / "go.sum").write_text("x")
    keys.add(gobuild.part_key(PART, sources))
    (sources / "tool" / "main.go").write_text(PROGRAM + "\n")
    keys.add(gobuild.part_key(PART, sources))
    changes: list[dict[str, Any]] = [
        {"ldflags": "-w"},
        {"command": ["install", "tool"]},
        {"env": {}},
        {"binaries": [("a", "b")]},
    ]
    for change in changes:
        keys.add(gobuild.part_key(dataclasses.replace(PART, **change), sources))
    assert len(keys) == 7


def test_every_part_has_its_module_with_pinned_sums() -> None:
    for part in (*gobuild.PARTS, gobuild.FAKE_GCS, gobuild.DRA_DRIVER):
        assert (gobuild.SOURCES / part.name / "go.mod").exists()
        assert (gobuild.SOURCES / part.name / "go.sum").exists()
    names = [ours for part in gobuild.PARTS for _, ours in part.binaries]
    assert len(set(names)) == len(names)


def test_kubernetes_version_is_the_one_of_its_module() -> None:
    assert f"k8s.io/kubernetes {gobuild.KUBERNETES_VERSION}" in (gobuild.SOURCES / "kubernetes" / "go.mod").read_text()


@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_builds_renames_and_keeps(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gobuild, "PARTS", (PART,))
    said: list[str] = []
    cache = tmp_path / "cache"
    assert gobuild.missing(cache) == [PART]
    binaries = gobuild.build_all(cache, said.append)
    assert run([binaries["ours"]]) == ""  # println writes to standard error
    assert len(said) == 2
    monkeypatch.setattr(gobuild, "find_go", lambda: pytest.fail("built again"))
    assert gobuild.build_all(cache, said.append) == binaries
    assert gobuild.missing(cache) == []


@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_failed_build_names_its_log_and_leaves_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gobuild, "PARTS", (PART,))
    (sources / "tool" / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    cache = tmp_path / "cache"
    with pytest.raises(CommandError, match=r"(?s)build-tool\.log.*undefined: undefined"):
        gobuild.build_all(cache, print)
    assert list((cache / "bin").iterdir()) == []


def test_no_go_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(HostError, match=r"Go is not installed.*go\.dev"):
        gobuild.find_go()
