"""Where the seconds of a move went: records and durations -> spans -> text, JSON and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result
from kueue_samples import attempt, job

from kueue_integration import cli
from kueue_integration.cli import formats, trace_svg, trace_text
from kueue_integration.cli import trace as cli_trace
from kueue_integration.contract import job_names
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.jobs import move_trace
from kueue_integration.jobs.move_trace import Move
from kueue_integration.kube.fake import FakeKube
from singularity_proxy.protocol import phases
from singularity_proxy.protocol.messages import to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases

T0 = 1_000_000.0
LEFT = attempt(
    1, flavor="spot", first_step=0, first_step_at=T0 - 50, last_step=40, ended_by="Preempted", preempted_by="urgent",
    evicted_at=T0, barrier_at=T0 + 0.5, committed_at=T0 + 4, released_at=T0 + 5, checkpoint="digits-a1-g1",
)  # fmt: skip
RIGHT = attempt(
    2, queued_at=T0 + 5, admitted_at=T0 + 15, running_at=T0 + 19, first_step=41, first_step_at=T0 + 20,
    restored_from="digits-a1-g1",
)  # fmt: skip
TOLD = [
    AttemptPhases(1, save=SavePhases(barrier=0.25, freeze=0.25, dump=1.5, upload=1.25)),
    AttemptPhases(2, start=StartPhases(0.25, 0.25, join=0.25, fetch=1.0, unpack=0.25, restore=0.75, meet=0.5)),
]
GOLDEN = """\
default/digits: attempt 1 (spot) to attempt 2 (ondemand), Preempted by urgent, checkpoint
    digits-a1-g1
