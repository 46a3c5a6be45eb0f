"""The picture of a run: from attempts to segments (what happened when, in which lane), and from segments to SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.picture import opening

from .model import StoryRecord

QUEUE = "queue"
WAITING, STARTING, RUNNING, CHECKPOINT, RESTORE, HANDOVER = (
    "waiting for quota",
    "starting",
    "running",
    "checkpoint",
    "restoring",
    "quota handed over",
)
COLOURS = {
    WAITING: "#c9ced6",
    STARTING: "#9fc5e8",
    RUNNING: "#3d78b4",
    CHECKPOINT: "#d9822b",
    RESTORE: "#57a773",
    HANDOVER: "#8d6fb5",
}


@dataclass(frozen=True)
class Segment:
    """One bar. Times are seconds since the start of the story."""

    lane: str
    kind: str
    start: float
    end: float
    label: str = ""


@dataclass(frozen=True)
class Marker:
    """One vertical line with a caption."""

    at: float
    text: str


def segments(record: StoryRecord, end: float) -> list[Segment]:
    """The bars of a run that was over (or was last seen) at `end`, Unix seconds."""
    found: list[Segment] = []

    def add(lane: str, kind: str, start: float | None, stop: float | None, label: str = "") -> None:
        if start is not None and stop is not None and stop > start:
            found.append(Segment(lane, kind, start - record.started_at, stop - record.started_at, label))

    free: float | None = record.started_at
    for a in record.attempts:
        stopped = a.evicted_at or a.finished_at or end
        add(QUEUE, WAITING, a.queued_at or free, a.admitted_at)
        add(a.flavor, RESTORE if a.restored_from else STARTING, a.admitted_at, min(a.first_step_at or stopped, stopped))
        add(a.flavor, RUNNING, a.first_step_at, stopped, f"{a.pods} pods")
        add(a.flavor, CHECKPOINT, a.evicted_at, a.committed_at)
        add(a.flavor, HANDOVER, a.committed_at or a.evicted_at, a.released_at)
        free = a.released_at
    return found


def markers(record: StoryRecord) -> list[Marker]:
    """Why each attempt ended."""
    return [Marker(a.evicted_at - record.started_at, _reason(a)) for a in record.attempts if a.evicted_at is not None]


def _reason(a: AttemptRecord) -> str:
    if a.preempted_by:
        return f"{(a.ended_by or 'evicted').lower()} by {a.preempted_by}"
    return {"Regrown": "grown back by the planner"}.get(a.ended_by or "", f"evicted: {a.ended_by}")


def steps(record: StoryRecord) -> list[tuple[float, int]]:
    """(seconds since the start, steps done), ascending: what was sampled, and the exact ends of the attempts."""
    exact: dict[float, int] = {}
    for a in record.attempts:
        if a.first_step_at is not None and a.first_step is not None:
            exact[a.first_step_at] = a.first_step + 1
        ended = a.barrier_at or (a.finished_at if a.ended_by == "Finished" else None)
        if ended is not None and a.last_step is not None:
            exact[ended] = a.last_step + 1
    sampled = {s.at: s.step for s in record.samples if s.step is not None}
    ordered: list[tuple[float, int]] = []
    for at, step in sorted((sampled | exact).items()):
        reached = ordered[-1][1] if ordered else 0
        # Progress is reported every few seconds. A sample that shows nothing new, or less than an exact point before
        # it, says nothing about when steps were done.
        if at in exact or step > reached:
            ordered.append((at - record.started_at, max(step, reached)))
    return ordered


def lanes(found: Iterable[Segment]) -> list[str]:
    """The queue, then the flavors in the order of their first use."""
    return list(dict.fromkeys([QUEUE, *(s.lane for s in found)]))


# --- drawing ------------------------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP = 1000, 90, 24, 92
LANE, GAP, PLOT = 34, 14, 150


def last_moment(record: StoryRecord) -> float:
    """The latest time that anything was seen, Unix seconds."""
    times = [record.started_at, *(s.at for s in record.samples)]
    for a in record.attempts:
        times += [t for t in (a.finished_at, a.released_at, a.committed_at, a.first_step_at, a.admitted_at) if t]
    return max(times)


def svg(record: StoryRecord, title: str) -> str:
    """The picture as one SVG document."""
    end = last_moment(record)
    bars = segments(record, end)
    span = max(end - record.started_at, 1.0)
    names = lanes(bars)
    plot_top = TOP + len(names) * (LANE + GAP) + 34
    height = plot_top + PLOT + 44

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds, 0.0), span) / span

    out = [
        *opening(title, WIDTH, height),
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
        *_legend(),
        *_time_axis(x, span, TOP - 12, plot_top + PLOT),
    ]
    for row, name in enumerate(names):
        y = TOP + row * (LANE + GAP)
        out.append(f'<text x="{LEFT - 10}" y="{y + LANE / 2 + 4}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}" fill="#f4f5f7"/>')
        for bar in (b for b in bars if b.lane == name):
            out.extend(_bar(bar, x(bar.start), x(bar.end), y))
    out.extend(_steps_plot(steps(record), x, plot_top))
    out.extend(_markers(markers(record), x, plot_top))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _legend() -> list[str]:
    out, at = [], LEFT
    for kind, colour in COLOURS.items():
        out.append(f'<rect x="{at}" y="38" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{at + 17}" y="48">{kind}</text>')
        at += 40 + 7 * len(kind)
    return out


def _bar(bar: Segment, left: float, right: float, y: int) -> list[str]:
    # A checkpoint of half a second would vanish in a run of two minutes: every bar is at least two pixels wide.
    width = max(right - left, 2.0)
    tip = f"{bar.kind} {bar.label}".strip() + f": {bar.start:.1f} to {bar.end:.1f} s"
    out = [
        f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="{COLOURS[bar.kind]}">'
        f"<title>{escape(tip)}</title></rect>"
    ]
    if bar.label and width > 8 * len(bar.label):
        middle = left + width / 2
        place = f'x="{middle:.1f}" y="{y + LANE / 2 + 4}" text-anchor="middle"'
        out.append(f'<text {place} fill="#ffffff">{escape(bar.label)}</text>')
    return out


def tick(span: float, count: int) -> float:
    """A round distance (1, 2 or 5 times a power of ten) that gives at most `count` ticks over `span`."""
    size = 1.0
    while span / size > count:
        for factor in (2, 2.5, 2):
            size *= factor
            if span / size <= count:
                break
    return size


def _time_axis(x: Callable[[float], float], span: float, top: float, bottom: float) -> list[str]:
    out, size, at = [], tick(span, 12), 0.0
    while at <= span:
        out.append(f'<line x1="{x(at):.1f}" y1="{top}" x2="{x(at):.1f}" y2="{bottom}" stroke="#e3e6ea"/>')
        out.append(f'<text x="{x(at):.1f}" y="{bottom + 18}" text-anchor="middle">{at:g} s</text>')
        at += size
    return out


def _steps_plot(points: Sequence[tuple[float, int]], x: Callable[[float], float], top: float) -> list[str]:
    bottom = top + PLOT
    most = max((step for _, step in points), default=0) or 1
    size = max(tick(most, 5), 1.0)

    def y(step: float) -> float:
        return bottom - PLOT * step / most

    out = [f'<text x="{LEFT - 10}" y="{top - 12}" text-anchor="end">steps done</text>']
    value = 0.0
    while value <= most:
        out.append(
            f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}" stroke="#e3e6ea"/>'
            f'<text x="{LEFT - 10}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
        value += size
    line = " ".join(f"{x(at):.1f},{y(step):.1f}" for at, step in points)
    out.append(f'<polyline points="{line}" fill="none" stroke="#22262c" stroke-width="1.5"/>')
    return out


def _markers(found: Sequence[Marker], x: Callable[[float], float], plot_top: float) -> list[str]:
    out: list[str] = []
    rows = [plot_top - 22 + 16 * (i % 2) for i in range(len(found))]
    for (marker, y), right in zip(zip(found, rows, strict=True), _room(found, x), strict=True):
        at = x(marker.at)
        anchor, shift = ("start", 5) if right else ("end", -5)
        out.append(
            f'<line x1="{at:.1f}" y1="{TOP - 12}" x2="{at:.1f}" y2="{plot_top + PLOT}" '
            f'stroke="#b3261e" stroke-dasharray="4 3"/>'
            f'<text x="{at + shift:.1f}" y="{y}" text-anchor="{anchor}" fill="#b3261e">{escape(marker.text)}</text>'
        )
    return out


def _room(found: Sequence[Marker], x: Callable[[float], float]) -> list[bool]:
    """Whether a caption fits to the right of its line."""
    return [x(m.at) + 7 * len(m.text) < WIDTH - RIGHT for m in found]
