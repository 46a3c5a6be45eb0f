"""Records of two releases: what a newer one has written, an older one reads, changes and keeps."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import T0
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builder import a_job

from kueue_integration.contract import attempt_records, branches, job_names, leaves
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.contract.record_types import (
    AttemptRecord,
    JobRequest,
    NodeRequirement,
    Placement,
    Preemptor,
    RequestStatus,
    Skipped,
)
from kueue_integration.controller import apply, attempt_history
from kueue_integration.controller.actions import Repair
from kueue_integration.controller.snapshot import Job, required
from kueue_integration.errors import BadAnnotationError, Conflict
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, version_of
from singularity_proxy.protocol import decode, gpus, names
from singularity_proxy.protocol.decode import Record, Unreadable
from singularity_proxy.protocol.messages import (
    CheckpointRef,
    FailedRestore,
    GpuFault,
    Gpus,
    HelloReply,
    Needs,
    from_json,
    to_json,
)
from singularity_proxy.protocol.phases import SavePhases, StartPhases

REF = CheckpointRef(
    "c1", 1_000_001, 1, 100, 2, "file:///s", 1, 1, T0 + 50, "a" * 64, Needs("x86_64", ["AVX2"]),
    failed=[FailedRestore(1, "no room", node="n1")],
)  # fmt: skip
WHOLE = replace(
    scene.record(1, ended_by="Preempted", checkpoint="c1", note="显存不足"),
    preemptor=Preemptor("w", "team"), skipped=[Skipped("c0", 5, "damaged")], readmitted_for="regrow",
    gpus=gpus.bounded(Gpus(2, 85.3, 7, 8, faults=[GpuFault("GPU-" + "0" * 36, 63, 7)])),
)  # fmt: skip
RECORDS: list[Any] = [
    WHOLE, REF, branches.Rewind(1, "c1", 100, 5, "me", T0), branches.Origin("other", "c1"),
    AttemptPhases(1, StartPhases(load=1.0), SavePhases(dump=2.0)), leaves.Leave(1, "saving", T0, T0 + 60, T0, "why"),
    JobRequest("r", "migrate", T0, placement=Placement(["a100"], terms=[[NodeRequirement("k", "In", ["v"])]])),
    RequestStatus("r", "pause", "running", "on its way", T0),
]  # fmt: skip
added_names = st.from_regex(r"[a-z]{3,8}_of_next", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8).map(lambda t: t.replace("\\", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(added_names, inner, max_size=3),
    max_leaves=6,
)


def _record_in(hint: Any) -> Any:
    """The Record that values of this type are, or hold."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint
    args = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union, list) else ()
    return next(filter(None, map(_record_in, args)), None)


def _words(hint: Any) -> tuple[str, ...]:
    """Those of an enumeration that grows."""
    for option in (hint, *typing.get_args(hint)):
        if typing.get_origin(option) is typing.Annotated and isinstance(typing.get_args(option)[1], decode.Grows):
            return typing.get_args(typing.get_args(option)[0])
    return ()


def _by_next_release(data: st.DataObject, cls: Any, plain: Any) -> Any:
    """`plain`, the JSON of a `cls`, as a release writes it that has more fields and more words."""
    if isinstance(plain, list):
        return [_by_next_release(data, cls, one) for one in plain]
    if plain is None or cls is None:
        return plain
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {name: _by_next_release(data, _record_in(hints[name]), value) for name, value in plain.items()}
    for name in sorted(found):
        if _words(hints[name]) and data.draw(st.booleans()):
            found[name] = "word-of-next"
    return {**found, **data.draw(st.dictionaries(added_names, values, max_size=2))}


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
@given(st.data())
@settings(max_examples=50)
def test_what_the_next_release_adds_to_a_record_comes_back_whole(record, data):
    written = _by_next_release(data, type(record), json.loads(to_json(record)))
    read = from_json(type(record), json.dumps(written))
    assert json.loads(to_json(read)) == written
    assert json.loads(to_json(replace(read))) == written


