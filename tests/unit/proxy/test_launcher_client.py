"""The launcher and its sidecar: what is said, and what is lost when one of them does not answer."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from fake_sidecar import FakeSidecar

from singularity_proxy.launcher import __main__ as launcher_main
from singularity_proxy.launcher.client import SidecarClient
from singularity_proxy.launcher.errors import (
    MeetingError,
    RestoreError,
    SidecarAwayError,
    SidecarError,
)
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks import mounts
from singularity_proxy.launcher.snapshot import restore
from singularity_proxy.launcher.supervise import Supervisor
from singularity_proxy.launcher.tools import Tools
from singularity_proxy.protocol import exit_codes, names
from singularity_proxy.protocol.messages import LauncherEvent, Plan

PLAN = Plan("fresh", 1, 4, [2, 3], "10.0.0.1", 29500)


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
    with pytest.raises(SidecarError, match=r"cannot be reached .* see the log of container device-proxy"):
        SidecarClient(tmp_path / names.SOCKET_FILE, reach_s=0.3).plan()


def test_a_sidecar_that_is_not_there_loses_the_attempt_and_not_the_job(tmp_path: Path) -> None:
    with pytest.raises(SidecarAwayError) as raised:
        SidecarClient(tmp_path / names.SOCKET_FILE, reach_s=0.1).plan()
    assert raised.value.exit_code == exit_codes.LOST


@pytest.mark.parametrize("code", [exit_codes.LOST, exit_codes.NOT_RESTORED, exit_codes.PROTOCOL])
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


@pytest.mark.parametrize(("ended_with", "wanted"), [(1, exit_codes.LOST), (0, exit_codes.LOST)])
def test_a_rank_that_ends_while_it_meets_the_others_loses_the_attempt_and_not_the_job(
    tmp_path: Path, ended_with: int, wanted: int
) -> None:
    """It waits there for pods that were lost, or that started too late; the program of the rank stands still."""
    paths, plan = Paths(tmp_path), Plan("restore", 2, 1, [0], "127.0.0.1", 29500, 5, "c")
    with pytest.raises(MeetingError) as raised:
        restore._wait_resumed(plan, paths, {0: EndedSlot(None, "id", ended_with)}, {0: "id"})  # type: ignore[dict-item]
    assert raised.value.exit_code == wanted


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL, signal.SIGABRT, signal.SIGKILL])
def test_a_rank_that_crashes_as_soon_as_it_goes_on_was_not_restored(tmp_path: Path, number: int) -> None:
    """Nobody that it could wait for has anything to do with that: it counts as a try of this checkpoint."""
    paths, plan = Paths(tmp_path), Plan("restore", 2, 1, [0], "127.0.0.1", 29500, 5, "c")
    slot = EndedSlot(None, "id", 128 + number)
    with pytest.raises(RestoreError, match=f"rank 0 ended with code {128 + number} .* as soon as it went on") as raised:
        restore._wait_resumed(plan, paths, {0: slot}, {0: "id"})  # type: ignore[dict-item]
    assert raised.value.exit_code == exit_codes.NOT_RESTORED


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
