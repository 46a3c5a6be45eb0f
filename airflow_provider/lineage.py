"""The `lineage` document: what a task's XCom says about one training job. Pure."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

from kueue_integration.classify import Phase
from kueue_integration.status import JobStatus

FINAL = frozenset(phase.value for phase in Phase if phase.final)
MAX_BYTES = 60_000
"""XCom and task-state values are meant to stay below 64 KiB."""


def document(status: JobStatus, preemption_alert: int | None = None) -> dict[str, Any]:
    """`status` as JSON-able data with its `goodput` and `preemptions` (`preemption_alert` there: whether they are more
    than the number given here, False without one), the oldest attempts left out if it would be too long
    (`attempts_omitted` says how many)."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(status)))
    found["goodput"] = goodput(found, time.time())
    found["preemptions"] = preemptions(status)
    found["preemption_alert"] = preemption_alert is not None and found["preemptions"] > preemption_alert
    found["attempts_omitted"] = 0
    while len(json.dumps(found)) > MAX_BYTES and found["attempts"]:
        found["attempts"].pop(0)
        found["checkpoints"] = found["checkpoints"][-len(found["attempts"]) :] if found["attempts"] else []
        found["attempts_omitted"] += 1
    return found


def preemptions(status: JobStatus) -> int:
    """How often Kueue preempted this Job: as its Workload counts, or the attempts do when that was made anew."""
    told = sum(1 for record in status.attempts if record.ended_by == "Preempted")
    return max(told, status.evictions.get("Preempted", 0))


def headline(lineage: Mapping[str, Any]) -> str:
    """One sentence about a whole job for the end of the task log."""
    attempts = lineage["attempts"]
    evictions = sum(1 for record in attempts if record["evicted_at"] is not None)
    return (
        f"{len(attempts) + lineage['attempts_omitted']} attempts, {evictions} evictions, "
        f"{lineage['steps_lost']} steps lost, {len(lineage['checkpoints'])} checkpoints"
    )


def goodput(lineage: Mapping[str, Any], now: float) -> float | None:
    """Share of the time since the job was first queued in which steps ran that count, 0 to 1; None before any.

    Google's definition of ML goodput, without its scheduling part split off. Steps that had to be run again count as
    the share of the steps that they are.
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
        if record.get("first_step_at") is not None:
            useful += max(0.0, stop - record["first_step_at"])
            if record.get("last_step") is not None and record.get("first_step") is not None:
                steps += record["last_step"] + 1 - record["first_step"]
    if lineage.get("phase") not in FINAL:
        end = now
    wasted = min(1.0, lineage.get("steps_lost", 0) / steps) if steps else 0.0
    return None if end <= start else min(1.0, useful * (1 - wasted) / (end - start))


def condensed(lineage: Any, now: float | None = None) -> dict[str, Any] | None:
    """One line about a job for lists; None for what is not a lineage document."""
    if not isinstance(lineage, Mapping) or "phase" not in lineage or "attempts" not in lineage:
        return None
    attempts = lineage["attempts"]
    share = goodput(lineage, time.time() if now is None else now)
    return {
        **{name: lineage.get(name) for name in ("namespace", "name", "phase", "reason", "message", "queue", "step",
                                                "priority_class", "flavor", "pods", "workers", "steps_lost")},
        "attempts": len(attempts) + lineage.get("attempts_omitted", 0),
        "evictions": sum(1 for record in attempts if record.get("evicted_at") is not None),
        "goodput": None if share is None else round(share, 4),
        "created_at": lineage.get("created_at"),
    }  # fmt: skip
