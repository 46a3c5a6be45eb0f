"""An error of ours fails the checkpoint, never the script: what the script, the page and the launcher see of it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_sidecar import Page
from waits import LIMIT_S, until

from singularity_proxy.agent import boundary, freeze, gate, guard
from singularity_proxy.agent.boundary import Boundary
from singularity_proxy.launcher import refusal
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.snapshot import rank_dump
from singularity_proxy.protocol import page
from singularity_proxy.protocol.messages import LauncherEvent

pytestmark = pytest.mark.usefixtures("quick_collections")
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_reports", 0)


@pytest.fixture
def shared(tmp_path: Path) -> Page:
    (tmp_path / "run/rank-0").mkdir(parents=True)
    return Page(tmp_path / "run", 1)


@pytest.fixture
def rank(tmp_path: Path, shared: Page) -> Iterator[Boundary]:
    made = Boundary(tmp_path / "run/rank-0", 0, freeze.freeze)
    made.open()
    gate.watch(made)
    guard.watch(made)
    yield made
    gate.watch(None)
    guard.watch(None)
    gate.renew()
    gate.forget()


def refused(shared: Page, rank: int = 0) -> int:
    return int(shared.words[page.rank_word(rank, page.R_REFUSED)])


def reason(rank: Boundary) -> dict[str, object]:
    return dict(json.loads((rank.rank_dir / "refused.json").read_text()))


def in_thread(step: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    return thread


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_error_at_a_boundary_refuses_the_stop_and_the_script_goes_on(
    rank: Boundary, shared: Page, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Boundary, "_late", failing(MemoryError("no memory")))
    shared.publish(7, 1, 0)
    rank.step()
    assert refused(shared) == 7 and shared.rank(0).blocked == 0
    assert reason(rank) == {"message": "at a place to stop: MemoryError: no memory"}
    rank.step()  # the stop is not looked at again
    assert capfd.readouterr().err.count("an error of the checkpoint agent, the script goes on") == 1
    monkeypatch.undo()
    shared.publish(8, rank.count + 1, 0)
    thread = in_thread(rank.step)
    until(lambda: shared.rank(0).blocked == 8)
    shared.publish(0, 0, 0)
    thread.join(LIMIT_S)
    assert refused(shared) == 7, "the next one is answered"


def test_who_has_said_that_it_waits_freezes_with_the_others_whatever_goes_wrong(
    tmp_path: Path, rank: Boundary, shared: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    ours: list[threading.Thread] = []

    def step() -> None:
        ours.append(threading.current_thread())
        rank.step()

    def wait(seconds: float) -> None:
        if threading.current_thread() in ours:  # threads of an earlier test may wait as well
            calls.append(seconds)
            if len(calls) == 3:
                raise OSError("interrupted")
        sleep(seconds)

    sleep = time.sleep
    monkeypatch.setattr(boundary.time, "sleep", wait)
    shared.publish(7, 1, 0)
    thread = in_thread(step)
    until(lambda: refused(shared) == 7)
    assert shared.rank(0).blocked == 7 and thread.is_alive()
    shared.publish(7, 1, 7)  # the leader had not heard of it
    until(lambda: shared.rank(0).state == page.STATE_FROZEN)
    rank_dump.write_resume(Paths(tmp_path), 0, 7, "10.0.0.9", 29601, {})
    thread.join(LIMIT_S)
    assert not thread.is_alive() and shared.rank(0).state == page.STATE_RUNNING
    assert not (rank.rank_dir / "frozen.json").exists(), "it must not be dumped"


def test_a_full_volume_refuses_the_stop_and_the_script_goes_on(
    tmp_path: Path, rank: Boundary, shared: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "write_json", failing(FULL))
    monkeypatch.setattr(guard, "write_json", failing(FULL))
    thread = in_thread(lambda: freeze.freeze(rank, 7))
    until(lambda: refused(shared) == 7)
    why = refusal.read(Paths(tmp_path), 0, 7)
    assert why == "rank 0 cannot be saved: the checkpoint agent in it has failed; see its log"
    rank_dump.write_resume(Paths(tmp_path), 0, 7, "10.0.0.9", 29601, {})
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    rank.step()
    assert shared.rank(0).count == rank.count


@pytest.mark.parametrize("step", list(freeze._DOWN))
def test_each_step_down_may_fail(
    tmp_path: Path, rank: Boundary, shared: Page, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setitem(freeze._DOWN, step, failing(ValueError("broken")))
    thread = in_thread(lambda: freeze.freeze(rank, 7))
    until(lambda: refused(shared) == 7)
    assert f"{step}: ValueError: broken" in refusal.read(Paths(tmp_path), 0, 7)
    rank_dump.write_resume(Paths(tmp_path), 0, 7, "10.0.0.9", 29601, {})
    thread.join(LIMIT_S)
    assert not thread.is_alive() and shared.rank(0).state == page.STATE_RUNNING


def test_without_a_stop_it_cannot_be_saved_any_more(rank: Boundary, shared: Page, tmp_path: Path) -> None:
    """An operation of the script was not counted, say: no cut can be trusted."""
    guard.took(RecursionError("too deep"), "before an operation of the script")
    assert refused(shared) == page.ALWAYS
    assert "RecursionError: too deep" in refusal.read(Paths(tmp_path), 0, 12)


def test_an_error_of_a_signal_handler_is_the_scripts(
    tmp_path: Path, rank: Boundary, shared: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watchdog of the script's raises in the midst of us: the script gets it once the stop is over."""

    def alarm(*_: object) -> None:
        raise TimeoutError("the script's own")

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        shared.publish(7, 1, 0)

        def leader() -> None:
            until(lambda: shared.rank(0).blocked == 7)
            os.kill(os.getpid(), signal.SIGALRM)
            until(lambda: refused(shared) == 7 or not main.is_alive() or shared.rank(0).blocked == 7)
            shared.publish(0, 1, 0)

        main = threading.main_thread()
        thread = in_thread(leader)
        with pytest.raises(TimeoutError, match="the script's own"):
            rank.step()
        thread.join(LIMIT_S)
        assert shared.rank(0).blocked == 0
    finally:
        signal.signal(signal.SIGALRM, before)


