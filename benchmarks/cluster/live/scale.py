"""A plan in compressed time: jobs, costs and settings of the planner in seconds as they are played. Pure.

The simulator gets the same jobs in the same seconds and the same settings. So what the product has as a constant, and
cannot be compressed, is the same on both sides: `CONSTANTS` names what matters.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from kueue_integration.controller.hold import Settings
from kueue_integration.planner import arbiter, measure, recent_moves
from kueue_integration.planner.settings import PlannerSettings, problem

from ..model import Costs, Job
from ..seam import Planner, acting, modes

NONE, REGROWTH = "none", "regrowth"
NOT_HERE = ("cordon", "health")
"""Policies that have nothing to do: no node leaves, and none is sick."""
LEAST_S = 1.0
"""The chart takes no shorter times than this."""
MOST_MOVES = 10_000
"""The chart takes no more of them an hour."""
CONSTANTS: Mapping[str, float] = {
    "a save or restore that was never measured": measure.UNKNOWN_S,
    "the same attempt is not asked again": recent_moves.SETTLE_S,
    "a failed request is not made again": arbiter.ASK_AGAIN_S,
    "regrow.minRunSeconds": Settings().regrow_min_run_s,
}
"""Seconds that are played as they are."""


@dataclass(frozen=True)
class Planned:
    """:param policies: fields of `PlannerSettings` that are on
    :param kept: settings that the chart does not take as short, or as often, as the factor asks for
    """

    policies: Sequence[str]
    regrowth: bool
    settings: PlannerSettings
    kept: Sequence[str]

    @property
    def name(self) -> str:
        return "+".join([*self.policies, *([REGROWTH] if self.regrowth else [])]) or NONE

    def planner(self) -> Planner | None:
        """The simulator's; one for each run: it remembers."""
        return Planner.of(self.settings, self.regrowth) if self.policies or self.regrowth else None


def planned(names: str, compress: float) -> Planned:
    """The chart's usual settings in compressed time, with the policies `names` on; separated by commas, or `none`.

    :raises ValueError: an unknown name, or policies or a factor that the controller would refuse
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [NONE, REGROWTH, *(name for name in modes() if name not in NOT_HERE)]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted or (NONE in wanted and len(wanted) > 1):
        raise ValueError(f"--policies = {names}: give none, or some of {', '.join(known[1:])}")
    on = [name for name in wanted if name not in (NONE, REGROWTH)]
    kept: list[str] = []
    settings: PlannerSettings = _scaled(acting(on, PlannerSettings().every_s), compress, "planner", kept)
    if problem(settings):
        raise ValueError(f"--policies = {names}, --compress = {compress:g}: {problem(settings)}; give a smaller factor")
    return Planned(on, REGROWTH in wanted, settings, kept)


def _scaled(part: Any, compress: float, path: str, kept: list[str]) -> Any:
    changed: dict[str, Any] = {}
    for field in fields(part):
        value, where = getattr(part, field.name), f"{path}.{key(field.name)}"
        if is_dataclass(value):
            changed[field.name] = _scaled(value, compress, where, kept)
        elif field.name in ("thresholds", "history"):
            changed[field.name] = [_seconds(one, compress, where, kept) for one in value]
        elif field.name.endswith("_s"):
            changed[field.name] = _seconds(value, compress, where, kept)
        elif field.name.endswith("_per_hour"):
            changed[field.name] = min(MOST_MOVES, round(value * compress))
            if value * compress > MOST_MOVES:
                kept.append(f"{where} is {MOST_MOVES} and not {value * compress:g}")
    return dataclasses.replace(part, **changed)


def _seconds(value: float, compress: float, where: str, kept: list[str]) -> float:
    if value / compress < LEAST_S:
        kept.append(f"{where} is {LEAST_S:g} and not {value / compress:.3g}")
    return max(LEAST_S, value / compress)


def key(name: str) -> str:
    """What the chart calls a field: `min_run_s` is `minRunSeconds`."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), re.sub(r"_s$", "_seconds", name))


def chart_values(made: Planned) -> dict[str, Any]:
    """For `Chart.upgrade`: all that differs from the controller's own defaults."""
    values = _differing(made.settings, PlannerSettings(), "planner")
    return {**values, "regrow__mode": "act" if made.regrowth else "none"}


def _differing(part: Any, usual: Any, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(part):
        mine, other, where = getattr(part, field.name), getattr(usual, field.name), f"{path}__{key(field.name)}"
        if is_dataclass(mine):
            found.update(_differing(mine, other, where))
        elif mine != other:
            found[where] = mine
    return found


def jobs(some: Sequence[Job], compress: float) -> list[Job]:
    return [replace(job, arrival_s=job.arrival_s / compress, work_s=job.work_s / compress) for job in some]


def costs(given: Costs, compress: float) -> Costs:
    """All of them are seconds, or seconds per GB, but the share of attempts that fail."""
    numbers = {f.name: getattr(given, f.name) / compress for f in fields(given) if f.name not in ("hold", "fails")}
    return replace(given, **numbers)
