"""The loss curve on the Job, and what the status makes of the script's own counting."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs import loss_curve, status
from singularity_proxy.protocol.messages import Reading


def job(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "j", "annotations": dict(annotations)}}


def grown(readings: list[Reading]) -> list[loss_curve.Point]:
    found = job()
    for reading in readings:
        found["metadata"]["annotations"].update(loss_curve.extended(found, reading))
    return loss_curve.points(found)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(-1e6, 1e6)), max_size=600))
def test_a_curve_is_ascending_bounded_and_ends_with_the_last_reading(said: list[tuple[int, float]]) -> None:
    points = grown([Reading(step, None, loss) for step, loss in said])
    steps = [step for step, _ in points]
    assert steps == sorted(set(steps))
    assert len(points) <= loss_curve.MAX_POINTS
    if said:
        assert points[-1] == (said[-1][0], loss_curve.rounded(said[-1][1]))


def test_a_long_curve_keeps_its_length() -> None:
    points = grown([Reading(step, None, 1.0 / (step + 1)) for step in range(2000)])
    assert points[0][0] == 0
    assert points[-1][0] == 1999
    assert loss_curve.MAX_POINTS / 2 <= len(points) <= loss_curve.MAX_POINTS
    assert len(json.dumps(points)) < 8000


def test_what_is_not_printed_or_not_a_number_adds_nothing() -> None:
    for reading in (Reading(None, None, 1.0), Reading(1, None, None), Reading(1, None, float("nan"))):
        assert loss_curve.extended(job(), reading) == {}


def test_a_spoiled_annotation_is_no_curve() -> None:
    for text in ("{", "{}", "[1, 2]", '[["a", 1]]', "null"):
        assert loss_curve.points(job(**{job_names.ANN_CURVE: text})) == []


def test_what_a_new_pod_has_not_printed_yet_stays() -> None:
    note = json.dumps({"attempt": 1, "step": 5, "at": 1.0, "printed": 5, "total": 9, "loss": 2.0})
    known = job(**{job_names.ANN_PROGRESS: note})
    assert loss_curve.printed(known, Reading(6, None, 1.5)) == {"printed": 6, "total": 9, "loss": 1.5}
    assert loss_curve.printed(job(), Reading(6, None, None)) == {"printed": 6, "total": None, "loss": None}


def test_eta_counts_in_the_scripts_own_steps() -> None:
    """Two boundaries of ours are one step of the script: 100 of them took 50 s, 200 of its steps are left."""
    last = AttemptRecord(1, "r", "spot", 1, 1, admitted_at=0.0, first_step=0, first_step_at=10.0)
    seen = attempt_records.ProgressNote(attempt=1, step=100, at=60.0, printed=50, total=250, loss=0.5)
    assert status._printed(seen, last) == {"step": 50, "total": 250, "loss": 0.5, "eta_s": 200.0}
    assert "eta_s" not in status._printed(attempt_records.ProgressNote(2, 100, 60.0, "", 50, 250, 0.5), last)
    assert status._printed(None, last) == {}
