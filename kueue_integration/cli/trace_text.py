"""Moves as a Gantt chart of text that fits 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..jobs.move_trace import Move, Span
from .output import printable
from .tables import WIDTH

BAR = "█"
NARROWEST = 20
"""Columns of a bar, however long the numbers are."""


def chart(job: str, moves: Sequence[Move]) -> str:
    """Every move with its head, a line per phase, and what is missing."""
    return "\n\n".join(_one(job, move) for move in moves)


def head(job: str, move: Move) -> str:
    """A sentence about one move."""
    to = f"attempt {move.right} ({move.right_flavor})" if move.right is not None else "the queue"
    why = f", {move.ended_by}" if move.ended_by else ""
    by = f" by {move.preempted_by}" if move.preempted_by else ""
    saved = f"checkpoint {move.checkpoint}" if move.checkpoint else "no checkpoint"
    return printable(f"{job}: attempt {move.left} ({move.left_flavor}) to {to}{why}{by}, {saved}")


def _one(job: str, move: Move) -> str:
    rows = [(span.phase, span.by, f"{span.seconds:.2f}", span) for span in move.spans]
    total = f"{move.seconds:.2f}"
    names = max(len(name) for name in ("PHASE", "total", *(row[0] for row in rows)))
    who = max(len(by) for by in ("BY", *(row[1] for row in rows)))
    number = max(len(text) for text in ("SECONDS", total, *(row[2] for row in rows)))
    room = max(NARROWEST, WIDTH - names - who - number - 6)
    lines = textwrap.wrap(head(job, move), WIDTH, subsequent_indent="    ")
    lines.append(f"{'PHASE':<{names}}  {'BY':<{who}}  {'SECONDS':>{number}}")
    for phase, by, seconds, span in rows:
        lines.append(f"{phase:<{names}}  {by:<{who}}  {seconds:>{number}}  {_bar(span, move.seconds, room)}")
    lines.append(f"{'total':<{names}}  {'':<{who}}  {total:>{number}}")
    lines += [f"({note})" for note in move.notes]
    return "\n".join(lines)


def _bar(span: Span, total: float, room: int) -> str:
    """At least one column: a barrier of a moment would vanish beside an hour in the queue."""
    scale = room / total if total > 0 else 0.0
    start = min(room - 1, round(span.start * scale))
    end = min(room, round((span.start + span.seconds) * scale))
    return " " * start + BAR * max(1, end - start)
