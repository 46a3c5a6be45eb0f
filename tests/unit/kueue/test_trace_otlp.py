"""Moves as OTLP/JSON: its shape, by hand and by OpenTelemetry's own protocol; ids that stay; times of one clock."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from kueue_samples import attempt, job

from kueue_integration import cli
from kueue_integration.cli import trace as cli_trace
from kueue_integration.cli import trace_otlp
from kueue_integration.contract import job_names
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.jobs import move_trace
from kueue_integration.jobs.move_trace import Move
from kueue_integration.kube.fake import FakeKube
from singularity_proxy.protocol.messages import to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases

T0 = 1_800_000_000.0
LEFT = attempt(
    1, flavor="spot", ended_by="Preempted", preempted_by="urgent", evicted_at=T0, barrier_at=T0 + 0.5,
    committed_at=T0 + 4, released_at=T0 + 5, checkpoint="digits-a1-g1",
)  # fmt: skip
RIGHT = attempt(
    2, admitted_at=T0 + 15, running_at=T0 + 19, first_step=41, first_step_at=T0 + 20, restored_from="digits-a1-g1"
)
TOLD = [
    AttemptPhases(1, save=SavePhases(barrier=0.25, freeze=0.25, dump=1.5, upload=1.25)),
    AttemptPhases(2, start=StartPhases(0.25, 0.25, join=0.25, fetch=1.0, unpack=0.25, restore=0.75, meet=0.5)),
]
NAMES = {"name": "digits", "namespace": "team", "uid": "11111111-aaaa-bbbb-cccc-000000000001"}
JOB = {"kind": "Job", "metadata": NAMES}


def move(left: Any = LEFT, right: Any = RIGHT) -> Move:
    return move_trace.moves([left, right] if right else [left], TOLD)[-1]


def spans(document: dict[str, Any]) -> list[dict[str, Any]]:
    ((resource,),) = [document["resourceSpans"]]
    ((scope,),) = [resource["scopeSpans"]]
    found: list[dict[str, Any]] = scope["spans"]
    return found


def told(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Each value has exactly one kind."""
    found = {}
    for one in attributes:
        ((kind, value),) = one["value"].items()
        assert kind in ("stringValue", "intValue", "arrayValue")
        found[one["key"]] = [entry["stringValue"] for entry in value["values"]] if kind == "arrayValue" else value
    return found


# --- shape ----------------------------------------------------------------------------------------------------------
def test_ids_are_hex_and_times_are_text_with_nanoseconds() -> None:
    found = spans(trace_otlp.document(JOB, [move()]))
    for span in found:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and int(span["traceId"], 16)
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"]) and int(span["spanId"], 16)
        assert re.fullmatch("[0-9]{19}", span["startTimeUnixNano"])
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert span["kind"] == 1 and span["status"] == {} and span["name"]
    assert len({span["spanId"] for span in found}) == len(found) == 1 + len(move().spans)
    assert len({span["traceId"] for span in found}) == 1


def test_phases_lie_below_the_move_and_leave_no_gap() -> None:
    whole, *phases = spans(trace_otlp.document(JOB, [move()]))
    assert "parentSpanId" not in whole and whole["name"] == "move"
    assert {span["parentSpanId"] for span in phases} == {whole["spanId"]}
    assert whole["startTimeUnixNano"] == phases[0]["startTimeUnixNano"] == f"{T0 + 0:.0f}" + "000000000"
    assert whole["endTimeUnixNano"] == phases[-1]["endTimeUnixNano"] == f"{T0 + 20:.0f}" + "000000000"
    for before, after in itertools.pairwise(phases):
        assert before["endTimeUnixNano"] == after["startTimeUnixNano"]
    assert [span["name"] for span in phases] == [span.phase for span in move().spans]
    assert told(phases[0]["attributes"]) == {"singularity.by": "controller"}


