"""Plain text tables that fit 100 columns. Pure."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from singularity_proxy.protocol import names, user_namespace
from singularity_proxy.protocol.messages import Gpus

from ..contract import branches
from ..contract.record_types import AttemptRecord
from ..jobs import gpu_words, lost_time
from ..jobs.lines import JobLine
from ..jobs.phase import Phase, preempted_by
from ..jobs.status import JobStatus, newest_usable
from ..spec import save_interval

WIDTH = 100


NARROWEST = 12
"""No column is cut below this, so that what is left of a name still tells something."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]], width: int = WIDTH) -> str:
    """Columns as wide as needed; where a line would pass `width`, the widest ones are cut with an ellipsis."""
    cells = [[*head], *[["-" if value in (None, "") else str(value) for value in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    while (excess := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        widest = max(range(len(widths)), key=lambda column: (widths[column], column))
        second = max((size for column, size in enumerate(widths) if column != widest), default=0)
        if widths[widest] <= NARROWEST:
            break  # more columns than fit: the line is cut below
        widths[widest] = max(NARROWEST, widths[widest] - excess, min(second, widths[widest] - 1))
    lines = []
    for row in cells:
        line = "  ".join(_cut(value, size).ljust(size) for value, size in zip(row, widths, strict=True)).rstrip()
        lines.append(_cut(line, width))
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def jobs_table(statuses: Sequence[JobLine], wide: bool = False, named: bool = False) -> str:
    """One line per job; `named`: with its namespace. `wide` shows what a JobLine does not have."""
    head = ["NAME", "PHASE", "QUEUE", "ATTEMPT", "PODS", "FLAVOR", "STEP", "MESSAGE"]
    rows = [
        (s.name, s.phase, s.queue, s.attempt or None, f"{s.pods}/{s.workers}", place(s), s.step, s.message)
        for s in statuses
    ]
    if wide:
        head[3:3] = ["PRIORITY", "REASON", "LOST", "LOST S", "SAVEABLE", "CHECKPOINT", "WORKLOAD"]
        more = [
            (s.priority_class, s.reason, s.steps_lost, f"{s.seconds_lost:.0f}", saveable_word(s),
             (newest_usable(s.checkpoints) or {}).get("id", ""), s.workload)
            for s in statuses if isinstance(s, JobStatus)
        ]  # fmt: skip
        rows = [(*row[:3], *extra, *row[3:]) for row, extra in zip(rows, more, strict=True)]  # type: ignore[misc]
    if named:
        head.insert(0, "NAMESPACE")
        rows = [(s.namespace, *row) for s, row in zip(statuses, rows, strict=True)]  # type: ignore[misc]
    return table(head, rows, 10_000 if wide else WIDTH)


def attempts_table(attempts: Sequence[AttemptRecord], wide: bool = False) -> str:
    """One line per attempt."""
    head = ["ATTEMPT", "FLAVOR", "PODS", "RANKS", "STEPS", "RAN FOR", "ENDED BY", "PREEMPTED BY"]
    rows = [
        (a.attempt, place(a), a.pods, a.ranks, steps(a), seconds(a), a.ended_by or "runs", preempted_by(a))
        for a in attempts
    ]
    return table(head, rows, 10_000 if wide else WIDTH)


def checkpoints_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """One line per checkpoint of the store, as `singularity_proxy.store.admin.ls` lists them, with `in_use` added."""
    head = ["CHECKPOINT", "ATTEMPT", "STEP", "RANKS", "SIZE", "MADE", "IN USE", "NOTE"]
    rows = [
        (
            e["id"], e.get("attempt"), e.get("step"), e.get("world_size"),
            f"{e['bytes'] / 1e6:.1f} MB" if "bytes" in e else None,
            date(e["created_at"]) if "created_at" in e else None,
            "yes" if e["in_use"] else "no", "; ".join(_notes(e)),
        )
        for e in entries
    ]  # fmt: skip
    return table(head, rows)


def _notes(entry: Mapping[str, Any]) -> list[str]:
    """What is special about a checkpoint of the store."""
    holders = ["its own rewind" if name == names.HOLD_REWIND else name for name in entry.get("held_by") or ()]
    notes = [str(entry["problem"])] if entry["problem"] else []
    notes += [f"not restored in {count} tries"] if (count := entry.get("failed_restores")) else []
    notes += ["side branch"] if entry.get("side_branch") else []
    notes += [f"held by {', '.join(holders)}"] if holders else []
    return notes + (["pinned"] if entry.get("pinned") and not holders else [])


def place(where: JobLine | AttemptRecord) -> str:
    """The flavor, with the cluster before it where that is another one."""
    return f"{where.cluster}/{where.flavor}" if where.cluster else where.flavor


def skipped(record: AttemptRecord) -> list[str]:
    """Newer checkpoints that the attempt could not start from, and why."""
    return [f"checkpoint {other.id} (step {other.step}) cannot be restored: {other.why}" for other in record.skipped]


def steps(record: AttemptRecord) -> str:
    """`first-last` of an attempt, `first-` while it has made its first step and runs; `-` without steps."""
    if record.first_step is not None and record.last_step is not None and record.last_step >= record.first_step:
        return f"{record.first_step}-{record.last_step}"
    runs = record.first_step is not None and record.first_step_at is not None and not record.ended_by
    return f"{record.first_step}-" if runs else "-"


def seconds(record: AttemptRecord) -> str | None:
    """How long an attempt had its quota."""
    end = record.released_at or record.finished_at
    return None if end is None else f"{end - record.admitted_at:.1f} s"


PRIVILEGES: Final = {
    user_namespace.NODE: "capabilities on the node",
    user_namespace.USER_NAMESPACE: "capabilities in a user namespace of the pod only",
}


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
        f"Steps:       {status.step} done, {status.steps_lost} lost{_time_lost(status)}"
        + (f", {status.steps_given_up} given up by a rewind" if status.steps_given_up else ""),
    ]
    if status.outputs is not None:
        left = f", {status.outputs.left_out} left out" if status.outputs.left_out else ""
        size = f"{status.outputs.files} files, {status.outputs.bytes} bytes{left}"
        lines += [f"Outputs:     {status.outputs.url}", f"             {size}"]
    elif status.outputs_to:
        lines.append(f"Outputs:     not yet; they go to {status.outputs_to}")
    if status.privileges:
        lines.append(f"Privileges:  {PRIVILEGES[status.privileges]}")
        if status.privileges_why:
            lines.append(f"             {status.privileges_why}")
    if status.cost is not None:
        lines.append(f"Cost:        {cost(status.cost, status.cost_per_step).removeprefix('cost ')}")
    if status.origin is not None:
        lines.append(f"Forked:      from checkpoint {status.origin.checkpoint} of job {status.origin.job}")
    lines += [f"Branch:      attempt {r.attempt} was {branches.sentence(r)}" for r in status.rewinds]
    aside = [f"{e['id']} (step {e['step']})" for e in status.checkpoints if e.get("side_branch")]
    if aside:
        lines.append(f"Set aside:   {', '.join(aside)}")
    if status.evictions:
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(status.evictions.items()))
        lines.append(f"Evictions:   {counts}")
    lines += saveable_lines(status)
    last = newest_usable(status.checkpoints)
    if last is not None:
        amount = f", {last['bytes'] / 1e6:.1f} MB ({last['bytes_stored'] / 1e6:.1f} MB new)" if "bytes" in last else ""
        lines.append(f"Checkpoint:  {last['id']} at step {last['step']}{amount}")
    if status.checkpoint_every:
        lines.append(f"Periodic:    {_periodic(status)}")
    if status.estimated_save_s is not None:
        lines.append(f"Save time:   {status.estimated_save_s:.0f} s estimated, from the last checkpoint")
    lines += [f"Warning:     {text}" for text in status.warnings]
    for asked in status.requests:
        lines.append(f"Request:     {asked.op} {asked.state}: {asked.message}")
    for name, values in status.timings_s.items():
        if values:
            lines.append(f"Seconds:     {name} {', '.join(f'{value:.2f}' for value in values)}")
    lines = [piece for line in lines for piece in _wrapped(line, 13, wide)]
    if status.attempts:
        lines += ["", attempts_table(status.attempts, wide)]
        notes = [f"attempt {a.attempt}: {text}" for a in status.attempts for text in (*skipped(a), a.note) if text]
        notes += [f"attempt {a.attempt}: {said}" for a in status.attempts if a.gpus and (said := _gpus(a.gpus, wide))]
        lines += [piece for note in notes for piece in _wrapped(note, 4, wide)]
    return "\n".join(lines)


def saveable_lines(status: JobStatus) -> list[str]:
    """Whether the attempt can be saved, when that was seen, and why not."""
    found = status.saveable
    if found is None or Phase(status.phase).final:
        return []
    at = "" if found.at is None else f" at {clock(found.at)}"
    if found.verdict == "no":
        return [f"Saveable:    no, as a {found.by} has shown{at}: {found.why}"]
    if found.verdict == "yes":
        return [f"Saveable:    yes, as a {found.by} has shown{at}"]
    return [f"Saveable:    not tried{': ' if found.why else ''}{found.why}"]


def saveable_word(status: JobStatus) -> str:
    """For a column: `no (program)`, `yes`, `not tried`; "" where there is nothing to save."""
    found = status.saveable
    if found is None or Phase(status.phase).final:
        return ""
    return f"no ({found.cause})" if found.verdict == "no" and found.cause else found.verdict


def _time_lost(status: JobStatus) -> str:
    words = lost_time.words(status.seconds_lost)
    return f" ({words})" if words else ""


def amount(money: float | None) -> str | None:
    """Of the unit of the chart's prices; four digits count."""
    return None if money is None else f"{money:.4g}"


def cost(total: float, per_step: float | None) -> str:
    """What it has cost, and a step of it."""
    return f"cost {amount(total)}" + ("" if per_step is None else f", {amount(per_step)} per step")


def _gpus(told: Gpus, wide: bool) -> str:
    """Always what was wrong with them; with `wide` also what they did."""
    return "; ".join(filter(None, [gpu_words.usage(told) if wide else "", gpu_words.troubles(told)]))


def _periodic(status: JobStatus) -> str:
    """The interval, and when the next checkpoint is due."""
    try:
        save_interval.parse(status.checkpoint_every)
    except ValueError as error:
        return f"none: {status.checkpoint_every!r} {error}"
    text, planned = f"a checkpoint every {status.checkpoint_every}", status.next_checkpoint
    if status.checkpoint_every == "auto":
        text = "checkpoints at an interval from cost and failures"
        if planned is not None and planned.interval_s is not None:
            text += f", now {planned.interval_s:.0f} s"
    if planned is not None:
        text += f"; next at step {planned.step}" if planned.step is not None else f"; next at {clock(planned.at)}"
        if planned.failures:
            text += f", not before {clock(planned.at)}" if planned.step is not None else ""
            text += f" ({planned.failures} in a row could not be had)"
        if planned.step is not None and status.attempts and status.attempts[-1].first_step_at is None:
            text += "; no step was counted yet: a program without steps needs a time instead, 10m for one"
    return text


def _wrapped(line: str, indent: int, wide: bool) -> list[str]:
    """`line` in pieces that fit: what explains is never cut."""
    if wide or len(line) <= WIDTH:
        return [line]
    start = len(line) - len(line.lstrip())
    return textwrap.wrap(line, WIDTH, initial_indent=" " * start, subsequent_indent=" " * indent)


def date(unix: float) -> str:
    """Local date and time to the second."""
    return datetime.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(unix: float) -> str:
    """Local wall-clock time of day."""
    return datetime.datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")
