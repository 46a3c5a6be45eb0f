"""Whether a job can be saved, as the outcome of its last save or trial has shown. Pure.

An annotation of its own beside the history, as small as one attempt: whoever reads the history with an older version
still can. A Job without it, or with what cannot be read, was not tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from singularity_proxy.protocol.decode import Count, UnixTime, Unreadable
from singularity_proxy.protocol.messages import NOT_TRIED, SaveCause, Verdict, to_json

from . import annotation_values, attempt_records, job_names

By = Literal["", "trial", "checkpoint"]
MAX_WHY: Final = 400
EARLY: Final = frozenset(("early",))
"""Causes that say nothing about the job: there was nothing to save yet."""


@dataclass(frozen=True)
class Saveable:
    """What is known of `attempt`.

    `yes`: a checkpoint was committed, or a trial has passed. `no`: the last checkpoint or trial has failed.
    """

    attempt: Count
    verdict: Verdict = "not tried"
    at: UnixTime | None = None
    """Unix seconds, by the controller's clock, of the outcome."""
    by: By = ""
    """What has shown it."""
    cause: SaveCause = ""
    """Of `no`: what kind of reason it is."""
    why: str = ""
    """Of `no`: the reason, with pod, rank and process where those are known. Of `not tried`: why there was no trial, ""
    while nothing has been decided."""


def noted(job: Mapping[str, Any] | None) -> Saveable | Unreadable | None:
    """What the annotation says, of whatever attempt it is."""
    return annotation_values.message(job, job_names.ANN_SAVEABLE, Saveable)


def newest(job: Mapping[str, Any] | None) -> Saveable:
    """The last outcome, whichever attempt it was of: what holds until another save or trial has shown something else.

    One that was not tried has attempt 0.
    """
    found = noted(job)
    return found if isinstance(found, Saveable) else Saveable(0)


def of_attempt(job: Mapping[str, Any] | None, attempt: int) -> Saveable:
    """What `attempt` itself has shown."""
    found = newest(job)
    return found if found.attempt == attempt else Saveable(attempt)


def current(job: Mapping[str, Any] | None) -> Saveable:
    """What the newest attempt has shown."""
    past = attempt_records.history(job)
    return of_attempt(job, past[-1].attempt if past else 0)


def barred(job: Mapping[str, Any] | None) -> str:
    """Why nobody should stop the job of their own accord, "" for nothing: its last save or trial has failed."""
    found = newest(job)
    return found.why or "its last checkpoint failed" if found.verdict == "no" else ""


def saved(job: Mapping[str, Any], attempt: int, now: float, by: By = "checkpoint") -> dict[str, str | None]:
    """The annotation once a checkpoint of `attempt` is committed, or a trial of it has passed."""
    return _told(job, Saveable(attempt, "yes", now, by))


def failed(
    job: Mapping[str, Any], attempt: int, now: float, cause: SaveCause, why: str, by: By = "checkpoint"
) -> dict[str, str | None]:
    """The annotation once a checkpoint or a trial of `attempt` has failed; {} where that says nothing about the job."""
    if cause in EARLY:
        return {}
    return _told(job, Saveable(attempt, "no", now, by, cause, _cut(why)))


def untried(job: Mapping[str, Any], attempt: int, now: float, why: str) -> dict[str, str | None]:
    """The annotation once it is known that there is no trial of `attempt`; a real outcome of it stays."""
    before = newest(job)
    if before.verdict != NOT_TRIED and before.attempt == attempt:
        return {}
    return _told(job, Saveable(attempt, "not tried", now, why=_cut(why)))


def _told(job: Mapping[str, Any], new: Saveable) -> dict[str, str | None]:
    return {} if noted(job) == new else {job_names.ANN_SAVEABLE: to_json(new)}


def _cut(why: str) -> str:
    return why if len(why) <= MAX_WHY else why[: MAX_WHY - 3] + "..."
