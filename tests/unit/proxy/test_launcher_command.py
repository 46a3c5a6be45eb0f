"""What a rank is started with: its command, its environment, its working directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from singularity_proxy.launcher.errors import (
    CommandError,
)
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks import environment
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Plan

PLAN = Plan("fresh", 1, 4, [2, 3], "10.0.0.1", 29500)


@pytest.mark.parametrize("text", ["", "python3 x.py", "[]", "{}", "[1]", '["a", null]'])
def test_a_command_that_is_no_list_of_strings_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="SINGULARITY_COMMAND"):
        environment.parse_command(text)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python3 -I x.py", "I"),
        ("/usr/bin/python3.12 -u -E x.py", "E"),
        ("python -uS x.py", "S"),
        ("python3 -W error -I x.py", "I"),
        ("python3 -X dev -Werror -S -m mod", "S"),
    ],
)
def test_isolated_interpreters_are_refused(command: str, flag: str) -> None:
    with pytest.raises(CommandError, match=f"start the program without -{flag}"):
        environment.check_command(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "python3 x.py -I",
        "python3 -m mod -E",
        "python3 -c pass -S",
        "bash -E x",
        "python3 -W I x.py",
        "python3 --help -I",
    ],
)
def test_other_commands_pass(command: str) -> None:
    environment.check_command(command.split())


def test_environment_of_a_rank() -> None:
    base = {"PYTHONPATH": "/singularity/agent/lib:/opt/torch", "HOME": "/root", names.ENV_INDEX: "1", "RANK": "9"}
    env = environment.environment({**base, names.ENV_COMMAND: "[]"}, PLAN, 3, Paths(Path(names.ROOT)))
    wanted = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "PYTHONPATH": "/singularity/agent/lib:/opt/torch",
        "TMPDIR": "/singularity/work/rank-3/tmp", "PYTHONUNBUFFERED": "1", "HOME": "/root", "OMP_NUM_THREADS": "1",
        "SINGULARITY_RANK_DIR": "/singularity/run/rank-3",
    }  # fmt: skip
    assert {k: env.get(k) for k in wanted} == wanted
    assert names.ENV_COMMAND not in env


def test_a_rank_alone_meets_its_own_processes_on_loopback_unless_a_device_library_has_sockets() -> None:
    plan = dataclasses.replace(PLAN, world_size=1, ranks=[0])
    env = environment.environment({}, plan, 0, Paths(Path("/x")), torchrun=True)
    assert (env[names.ENV_ALONE], env["MASTER_ADDR"], env["GLOO_SOCKET_IFNAME"]) == ("1", "127.0.0.1", "lo")
    env = environment.environment({}, plan, 0, Paths(Path("/x")), devices=True, torchrun=True)
    assert names.ENV_ALONE not in env and env["MASTER_ADDR"] == PLAN.master_addr
    assert names.ENV_ALONE not in environment.environment({}, PLAN, 2, Paths(Path("/x")))


@pytest.mark.parametrize("devices", [False, True])
def test_a_plain_command_of_one_rank_gets_what_a_shell_gives(devices: bool) -> None:
    """Scripts take RANK for "one of several, with CUDA"."""
    plan = dataclasses.replace(PLAN, world_size=1, ranks=[0])
    env = environment.environment({"HOME": "/root"}, plan, 0, Paths(Path("/x")), devices)
    ours = {"HOME", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR", "GLOO_SOCKET_IFNAME"}
    assert {key for key in env if not key.startswith("SINGULARITY_")} <= ours


def test_a_users_thread_count_is_kept() -> None:
    env = environment.environment({"OMP_NUM_THREADS": "4"}, PLAN, 2, Paths(Path("/x")))
    assert env["OMP_NUM_THREADS"] == "4"


def test_a_restored_rank_learns_its_pod_but_keeps_its_control_directory() -> None:
    env = {"SINGULARITY_POD": "p", names.ENV_RANK_DIR: "x", names.ENV_COMMAND: "[]", "PATH": "/bin"}
    assert environment.pod_values(env) == {"SINGULARITY_POD": "p"}


def test_configmap_files_are_copied_not_linked(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    data = paths.source / "..2026_01_01_00_00_00.1"
    (data / "pkg").mkdir(parents=True)
    (data / "train.py").write_text("x")
    (data / "pkg/mod.py").write_text("y")
    (paths.source / "..data").symlink_to(data.name)
    (paths.source / "train.py").symlink_to("..data/train.py")
    (paths.source / "pkg").symlink_to("..data/pkg")
    cwd = environment.prepare(paths, 0, "")
    assert cwd == tmp_path / "work/rank-0/cwd"
    assert {str(p.relative_to(cwd)) for p in cwd.rglob("*")} == {"train.py", "pkg", "pkg/mod.py"}
    assert not any(p.is_symlink() for p in cwd.rglob("*"))
    assert (tmp_path / "work/rank-0/tmp").is_dir()
    assert (tmp_path / "run/rank-0").is_dir()


def test_a_workdir_of_the_image(tmp_path: Path) -> None:
    assert environment.prepare(Paths(tmp_path), 0, "/usr") == Path("/usr")
    with pytest.raises(CommandError, match="SINGULARITY_WORKDIR = '/no/such'"):
        environment.prepare(Paths(tmp_path), 0, "/no/such")


def test_paths_hang_below_one_root() -> None:
    assert Paths().image("c", 1) == Path("/singularity/images/c/rank-1")
    assert Paths(Path("/t")).log(0) == Path("/t/work/rank-0/stdout.log")
