"""Bars of relative change as one small standalone SVG picture, and the same as a markdown table. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from xml.sax.saxutils import escape

from kueue_integration.picture import opening
from localcluster.demo.timeline import tick

from .measures import MEASURES, change

Found = Mapping[str, Sequence[Mapping[str, float]]]
WIDTH, LEFT, ROW, TOP, GAP = 1000, 210, 20, 66, 16
BETTER, WORSE, SAME, LINE = "#3d78b4", "#d9822b", "#c9ced6", "#22262c"
"""Blue and orange are told apart by everybody."""
NOTHING = 0.05
"""A smaller change, in per cent, is none."""
SHOWN: Mapping[str, str] = {
    "completion_mean_h": "average completion",
    "completion_median_h": "median completion",
    "goodput": "work while jobs arrive",
    "dollars_per_h": "cost of an hour of work",
}
COLUMNS: Mapping[str, str] = {
    "completion_mean_h": "average h", "completion_median_h": "median h", "completion_p95_h": "p95 h",
    "makespan_h": "makespan h", "held_share": "held", "goodput": "work", "queueing_mean_h": "queueing h",
    "waiting_mean_h": "waiting h", "fairness": "fairness", "slowdown_p95": "slowdown p95",
    "moves_per_job": "moves per job", "lost_device_h": "lost device h",
    "dollars_per_h": "$ per h of work", "promises_kept": "promises kept",
    "premium_kept": "of premium",
}  # fmt: skip


def picture(title: str, found: Found, base: str) -> str:
    """One row for each contender, one panel for each of `SHOWN`: change in per cent against `base`, paired by seed.

    The line over a bar is the range over the seeds.
    """
    names = [name for name in found if name != base]
    height = TOP + ROW * len(names) + 40
    room = (WIDTH - LEFT - GAP * len(SHOWN)) / len(SHOWN)
    out = [
        *opening(title, WIDTH, height),
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for place, name in enumerate(names):
        out.append(f'<text x="{LEFT - 8}" y="{TOP + ROW * place + 14}" text-anchor="end">{escape(name)}</text>')
    for place, (key, label) in enumerate(SHOWN.items()):
        changes = [change(_of(found[name], key), _of(found[base], key)) for name in names]
        out += _panel(label, MEASURES[key][1], changes, LEFT + place * (room + GAP), room)
    out.append(
        f'<text x="16" y="{height - 6}" fill="#6a717b">simulated; per cent against "{escape(base)}" on the same seeds; '
        "blue is better, orange is worse; the line is the range over the seeds</text>"
    )
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(
    label: str, more_is_better: bool, changes: Sequence[tuple[float, float, float]], left: float, room: float
) -> list[str]:
    low = min([0.0, *(least for _, least, _ in changes)])
    high = max([0.0, *(most for _, _, most in changes)])
    scale = room / max(high - low, 1e-9)
    bottom = TOP + ROW * len(changes)

    def x(value: float) -> float:
        return left + (value - low) * scale

    out = [f'<text x="{left:.0f}" y="{TOP - 16}" font-weight="600">{escape(label)}</text>']
    step = tick(max(high - low, 1.0), 5)
    for count in range(int(low // step) + 1, int(high // step) + 1):
        at = x(count * step)
        out.append(f'<path d="M{at:.1f} {TOP - 6}V{bottom}" stroke="#e3e6ea"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 14}" text-anchor="middle" font-size="10">{count * step:g}</text>')
    for place, (mean, least, most) in enumerate(changes):
        y = TOP + ROW * place
        colour = SAME if abs(mean) < NOTHING else BETTER if (mean > 0) == more_is_better else WORSE
        begin, width = min(x(0), x(mean)), max(abs(mean) * scale, 1.0)
        out.append(
            f'<rect x="{begin:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}">'
            f"<title>{mean:+.1f} % ({least:+.1f} to {most:+.1f})</title></rect>"
        )
        out.append(f'<path d="M{x(least):.1f} {y + ROW / 2}H{x(most):.1f}" stroke="{LINE}"/>')
    return out


def table(found: Found, leave_out: Collection[str] = ()) -> str:
    """Means over the seeds."""
    columns = {key: label for key, label in COLUMNS.items() if key not in leave_out}
    rows = [["", *columns.values()], ["---"] * (len(columns) + 1)]
    rows += [[name, *(f"{fmean(_of(runs, key)):.3g}" for key in columns)] for name, runs in found.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def changes(found: Found, base: str, keys: Sequence[str] = tuple(SHOWN)) -> str:
    """Mean change against `base` and its range over the seeds, in per cent."""
    rows = [["", *(SHOWN.get(key, key) for key in keys)], ["---"] * (len(keys) + 1)]
    for name, runs in found.items():
        if name != base:
            cells = [change(_of(runs, key), _of(found[base], key)) for key in keys]
            rows.append([name, *(f"{mean:+.1f} ({least:+.0f} to {most:+.0f})" for mean, least, most in cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _of(runs: Sequence[Mapping[str, float]], key: str) -> list[float]:
    return [run[key] for run in runs]
