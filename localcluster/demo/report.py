"""The report of one story: pure functions from what was measured to figures, checks, a verdict and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kueue_integration.contract import attempt_records
from kueue_integration.contract.record_types import AttemptRecord

from .model import Expectation, Machines, Outcome, Saved, StoryRecord, TaskSample

BEFORE = frozenset({"none", "scheduled", "queued", "running"})
AFTER = frozenset({"scheduled", "queued", "running"})
"""States that a resumed task passes on its way to success: the trigger has fired, a worker collects the result."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold for the verdict `pass`."""

    name: str
    ok: bool
    detail: str


def steps_lost(attempts: Sequence[AttemptRecord]) -> int | None:
    """Steps that were computed and had to be computed again, over all attempts; None when an attempt has no figures."""
    if any(a.last_step is None or b.first_step is None for a, b in pairwise(attempts)):
        return None
    return attempt_records.all_steps_lost(attempts)


def timings(attempts: Sequence[AttemptRecord]) -> dict[str, float | None]:
    """Seconds between the events of the first eviction and of the attempt that follows it; None: not measured."""
    empty = dict.fromkeys(
        ("evicted_to_barrier", "barrier_to_committed", "committed_to_quota_released", "admitted_to_first_step")
    )
    pair = next(((a, b) for a, b in pairwise(attempts) if a.evicted_at is not None), None)
    if pair is None:
        return empty
    evicted, resumed = pair
    return {
        "evicted_to_barrier": _between(evicted.evicted_at, evicted.barrier_at),
        "barrier_to_committed": _between(evicted.barrier_at, evicted.committed_at),
        "committed_to_quota_released": _between(evicted.committed_at, evicted.released_at),
        "admitted_to_first_step": _between(resumed.admitted_at, resumed.first_step_at),
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 3)


def deferred_all_along(samples: Sequence[TaskSample]) -> bool:
    """True when the task went before -> deferred -> (resumed) -> success, and never back."""
    states = [s.state for s in samples]
    position = 0
    while position < len(states) and states[position] in BEFORE:
        position += 1
    start = position
    while position < len(states) and states[position] == "deferred":
        position += 1
    if position == start:
        return False
    while position < len(states) and states[position] in AFTER:
        position += 1
    rest = states[position:]
    return bool(rest) and set(rest) == {"success"}


def contiguous(attempts: Sequence[AttemptRecord], steps: int) -> bool:
    """True when the attempts together ran steps 0 .. steps-1, each once."""
    expected = 0
    for attempt in attempts:
        if attempt.first_step != expected or attempt.last_step is None or attempt.last_step < expected:
            return False
        expected = attempt.last_step + 1
    return expected == steps


def job_checks(expect: Expectation, outcome: Outcome) -> list[Check]:
    """Checks that hold for the job however it was submitted."""
    attempts, comparison = outcome.record.attempts, outcome.comparison
    lost = steps_lost(attempts)
    first = attempts[0] if attempts else None
    last = attempts[-1] if attempts else None
    shapes = [f"{a.pods} pods on {a.flavor}" for a in attempts]
    moved = any(a.flavor == expect.other_flavor and a.pods == expect.min_workers for a in attempts[1:-1])
    home = f"{expect.workers} pods on {expect.flavor}"
    back = -1 if expect.last_workers is None else -2
    by = first.preempted_by if first else None
    return [
        Check("attempts", len(attempts) >= 3, f"{len(attempts)} attempts, at least 3 expected"),
        Check("started", bool(shapes) and shapes[0] == home, f"first attempt: {shapes[:1]}, expected {home}"),
        Check(
            "moved",
            moved,
            f"attempts: {shapes}, expected one in between with {expect.min_workers} pods on {expect.other_flavor}",
        ),
        Check("grown back", shapes[back:][:1] == [home], f"attempts: {shapes}, expected {home} at {back}"),
        *_resized(expect, shapes),
        Check(
            "ranks",
            bool(attempts) and all(a.ranks == expect.ranks_of(a.pods) for a in attempts),
            f"ranks per attempt: {[a.ranks for a in attempts]}, expected {[expect.ranks_of(a.pods) for a in attempts]}",
        ),
        Check(
            "preempted",
            first is not None and first.ended_by == "Preempted" and _names(by, expect.intruder),
            f"first attempt ended by {first and first.ended_by}, preempted by {by}; expected {expect.intruder}",
        ),
        Check("finished", last is not None and last.ended_by == "Finished", f"last attempt: {last and last.ended_by}"),
        Check("steps lost", lost == 0, f"{lost} steps lost"),
        Check(
            "every step once",
            contiguous(attempts, expect.steps),
            f"attempts ran steps {[(a.first_step, a.last_step) for a in attempts]}, expected 0..{expect.steps - 1}",
        ),
        Check(
            "bit-identical",
            comparison.bit_identical and comparison.ranks == expect.logs and comparison.steps == expect.steps,
            "; ".join(comparison.differences)
            or f"{comparison.ranks} logs of losses, {comparison.steps} steps, weights equal byte by byte",
        ),
        *_samples(outcome.samples),
        *_machines(outcome.machines),
    ]


