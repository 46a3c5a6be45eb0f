"""What came out of the studies, as a table of clear gains and a table of clear losses. Pure.

A change is clear where it has the same sign for every seed and is at least `LEAST` per cent on average. All other
changes are left out: the tables of the scenarios have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .measures import MEASURES, change

Found = Mapping[str, Sequence[Mapping[str, float]]]
LEAST = 3.0
ASKED: Mapping[str, str] = {
    "completion_mean_h": "average completion", "completion_median_h": "median completion",
    "completion_p95_h": "95th percentile", "makespan_h": "makespan", "queueing_mean_h": "average queueing",
    "waiting_mean_h": "average waiting",
    "goodput": "work while jobs arrive", "fairness": "fairness",
    "dollars_per_h": "cost of work", "premium_kept": "premium promises kept",
}  # fmt: skip
BESIDE: Mapping[str, str] = {"moves_per_job": "moves per job", "held_share": "devices in use"}
"""Neither a gain nor a loss by itself: what moves cost is in all other measures, and devices may be used for little."""


@dataclass(frozen=True)
class Change:
    """Per cent against the base on the same seeds."""

    contender: str
    scenario: str
    measure: str
    mean: float
    least: float
    most: float
    seeds: int

    @property
    def better(self) -> bool:
        return (self.mean > 0) == MEASURES[self.measure][1]

    @property
    def text(self) -> str:
        """The range is left out where there is one seed."""
        seeds = "" if self.seeds == 1 else f" ({self.least:+.0f} to {self.most:+.0f})"
        return f"{ASKED[self.measure]} {self.mean:+.1f} %{seeds}"


def clear(results: Mapping[str, Found], base: str, left_out: Collection[str] = ()) -> list[Change]:
    """In the order of the contenders.

    :param results: scenario -> contender -> its measures, seed by seed
    :param base: contender that the others are compared with
    :param left_out: contenders that are no policy
    """
    found = []
    for scenario, contenders in results.items():
        for name, runs in contenders.items():
            for key in ASKED if name != base and name not in left_out else ():
                mean, least, most = change([run[key] for run in runs], [run[key] for run in contenders[base]])
                if abs(mean) >= LEAST and least * most > 0:
                    found.append(Change(name, scenario, key, mean, least, most, len(runs)))
    order = {name: place for place, name in enumerate(dict.fromkeys(n for c in results.values() for n in c))}
    return sorted(found, key=lambda one: order[one.contender])


def text(results: Mapping[str, Found], base: str, left_out: Collection[str] = ()) -> str:
    """Two markdown tables."""
    changes = clear(results, base, left_out)
    parts = []
    for title, better in (("Gains", True), ("Losses", False)):
        rows = [["policy", "scenario", f"change against {base}", *BESIDE.values()], ["---"] * 5]
        by_place: dict[tuple[str, str], list[str]] = {}
        for one in changes:
            if one.better == better:
                by_place.setdefault((one.contender, one.scenario), []).append(one.text)
        rows += [
            [*place, "; ".join(texts), *(_both(results[place[1]], place[0], base, key) for key in BESIDE)]
            for place, texts in by_place.items()
        ] or [["none", "", "", "", ""]]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        count = len({name for name, _ in by_place})
        parts.append(f"**{title}**: {count} {'policy' if count == 1 else 'policies'}\n\n{table}")
    return "\n\n".join(parts)


def _both(found: Found, name: str, base: str, key: str) -> str:
    """The mean of the base, and that of the contender."""
    before, after = (fmean(run[key] for run in found[one]) for one in (base, name))
    return f"{before:.2f} to {after:.2f}"