PHASE       BY          SECONDS
notice      controller     0.25  █
barrier     ranks          0.25   █
freeze      agent          0.25    █
dump        CRIU           1.50     █████
upload      store          1.25          ████
commit      controller     0.50              █
release     Kueue          1.00               ████
queue       Kueue         10.00                   █████████████████████████████████
pods        Kubernetes     0.75                                                    ███
containers  Kubernetes     0.25                                                       █
load        sidecar        0.25                                                        █
join        sidecar        0.25                                                        █
fetch       store          1.00                                                         ████
unpack      launcher       0.25                                                             █
restore     CRIU           0.75                                                             ███
meet        ranks          0.50                                                                ██
first step  ranks          1.00                                                                  ███
total                     20.00"""


def one(left: Any = LEFT, right: Any = RIGHT, told: Any = TOLD) -> Move:
    (found,) = move_trace.moves([left, right] if right else [left], told)
    return found


def seconds(move: Move) -> dict[str, float]:
    return {span.phase: span.seconds for span in move.spans}


# --- spans --------------------------------------------------------------------------------------------------------
def test_phases_lie_between_the_moments_of_one_clock_and_leave_no_gap() -> None:
    move = one()
    assert list(seconds(move)) == [
        "notice", "barrier", "freeze", "dump", "upload", "commit", "release", "queue", "pods", "containers", "load",
        "join", "fetch", "unpack", "restore", "meet", "first step",
    ]  # fmt: skip
    at = 0.0
    for span in move.spans:
        assert span.start == pytest.approx(at, abs=0.002)
        at += span.seconds
    assert at == pytest.approx(move.seconds, abs=0.01) and move.seconds == 20.0 and move.notes == []


def test_records_of_a_version_that_tells_no_phases_are_drawn_with_what_they_have() -> None:
    move = one(told=[])
    assert seconds(move) == {
        "barrier": 0.5, "checkpoint": 3.5, "release": 1.0, "queue": 10.0, "pods, restore": 4.0, "first step": 1.0,
    }  # fmt: skip
    assert move.notes == [move_trace.UNTOLD_SAVE, move_trace.UNTOLD_START]


def test_a_wall_clock_of_a_node_plays_no_part() -> None:
    """What pods say is a duration. One that does not fit between two moments is cut, and the total stays."""
    huge = [
        AttemptPhases(1, save=SavePhases(barrier=3e9, dump=3e9, upload=1e9)),
        AttemptPhases(2, start=StartPhases(fetch=30.0, meet=10.0)),
    ]
    move = one(told=huge)
    found = seconds(move)
    assert move.seconds == 20.0 and "notice" not in found and "commit" not in found and "pods" not in found
    assert (found["dump"], found["upload"]) == (2.625, 0.875), "in the proportion that was told"
    assert (found["fetch"], found["meet"]) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("gone", "reserved", "found"),
    [
        (4.25, 14.5, {"pods end": 0.25, "release": 0.75, "queue": 9.5, "fence": 0.5}),
        (7.0, 14.5, {"release": 1.0, "queue": 9.5, "fence": 0.5}),
        (14.75, 6.0, {"release": 1.0, "queue": 1.0, "pods end": 8.75, "fence": 0.25}),
        (14.75, 3.0, {"release": 1.0, "pods end": 9.75, "fence": 0.25}),
        (15.5, 99.0, {"release": 1.0, "queue": 10.0}),
        (4.25, None, {"pods end": 0.25, "release": 0.75, "queue": 10.0}),
    ],
    ids=["before the quota", "in the queue", "the fence waits", "a whole second", "clocks", "older record"],
)
def test_the_end_of_the_pods_shows_where_somebody_waits_for_it(
    gone: float, reserved: float | None, found: dict[str, float]
) -> None:
    """Kueue frees the quota of a Job before its pods have ended: then only the fence waits for them."""
    left = replace(LEFT, pods_gone_at=T0 + gone)
    move = one(left, replace(RIGHT, reserved_at=None if reserved is None else T0 + reserved))
    shown = seconds(move)
    names = list(shown)
    assert {name: shown[name] for name in names[names.index("commit") + 1 : names.index("pods")]} == found
    assert list(found) == names[names.index("commit") + 1 : names.index("pods")]
    assert move.seconds == 20.0 and sum(shown.values()) == pytest.approx(20.0)


def test_pods_that_end_while_the_job_waits_are_shown_as_far_as_it_is_known() -> None:
    move = one(replace(LEFT, pods_gone_at=T0 + 6), None)
    assert list(seconds(move))[-2:] == ["release", "pods end"] and move.seconds == 6.0


def test_an_attempt_without_a_checkpoint_starts_anew() -> None:
    left = replace(LEFT, barrier_at=None, committed_at=None, checkpoint=None)
    move = one(left, replace(RIGHT, restored_from=None), [TOLD[0], AttemptPhases(2, StartPhases(restore=0.5))])
    assert seconds(move) == {"release": 5.0, "queue": 10.0, "pods": 3.5, "start": 0.5, "first step": 1.0}
    assert move.checkpoint == "" and move.notes == [], "phases of a checkpoint that was not committed are none"


def test_beside_kueue_the_barrier_comes_before_the_eviction() -> None:
    """A node is drained: the pods save themselves, and Kueue hears of it afterwards."""
    move = one(replace(LEFT, evicted_at=T0 + 4.5))
    assert list(seconds(move))[:6] == ["barrier", "freeze", "dump", "upload", "commit", "eviction"]
    assert (seconds(move)["barrier"], seconds(move)["eviction"], seconds(move)["release"]) == (0.25, 0.5, 0.5)
    assert move.seconds == 19.75


def test_the_report_that_ranks_run_may_come_after_the_first_step() -> None:
    move = one(right=replace(RIGHT, running_at=T0 + 20.4))
    assert move.seconds == 20.0
    assert "first step" not in seconds(move) and seconds(move)["pods"] == 1.75


def test_a_job_that_waits_has_half_a_move() -> None:
    move = one(right=None)
    assert (move.right, move.seconds, list(seconds(move))[-1]) == (None, 5.0, "release")
    assert move.notes == [move_trace.UNFINISHED]
    begun = one(right=replace(RIGHT, running_at=None, first_step_at=None), told=TOLD[:1])
    assert list(seconds(begun))[-1] == "queue" and begun.notes == [move_trace.UNFINISHED]


def test_a_program_without_steps_has_moved_when_it_runs() -> None:
    move = one(right=replace(RIGHT, first_step=None, first_step_at=None))
    assert list(seconds(move))[-1] == "meet" and move.seconds == 19.0 and move.notes == []


def test_gpus_have_phases_of_their_own() -> None:
    told = [
        AttemptPhases(1, save=replace(TOLD[0].save, device=0.25)),
        AttemptPhases(2, start=replace(TOLD[1].start, device=0.5)),
    ]
    move = one(told=told)
    assert (seconds(move)["device off"], seconds(move)["device on"]) == (0.25, 0.5)
    assert {span.by for span in move.spans if span.phase.startswith("device")} == {"device"}


def test_every_phase_that_pods_measure_has_somebody_who_works_in_it() -> None:
    measured = {*phases.by_name(SavePhases()), *phases.by_name(StartPhases())}
    assert measured - {"device"} <= set(move_trace.BY)
    assert set(move_trace.BY.values()) | {"Kueue", "Kubernetes", "controller", "sidecars"} == set(trace_svg.COLOURS)


def test_how_an_attempt_ended_may_not_have_been_seen() -> None:
    left = attempt(1, ended_by="Evicted")
    move = one(left, RIGHT, TOLD)
    assert next(iter(seconds(move))) == "pods" and move.notes == [move_trace.UNSEEN]


def test_a_job_that_has_ended_or_runs_for_the_first_time_has_not_moved() -> None:
    assert move_trace.moves([], []) == []
    assert move_trace.moves([attempt(1)], TOLD) == []
    assert move_trace.moves([replace(LEFT, finished_at=T0 + 9)], TOLD) == []


# --- text and picture ---------------------------------------------------------------------------------------------
def test_the_chart() -> None:
    assert trace_text.chart("default/digits", [one()]) == GOLDEN


HOSTILE = replace(
    LEFT, flavor="f\x1b[2J\n" * 20, preempted_by="</title><script>&" * 9, ended_by="Evil\nEnd", evicted_at=0.0,
    barrier_at=32_503_680_000.0,
)  # fmt: skip


def test_names_move_no_cursor_and_long_ones_fit() -> None:
    text = trace_text.chart("default/digits", [one(HOSTILE)])
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 100
    assert "Evil?End" in text


@pytest.mark.parametrize("moves", [[one()], [one(), one(HOSTILE)], [one(told=[])]])
def test_the_picture_is_xml_whatever_the_names_are(moves: list[Move]) -> None:
    text = trace_svg.picture("default/digits", moves)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and "<script" not in text
    bars = [r for r in root.iter() if r.tag.endswith("rect") and list(r)]
    assert len(bars) == sum(len(move.spans) for move in moves)
    for bar in bars:
        x, width = float(bar.attrib["x"]), float(bar.attrib["width"])
        assert x >= trace_svg.LEFT and x + width <= trace_svg.WIDTH - trace_svg.RIGHT + 2.1


# --- the command --------------------------------------------------------------------------------------------------
def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["trace", *arguments])


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = FakeKube()
    monkeypatch.setattr(cli_trace, "open_cluster", lambda kubeconfig, context: fake)
    again = replace(
        LEFT, attempt=2, admitted_at=T0 + 15, first_step_at=T0 + 20, evicted_at=T0 + 30, barrier_at=T0 + 31,
        committed_at=T0 + 32, released_at=T0 + 33,
    )  # fmt: skip
    last = attempt(3, admitted_at=T0 + 40, running_at=T0 + 44, first_step_at=T0 + 45)
    fake.put(job(history=[LEFT, again, last], annotations={job_names.ANN_PHASES: to_json(TOLD)}))
    return fake


def test_the_last_move_is_drawn_or_the_one_that_is_asked_for(kube: FakeKube) -> None:
    last = run("digits")
    assert last.exit_code == 0 and "attempt 2 (spot) to attempt 3 (ondemand)" in last.output
    assert "attempt 1" not in last.output and "\ntotal" in last.output and "15.00" in last.output
    assert "attempt 1 (spot) to attempt 2" in run("digits", "--attempt", "1").output
    assert run("digits", "--all").output.count("\ntotal") == 2


def test_for_programs(kube: FakeKube) -> None:
    moves = json.loads(run("digits", "--all", "-o", "json").output)
    assert [(move["left"], move["right"], move["seconds"]) for move in moves] == [(1, 2, 20.0), (2, 3, 15.0)]
    assert moves[0]["spans"][0] == {"phase": "notice", "by": "controller", "start": 0.0, "seconds": 0.25}
    assert {(move["apiVersion"], move["kind"]) for move in moves} == {(formats.API_VERSION, "Move")}
    assert run("digits", "-o", "jsonpath={.items[*].seconds}").output == "15.0\n"
    assert yaml.safe_load(run("digits", "--all", "-o", "yaml").output) == moves
    picture = run("digits", "-o", "svg").output
    assert ElementTree.fromstring(picture).tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nobody"], "no training job 'nobody'"),
        (["digits", "--attempt", "9"], "--attempt = 9: is not there: attempts 1 to 3 are recorded"),
        (["digits", "--attempt", "3"], "--attempt = 3: has not moved: nothing to trace"),
        (["digits", "--attempt", "1", "--all"], "exclude each other"),
        (["digits", "--attempt", "0"], "Invalid value"),
    ],
)
def test_bad_input(kube: FakeKube, arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and text in done.output


@pytest.mark.parametrize("history", [None, [attempt(1)]])
def test_a_job_that_has_not_moved(kube: FakeKube, history: Any) -> None:
    kube.put(job(history=history))
    done = run("digits")
    assert (done.exit_code, done.output) == (2, "error: name = 'digits': has not moved: nothing to trace\n")


def test_a_history_that_cannot_be_read_is_said_to_be_so(kube: FakeKube) -> None:
    kube.put(job(annotations={job_names.ANN_HISTORY: "["}))
    done = run("digits")
    assert done.exit_code == 3 and f"annotation {job_names.ANN_HISTORY} of job digits cannot be read" in done.output


def test_phases_that_cannot_be_read_are_left_out(kube: FakeKube) -> None:
    kube.put(job(history=[LEFT, RIGHT], annotations={job_names.ANN_PHASES: "["}))
    assert move_trace.UNTOLD_SAVE in run("digits").output


def test_help_has_examples_and_exit_codes() -> None:
    shown = run("--help").output
    assert "singularityctl trace digits" in shown and "Exit codes:" in shown
    assert max(map(len, shown.splitlines())) <= 100