def test_attributes_follow_opentelemetrys_names() -> None:
    document = trace_otlp.document(JOB, [move()])
    (resource,) = document["resourceSpans"]
    assert told(resource["resource"]["attributes"]) == {
        "service.name": "singularity", "k8s.namespace.name": "team", "k8s.job.name": "digits",
        "k8s.job.uid": NAMES["uid"], "singularity.job.kind": "Job",
    }  # fmt: skip
    assert told(spans(document)[0]["attributes"]) == {
        "singularity.attempt.left": "1", "singularity.attempt.right": "2", "singularity.flavor.left": "spot",
        "singularity.flavor.right": "ondemand", "singularity.ended_by": "Preempted",
        "singularity.preempted_by": "urgent", "singularity.checkpoint": "digits-a1-g1",
    }  # fmt: skip


def test_a_jobset_is_not_called_a_job() -> None:
    (resource,) = trace_otlp.document({"kind": "JobSet", "metadata": NAMES}, [move()])["resourceSpans"]
    found = told(resource["resource"]["attributes"])
    assert found["singularity.job.name"] == "digits" and found["singularity.job.kind"] == "JobSet"
    assert not any(name.startswith("k8s.job.") for name in found)


def test_opentelemetrys_own_protocol_reads_it() -> None:
    """Protobuf's JSON has bytes in base 64, where OTLP has hex: the only difference, and unknown fields are errors."""
    json_format = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    moves = [move(), move(replace(LEFT, attempt=7), None)]
    document = json.loads(json.dumps(trace_otlp.document(JOB, moves)))
    for span in spans(document):
        for name in {"traceId", "spanId", "parentSpanId"} & set(span):
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    read = json_format.ParseDict(document, service.ExportTraceServiceRequest())
    found = read.resource_spans[0].scope_spans[0].spans
    assert len(found) == sum(1 + len(one.spans) for one in moves)
    assert found[0].start_time_unix_nano == int(T0) * 10**9 and len(found[0].trace_id) == 16
    assert [len(span.parent_span_id) for span in found[:2]] == [0, 8]


# --- ids ------------------------------------------------------------------------------------------------------------
def test_a_move_has_the_same_ids_whenever_it_is_told() -> None:
    half = spans(trace_otlp.document(JOB, [move(right=None)]))
    whole = spans(trace_otlp.document(JOB, [move()]))
    assert [span["spanId"] for span in half] == [span["spanId"] for span in whole[: len(half)]]
    assert half[0]["endTimeUnixNano"] < whole[0]["endTimeUnixNano"]


def test_other_jobs_and_other_attempts_have_other_ids() -> None:
    other = copy.deepcopy(JOB)
    other["metadata"]["uid"] = "2"  # type: ignore[index]
    documents = [(JOB, move()), (other, move()), (JOB, move(replace(LEFT, attempt=2), replace(RIGHT, attempt=3)))]
    found = [spans(trace_otlp.document(about, [one])) for about, one in documents]
    assert len({one[0]["traceId"] for one in found}) == 3
    ids = [span["spanId"] for one in found for span in one]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("left", [attempt(1, ended_by="Evicted"), replace(LEFT, evicted_at=0.0, barrier_at=3e10)])
def test_records_with_little_or_strange_in_them_are_told(left: Any) -> None:
    for span in spans(trace_otlp.document(JOB, [move(left)])):
        assert 0 <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) < 2**64


# --- the command ----------------------------------------------------------------------------------------------------
def test_the_command_prints_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKube(job(history=[LEFT, RIGHT], annotations={job_names.ANN_PHASES: to_json(TOLD)}))
    monkeypatch.setattr(cli_trace, "open_cluster", lambda kubeconfig, context: fake)
    done = CliRunner().invoke(cli.main, ["trace", "digits", "-o", "otlp"])
    assert done.exit_code == 0
    whole, *_ = spans(json.loads(done.output))
    assert (whole["name"], whole["startTimeUnixNano"]) == ("move", f"{T0:.0f}000000000")
