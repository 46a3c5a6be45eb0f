"""The `lineage` document: what a task's XCom says about one training job. Pure."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs import lost_time, move_trace
from kueue_integration.jobs.phase import Phase
from kueue_integration.jobs.status import JobStatus
from singularity_proxy.protocol import decode

FINAL = frozenset(phase.value for phase in Phase if phase.final)
MAX_CHARS = 1000
"""Of a text in a line."""
MAX_MOVES = 20
"""That are drawn: of so many attempts the phases are kept."""
MAX_BYTES = 60_000
"""XCom and task-state values are meant to stay below 64 KiB."""


def document(status: JobStatus, preemption_alert: int | None = None) -> dict[str, Any]:
    """`status` as JSON-able data with its `goodput` and `preemptions`. `preemption_alert` there: whether there are more
    preemptions than the number given here, False without a number. If the data would be too long, the oldest attempts
    are left out (`attempts_omitted` says how many)."""
    found: dict[str, Any] = json.loads(json.dumps(decode.plain(status)))
    found["goodput"] = goodput(found, time.time())
    found["preemptions"] = preemptions(status)
    found["preemption_alert"] = preemption_alert is not None and found["preemptions"] > preemption_alert
    found["attempts_omitted"] = 0
    while len(json.dumps(found)) > MAX_BYTES and found["attempts"]:
        found["attempts"].pop(0)
        found["checkpoints"] = found["checkpoints"][-len(found["attempts"]) :] if found["attempts"] else []
        found["attempts_omitted"] += 1
    return found


@dataclass(frozen=True)
class _Traced:
    """Of a lineage document, what a trace is drawn from."""

    attempts: list[AttemptRecord]
    phases: list[AttemptPhases] = field(default_factory=list)


def moves(lineage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The last moves of a document as `singularityctl trace -o json` tells them, oldest first; [] for what cannot be
    read: a task can write what it likes."""
    found = decode.typed(_Traced, _known(_Traced, dict(lineage)), "lineage")
    if isinstance(found, decode.Unreadable):
        return []
    return [dataclasses.asdict(move) for move in move_trace.moves(found.attempts, found.phases)[-MAX_MOVES:]]


def preemptions(status: JobStatus) -> int:
    """How often Kueue preempted this Job: by the count of its Workload, or of the attempts if the Workload was created
    again."""
    told = sum(1 for record in status.attempts if record.ended_by == "Preempted")
    return max(told, status.kueue_evictions.get("Preempted", 0))


def outputs_url(lineage: Mapping[str, Any] | None) -> str | None:
    """Where the job's outputs are, all of them; None: it has none, or they are not complete."""
    stored = (lineage or {}).get("outputs")
    url = stored.get("url") if isinstance(stored, Mapping) else None
    return url if isinstance(url, str) and url else None


def headline(lineage: Mapping[str, Any]) -> str:
    """One sentence about a whole job for the end of the task log."""
    attempts = lineage["attempts"]
    evictions = sum(1 for record in attempts if record["evicted_at"] is not None)
    gone = lost_time.words(lineage.get("seconds_lost") or 0.0)
    spent, each = lineage.get("cost"), lineage.get("cost_per_step")
    per_step = "" if each is None else f" ({each:.4g} per step)"
    return (
        f"{len(attempts) + lineage['attempts_omitted']} attempts, {evictions} evictions, "
        f"{lineage['steps_lost']} steps lost{gone and f' ({gone})'}, {len(lineage['checkpoints'])} checkpoints"
        + ("" if spent is None else f", cost {spent:.4g}{per_step}")
    )


def goodput(lineage: Mapping[str, Any], now: float) -> float | None:
    """Share of the time since the job was first queued in which steps ran that count, 0 to 1; None before any.

    Google's definition of ML goodput, without its scheduling part split off. Steps that had to be run again count as
    the share of the steps that they are; without steps, the time that was lost counts.
    """
    attempts = lineage.get("attempts") or ()
    if not attempts:
        return None
    queued = attempts[0].get("queued_at")
    start = attempts[0]["admitted_at"] if queued is None else queued
    useful, steps, end = 0.0, 0, start
    for record in attempts:
        stop = record.get("barrier_at") or record.get("evicted_at") or record.get("finished_at") or now
        end = max(end, stop)
        trains = record.get("first_step_at") or record.get("running_at")
        if trains is not None:
            useful += max(0.0, stop - trains)
            if record.get("last_step") is not None and record.get("first_step") is not None:
                steps += record["last_step"] + 1 - record["first_step"]
    if lineage.get("phase") not in FINAL:
        end = now
    if steps:
        useful *= 1 - min(1.0, lineage.get("steps_lost", 0) / steps)
    else:
        useful = max(0.0, useful - (lineage.get("seconds_lost") or 0.0))
    return None if end <= start else min(1.0, useful / (end - start))


@dataclass(frozen=True)
class _Attempt:
    """Of an attempt's record, what a line says something of."""

    queued_at: decode.UnixTime | None = None
    admitted_at: decode.UnixTime = 0.0
    first_step: decode.Count | None = None
    first_step_at: decode.UnixTime | None = None
    last_step: decode.Count | None = None
    evicted_at: decode.UnixTime | None = None
    barrier_at: decode.UnixTime | None = None
    finished_at: decode.UnixTime | None = None


@dataclass(frozen=True)
class _Job:
    """Of a lineage document, what a line says something of."""

    phase: str
    attempts: list[_Attempt]
    namespace: str = ""
    name: str = ""
    reason: str = ""
    message: str = ""
    queue: str = ""
    step: decode.Count = 0
    priority_class: str = ""
    flavor: str = ""
    pods: decode.Count = 0
    workers: decode.Count = 0
    steps_lost: decode.Count = 0
    seconds_lost: decode.Seconds = 0.0
    created_at: str | None = None
    attempts_omitted: decode.Count = 0


def condensed(lineage: object, now: float | None = None) -> dict[str, Any] | decode.Unreadable:
    """One line about a job for lists; Unreadable for what is not a lineage document: a task can write what it likes."""
    found = facts(lineage)
    return found if isinstance(found, decode.Unreadable) else line(found, time.time() if now is None else now)


def facts(lineage: object) -> dict[str, Any] | decode.Unreadable:
    """What a line is made of, whenever it is."""
    if isinstance(lineage, decode.Unreadable):
        return lineage
    if not isinstance(lineage, dict):
        return decode.Unreadable("not a lineage document")
    attempts = lineage.get("attempts")
    known = _known(_Job, lineage)
    if isinstance(attempts, list):
        known["attempts"] = [_known(_Attempt, record) if isinstance(record, dict) else record for record in attempts]
    job = decode.typed(_Job, known, "lineage")
    if isinstance(job, decode.Unreadable):
        return job
    found = dataclasses.asdict(job)
    return {name: value[:MAX_CHARS] if isinstance(value, str) else value for name, value in found.items()}


def line(found: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The line of `facts`, at `now`, Unix seconds: the goodput of a job that lives changes with the time."""
    share, attempts = goodput(found, now), found["attempts"]
    return {
        **found,
        "attempts": len(attempts) + found["attempts_omitted"],
        "evictions": sum(1 for record in attempts if record["evicted_at"] is not None),
        "goodput": None if share is None else round(share, 4),
    }


def _known(cls: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """What a line says nothing of is not looked at: older and newer documents have other fields."""
    return {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
