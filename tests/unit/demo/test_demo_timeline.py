"""The picture: segments are the attempts' own times, and the SVG is well-formed and shows them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from test_demo_report import attempts

from localcluster.demo import timeline
from localcluster.demo.model import Sample, StoryRecord

SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = tuple(Sample(1000.0 + t, "Running", 5 * t, 4) for t in range(0, 100, 10))
RECORD = StoryRecord("train", 999.0, attempts(), (), SAMPLES)


def test_segments_follow_the_attempts() -> None:
    assert [(s.lane, s.kind, s.start, s.end) for s in timeline.segments(RECORD, 1100.0)] == [
        ("queue", timeline.WAITING, 1.0, 2.0),
        ("ondemand", timeline.STARTING, 2.0, 11.0),
        ("ondemand", timeline.RUNNING, 11.0, 31.0),
        ("ondemand", timeline.CHECKPOINT, 31.0, 33.0),
        ("ondemand", timeline.HANDOVER, 33.0, 33.5),
        ("queue", timeline.WAITING, 33.5, 35.0),
        ("spot", timeline.RESTORE, 35.0, 41.0),
        ("spot", timeline.RUNNING, 41.0, 56.0),
        ("spot", timeline.CHECKPOINT, 56.0, 58.0),
        ("spot", timeline.HANDOVER, 58.0, 58.25),
        ("queue", timeline.WAITING, 58.25, 59.0),
        ("ondemand", timeline.RESTORE, 59.0, 64.0),
        ("ondemand", timeline.RUNNING, 64.0, 101.0),
    ]


def test_an_attempt_that_never_stepped_has_no_running_bar() -> None:
    first = replace(attempts()[0], first_step_at=None, first_step=None, barrier_at=None, committed_at=None)
    kinds = [s.kind for s in timeline.segments(replace(RECORD, attempts=[first]), 1100.0)]
    assert kinds == [timeline.WAITING, timeline.STARTING, timeline.HANDOVER]


def test_markers_say_who() -> None:
    assert [(m.at, m.text) for m in timeline.markers(RECORD)] == [
        (31.0, "preempted by job-urgent-1a2b3"),
        (56.0, "grown back by the planner"),
    ]


def test_steps_never_go_back_and_end_at_the_last() -> None:
    points = timeline.steps(RECORD)
    assert [at for at, _ in points] == sorted(at for at, _ in points)
    counts = [count for _, count in points]
    assert counts == sorted(counts)
    assert counts[-1] == 900


def test_svg_is_well_formed_and_tells_the_story() -> None:
    root = ET.fromstring(timeline.svg(RECORD, 'a <title> & "quotes"'))
    texts = [e.text for e in root.iter(f"{SVG}text")]
    assert 'a <title> & "quotes"' in texts
    for wanted in ("queue", "ondemand", "spot", "4 pods", "preempted by job-urgent-1a2b3", "checkpoint", "steps done"):
        assert wanted in texts
    colours = [e.get("fill") for e in root.iter(f"{SVG}rect")]
    # One in the legend, and one bar per segment of that kind.
    assert colours.count(timeline.COLOURS[timeline.RUNNING]) == 1 + 3
    assert colours.count(timeline.COLOURS[timeline.CHECKPOINT]) == 1 + 2
    assert len(list(root.iter(f"{SVG}polyline"))) == 1


def test_svg_stays_inside_its_frame() -> None:
    root = ET.fromstring(timeline.svg(RECORD, "t"))
    for rect in root.iter(f"{SVG}rect"):
        x, width = float(rect.get("x", 0)), float(rect.get("width", 0))
        assert x >= 0
        assert x + width <= timeline.WIDTH + 2


def test_svg_of_a_run_without_attempts() -> None:
    ET.fromstring(timeline.svg(StoryRecord("train", 999.0, (), (), ()), "nothing happened"))


@pytest.mark.parametrize(("span", "count", "size"), [(10, 12, 1), (100, 12, 10), (180, 12, 20), (500, 12, 50)])
def test_ticks_are_round(span: float, count: int, size: float) -> None:
    assert timeline.tick(span, count) == size
