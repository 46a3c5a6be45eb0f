"""Moves as one document of OTLP/JSON, as OpenTelemetry collectors take it over HTTP. Pure.

A move is a trace: one span for the whole, and below it one for each phase. The ids are derived from the job's UID, the
attempt and the phase, so the same move has the same ids whenever it is exported.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..contract import kinds
from ..jobs.move_trace import Move

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of OpenTelemetry's conventions that has the attributes' names."""
SCOPE: Final = "singularityctl.trace"
INTERNAL: Final = 1
"""Kind of every span: nobody calls another process in it, as far as a reader needs to know."""
LAST_NS: Final = 2**64 - 1
Attribute = str | int | Sequence[str]


def document(job: Mapping[str, Any], moves: Sequence[Move]) -> dict[str, Any]:
    """An ExportTraceServiceRequest. `job`: a Job, or another kind seen as one."""
    uid = str(job["metadata"].get("uid", ""))
    spans = [span for move in moves for span in _spans(uid, move)]
    about = {"resource": {"attributes": _attributes(_resource(job, uid))}, "schemaUrl": SCHEMA}
    return {"resourceSpans": [{**about, "scopeSpans": [{"scope": {"name": SCOPE}, "spans": spans}]}]}


def _resource(job: Mapping[str, Any], uid: str) -> dict[str, Attribute]:
    """OpenTelemetry knows Jobs; a JobSet and a TrainJob have names of ours."""
    meta = job["metadata"]
    kind = "k8s.job" if kinds.is_job(job) else "singularity.job"
    named = {"service.name": "singularity", "k8s.namespace.name": str(meta["namespace"])}
    return {**named, f"{kind}.name": str(meta["name"]), f"{kind}.uid": uid, "singularity.job.kind": _kind(job)}


def _kind(job: Mapping[str, Any]) -> str:
    return "Job" if kinds.is_job(job) else str(job["kind"])


def _spans(uid: str, move: Move) -> Iterator[dict[str, Any]]:
    trace, begin = f"{uid}/{move.left}", _ms(move.began)
    end = max([_ms(move.began + move.seconds), *(_ms(move.began + one.start + one.seconds) for one in move.spans)])
    whole = _id(f"{trace}/move", 16)
    about = {"traceId": _id(trace, 32), "kind": INTERNAL, "status": {}}
    yield {
        **about,
        "spanId": whole,
        "name": "move",
        **_between(begin, end),
        "attributes": _attributes(_told(move)),
    }
    seen = Counter[str]()
    for span in move.spans:
        seen[span.phase] += 1
        start = _ms(move.began + span.start)
        yield {
            **about,
            "spanId": _id(f"{trace}/{span.phase}/{seen[span.phase]}", 16),
            "parentSpanId": whole,
            "name": span.phase,
            **_between(start, _ms(move.began + span.start + span.seconds)),
            "attributes": _attributes({"singularity.by": span.by}),
        }


def _told(move: Move) -> dict[str, Attribute]:
    """What is known of a move, without what is empty."""
    found: dict[str, Attribute] = {
        "singularity.attempt.left": move.left,
        "singularity.attempt.right": move.right or 0,
        "singularity.flavor.left": move.left_flavor,
        "singularity.flavor.right": move.right_flavor,
        "singularity.ended_by": move.ended_by,
        "singularity.preempted_by": move.preempted_by,
        "singularity.checkpoint": move.checkpoint,
        "singularity.notes": move.notes,
    }
    return {name: value for name, value in found.items() if value}


def _id(text: str, digits: int) -> str:
    """Hex digits that are not all zero."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _ms(seconds: float) -> int:
    """Spans have milliseconds: one begins where the one before it ends."""
    return round(seconds * 1000)


def _between(start: int, end: int) -> dict[str, str]:
    """OTLP writes 64-bit numbers as text. They end in the year 2554, and a record's time can be any."""
    first, last = (max(0, min(time * 1_000_000, LAST_NS)) for time in (start, end))
    return {"startTimeUnixNano": str(first), "endTimeUnixNano": str(last)}


def _attributes(values: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Attribute) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"arrayValue": {"values": [_value(one) for one in value]}}