def _resized(expect: Expectation, shapes: Sequence[str]) -> list[Check]:
    if expect.last_workers is None:
        return []
    wanted = f"{expect.last_workers} pods on {expect.flavor}"
    return [Check("resized", list(shapes[-1:]) == [wanted], f"last attempt: {shapes[-1:]}, expected {wanted}")]


def _samples(wrong: Sequence[str] | None) -> list[Check]:
    if wrong is None:
        return []
    return [Check("every sample once", not wrong, "; ".join(wrong[:3]) or "no epoch has a sample twice")]


def _machines(machines: Machines | None) -> list[Check]:
    if machines is None:
        return []
    seen = machines.seen
    ok = machines.flavor in seen and len(seen) > 1 and all(seen.values()) and len({*seen.values()}) == len(seen)
    told = ", ".join(f"{digest[:8] or 'nothing'} on {flavor}" for flavor, digest in seen.items())
    return [Check("other machines", ok, f"features of the processor that the pods saw: {told}")]


def timing_checks(record: StoryRecord) -> list[Check]:
    """Every figure of the report was measured."""
    missing = [name for name, value in timings(record.attempts).items() if value is None]
    negative = [name for name, value in timings(record.attempts).items() if value is not None and value < 0]
    return [
        Check("timings", not missing and not negative, f"not measured: {missing}, out of order: {negative}"),
        Check("checkpoint", bool(record.checkpoints), f"{len(record.checkpoints)} committed checkpoints seen"),
    ]


def airflow_checks(record: StoryRecord) -> list[Check]:
    """Checks on the Airflow side: success, one try, no worker held while the job was queued, moved and resized."""
    tries = sorted({s.try_number for s in record.task_samples if s.state not in ("none", "scheduled")})
    states = distinct_states(record.task_samples)
    return [
        Check("dag run", record.dag_run_state == "success", f"DAG run ended {record.dag_run_state!r}"),
        Check("no retry", tries == [1], f"try numbers seen: {tries}"),
        Check("deferred all along", deferred_all_along(record.task_samples), f"task states: {' -> '.join(states)}"),
    ]


def distinct_states(samples: Sequence[TaskSample]) -> list[str]:
    """States in the order seen, repetitions dropped."""
    states: list[str] = []
    for sample in samples:
        if not states or states[-1] != sample.state:
            states.append(sample.state)
    return states


def _names(preempted_by: str | None, job: str) -> bool:
    """Kueue names the Workload, which is `job-<job name>-<hash>`; we may name the Job itself."""
    return preempted_by is not None and (preempted_by == job or preempted_by.startswith(f"job-{job}-"))


