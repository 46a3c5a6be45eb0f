"""Moves as one standalone SVG picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from ..jobs.move_trace import Move, Span
from ..picture import PALE, QUIET, opening
from .output import printable
from .trace_text import head

WIDTH, LEFT, RIGHT, ROW, HEAD, FOOT = 1000, 250, 90, 22, 48, 24
LONGEST: Final = 120
"""Letters of a line: names are the user's, and may be long."""
COLOURS: Final = {
    "Kueue": "#8d6fb5", "Kubernetes": "#9fc5e8", "controller": "#7a8699", "sidecar": "#7a8699", "sidecars": "#7a8699",
    "ranks": "#3d78b4", "agent": "#3d78b4", "launcher": "#57a773", "CRIU": "#d9822b", "device": "#c2507a",
    "store": "#b59b2a",
}  # fmt: skip
"""By who works."""


def picture(job: str, moves: Sequence[Move]) -> str:
    """One document, a chart per move, one below the other."""
    heights = [HEAD + ROW * len(move.spans) + 18 * len(move.notes) + FOOT for move in moves]
    height = sum(heights)
    out = opening(_short(f"Moves of {job}"), WIDTH, height)
    top = 0
    for move, tall in zip(moves, heights, strict=True):
        out += _chart(job, move, top)
        top += tall
    return "\n".join([*out, "</svg>"]) + "\n"


def _chart(job: str, move: Move, top: int) -> list[str]:
    text = _text(f"{head(job, move)}: {move.seconds:.2f} s")
    out = [f'<text x="16" y="{top + 28}" font-size="14" font-weight="600">{text}</text>']
    y = top + HEAD
    for span in move.spans:
        out += _row(span, move.seconds, y)
        y += ROW
    for note in move.notes:
        y += 18
        out.append(f'<text x="{LEFT}" y="{y - 4}" fill="{QUIET}">{_text(note)}</text>')
    return out


def _row(span: Span, total: float, y: int) -> list[str]:
    room = WIDTH - LEFT - RIGHT
    scale = room / total if total > 0 else 0.0
    x, width = LEFT + span.start * scale, max(2.0, span.seconds * scale)
    tip = f"{span.phase} ({span.by}): {span.seconds:.3f} s from {span.start:.3f} s on"
    return [
        f'<rect x="{LEFT}" y="{y}" width="{room}" height="{ROW - 4}" fill="{PALE}"/>',
        f'<text x="{LEFT - 90}" y="{y + 13}" text-anchor="end">{_text(span.phase)}</text>',
        f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end" fill="{QUIET}">{_text(span.by)}</text>',
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}" '
        f'fill="{COLOURS.get(span.by, "#7a8699")}"><title>{_text(tip)}</title></rect>',
        f'<text x="{WIDTH - 14}" y="{y + 13}" text-anchor="end">{span.seconds:.2f} s</text>',
    ]


def _text(text: str) -> str:
    """As the content of an element."""
    return escape(_short(text))


def _short(text: str) -> str:
    """Of one line, and without what no XML may contain."""
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
