"""The decoder of everything that others write: a value within its bounds, or the reason. It never raises."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from datetime import datetime, timezone
from typing import Any

import garbage
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kueue_integration.contract import record_types as r
from singularity_proxy.protocol import decode, manifest
from singularity_proxy.protocol import messages as m
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.phases import SavePhases, StartPhases
from singularity_proxy.sidecar.peers import Directive, PodReport

GPUS = m.Gpus(
    8, 93.5, 70 << 30, 80 << 30, 4, 0, [m.GpuFault("GPU-0a1b-2c", 79, 2)], 1, 12.5, [m.PodGpus(3, [79], 1, 50.0)]
)  # fmt: skip
RECORD = r.AttemptRecord(
    attempt=2, reservation="u/1", flavor="spot", pods=2, ranks=4, admitted_at=1.5e9, preemptor=r.Preemptor("w"),
    gpus=GPUS,
)  # fmt: skip
REF = m.CheckpointRef("a-1", 65537, 1, 7, 4, "gs://b/c", 10, 5, 1.5e9, "5" * 64, m.Needs("amd64", ["AVX"]))
REQUEST = r.JobRequest(
    "r", "migrate", 1.5e9, placement=r.Placement(["spot"], ["n"], [[r.NodeRequirement("k", "In", ["v"])]])
)
GOOD: list[Any] = [
    RECORD, REF, REQUEST, r.RequestStatus("r", "resize", "done", "m", 1.5e9),
    m.Plan("restore", 1, 4, [0, 1], "a", 1), m.LauncherCommand(1, "dump", job=["a"]),
    m.LauncherEvent("reading", reading=m.Reading(1, 2, 0.5)), m.LauncherEvent("gpus", gpus=GPUS),
    m.LauncherEvent("dumped", save=SavePhases(0.5, dump=2.0)), PodReport(1, [], start=StartPhases(fetch=1.5)),
    m.Hello("n", "j", 1, 0, "p", "ip"),
    m.HelloReply("k", "ip", REF), m.Command(1, "checkpoint", "r", 30.0),
    m.Progress("n", "j", 1, "running", 5, reading=m.Reading(1)), m.CommitRequest("n", "j", 1, REF, 1.5, 6),
    m.CheckpointFailure("n", "j", 1, "why"), Directive("run"), PodReport(1, [], gpus=GPUS),
]  # fmt: skip


def _bounded(value: Any) -> bool:
    """Every number of it is finite, and every string can be written down."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= decode.MAX_WHOLE
    if isinstance(value, str):
        return bool(value.encode() or True)
    if isinstance(value, dict):
        return all(_bounded(k) and _bounded(v) for k, v in value.items())
    return not isinstance(value, list) or all(map(_bounded, value))


@pytest.fixture(scope="module")
def linear_s() -> float:
    """Seconds of this machine for the longest text, read once. All readers together take up to 40 times as long."""
    text, took = "[" + "0," * 100_000 + "0]", []
    for _ in range(5):
        began = time.thread_time()
        json.loads(text)
        took.append(time.thread_time() - began)
    return min(took)


@pytest.mark.parametrize("text", garbage.EXTREMES, ids=lambda text: ascii(text[:12]))
def test_every_extreme_is_a_value_or_a_reason(text: str, linear_s: float) -> None:
    began = time.thread_time()
    for found in (decode.json_value(text), decode.whole(text), decode.number(text), decode.moment(text)):
        assert _bounded(found) if not isinstance(found, Unreadable) else 0 < len(found.why) < 300
    for cls in (r.AttemptRecord, m.CheckpointRef):
        assert isinstance(decode.message(cls, text), Unreadable)
        assert decode.messages(cls, text) == [] or isinstance(decode.messages(cls, text), Unreadable)
        for found in (decode.last_message(cls, text), decode.last_message(cls, f"[{text}]")):
            assert found is None or isinstance(found, Unreadable)
    assert time.thread_time() - began < 400 * linear_s, "some reader is not linear in the length of the text"


@given(garbage.texts() | st.binary(max_size=50))
def test_any_text_is_a_value_or_a_reason(text: str | bytes) -> None:
    for found in (decode.json_value(text), decode.whole(text), decode.number(text), decode.moment(text)):
        assert isinstance(found, Unreadable) or _bounded(found)


@given(garbage.values())
def test_what_is_no_text_is_unreadable(value: Any) -> None:
    if not isinstance(value, str):
        for read in (decode.json_value, decode.whole, decode.number, decode.moment):
            assert isinstance(read(value), Unreadable)


