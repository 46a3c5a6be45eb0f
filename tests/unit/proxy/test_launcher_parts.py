"""The launcher's parts that need neither root nor CRIU."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sidecar import FakeSidecar

from proxy.launcher import __main__ as launcher_main
from proxy.launcher import device, memory, reap, verdict
from proxy.launcher.client import SidecarClient
from proxy.launcher.errors import (
    CommandError,
    MeetingError,
    RestoreError,
    SidecarAwayError,
    SidecarError,
    SlotError,
)
from proxy.launcher.output import rate_limit
from proxy.launcher.output.rate_limit import LogRate
from proxy.launcher.output.tail import LAST, LONGEST, Tail
from proxy.launcher.paths import ENV_ROOT, Paths
from proxy.launcher.ranks import environment, mounts, process_scan, slot_init
from proxy.launcher.ranks.slot import Ended
from proxy.launcher.snapshot import criu, image, rank_dump, restore, sockets
from proxy.launcher.snapshot.engine import ProcessEngine
from proxy.launcher.supervise import Supervisor
from proxy.launcher.tools import Tools
from proxy.protocol import exit_codes, names
from proxy.protocol.messages import LauncherCommand, LauncherEvent, Plan

PLAN = Plan("fresh", 1, 4, [2, 3], "10.0.0.1", 29500)


# --- command and environment ----------------------------------------------------------------------------------------
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
    assert Paths.from_env({}).image("c", 1) == Path("/singularity/images/c/rank-1")
    assert Paths.from_env({"SINGULARITY_ROOT": "/t"}).log(0) == Path("/t/work/rank-0/stdout.log")


# --- logs -------------------------------------------------------------------------------------------------------------
def test_tail_prefixes_whole_lines_and_the_rest_at_the_end(tmp_path: Path) -> None:
    out, path = io.BytesIO(), tmp_path / "log"
    tail = Tail(path, "[rank 1] ", out)
    assert tail.pump() == 0
    path.write_bytes(b"one\ntwo")
    tail.pump()
    assert out.getvalue() == b"[rank 1] one\n"
    with path.open("ab") as file:
        file.write(b"!\n\nlast")
    tail.pump()
    tail.pump(final=True)
    assert out.getvalue() == b"[rank 1] one\n[rank 1] two!\n[rank 1] \n[rank 1] last\n"
    assert tail.position == path.stat().st_size


def test_tail_begins_where_an_earlier_pod_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\nnew\n")
    out = io.BytesIO()
    Tail(tmp_path / "log", "", out, position=4).pump(final=True)
    assert out.getvalue() == b"new\n"


def test_tail_passes_on_endless_lines(tmp_path: Path) -> None:
    out = io.BytesIO()
    (tmp_path / "log").write_bytes(b"x" * (LONGEST + 1))
    Tail(tmp_path / "log", "", out).pump()
    assert out.getvalue() == b"x" * (LONGEST + 1) + b"\n"


def test_tail_of_a_flood_keeps_the_beginning_and_the_end_and_counts_the_rest(tmp_path: Path) -> None:
    out, path, now = io.BytesIO(), tmp_path / "log", [100.0]
    seen: list[bytes] = []
    tail = Tail(path, "[rank 3] ", out, see=seen.append, rate=LogRate(1000, lambda: now[0]))
    with path.open("ab", buffering=0) as file:
        file.write(b"%0100d\n" * 5 % (1, 2, 3, 4, 5))
        tail.pump()
        file.write(b"".join(b"%09d\n" % i for i in range(300_000)))
        tail.pump()
        before = out.getvalue().count(b"\n")
        assert 5 < before < 1000 and b"not shown" not in out.getvalue()
        assert seen[-1] == b"000299999", "progress is read from what is not shown, too"
        file.write(b"also\n")
        now[0] += 0.5
        tail.pump()
        assert out.getvalue().count(b"\n") == before, "for a second nothing is shown"
        now[0] += 0.6
        file.write(b"again\n")
        tail.pump()
        lines = out.getvalue().splitlines()
        assert lines[-1] == b"[rank 3] again" and len(lines) == before + 2
        dropped = 300_006 - before
        said = b"[rank 3] [launcher] %d lines (3.0 MB) are not shown: more than 0.9766 KiB/s; set SING" % dropped
        assert lines[-2].startswith(said)
        file.write(b"x" * 70_000 + b"\n" + b"y\n" * 100_000 + b"Traceback\nValueError: the end")
    tail.pump(final=True)
    lines = out.getvalue().splitlines()
    assert lines[-2:] == [b"[rank 3] Traceback", b"[rank 3] ValueError: the end"]
    assert lines.count(b"[rank 3] y") >= LAST // 2 - 20
    assert any(b"lines (0.1 MB) are not shown" in line for line in lines[-LAST:])


def test_what_was_shown_is_given_back_to_the_disk_while_the_writer_goes_on(tmp_path: Path) -> None:
    path, out = tmp_path / "log", io.BytesIO()
    tail = Tail(path, "", out, rate=LogRate(0))
    with path.open("ab", buffering=0) as file:
        for number in range(8):
            file.write((b"%d" % number) * (1 << 20) + b"\n")
            os.fsync(file.fileno())
            tail.pump()
            assert path.stat().st_blocks * 512 < 3 << 20
        file.write(b"last\n")
    tail.pump(final=True)
    assert path.stat().st_size == 8 * ((1 << 20) + 1) + 5 == tail.position
    shown = out.getvalue()
    assert shown.endswith(b"\nlast\n")
    assert [shown.count(b"%d" % number) for number in range(8)] == [1 << 20] * 8


def test_no_limit_and_a_limit_that_is_no_number() -> None:
    assert rate_limit.from_env({}) == rate_limit.BYTES_PER_S and rate_limit.from_env({names.ENV_LOG_RATE: "0"}) == 0
    assert all(LogRate(0).take(1 << 30) for _ in range(9))
    with pytest.raises(CommandError, match="SINGULARITY_LOG_RATE = '1MB': bytes per second as a whole number"):
        rate_limit.from_env({names.ENV_LOG_RATE: "1MB"})


# --- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("events", "limit", "none"),
    [
        ("memory.events", "memory.max", "max"),
        ("memory/memory.oom_control", "memory/memory.limit_in_bytes", "9223372036854771712"),
    ],
)
def test_out_of_memory_is_told_with_the_limit(tmp_path: Path, events: str, limit: str, none: str) -> None:
    (tmp_path / "memory").mkdir()
    assert (memory.oom_kills(tmp_path), memory.limit(tmp_path)) == (0, None)
    (tmp_path / events).write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory.oom_kills(tmp_path) == 2
    (tmp_path / limit).write_text("536870912\n")
    assert memory.sentence(tmp_path).endswith("the limit of the container is 512 MiB")
    (tmp_path / limit).write_text(f"{none}\n")
    assert "has no limit, so its node had no memory left" in memory.sentence(tmp_path)


# --- exit codes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("codes", "wanted"),
    [({}, None), ({1: 0}, None), ({0: 0, 1: 0}, 0), ({1: 7, 0: 3}, 7), ({0: 0, 1: 139}, 139), ({0: 143, 1: 0}, 1)],
)
def test_exit_code(codes: dict[int, int], wanted: int | None) -> None:
    assert verdict.exit_code(codes, 2) == wanted


@pytest.mark.parametrize(
    ("codes", "lost", "stopped", "wanted"),
    [
        ({0: 1, 1: 1}, {0, 1}, set(), 143),
        ({0: 1, 1: 3}, {0}, set(), 3),  # its own error beside one that came from it
        ({0: 1, 1: 143}, {0}, {1}, 143),
        ({0: 3, 1: 143}, set(), {1}, 3),
        ({0: 137, 1: 1}, {1}, set(), 137),
        ({0: 1, 1: 0}, {0}, set(), 143),
        ({0: 1}, {0}, set(), None),
    ],
)
def test_a_peer_that_was_lost_is_not_this_pods_failure(
    codes: dict[int, int], lost: set[int], stopped: set[int], wanted: int | None
) -> None:
    assert verdict.exit_code(codes, 2, lost, stopped) == wanted


@pytest.mark.parametrize(
    ("failed_for", "sent", "wanted"),
    [
        (None, False, None),
        (1, False, None),
        (5, False, "TERM"),
        (6, True, None),
        (10, True, "KILL"),
        (10, False, "KILL"),
    ],
)
def test_what_the_others_get_after_a_failure(failed_for: float | None, sent: bool, wanted: str | None) -> None:
    assert verdict.stop_signal(failed_for, sent) == wanted


# --- slot init --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no", "Expecting value"),
        (b"[]", "expected a JSON object, got list"),
        (b"{}", "exactly one of run, adopt, tool"),
        (b'{"adopt": 1, "tool": []}', "exactly one of"),
        (b'{"tool": 1}', "tool = 1: expected list"),
        (b'{"tool": ["x"], "env": {}}', "tool: real = None: expected list"),
        (b'{"tool": ["x"], "env": {}, "real": []}', "tool: connect = None: expected str"),
        (b'{"adopt": true}', "adopt = True: expected int"),
        (b'{"run": ["x"], "env": {}, "cwd": "/"}', "run: log = None: expected str"),
    ],
)
def test_bad_orders_are_named(line: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        slot_init.parse(line)


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
        "from proxy.launcher import reap\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n"  # subreaper
        "own = reap.spawn(['sh', '-c', 'exit 7'])\n"
        "parent = reap.spawn(['sh', '-c', 'sleep 0.2 & echo $!'], stdout=subprocess.PIPE)\n"
        "orphan = int(parent.stdout.read()); parent.wait(); reap.forget(parent)\n"
        "end = time.monotonic() + 20; got = []\n"
        "own.wait(); reap.forget(own)\n"
        "while orphan not in got and time.monotonic() < end:\n"
        "    got += reap.orphans(); time.sleep(0.01)\n"
        "print(orphan in got, own.returncode)\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, text=True, capture_output=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "7"]
    assert reap.orphans() == []


# --- CRIU -------------------------------------------------------------------------------------------------------------
def test_a_dump_leaves_the_rank_stopped(tmp_path: Path) -> None:
    slot = SimpleNamespace(root=1000, seen=lambda path: f"/seen{path}")
    argv = criu.Criu(Tools(tmp_path)).dump(slot, Path("/i"), Path("/w"))  # type: ignore[arg-type]
    assert "--leave-stopped" in argv
    assert [argv[argv.index(word) + 1] for word in ("-t", "-D", "-W")] == ["1000", "/seen/i", "/seen/w"]


def test_error_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text("(0.1) Error (tun: x)\n(0.2) Warn\n(0.3) Error (criu/x.c:1): bad\n(0.4) Error rlimit: y\n")
    assert criu.errors(log) == ["(0.3) Error (criu/x.c:1): bad"]
    assert criu.errors(tmp_path / "none")[0].startswith("no log")


class _Slot:
    """Runs a tool: how long that takes, how it ends, and how the slot ends if it does."""

    def __init__(self, takes_s: float, ended: Ended | None, code: int | None = None) -> None:
        self.takes_s, self.ended, self.code = takes_s, ended, code

    def run(self, argv: Sequence[str], timeout_s: float, real: tuple[int, int], connect: str) -> Ended | None:
        time.sleep(min(timeout_s, self.takes_s))
        if self.code is not None:
            raise SlotError("ended")
        return self.ended if self.takes_s < timeout_s else None

    def wait(self) -> int | None:
        return self.code


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        (_Slot(0, Ended(0, "")), ""),
        (_Slot(0, Ended(1, "x" * 600 + " bad")), f"ended with 1: {'x' * 496} bad"),
        (_Slot(0, Ended(137, "")), criu.WAS_KILLED),
        (_Slot(0.2, Ended(0, "")), "did not end within 0 s"),
        (_Slot(60, None), "did not end within 0 s"),
        (_Slot(0, None, 137), criu.WAS_KILLED),
    ],
    ids=["well", "badly", "killed", "late", "never", "with its slot"],
)
def test_how_a_criu_ends(slot: _Slot, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu, "LATE_S", 0.5)
    assert criu.run(slot, ["criu"], 0.1) == said  # type: ignore[arg-type]


def test_a_slot_that_ends_under_a_criu_is_told() -> None:
    with pytest.raises(SlotError):
        criu.run(_Slot(0, None, 99), ["criu"], 0.1)  # type: ignore[arg-type]


def test_ranks_are_resumed_only_after_the_dump_that_was_cancelled_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU leaves the ranks stopped when it ends: a SIGCONT before that would be lost."""
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def dump(*_: object) -> list[str]:
        begun.set()
        assert may_end.wait(20)
        order.append("dump has ended")
        return []

    monkeypatch.setattr(rank_dump, "dump", dump)
    monkeypatch.setattr(rank_dump, "resume", lambda *given: order.append(f"resume {given[2]}") or [])
    env = {names.ENV_COMMAND: '["python3", "x.py"]', ENV_ROOT: str(tmp_path)}
    supervisor = Supervisor(env, ProcessEngine(env, Paths(tmp_path)))
    supervisor.plan = PLAN
    supervisor._obey(LauncherCommand(1, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    assert begun.wait(20)
    supervisor._obey(LauncherCommand(2, "resume", generation=7))
    assert order == []
    may_end.set()
    supervisor.calls.get(timeout=20)()
    assert order == ["dump has ended", "resume 7"]
    supervisor._obey(LauncherCommand(3, "resume", generation=7))  # with no dump under way, at once
    assert order[2:] == ["resume 7"]


def test_a_dump_that_a_new_sidecar_asks_for_again_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    may_end = threading.Event()

    def dump(*given: object) -> list[str]:
        made.append(given[3].generation)  # type: ignore[attr-defined]
        assert may_end.wait(20)
        return []

    monkeypatch.setattr(rank_dump, "dump", dump)
    monkeypatch.setattr(rank_dump, "resume", lambda *_: [])
    env = {names.ENV_COMMAND: '["python3", "x.py"]', ENV_ROOT: str(tmp_path)}
    supervisor = Supervisor(env, ProcessEngine(env, Paths(tmp_path)))
    supervisor.plan = PLAN
    told: list[LauncherEvent] = []
    monkeypatch.setattr(supervisor.outbox, "put", told.append)
    for seq in (1, 1):  # each sidecar counts from 1
        supervisor._obey(LauncherCommand(seq, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    may_end.set()
    supervisor.calls.get(timeout=20)()
    assert (made, [(event.kind, event.generation) for event in told]) == ([7], [("dumped", 7)])
    supervisor._obey(LauncherCommand(1, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    assert (made, told[1:]) == ([7], told[:1]), "it is only said again"
    supervisor._obey(LauncherCommand(2, "resume", generation=7))
    supervisor._obey(LauncherCommand(3, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    supervisor.calls.get(timeout=20)()
    assert made == [7, 7]


# --- control files ----------------------------------------------------------------------------------------------------
def test_orders_to_resume_are_unique_and_cleared(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.control(0).mkdir(parents=True)
    ids = {rank_dump.write_resume(paths, 0, 5, "10.0.0.1", 29501, {"A": "b"}) for _ in range(3)}
    assert len(ids) == 3
    order = json.loads((paths.control(0) / "resume.json").read_text())
    assert order.pop("restore_id") in ids
    assert order.pop("generation") == 5
    assert order == {"master_addr": "10.0.0.1", "master_port": 29501, "env": {"A": "b"}, "devices": {}}
    rank_dump.clear_control(paths.control(0))
    assert list(paths.control(0).iterdir()) == []


def test_an_older_order_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    """A rank that has not read the newer one yet would wait for ever."""
    paths = Paths(tmp_path)
    paths.control(0).mkdir(parents=True)
    newer = rank_dump.write_resume(paths, 0, 6, "10.0.0.1", 29501, {})
    rank_dump.write_resume(paths, 0, 5, "10.0.0.1", 29501, {})
    assert json.loads((paths.control(0) / "resume.json").read_text())["restore_id"] == newer
    again = rank_dump.write_resume(paths, 0, 6, "10.0.0.1", 29501, {})
    assert json.loads((paths.control(0) / "resume.json").read_text())["restore_id"] == again


def test_going_on_after_an_older_stop_leaves_what_a_rank_has_said_for_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the dump that was asked for would wait until its deadline for a rank that has frozen long ago."""
    paths = Paths(tmp_path)
    frozen = paths.control(0) / "frozen.json"
    frozen.parent.mkdir(parents=True)
    frozen.write_text('{"generation": 6}')
    monkeypatch.setattr(process_scan, "processes", lambda init: [])
    slot = SimpleNamespace(shm=tmp_path, init=1)
    rank_dump.resume({0: slot}, paths, 5, "10.0.0.1", 29501, {}, device.NoDevices())  # type: ignore[dict-item]
    assert frozen.read_text() == '{"generation": 6}'


def test_a_process_that_has_ended_does_not_keep_the_others_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(20)
    stopped = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        paths = Paths(tmp_path)
        paths.control(0).mkdir(parents=True)
        monkeypatch.setattr(process_scan, "processes", lambda init: [gone.pid, stopped.pid])
        slot = SimpleNamespace(shm=tmp_path, init=1)
        rank_dump.resume({0: slot}, paths, 5, "10.0.0.1", 29501, {}, device.NoDevices())  # type: ignore[dict-item]
        end = time.monotonic() + 20
        while os.waitid(os.P_PID, stopped.pid, os.WCONTINUED | os.WNOHANG) is None:
            assert time.monotonic() < end, "still stopped"
            time.sleep(0.01)
    finally:
        stopped.kill()
        stopped.wait(20)


# --- sidecar ----------------------------------------------------------------------------------------------------------
def test_talking_to_the_sidecar(tmp_path: Path) -> None:
    sidecar = FakeSidecar(tmp_path, 4)
    client = SidecarClient(tmp_path / names.SOCKET_FILE, reach_s=5)
    try:
        sidecar.plan = PLAN
        assert client.plan() == PLAN
        sidecar.command("resume", generation=3)
        command = client.next_command(0)
        assert command is not None
        assert (command.seq, command.op, command.generation) == (1, "resume", 3)
        assert client.next_command(1) is None
        client.post(LauncherEvent("exited", rank=2, code=3))
        assert sidecar.events == [LauncherEvent("exited", rank=2, code=3)]
    finally:
        sidecar.close()


def test_a_sidecar_that_is_not_there(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(SidecarError, match=r"cannot be reached .* see the log of container device-proxy"):
        SidecarClient(tmp_path / names.SOCKET_FILE, reach_s=0.3).plan()
    assert time.monotonic() - began < 20


def test_a_sidecar_that_is_not_there_loses_the_attempt_and_not_the_job(tmp_path: Path) -> None:
    with pytest.raises(SidecarAwayError) as raised:
        SidecarClient(tmp_path / names.SOCKET_FILE, reach_s=0.1).plan()
    assert raised.value.exit_code == exit_codes.LOST


@pytest.mark.parametrize("code", [exit_codes.LOST, exit_codes.DAMAGED, exit_codes.PROTOCOL, exit_codes.RESTORE_REFUSED])
def test_a_refusal_says_what_the_container_ends_with(tmp_path: Path, code: int) -> None:
    sidecar = FakeSidecar(tmp_path, 4)
    sidecar.refuse, sidecar.refuse_with = "no, and here is why", code
    try:
        with pytest.raises(SidecarError, match="no, and here is why") as raised:
            SidecarClient(tmp_path / names.SOCKET_FILE).plan()
    finally:
        sidecar.close()
    assert raised.value.exit_code == code
    assert ("the next one tries again" in str(raised.value)) == (exit_codes.of(code).action == "Ignore")


def test_a_sidecar_that_refuses(tmp_path: Path) -> None:
    sidecar = FakeSidecar(tmp_path, 4)
    sidecar.refuse = "the checkpoint was made for 8 ranks"
    try:
        with pytest.raises(SidecarError, match=r"the checkpoint was made for 8 ranks"):
            SidecarClient(tmp_path / names.SOCKET_FILE).plan()
    finally:
        sidecar.close()


class EndedSlot:
    """A rank that answers, or not, and has then ended."""

    def __init__(self, answer: Path | None, restore_id: str, code: int | None = 0) -> None:
        self._answer, self._restore_id, self._code = answer, restore_id, code

    def poll(self) -> int | None:
        if self._answer is not None:
            self._answer.write_text(json.dumps({"restore_id": self._restore_id, "seconds": 0.1}))
        return self._code


def test_a_rank_that_ends_as_soon_as_it_has_met_the_others_was_restored(tmp_path: Path) -> None:
    paths, plan = Paths(tmp_path), Plan("restore", 2, 1, [0], "127.0.0.1", 29500, 5, "c")
    paths.control(0).mkdir(parents=True)
    answer = paths.control(0) / "resumed.json"
    with pytest.raises(MeetingError, match="rank 0 ended with code 0 while it met the other ranks"):
        restore._wait_resumed(plan, paths, {0: EndedSlot(None, "id")}, {0: "id"})  # type: ignore[dict-item]
    answer.write_text(json.dumps({"restore_id": "another", "seconds": 0.1}))
    with pytest.raises(MeetingError, match="rank 0 ended with code 0 while it met the other ranks"):
        restore._wait_resumed(plan, paths, {0: EndedSlot(None, "id")}, {0: "id"})  # type: ignore[dict-item]
    restore._wait_resumed(plan, paths, {0: EndedSlot(answer, "id")}, {0: "id"})  # type: ignore[dict-item]


@pytest.mark.parametrize(("ended_with", "wanted"), [(1, exit_codes.LOST), (0, exit_codes.LOST), (137, 137)])
def test_a_rank_that_ends_while_it_meets_the_others_loses_the_attempt_and_not_the_job(
    tmp_path: Path, ended_with: int, wanted: int
) -> None:
    """It waits there for pods that were lost, or that started too late; the program of the rank stands still."""
    paths, plan = Paths(tmp_path), Plan("restore", 2, 1, [0], "127.0.0.1", 29500, 5, "c")
    with pytest.raises(MeetingError) as raised:
        restore._wait_resumed(plan, paths, {0: EndedSlot(None, "id", ended_with)}, {0: "id"})  # type: ignore[dict-item]
    assert raised.value.exit_code == wanted


def test_ranks_that_never_meet_lose_the_attempt_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "RESUME_TIMEOUT_S", 0.1)
    paths, plan = Paths(tmp_path), Plan("restore", 2, 1, [0], "10.0.0.1", 29500, 5, "c")
    with pytest.raises(MeetingError, match=r"ranks \[0\] did not meet the others at 10.0.0.1:29500") as raised:
        restore._wait_resumed(plan, paths, {0: EndedSlot(None, "id", None)}, {0: "id"})  # type: ignore[dict-item]
    assert raised.value.exit_code == exit_codes.LOST


def test_an_error_of_the_launchers_own_is_not_taken_for_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Supervisor) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(Supervisor, "__init__", lambda self, env, engine, argv: None)
    monkeypatch.setattr(Supervisor, "run", broken)
    monkeypatch.setattr(Tools, "check", lambda self: None)
    monkeypatch.setattr(mounts, "keep_ours", lambda root, agent: None)
    assert launcher_main.main([], {}) == exit_codes.PROTOCOL
