"""What the controller writes on the Job, read back: history, committed checkpoint, progress. Pure.

These annotations are ours, but anybody who may edit the Job may spoil them: readers get "nothing known", not a crash.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, CheckpointRef, MessageError, decode, from_json, list_from_json

from .resources import annotation


@dataclass(frozen=True)
class ProgressNote:
    """The progress annotation: `step` boundaries passed in `attempt`, seen `at` (Unix seconds).

    `phase` is what the leader was doing, as in `proxy.protocol.messages.Progress`.
    """

    attempt: int
    step: int
    at: float
    phase: str = ""
    printed: int | None = None
    """Step, total and loss as rank 0 printed them last, in the script's own counting."""
    total: int | None = None
    loss: float | None = None
    bytes_done: int | None = None
    bytes_total: int | None = None
    """While the phase is `uploading`: how much of the checkpoint the store has, and how much there is."""


def history(job: Mapping[str, Any] | None) -> list[AttemptRecord]:
    """Attempts of `job`, oldest first; empty when there is none or the annotation is unreadable."""
    text = annotation(job, names.ANN_HISTORY)
    try:
        return list_from_json(AttemptRecord, text) if text else []
    except MessageError:
        return []


def checkpoint(job: Mapping[str, Any] | None) -> CheckpointRef | None:
    """The committed checkpoint of `job`."""
    text = annotation(job, names.ANN_CHECKPOINT)
    try:
        return from_json(CheckpointRef, text) if text else None
    except MessageError:
        return None


def checkpoints(job: Mapping[str, Any] | None) -> list[CheckpointRef]:
    """The newest checkpoints of `job` after which their attempt went on, oldest first."""
    text = annotation(job, names.ANN_CHECKPOINTS)
    try:
        return list_from_json(CheckpointRef, text) if text else []
    except MessageError:
        return []


def progress(job: Mapping[str, Any] | None) -> ProgressNote | None:
    """The last progress note of `job`."""
    text = annotation(job, names.ANN_PROGRESS)
    try:
        data = json.loads(text) if text else None
        known = {field.name for field in dataclasses.fields(ProgressNote)}
        return decode(ProgressNote, {k: v for k, v in data.items() if k in known}) if isinstance(data, dict) else None
    except (ValueError, MessageError):
        return None


def integer(job: Mapping[str, Any] | None, name: str, default: int = 0) -> int:
    """Annotation `name` as a number, `default` if absent or not one."""
    text = annotation(job, name)
    return int(text) if text and text.isascii() and text.isdigit() else default


def broken(job: Mapping[str, Any] | None) -> int:
    """How many attempts of `job` were lost to the infrastructure."""
    try:
        return int(json.loads(annotation(job, names.ANN_BROKEN) or "null")["count"])
    except (ValueError, TypeError, KeyError):
        return 0


def infrastructure_retries(job: Mapping[str, Any] | None) -> int | None:
    """How many may be; None: no limit."""
    text = annotation(job, names.ANN_INFRASTRUCTURE_RETRIES)
    return int(text) if text and text.isascii() and text.isdigit() else None


def used_up(limit: int) -> str:
    """What is said of a job that has lost one attempt more than `limit`."""
    return f"its budget of {limit} infrastructure retries is used up"