@settings(max_examples=300)
@given(st.sampled_from(GOOD).flatmap(lambda good: st.tuples(st.just(good), garbage.near(m.to_json(good)))))
def test_a_damaged_message_is_a_message_within_bounds_or_a_reason(case: tuple[Any, str]) -> None:
    good, text = case
    found = decode.message(type(good), text)
    if isinstance(found, Unreadable):
        assert 0 < len(found.why) < 600
        found.why.encode()
        with pytest.raises(m.MessageError):
            m.from_json(type(good), text)
        return
    assert _bounded(dataclasses.asdict(found))
    assert decode.message(type(good), m.to_json(found)) == found


@given(st.sampled_from(GOOD), garbage.values())
def test_a_decoded_value_is_a_message_or_a_reason(good: Any, value: Any) -> None:
    for data in (value, {**dataclasses.asdict(good), next(iter(dataclasses.asdict(good))): value}):
        found = decode.typed(type(good), data)
        assert isinstance(found, (Unreadable, type(good)))


@pytest.mark.parametrize("good", GOOD, ids=lambda good: type(good).__name__)
def test_good_messages_are_read(good: Any) -> None:
    assert decode.message(type(good), m.to_json(good)) == good
    assert decode.messages(type(good), m.to_json([good, good])) == [good, good]


def test_numbers_have_ranges() -> None:
    text = m.to_json(RECORD)
    for field, bad in (("attempt", -1), ("admitted_at", -1.0), ("admitted_at", 1e12)):
        changed = json.dumps({**json.loads(text), field: bad})
        found = decode.message(r.AttemptRecord, changed)
        assert isinstance(found, Unreadable) and f"AttemptRecord.{field}" in found.why, changed[:200]
    assert decode.message(m.Reading, '{"loss": 1e40}') == m.Reading(loss=1e40)


def test_whole() -> None:
    assert decode.whole("0") == 0 and decode.whole("007") == 7
    for bad in ("-1", "1.0", "1e3", "", " 1", "９", "²"):
        assert decode.whole(bad) == Unreadable("not a whole number")
    assert decode.whole("11", 1, 10) == Unreadable("not a whole number from 1 to 10")
    assert decode.whole("9" * 400, 1, 10) == Unreadable("not a whole number from 1 to 10")
    assert decode.whole("9" * 200_000, 1, 10) == Unreadable("not a whole number from 1 to 10")


def test_number() -> None:
    assert decode.number("1.5") == 1.5 and decode.number("-2e3") == -2000.0
    for bad in ("nan", "inf", "1e400", "", "1 s", "9" * 400):
        assert decode.number(bad) == Unreadable("not a number")
    assert decode.number("5", 0, 1) == Unreadable("not a number from 0 to 1")


@given(st.datetimes(datetime(1970, 1, 2), datetime(2999, 1, 1), timezones=st.just(timezone.utc)))
def test_moment(moment: datetime) -> None:
    assert decode.moment(moment.isoformat().replace("+00:00", "Z")) == moment.timestamp()


def test_depth_counts_brackets_outside_of_strings_only() -> None:
    assert decode.json_value(json.dumps(["[" * 1000, '\\"[' * 100])) == ["[" * 1000, '\\"[' * 100]
    assert decode.json_value("[" * 32 + "]" * 32) is not None
    assert decode.json_value("[" * 33 + "]" * 33) == Unreadable("not valid JSON: nested deeper than 32")
    assert decode.json_value("[" + "[]," * 100 + "[]]") == [[]] * 101, "many beside each other are not deep"


def test_half_a_character_is_allowed_where_names_of_files_are_read() -> None:
    assert decode.json_value(r'"a\ud800"') == Unreadable("not valid JSON: half a character")
    assert decode.json_value(r'"a\ud800"', halves=True) == "a\ud800"
    assert decode.json_value(r'"\ud83d\ude00"') == "\U0001f600"


def test_size_is_bounded_before_anything_is_parsed() -> None:
    assert decode.json_value("1" * 11, most_bytes=10) == Unreadable("longer than 10 bytes")
    assert decode.json_value('"' + "é" * 6 + '"', most_bytes=10) == Unreadable("longer than 10 bytes")


@settings(max_examples=60)
@given(garbage.texts())
def test_any_text_is_a_manifest_or_a_message_error(text: str) -> None:
    with pytest.raises(m.MessageError):
        manifest.loads(text)