@given(st.data())
@settings(max_examples=50)
def test_a_history_of_the_next_release_survives_this_one_s_changes(data):
    past = [replace(WHOLE, attempt=n, admitted_at=T0 + n) for n in range(1, 5)]
    written = _by_next_release(data, AttemptRecord, json.loads(to_json(past)))
    job = replace(a_job(), past=()).with_note(job_names.ANN_HISTORY, json.dumps(written)).job
    history = attempt_records.history(job)
    changed = attempt_history.with_last(history, replace(history[-1], last_step=77))
    (text,) = attempt_history.stored(changed).values()
    written[-1]["last_step"] = 77
    assert json.loads(str(text)) == written


def test_a_word_that_is_not_known_goes_when_the_field_gets_another_value():
    read = from_json(AttemptRecord, json.dumps({**json.loads(to_json(WHOLE)), "readmitted_for": "energy"}))
    assert read.readmitted_for is None and decode.plain(read)["readmitted_for"] == "energy"
    assert json.loads(to_json(replace(read, note="x")))["readmitted_for"] == "energy"
    assert json.loads(to_json(replace(read, readmitted_for="request")))["readmitted_for"] == "request"


def test_defaults_are_not_written_so_that_older_readers_do_not_meet_new_fields():
    assert json.loads(to_json(JobRequest("r", "pause", T0))) == {"id": "r", "op": "pause", "at": T0}
    assert json.loads(to_json(HelloReply("k", ""))) == {"peer_key": "k", "leader_ip": ""}


def test_no_field_of_a_record_has_the_name_under_which_unknown_ones_are_kept():
    found = decode.plain(from_json(Preemptor, '{"workload": "w", "newer": {"job": 1}}'))
    assert found["newer"] == {"job": 1} and found["job"] == ""


@given(st.integers(1, 3000))
def test_a_record_of_the_next_release_that_is_cut_is_unreadable_and_nothing_else(at):
    text = json.dumps([{**json.loads(to_json(WHOLE)), "energy": {"joules": [1, 2, {"deep": "显存"}]}}])
    found = decode.messages(AttemptRecord, text[:at])
    assert isinstance(found, Unreadable) == (at < len(text))


# --- the schema number ------------------------------------------------------------------------------------------------
NEXT = str(attempt_records.SCHEMA + 1)
SPOILT = {job_names.ANN_HISTORY: '[{"attempt": "one"}]', names.ANN_CHECKPOINT: '{"no": "field"}'}


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.parametrize("runs", [False, True])
def test_what_a_newer_release_has_written_is_not_repaired(name, runs):
    begun = a_job().running() if runs else replace(a_job(), past=(scene.record(1, ended_by="Preempted"),))
    job = (
        begun.with_checkpoint(REF).with_note(name, SPOILT[name]).with_note(job_names.ANN_CHECKPOINT_COPY, to_json(REF))
    )
    assert isinstance(job.look().action, Repair)
    newer = job.with_note(job_names.ANN_SCHEMA, NEXT).look().action
    assert not isinstance(newer, Repair)
    assert newer is None or name not in newer.job_annotations


def test_whoever_cannot_read_a_newer_record_is_not_told_to_repair_it():
    job = a_job().running().with_note(names.ANN_CHECKPOINT, SPOILT[names.ANN_CHECKPOINT])
    with pytest.raises(BadAnnotationError, match="Repair it, or delete the Job"):
        required(Job.parse(job.job).checkpoint)
    with pytest.raises(BadAnnotationError, match="a newer release has written it: upgrade the controller"):
        required(Job.parse(job.with_note(job_names.ANN_SCHEMA, NEXT).job).checkpoint)


class _Written:
    """The API server as far as one patch goes."""

    def patch(self, kind: Any, namespace: str, name: str, body: Any, version: str, subresource: Any) -> Any:
        return body["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("stands", "then"), [(None, "1"), ("0", "1"), ("spoilt", "1"), ("1", None), (NEXT, None)]
)  # fmt: skip
def test_a_history_gets_the_number_of_its_format_and_keeps_a_newer_one(stands, then):
    job = a_job().running()
    job = job if stands is None else job.with_note(job_names.ANN_SCHEMA, stands)
    written: Any = apply.patch_annotations(_Written(), job.job, {job_names.ANN_HISTORY: "[]"})  # type: ignore[arg-type]
    assert written.get(job_names.ANN_SCHEMA) == then
    other: Any = apply.patch_annotations(_Written(), job.job, {job_names.ANN_PROGRESS: "{}"})  # type: ignore[arg-type]
    assert set(other) == {job_names.ANN_PROGRESS}


