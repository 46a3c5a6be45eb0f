"""How a dump begins, ends and is cancelled: CRIU's own end, and the files by which ranks stop and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waits import LIMIT_S, until

from singularity_proxy.launcher import device
from singularity_proxy.launcher.errors import (
    SlotError,
)
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks import halt, process_scan
from singularity_proxy.launcher.ranks.slot import Ended
from singularity_proxy.launcher.snapshot import criu, rank_dump
from singularity_proxy.launcher.snapshot.engine import ProcessEngine
from singularity_proxy.launcher.supervise import Supervisor
from singularity_proxy.launcher.tools import Tools
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import LauncherCommand, LauncherEvent, Plan

PLAN = Plan("fresh", 1, 4, [2, 3], "10.0.0.1", 29500)


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

    def run(self, argv: Sequence[str], timeout_s: float, *_: object) -> Ended | None:
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
    limit = 0.1 if "within" in said else 30.0  # who ends at once may be slow on a busy machine
    assert criu.run(slot, ["criu"], limit) == said  # type: ignore[arg-type]


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
        assert may_end.wait(LIMIT_S)
        order.append("dump has ended")
        return []

    monkeypatch.setattr(rank_dump, "dump", dump)
    monkeypatch.setattr(rank_dump, "resume", lambda *given: order.append(f"resume {given[2]}") or [])
    env = {names.ENV_COMMAND: '["python3", "x.py"]'}
    supervisor = Supervisor(env, Paths(tmp_path), ProcessEngine(env, Paths(tmp_path)))
    supervisor.plan = PLAN
    supervisor._obey(LauncherCommand(1, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    assert begun.wait(LIMIT_S)
    supervisor._obey(LauncherCommand(2, "resume", generation=7))
    assert order == []
    may_end.set()
    supervisor.calls.get(timeout=LIMIT_S)()
    assert order == ["dump has ended", "resume 7"]
    supervisor._obey(LauncherCommand(3, "resume", generation=7))  # with no dump under way, at once
    assert order[2:] == ["resume 7"]


def test_a_dump_that_a_new_sidecar_asks_for_again_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    may_end = threading.Event()

    def dump(*given: object) -> list[str]:
        made.append(given[3].generation)  # type: ignore[attr-defined]
        assert may_end.wait(LIMIT_S)
        return []

    monkeypatch.setattr(rank_dump, "dump", dump)
    monkeypatch.setattr(rank_dump, "resume", lambda *_: [])
    env = {names.ENV_COMMAND: '["python3", "x.py"]'}
    supervisor = Supervisor(env, Paths(tmp_path), ProcessEngine(env, Paths(tmp_path)))
    supervisor.plan = PLAN
    told: list[LauncherEvent] = []
    monkeypatch.setattr(supervisor.outbox, "put", told.append)
    for seq in (1, 1):  # each sidecar counts from 1
        supervisor._obey(LauncherCommand(seq, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    may_end.set()
    supervisor.calls.get(timeout=LIMIT_S)()
    assert (made, [(event.kind, event.generation) for event in told]) == ([7], [("dumped", 7)])
    supervisor._obey(LauncherCommand(1, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    assert (made, told[1:]) == ([7], told[:1]), "it is only said again"
    supervisor._obey(LauncherCommand(2, "resume", generation=7))
    supervisor._obey(LauncherCommand(3, "dump", generation=7, checkpoint_id="c", remaining_s=60))
    supervisor.calls.get(timeout=LIMIT_S)()
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
    words = {"master_addr": "10.0.0.1", "master_port": 29501, "env": {"A": "b"}, "devices": {}, "ended": []}
    assert order == words
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
    slot = SimpleNamespace(shm=tmp_path, init=1, asleep=frozenset())
    rank_dump.resume({0: slot}, paths, 5, "10.0.0.1", 29501, {}, device.NoDevices())  # type: ignore[dict-item]
    assert frozen.read_text() == '{"generation": 6}'


def test_what_the_program_has_stopped_itself_is_not_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a second call, which a restarted sidecar makes."""
    both = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    theirs, ours = (process.pid for process in both)
    monkeypatch.setattr(process_scan, "processes", lambda init: [theirs, ours])
    slot: Any = SimpleNamespace(shm=tmp_path, init=1, asleep=None)
    try:
        os.kill(theirs, signal.SIGSTOP)
        os.waitid(os.P_PID, theirs, os.WSTOPPED)
        slot.asleep = halt.asleep(1)
        assert slot.asleep == {theirs} and halt.stop(1, time.monotonic() + 20, slot.asleep) == [theirs, ours]
        os.waitid(os.P_PID, ours, os.WSTOPPED)
        for _ in range(2):
            rank_dump.let_go(slot)
        os.waitid(os.P_PID, ours, os.WCONTINUED)
        assert halt.asleep(1) == {theirs}
    finally:
        for process in both:
            process.kill()
            process.wait(20)


def test_a_process_that_has_ended_does_not_keep_the_others_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(LIMIT_S)
    stopped = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        paths = Paths(tmp_path)
        paths.control(0).mkdir(parents=True)
        monkeypatch.setattr(process_scan, "processes", lambda init: [gone.pid, stopped.pid])
        slot = SimpleNamespace(shm=tmp_path, init=1, asleep=frozenset())
        rank_dump.resume({0: slot}, paths, 5, "10.0.0.1", 29501, {}, device.NoDevices())  # type: ignore[dict-item]
        until(lambda: os.waitid(os.P_PID, stopped.pid, os.WCONTINUED | os.WNOHANG), "it goes on")
    finally:
        stopped.kill()
        stopped.wait(LIMIT_S)
