"""The `lineage` document: what a task's XCom says about one training job. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from kueue_integration.status import JobStatus

MAX_BYTES = 60_000
"""XCom and task-state values are meant to stay below 64 KiB."""


def document(status: JobStatus) -> dict[str, Any]:
    """`status` as JSON-able data, the oldest attempts left out if it would be too long (`attempts_omitted` says how
    many)."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(status)))
    found["attempts_omitted"] = 0
    while len(json.dumps(found)) > MAX_BYTES and found["attempts"]:
        found["attempts"].pop(0)
        found["checkpoints"] = found["checkpoints"][-len(found["attempts"]) :] if found["attempts"] else []
        found["attempts_omitted"] += 1
    return found


def headline(lineage: Mapping[str, Any]) -> str:
    """One sentence about a whole job for the end of the task log."""
    attempts = lineage["attempts"]
    evictions = sum(1 for record in attempts if record["evicted_at"] is not None)
    return (
        f"{len(attempts) + lineage['attempts_omitted']} attempts, {evictions} evictions, "
        f"{lineage['steps_lost']} steps lost, {len(lineage['checkpoints'])} checkpoints"
    )
