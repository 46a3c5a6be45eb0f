"""What machines tell each other are durations: no message has a time in it that its reader could compare with its own
clock, and the few places that read a wall clock are known, each with its reason."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import kueue_integration
from kueue_integration.contract import record_types as r
from singularity_proxy.protocol import messages as m
from singularity_proxy.protocol.decode import UnixTime
from singularity_proxy.sidecar import peers, signed

TRAVEL = [
    m.Plan, m.Refusal, m.LauncherCommand, m.LauncherEvent, m.Hello, m.HelloReply, m.Command, m.Progress,
    m.CommitRequest, m.CheckpointFailure, m.DamageReport, peers.PodReport, peers.Directive, signed.Current,
    m.PartsRequest, m.FileRange, m.TrialReport, m.Weight, m.LastWords,
    m.Occupied, m.ProgressReply,
]  # fmt: skip
KEPT = {
    m.CheckpointRef, r.AttemptRecord, r.Preemptor, r.JobRequest, r.RequestStatus, r.Placement, m.Needs,
    r.NodeRequirement, m.Reading, r.Skipped, m.Damage, m.Gpus, m.GpuFault, m.PodGpus, m.GpuProbe, m.Origin,
    m.FailedRestore, r.Earlier,
}  # fmt: skip
"""In annotations, in a log, or parts of messages."""
SHOWN = {"created_at"}
"""Of a checkpoint. The controller puts its own in its place."""
PROXY = "proxy/singularity_proxy"
ROOT = Path(kueue_integration.__file__).parents[1]
WALL = {
    f"{PROXY}/sidecar/leader.py": "dates a manifest, for people",
    f"{PROXY}/sidecar/signed.py": "numbers a pod's requests, which are compared with that pod's earlier ones",
    f"{PROXY}/launcher/snapshot/engine.py": "is compared with times of files in the container, of the same kernel",
    f"{PROXY}/sidecar/pod_phases.py": "is compared with the time of a folder that the same node has made",
    f"{PROXY}/store/object_client.py": "says when this process asks itself for a key again",
    "kueue_integration/kube/server_time.py": "learns how far this clock is from the API server's, which counts",
    "kueue_integration/controller/reconciler.py": "a default; the controller hands the API server's time in",
    "kueue_integration/controller/sidecar_api/tokens.py": "a default, likewise",
    "kueue_integration/controller/sidecar_api/shortcut.py": "dates an answer, as HTTP wants it",
    "kueue_integration/multikueue/reconciler.py": "a default, likewise",
    "kueue_integration/requests/verbs.py": "dates a request, for people",
    "kueue_integration/cli/status.py": "shows the time beside a line",
    "kueue_integration/cli/drain.py": "shows the time beside a line",
    "kueue_integration/cli/cells.py": "says which attempts of the last hours are played out again",
    "kueue_integration/cli/report.py": "says how long things have lasted, and is no ground for anything",
    "kueue_integration/cli/top.py": "says how long things have lasted, and is no ground for anything",
    "kueue_integration/cli/verbs.py": "shows the time beside a line",
    "kueue_integration/cli/doctor.py": "says how old things are, and is no ground for anything",
}
"""Files that read the wall clock, and why that is no comparison of two machines'."""
CLOCKS = {"time": {"time", "time_ns"}, "datetime": {"now", "utcnow", "today"}, "date": {"today"}}


def times(kind: typing.Any, seen: tuple[type, ...] = ()) -> Iterator[str]:
    """Fields of a message, and of those in it, that are Unix seconds by their type or their name."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        is_time = hint == UnixTime or UnixTime in typing.get_args(hint)
        if (is_time or name.endswith(("_at", "deadline")) or name == "at") and name not in SHOWN | {"stop_at"}:
            yield f"{kind.__name__}.{name}"
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner) and inner not in seen:
                yield from times(inner, (*seen, inner))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TRAVEL)
def test_no_message_between_machines_has_a_time_in_it(kind: type) -> None:
    assert list(times(kind)) == []


def test_a_time_in_a_message_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Late:
        record: r.AttemptRecord | None
        until: UnixTime | None = None
        deadline: float = 0.0

    # Its own scope has no names for get_type_hints.
    Late.__annotations__ = {"record": r.AttemptRecord | None, "until": UnixTime | None, "deadline": float}
    assert {"Late.until", "Late.deadline", "AttemptRecord.admitted_at"} <= set(times(Late))


def test_every_message_of_the_protocol_travels_or_is_kept_in_an_annotation() -> None:
    found = {x for x in vars(m).values() if dataclasses.is_dataclass(x) and x.__module__ == m.__name__}  # type: ignore[union-attr]
    assert found <= KEPT | set(TRAVEL), "say of a new message whether it travels between machines"


def reads_wall_clock(text: str) -> bool:
    def of(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            return any(name.name in CLOCKS["time"] for name in node.names)
        if not isinstance(node, ast.Attribute):
            return False
        owner = getattr(node.value, "attr", None) or getattr(node.value, "id", None)
        return node.attr in CLOCKS.get(str(owner), ())

    return any(of(node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("time.time()", True),
        ("def f(now=time.time): ...", True),
        ("from time import time", True),
        ("datetime.datetime.now(tz)", True),
        ("datetime.now()", True),
        ("time.monotonic()", False),
        ("clock.now()", False),
        ("from time import monotonic", False),
    ],
)
def test_a_look_at_the_wall_clock_is_found(text: str, found: bool) -> None:
    assert reads_wall_clock(text) == found


def test_the_wall_clock_is_read_where_it_is_known() -> None:
    """All that runs in pods and in the controller. Airflow's own clocks are Airflow's, which wants them to agree."""
    found = {
        path.relative_to(ROOT).as_posix()
        for package in (PROXY, "kueue_integration")
        for path in (ROOT / package).rglob("*.py")
        if reads_wall_clock(path.read_text())
    }
    assert found == set(WALL)
