"""The loss curve that a job carries along: points as rank 0 printed them, over all attempts. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from singularity_proxy.protocol.messages import Reading

from ..contract import attempt_records, job_names
from ..job.view import Job

MAX_POINTS = 240
"""About 4 KiB of annotation. Beyond it every second point goes: the whole length stays, at half the detail."""
NOTED = 16
"""Points in a progress note: of the time since the Job was written last, the length again, at less detail."""

Point = tuple[int, float]


def points(job: Mapping[str, Any] | None) -> list[Point]:
    """`(step, loss)`, ascending; empty without a curve or when the annotation was spoiled."""
    data = Job.parse(job or {}).curve
    good = isinstance(data, list) and all(map(_is_point, data))
    stored = [(step, float(loss)) for step, loss in data] if good else []
    newest = noted(attempt_records.progress(job))
    # A step that was printed again drops what was printed for later ones.
    return [*(point for point in stored if not newest or point[0] < newest[0][0]), *newest]


def noted(seen: attempt_records.ProgressNote | None) -> list[Point]:
    """The points that stand in a progress note."""
    flat = [] if seen is None else seen.curve
    return [(int(step), loss) for step, loss in zip(flat[::2], flat[1::2], strict=False)]


def noted_with(seen: attempt_records.ProgressNote | None, reading: Reading) -> list[float]:
    """The same with the new point, as a note has them: at most NOTED points, the newest among them."""
    known = noted(seen)
    if reading.step is not None and reading.loss is not None and math.isfinite(reading.loss):
        known = _with(known, reading.step, reading.loss)
    return [number for point in thinned(known, NOTED) for number in point]


def _is_point(item: object) -> bool:
    pair = item if isinstance(item, list) and len(item) == 2 else (None, None)
    return type(pair[0]) is int and type(pair[1]) in (int, float)


def printed(job: Mapping[str, Any], reading: Reading) -> dict[str, int | float | None]:
    """What the progress note says of `reading`; what a new pod has not seen printed yet stays as it was."""
    old = attempt_records.progress(job)
    return {
        "printed": reading.step if reading.step is not None or old is None else old.printed,
        "total": reading.total if reading.total is not None or old is None else old.total,
        "loss": reading.loss if reading.loss is not None or old is None else old.loss,
    }


def extended(job: Mapping[str, Any], reading: Reading) -> dict[str, str | None]:
    """The annotation with the new point; empty when there is none.

    A step that is printed again (after a restart from the beginning, say) drops what was printed for later steps.
    """
    if reading.step is None or reading.loss is None or not math.isfinite(reading.loss):
        return {}
    known, stored = points(job), len(noted(attempt_records.progress(job)))
    if not stored and known and known[-1] == (reading.step, rounded(reading.loss)):
        return {}
    curve = thinned(_with(known, reading.step, reading.loss))
    return {job_names.ANN_CURVE: json.dumps(curve, separators=(",", ":"))}


def _with(curve: list[Point], step: int, loss: float) -> list[Point]:
    return [*(point for point in curve if point[0] < step), (step, rounded(loss))]


def thinned(curve: list[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` points of `curve`, the first and the last among them."""
    while len(curve) > most:
        curve = [*curve[:-1:2], curve[-1]]
    return curve


def rounded(loss: float) -> float:
    """Five significant digits: a picture needs no more."""
    return float(f"{loss:.5g}")
