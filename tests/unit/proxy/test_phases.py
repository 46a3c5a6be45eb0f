"""Seconds of the phases of a checkpoint and of a start: who measures what, and which pod's stand for the job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from singularity_proxy.launcher.laps import Laps
from singularity_proxy.protocol import decode, phases
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.messages import LauncherEvent, to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases
from singularity_proxy.sidecar.pod_phases import PodPhases, before_us


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_laps_follow_each_other_and_add_up(clock: Clock) -> None:
    laps = Laps(clock)
    for name, seconds in (("freeze", 0.5), ("dump", 2.0), ("freeze", 0.25)):
        clock.sleep(seconds)
        laps.end(name)
    assert laps.seconds == {"freeze": 0.75, "dump": 2.0}


def test_where_there_is_no_device_nothing_is_told_of_one(clock: Clock) -> None:
    laps = Laps(clock, absent=("device",))
    for name, seconds in (("freeze", 0.5), ("device", 0.25), ("dump", 2.0)):
        clock.sleep(seconds)
        laps.end(name)
    assert laps.seconds == {"freeze": 0.5, "dump": 2.25}, "no moment is lost"


def test_a_pod_measures_its_start(clock: Clock) -> None:
    pod = PodPhases(clock, before=(0.75, 0.5))
    clock.sleep(1.5)
    pod.joined()
    clock.sleep(4.0)
    pod.planned()
    assert pod.start is None, "no rank runs yet"
    clock.sleep(20.0)  # the image of the launcher is being pulled
    clock.sleep(2.5)  # and this is what the launcher tells
    pod.run(LauncherEvent("restored", start=StartPhases(restore=2.0, meet=0.5)))
    assert pod.start == StartPhases(containers=0.75, load=0.5, join=1.5, fetch=4.0, image=20.0, restore=2.0, meet=0.5)


def test_what_was_before_the_sidecar_is_seen_by_the_clock_of_its_node(tmp_path: Path) -> None:
    begun = time.clock_gettime(time.CLOCK_BOOTTIME) - 2.0
    stat = tmp_path / "stat"
    stat.write_text(f"7 (a ) name) {' '.join(['0'] * 19)} {int(begun * os.sysconf('SC_CLK_TCK'))} 0 0")
    images = tmp_path / "images"
    images.mkdir()
    os.utime(images, (0, time.time() - 5.0))
    containers, load = before_us(images, stat)
    assert load == pytest.approx(2.0, abs=0.5) and containers == pytest.approx(3.0, abs=0.5)
    os.utime(images, (0, time.time() + 3600.0))
    assert before_us(images, stat)[0] == 0.0, "a clock that was set back"
    assert before_us(tmp_path / "none", stat) == (0.0, 0.0)
    stat.write_text("7 (a) S 1")
    assert before_us(images, stat) == (0.0, 0.0)
    assert 0.0 < before_us(tmp_path)[1] < 1e6, "this very process"


@pytest.mark.parametrize("start", [None, StartPhases(restore=2.0)])
def test_nothing_is_told_of_a_start_that_was_not_seen_whole(clock: Clock, start: StartPhases | None) -> None:
    pod = PodPhases(clock)
    pod.joined()
    if start is None:  # of a launcher that does not tell
        pod.planned()
    pod.run(LauncherEvent("started", start=start))  # else: a sidecar before this one gave the plan
    assert pod.start is None


def test_a_pod_measures_what_is_left_of_the_upload_after_the_dump(clock: Clock) -> None:
    pod = PodPhases(clock)
    pod.dumped(LauncherEvent("dumped", 1, save=SavePhases(freeze=0.1, dump=2.0)))
    assert pod.save is None, "nothing is told before it is whole"
    clock.sleep(3.0)
    pod.uploaded()
    assert pod.save == SavePhases(freeze=0.1, dump=2.0, upload=3.0)
    pod.dumped(LauncherEvent("dumped", 2))
    pod.uploaded()
    assert pod.save is None, "that was of another checkpoint"


def test_a_checkpoint_of_the_job_is_that_of_the_slowest_pod() -> None:
    fast, slow = SavePhases(dump=3.0, upload=0.5), SavePhases(dump=1.0, upload=9.0)
    assert phases.of_job_save([fast, None, slow], 0.25) == SavePhases(barrier=0.25, dump=1.0, upload=9.0)
    assert phases.of_job_save([fast], -0.1) == fast
    assert phases.of_job_save([None, None], 1.0) is None and phases.of_job_save([], 1.0) is None


def test_a_start_of_the_job_is_that_of_the_pod_that_came_last_to_the_meeting() -> None:
    early, late = StartPhases(fetch=3.0, meet=12.0), StartPhases(fetch=2.0, restore=1.0, meet=0.1)
    assert phases.of_job_start([early, late]) == late
    assert phases.of_job_start([early, late, None]) is None, "the last one may be the one that has not told"
    assert phases.of_job_start([]) is None
    fresh = [StartPhases(join=1.0), StartPhases(join=5.0)]
    assert phases.of_job_start(fresh) == fresh[1]


def test_they_are_kept_to_ten_milliseconds() -> None:
    kept = phases.rounded(StartPhases(join=1.23456, meet=0.004))
    assert kept == StartPhases(join=1.23, meet=0.0)
    assert len(to_json(kept)) < 120


@pytest.mark.parametrize(
    "text",
    ['{"meet": -1}', '{"meet": 1e300}', '{"meet": "1"}', '{"meet": NaN}', '{"meet": null}', "[]"],
)
def test_what_is_no_duration_is_unreadable(text: str) -> None:
    assert isinstance(decode.message(StartPhases, text), Unreadable)