@given(st.lists(st.sampled_from(["this", "next"]), min_size=2, max_size=8))
def test_two_controllers_of_two_releases_that_write_in_turns_lose_nothing(writers):
    """For a moment of an upgrade both may act on one Job: each write has the version that it was read with."""
    kube = FakeKube(a_job().running().job)
    for step, writer in enumerate(writers, 1):
        job = kube.get_job(scene.NS, "train")
        history = attempt_records.history(job)
        changed = attempt_history.stored(attempt_history.with_last(history, replace(history[-1], last_step=step)))
        if writer == "next":
            plain = json.loads(str(changed[job_names.ANN_HISTORY]))
            plain[-1]["weather_of_next"] = [*plain[-1].get("weather_of_next", []), step]
            changed = {job_names.ANN_HISTORY: json.dumps(plain), job_names.ANN_SCHEMA: NEXT}
            kube.patch(JOB, scene.NS, "train", {"metadata": {"annotations": changed}}, version_of(job))
        else:
            apply.patch_annotations(kube, job, changed)
        with pytest.raises(Conflict):
            apply.patch_annotations(kube, job, {job_names.ANN_HISTORY: "[]"})
    end = kube.get_job(scene.NS, "train")
    record = attempt_records.history(end)[-1]
    assert record.last_step == len(writers)
    by_next = [step for step, writer in enumerate(writers, 1) if writer == "next"]
    assert record.newer == ({"weather_of_next": by_next} if by_next else {})
    assert attempt_records.newer(end) is bool(by_next)


# --- long histories ---------------------------------------------------------------------------------------------------
def _long(count: int, note: str, faults: int = 20) -> list[AttemptRecord]:
    seen = [GpuFault(f"GPU-{n:036x}", 63, 7) for n in range(faults)]
    bad = gpus.bounded(Gpus(64, 85.3, 7 * 10**10, 8 * 10**10, faults=seen))
    one = scene.record(1, ended_by="Preempted", checkpoint="c", first_step=0, first_step_at=T0 + 20, evicted_at=T0 + 80)
    each = [replace(one, attempt=n, first_step=n * 10 - 5, last_step=n * 10 + 9, gpus=bad) for n in range(1, count + 1)]
    return [attempt_history.noted(record, note) for record in each]


@pytest.mark.parametrize("note", ["显存不足，进程被终止。" * 40, "x" * 400])
def test_fifty_attempts_with_long_notes_are_all_there(note):
    (text,) = attempt_history.stored(_long(50, note)).values()
    assert text is not None and len(text.encode()) <= attempt_history.MAX_BYTES
    read = scene.stored({job_names.ANN_HISTORY: text})
    assert [r.attempt for r in read] == list(range(1, 51))
    assert all(len(r.note or "") > 300 and r.gpus and r.gpus.faults for r in read[-attempt_history.MAX_WHOLE :])


@given(st.integers(1, 130), st.sampled_from(["", "显存不足" * 100]), st.integers(0, 1))
@settings(max_examples=15)
def test_no_attempt_is_lost_whatever_is_summed_up(count, note, faults):
    """Written after each attempt, as the controller does it, and read again."""
    history: list[AttemptRecord] = []
    full = _long(count, note, faults * 20)
    for record in full:
        (text,) = attempt_history.stored([*history, record]).values()
        history = scene.stored({job_names.ANN_HISTORY: text})
    earlier = history[0].earlier
    gone = 0 if earlier is None else earlier.attempts
    assert gone + len(history) == count and all(r.earlier is None for r in history[1:])
    assert [r.attempt for r in history] == list(range(gone + 1, count + 1))
    if earlier is not None:
        assert (
            earlier.ended_by == {"Preempted": gone}
            and earlier.committed == gone
            and earlier.since == full[0].admitted_at
        )
        assert earlier.ran_s == pytest.approx(60.0 * gone)
    lost = sum(attempt_records.steps_lost(history).values()) + (earlier.steps_lost if earlier else 0)
    assert lost == sum(attempt_records.steps_lost(full).values())
