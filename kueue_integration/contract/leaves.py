"""A voluntary stop of a running attempt, which is saved first: how far that is. Pure.

Voluntary is every stop that Kueue has not decided on: a user's request, a policy of the planner. The annotation
outlives the attempt, which it names, and says nothing about a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from singularity_proxy.protocol.decode import Count, Record, UnixTime, Within
from singularity_proxy.protocol.messages import AnyId, to_json

from ..kube.resources import annotation
from . import annotation_values, job_names
from .annotation_values import readable

MAX_TEXT = 400


@dataclass(frozen=True)
class Leave(Record):
    """`saving`: the ranks are asked to stop and to be saved. `saved`: they are, and stay stopped for a while. `failed`:
    they could not be saved and train on. `off`: nobody wants it any more, and they train on."""

    attempt: Count
    state: Literal["saving", "saved", "failed", "off"]
    at: UnixTime
    """Unix seconds, by the controller's clock, of the request for the save. Its command has this number."""
    deadline: UnixTime
    """Of the save."""
    since: UnixTime
    """When `state` began."""
    why: str
    """Who wants the attempt to stop, and why: for people."""
    request: str = ""
    """Id of the user's request that fails with it, "" for none."""
    readmit: str = ""
    """What the planner says to the readmission that follows; "" where a request says what follows."""
    tries: Annotated[int, Within(1, 100)] = 1
    """Times in a row that it was asked for: what was saved was not stopped in time."""
    checkpoint: AnyId = ""
    """`saved`: with it."""
    message: str = ""
    """`failed`: why."""

    @property
    def live(self) -> bool:
        """The ranks are being saved, or stay stopped."""
        return self.state in ("saving", "saved")


@dataclass(frozen=True)
class Shape:
    """What a request that resizes or moves a job writes over: annotation -> what stood there."""

    stood: dict[str, str | None]


SHAPE = (job_names.ANN_WORKERS, job_names.ANN_MIN_WORKERS, job_names.ANN_PLACEMENT)


def kept(job: Mapping[str, Any], change: Mapping[str, str | None]) -> dict[str, str | None]:
    """The annotation that remembers what `change` writes over. What was remembered for a request that had no end yet is
    from before that, and stays."""
    before = readable(annotation_values.message(job, job_names.ANN_SHAPE_BEFORE, Shape), None)
    stood = {name: annotation(job, name) for name in SHAPE if name in change}
    stood.update({} if before is None else before.stood)
    return {job_names.ANN_SHAPE_BEFORE: to_json(Shape(stood))} if stood else {}


def over(job: Mapping[str, Any], back: bool) -> dict[str, str | None]:
    """The annotations once a request has ended: forgotten is what stood before, or it stands there again (`back`)."""
    if annotation(job, job_names.ANN_SHAPE_BEFORE) is None:
        return {}
    found = readable(annotation_values.message(job, job_names.ANN_SHAPE_BEFORE, Shape), None)
    stood = {} if found is None or not back else {name: found.stood[name] for name in SHAPE if name in found.stood}
    return {**stood, job_names.ANN_SHAPE_BEFORE: None}


def of(job: Mapping[str, Any] | None) -> Leave | None:
    """The last one; None without one, or when it cannot be read."""
    return readable(annotation_values.message(job, job_names.ANN_LEAVE, Leave), None)


def of_attempt(job: Mapping[str, Any] | None, attempt: int) -> Leave | None:
    """The one of `attempt`."""
    found = of(job)
    return found if found is not None and found.attempt == attempt else None


def stored(leave: Leave) -> dict[str, str | None]:
    """The annotation."""
    return {job_names.ANN_LEAVE: to_json(leave)}


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
