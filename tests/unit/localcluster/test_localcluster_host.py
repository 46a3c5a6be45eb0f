"""What is said about a machine that cannot run a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from localcluster import host
from localcluster.config import NODES, ClusterConfig
from localcluster.errors import HostError
from localcluster.namespaces import cgroups

Usage = namedtuple("Usage", "total used free")


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match=r"needs root.*sudo"):
        host.check_root()


def test_disk_full_names_place_and_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 99, host.GIB // 2))
    target = tmp_path / "not" / "yet"
    with pytest.raises(HostError) as caught:
        host.check_space(target, 4 * host.GIB)
    text = str(caught.value)
    assert f"{tmp_path} has 0.5 GiB free, 4 GiB are needed for {target}" in text
    assert "SINGULARITY_CACHE" in text
    host.check_space(target, host.GIB // 4)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    wanted = {"sh": "dash", "no-such-program": "nowhere", str(tmp_path / "there"): "x", str(tmp_path / "gone"): "y"}
    monkeypatch.setattr(host, "PACKAGES", wanted)
    assert host.missing_packages() == ["nowhere", "y"]


def test_missing_packages_on_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "PACKAGES", {"no-such-program": "nowhere"})
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(HostError, match="not Debian: install what its packages nowhere contain"):
        host.install_packages(tmp_path, print)


def v1(root: Path, *, without: str = "") -> Path:
    for name in cgroups.V1_NEEDED:
        if name != without:
            (root / name).mkdir(parents=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        (root / "cpuset" / name).write_text("0-1\n")
    return root


def test_cgroup_versions(tmp_path: Path) -> None:
    assert cgroups.version(v1(tmp_path / "one")) == 1
    two = tmp_path / "two"
    two.mkdir()
    (two / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert cgroups.version(two) == 2


def test_unsupported_cgroups_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="hierarchies freezer: mount them"):
        cgroups.version(v1(tmp_path / "one", without="freezer"))
    two = tmp_path / "two"
    two.mkdir()
    (two / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(HostError, match=r"lacks the controllers cpuset, pids.*--privileged"):
        cgroups.version(two)


def test_groups_are_made_in_every_hierarchy_and_removed(tmp_path: Path) -> None:
    root = v1(tmp_path / "cgroup")
    (root / "cpu,cpuacct").symlink_to(root / "cpu")
    config = ClusterConfig("unit", 0, tmp_path)
    # The kernel puts these files into every new group; here only the first level can have them beforehand.
    (root / "cpuset" / config.cgroup).mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        (root / "cpuset" / config.cgroup / name).write_text("\n")
    cgroups.create(config, NODES, root)
    assert (root / "cpuset" / config.cgroup / "cpuset.cpus").read_text() == "0-1\n"
    for hierarchy in cgroups.V1_NEEDED:
        assert {path.name for path in (root / hierarchy / config.cgroup).iterdir() if path.is_dir()} == {
            member.name for member in NODES
        }
        for path in (root / hierarchy / config.cgroup).glob("cpuset.*"):
            path.unlink()  # files of a group do not keep the kernel from removing it
    cgroups.remove(config, root)
    assert [str(path) for path in root.rglob(config.cgroup)] == []
    cgroups.remove(config, root)


def test_refusal_of_the_kernel_is_explained(tmp_path: Path) -> None:
    root = v1(tmp_path / "cgroup")
    config = ClusterConfig("unit", 0, tmp_path)
    (root / "memory" / config.cgroup).write_text("a file is in the way")
    with pytest.raises(HostError, match=r"memory/singularity-local-unit cannot be set up"):
        cgroups.create(config, NODES, root)


def test_a_container_gives_its_controllers_away_although_processes_were_in_its_root() -> None:
    """Groups of the kernel's. Those of the machine's own root stay where they are."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 rw" in line]
    if not mounted or os.geteuid() != 0:
        pytest.skip("no cgroup v2 that may be written to on this machine")
    group = Path(mounted[0]) / f"unit-{os.getpid()}"
    group.mkdir()
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            (group / "cgroup.procs").write_text(str(process.pid))
            cgroups.clear_root(group)
            assert (group / "cgroup.procs").read_text() == ""
            assert (group / cgroups.ASIDE / "cgroup.procs").read_text().split() == [str(process.pid)]
            cgroups.clear_root(group)
            process.communicate(timeout=10)
    finally:
        for path in (group / cgroups.ASIDE, group):
            path.rmdir()
    if not (Path(mounted[0]) / "cgroup.type").exists():
        cgroups.clear_root(Path(mounted[0]))
        assert not (Path(mounted[0]) / cgroups.ASIDE).exists()


def test_this_machine_passes(tmp_path: Path) -> None:
    assert cgroups.version() in (1, 2)
    assert cgroups.hierarchies()


def test_few_inotify_instances_become_more_and_many_stay(tmp_path: Path) -> None:
    limit, said = tmp_path / "max_user_instances", []
    limit.write_text("128\n")
    host.raise_inotify(said.append, limit)
    assert int(limit.read_text()) == host.INOTIFY_LEAST and "128 until now" in said.pop()
    limit.write_text("8192\n")
    host.raise_inotify(said.append, limit)
    assert int(limit.read_text()) == 8192 and not said
    host.raise_inotify(said.append, tmp_path / "none")
    assert "cannot be raised" in said.pop()
