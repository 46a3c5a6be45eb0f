"""Plain text tables that fit 100 columns. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from proxy.protocol.messages import AttemptRecord

from ..status import JobStatus

WIDTH = 100


def table(head: Sequence[str], rows: Sequence[Sequence[object]], width: int = WIDTH) -> str:
    """Columns as wide as needed; the last is cut with an ellipsis where a line would pass `width`."""
    cells = [[*head], *[["-" if value in (None, "") else str(value) for value in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        line = "  ".join(value.ljust(size) for value, size in zip(row, widths, strict=True)).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return "\n".join(lines)


def jobs_table(statuses: Sequence[JobStatus], wide: bool = False) -> str:
    """One line per job."""
    head = ["NAME", "PHASE", "QUEUE", "ATTEMPT", "PODS", "FLAVOR", "STEP", "MESSAGE"]
    rows = [
        (s.name, s.phase, s.queue, s.attempt or None, f"{s.pods}/{s.workers}", s.flavor, s.step, s.message)
        for s in statuses
    ]
    return table(head, rows, 10_000 if wide else WIDTH)


def attempts_table(attempts: Sequence[AttemptRecord], wide: bool = False) -> str:
    """One line per attempt."""
    head = ["ATTEMPT", "FLAVOR", "PODS", "RANKS", "STEPS", "RAN FOR", "ENDED BY", "PREEMPTED BY"]
    rows = [
        (a.attempt, a.flavor, a.pods, a.ranks, steps(a), seconds(a), a.ended_by or "runs", a.preempted_by)
        for a in attempts
    ]
    return table(head, rows, 10_000 if wide else WIDTH)


def steps(record: AttemptRecord) -> str:
    """`first-last` of an attempt."""
    if record.first_step is None or (record.last_step is None and record.ended_by):
        return "-"
    return f"{record.first_step}-{'' if record.last_step is None else record.last_step}"


def seconds(record: AttemptRecord) -> str | None:
    """How long an attempt had its quota."""
    end = record.released_at or record.finished_at
    return None if end is None else f"{end - record.admitted_at:.1f} s"


def detail(status: JobStatus, wide: bool = False) -> str:
    """Everything about one job."""
    size = f"{status.workers} workers" + (
        f" (at least {status.min_workers})" if status.min_workers < status.workers else ""
    )
    lines = [
        f"Job:         {status.namespace}/{status.name}",
        f"Phase:       {status.phase} ({status.reason})",
        f"             {status.message}",
        f"Queue:       {status.queue}" + (f", priority {status.priority_class}" if status.priority_class else ""),
        f"Size:        {size}, {status.world_size} ranks; hold {status.hold}",
        f"Steps:       {status.step} done, {status.steps_lost} lost",
    ]
    if status.checkpoints:
        last = status.checkpoints[-1]
        amount = f", {last['bytes'] / 1e6:.1f} MB ({last['bytes_stored'] / 1e6:.1f} MB new)" if "bytes" in last else ""
        lines.append(f"Checkpoint:  {last['id']} at step {last['step']}{amount}")
    for name, values in status.timings_s.items():
        if values:
            lines.append(f"Seconds:     {name} {', '.join(f'{value:.2f}' for value in values)}")
    lines = [line if wide or len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]
    if status.attempts:
        lines += ["", attempts_table(status.attempts, wide)]
        lines += [f"attempt {a.attempt}: {a.note}" for a in status.attempts if a.note]
    return "\n".join(lines)


def clock(unix: float) -> str:
    """Local wall-clock time of day."""
    return datetime.datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")