def build(expect: Expectation, outcome: Outcome, *, with_airflow: bool = True) -> dict[str, Any]:
    """The content of report.json."""
    record = outcome.record
    checks = job_checks(expect, outcome) + timing_checks(record)
    if with_airflow:
        checks += airflow_checks(record)
    checkpoint = _first_checkpoint(record)
    report: dict[str, Any] = {
        "verdict": "pass" if all(c.ok for c in checks) else "fail",
        "steps_total": outcome.comparison.steps,
        "steps_lost": steps_lost(record.attempts),
        "bit_identical": outcome.comparison.bit_identical,
    }
    if with_airflow:
        final = record.task_samples[-1] if record.task_samples else None
        report["airflow"] = {
            "state": final.state if final else None,
            "try_number": final.try_number if final else None,
            "dag_run": record.dag_run_state,
            "states_seen": distinct_states(record.task_samples),
        }
    if outcome.machines is not None:
        report["machines"] = {
            "flavor": outcome.machines.flavor,
            "lacks": [*outcome.machines.lacks],
            "seen": {**outcome.machines.seen},
        }
    report |= {
        "attempts": [_attempt(a) for a in record.attempts],
        "timings_s": timings(record.attempts),
        "timings_of": "the first eviction and the attempt that follows it",
        "checkpoint_bytes": checkpoint.bytes if checkpoint else None,
        "checkpoint_bytes_stored": checkpoint.bytes_stored if checkpoint else None,
        "checkpoints": [
            {"id": c.id, "step": c.step, "bytes": c.bytes, "bytes_stored": c.bytes_stored} for c in record.checkpoints
        ],
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks],
    }
    return report


def _first_checkpoint(record: StoryRecord) -> Saved | None:
    return record.checkpoints[0] if record.checkpoints else None


def _attempt(a: AttemptRecord) -> dict[str, Any]:
    return {
        "attempt": a.attempt,
        "flavor": a.flavor,
        "pods": a.pods,
        "ranks": a.ranks,
        "first_step": a.first_step,
        "last_step": a.last_step,
        "ended_by": a.ended_by,
        "preempted_by": a.preempted_by,
        "note": a.note,
    }


COLUMNS = (
    ("attempt", "attempt"),
    ("flavor", "flavor"),
    ("pods", "pods"),
    ("ranks", "ranks"),
    ("first_step", "first step"),
    ("last_step", "last step"),
    ("ended_by", "ended by"),
    ("preempted_by", "preempted by"),
)


def table(report: Mapping[str, Any]) -> str:
    """The attempts as aligned text."""
    rows = [[title for _, title in COLUMNS]]
    rows += [["-" if a[key] is None else str(a[key]) for key, _ in COLUMNS] for a in report["attempts"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def summary(report: Mapping[str, Any]) -> str:
    """A few lines for the terminal: figures, then the failed checks, then the verdict."""
    lines = [
        f"steps {report['steps_total']}, lost {report['steps_lost']}, "
        f"bit-identical to the uninterrupted run: {'yes' if report['bit_identical'] else 'NO'}"
    ]
    if "airflow" in report:
        airflow = report["airflow"]
        seen = " -> ".join(airflow["states_seen"])
        lines.append(f"airflow task {airflow['state']}, try {airflow['try_number']}, states {seen}")
    if "machines" in report:
        other = report["machines"]
        lines.append(
            f"nodes of {other['flavor']} were announced as other machines, without {', '.join(other['lacks'])}"
        )
    spans = report["timings_s"].items()
    lines.append("seconds: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in spans))
    lines.append(f"checkpoint {_mib(report['checkpoint_bytes'])}, stored {_mib(report['checkpoint_bytes_stored'])}")
    lines += [f"FAILED {c['name']}: {c['detail']}" for c in report["checks"] if not c["ok"]]
    lines.append(f"verdict: {report['verdict']}")
    return "\n".join(lines)


def _mib(size: int | None) -> str:
    return "not measured" if size is None else f"{size / 2**20:.1f} MiB"