CLOSED = """
import sys
from singularity_proxy.agent import guard
sys.stderr.close()
guard.report("nobody hears it")
sys.stderr = None
guard.took(OSError("nor this"), "testing")
print("trains")
"""


def test_a_script_that_has_closed_its_stderr_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "trains\n")


def test_errors_without_end_are_told_a_bounded_number_of_times(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(10 * guard.MOST_REPORTS):
        guard.took(ValueError("again"), "testing")
    assert capfd.readouterr().err.count("again") <= guard.MOST_REPORTS


# --- the launcher -----------------------------------------------------------------------------------------------------
def refuse(shared: Page, generation: int) -> None:
    shared.words[page.rank_word(0, page.R_REFUSED)] = generation


def test_the_launcher_tells_it_once_for_each_stop(tmp_path: Path, shared: Page) -> None:
    told: list[LauncherEvent] = []
    refusals = refusal.Refusals(Paths(tmp_path), told.append)
    clock = iter(range(100))
    refuse(shared, 6)
    shared.publish(7, 1, 0)
    refusals.due(next(clock), [0])
    assert told == [], "that was another stop"
    refuse(shared, 7)
    for _ in range(3):
        refusals.due(next(clock), [0])
    assert [(event.kind, event.generation) for event in told] == [("dump_failed", 7)]
    refuse(shared, page.ALWAYS)
    shared.publish(0, 0, 0)
    refusals.due(next(clock), [0])
    shared.publish(8, 1, 0)
    refusals.due(next(clock), [0])
    assert [event.generation for event in told] == [7, 8]


@pytest.mark.parametrize("text", ["", "[" * 5000, '{"message": ', '"x"', "{}", "[]", "x" * 10_000])
def test_a_reason_that_is_none(tmp_path: Path, shared: Page, text: str) -> None:
    refuse(shared, 7)
    (tmp_path / "run/rank-0/refused.json").write_text(text)
    assert refusal.read(Paths(tmp_path), 0, 7).endswith("the checkpoint agent in it has failed; see its log")


def test_a_reason_behind_a_link_or_a_pipe_is_not_read(tmp_path: Path, shared: Page) -> None:
    refuse(shared, 7)
    (tmp_path / "secret").write_text('{"message": "secret"}')
    path = tmp_path / "run/rank-0/refused.json"
    path.symlink_to(tmp_path / "secret")
    assert "secret" not in refusal.read(Paths(tmp_path), 0, 7)
    path.unlink()
    os.mkfifo(path)
    assert refusal.read(Paths(tmp_path), 0, 7).endswith("see its log")
