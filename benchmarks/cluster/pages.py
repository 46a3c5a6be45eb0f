"""Puts pictures and tables of changes into the documentation, between the marks that a page has for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import plots
from .study import BASE, Found, Scenario

PAGE = "studies.md"


def title(scenario: Scenario) -> str:
    return f"{scenario.name}: {scenario.about}, {scenario.devices} devices, load {scenario.load:g}"


def put(folder: Path, scenarios: Sequence[Scenario], results: Mapping[str, Found]) -> None:
    """Write `studies-NAME.svg`, and into the page what stands between `<!-- NAME -->` and `<!-- end of NAME -->`.

    :raises ValueError: the page has no such marks
    """
    page = folder / PAGE
    text = page.read_text()
    for scenario in scenarios:
        name = scenario.name.replace(" ", "-")
        found = results[scenario.name]
        text = between(text, name, block(scenario, found, f"{PAGE.removesuffix('.md')}-{name}.svg"))
        (folder / f"studies-{name}.svg").write_text(plots.picture(title(scenario), found, BASE))
    page.write_text(text)


def check(folder: Path, scenarios: Sequence[Scenario]) -> None:
    """:raises ValueError: the page has no marks for one of them"""
    text = (folder / PAGE).read_text()
    for scenario in scenarios:
        between(text, scenario.name.replace(" ", "-"), "")


def between(text: str, name: str, new: str) -> str:
    """:raises ValueError: not exactly one pair of marks"""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{PAGE}: write {begin} and {end} once each, where the results of {name} belong")
    return re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: f"{begin}\n{new}\n{end}", text, flags=re.DOTALL)


def block(scenario: Scenario, found: Found, picture: str) -> str:
    seeds = f"{scenario.seeds} seeds, {scenario.days:g} days of arrivals."
    leave_out = {"held_share", "slowdown_p95"} | (set() if scenario.classes else {"promises_kept", "premium_kept"})
    return f"![{title(scenario)}]({picture})\n\n{seeds} Means over the seeds:\n\n{plots.table(found, leave_out)}"
