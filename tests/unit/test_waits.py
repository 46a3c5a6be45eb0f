"""Waits of the tests: a limit that a stalled process has passed is no failure, and one without progress is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import waits
from module_clock import set_clock
from waits import cpu_s, eventually, until


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the waits: a list of one number."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    set_clock(monkeypatch, waits, monotonic=lambda: clock[0], sleep=sleep)
    return clock


def test_the_value_that_is_true_is_returned(now: list[float]) -> None:
    values = iter([0, "", None, 7])
    assert until(lambda: next(values), "seven") == 7


def test_what_never_comes_is_said_with_its_detail(now: list[float]) -> None:
    with pytest.raises(AssertionError, match=r"^not within 3 s: rain\nthe sky is blue$"):
        until(lambda: False, "rain", limit_s=3, detail=lambda: "the sky is blue")
    assert 3 < now[0] < 3.1


def test_who_has_stood_still_looks_once_more(now: list[float]) -> None:
    looks = []

    def condition() -> bool:
        looks.append(now[0])
        now[0] += 500  # as long as this look takes
        return len(looks) == 2

    assert until(condition, "the second look")


def test_whoever_makes_progress_has_time(now: list[float]) -> None:
    assert until(lambda: now[0] > 1000, "the end", limit_s=10, progress=lambda: now[0] // 9)
    with pytest.raises(AssertionError, match="not within 10 s: the end"):
        until(lambda: now[0] > 5000, "the end", limit_s=10, progress=lambda: min(now[0], 2000))
    assert 2000 < now[0] < 2030


def test_whoever_has_ended_is_not_waited_for(now: list[float]) -> None:
    with pytest.raises(AssertionError, match="the other side ended before: a word"):
        until(lambda: False, "a word", alive=lambda: now[0] < 2)
    assert now[0] < 3
    assert until(lambda: "its last word", "a word", alive=lambda: False) == "its last word"


async def test_an_event_loop_goes_on_meanwhile() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, event.set)
    assert await eventually(event.is_set, "the event")
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: snow"):
        await eventually(lambda: None, "snow", limit_s=0.01)


def test_processes_that_compute_are_told_from_those_that_hang() -> None:
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until(lambda: cpu_s([Path(f"/proc/{busy.pid}")]) >= 1, "a second of CPU time")
        assert cpu_s([Path(f"/proc/{idle.pid}"), Path("/proc/0")]) == 0
    finally:
        for process in (idle, busy):
            process.kill()
            process.communicate()
    assert cpu_s([Path(f"/proc/{os.getpid()}")]) >= 0
