"""Seconds of the phases of a checkpoint that ends an attempt, and of the start of the next one. Pure.

They are durations by one clock of whoever measures: they travel, and mean the same everywhere. A pod tells its own.
Of a job they are those of one pod, the one that the others waited for: only one pod's add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar, cast

from .decode import Record, Seconds

DIGITS: Final = 2
"""Of the seconds that are kept: 10 ms."""


@dataclass(frozen=True)
class SavePhases(Record):
    """From the command to the last byte in the store, in this order."""

    barrier: Seconds = 0.0
    """Until all ranks stood at one step. The leader's, for the whole job."""
    freeze: Seconds = 0.0
    """Until the agent had frozen every rank of the pod."""
    device: Seconds = 0.0
    """Device memory, off the device."""
    dump: Seconds = 0.0
    """Processes to images: CRIU, and the files that travel."""
    upload: Seconds = 0.0
    """What was left of it after the dump."""


@dataclass(frozen=True)
class StartPhases(Record):
    """From the volumes of the pod until the ranks go on, in this order."""

    containers: Seconds = 0.0
    """From the pod's volumes to the sidecar's process: the agent's image, and the init container."""
    load: Seconds = 0.0
    """Until the sidecar's program was loaded."""
    join: Seconds = 0.0
    """Until store, controller and leader were there."""
    fetch: Seconds = 0.0
    """Images from the store to the pod's disk."""
    image: Seconds = 0.0
    """What was left until the launcher was there: the training image, and the start of its container."""
    unpack: Seconds = 0.0
    """Files of the ranks to their places."""
    restore: Seconds = 0.0
    """Images to processes by CRIU, or the start of new ones."""
    device: Seconds = 0.0
    """Device memory, back on the device."""
    meet: Seconds = 0.0
    """Until the ranks had met those of the other pods."""


_NAMES: Final = {cls: [f.name for f in fields(cls) if f.name != "newer"] for cls in (SavePhases, StartPhases)}
Phases = TypeVar("Phases", SavePhases, StartPhases)


def by_name(phases: SavePhases | StartPhases) -> dict[str, float]:
    """Phase -> seconds, in the order in which they pass."""
    return {name: float(getattr(phases, name)) for name in _NAMES[type(phases)]}


def saved(seconds: Mapping[str, float]) -> SavePhases:
    """Those of a save, by their names; Raises TypeError for a name that is none."""
    return SavePhases(**cast(Any, seconds))


def started(seconds: Mapping[str, float]) -> StartPhases:
    """Those of a start, likewise."""
    return StartPhases(**cast(Any, seconds))


def total(phases: SavePhases | StartPhases) -> float:
    return sum(by_name(phases).values())


def rounded(phases: Phases) -> Phases:
    """As they are kept: the record is an annotation."""
    short: dict[str, Any] = {name: round(seconds, DIGITS) for name, seconds in by_name(phases).items()}
    return replace(phases, **short)


def of_job_save(pods: Iterable[SavePhases | None], barrier: float) -> SavePhases | None:
    """Those of the pod that took longest; None if none has told."""
    told = [pod for pod in pods if pod is not None]
    return replace(max(told, key=total), barrier=max(0.0, barrier)) if told else None


def of_job_start(pods: Iterable[StartPhases | None]) -> StartPhases | None:
    """Those of the pod that came last to the meeting: it waited least. None unless all have told."""
    told = [*pods]
    known = [pod for pod in told if pod is not None]
    if not known or len(known) < len(told):
        return None
    return min(known, key=lambda pod: (pod.meet, -total(pod)))
