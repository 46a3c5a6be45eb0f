"""Puts pictures and tables of changes into the documentation, between the marks that a page has for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from . import plots, verdict
from .book import Book, Found
from .study import BASE, CONTENDERS, RESTART, SAVING, Scenario

PAGE = "studies.md"
VERDICT = "verdict"
"""The marks of the tables of clear gains and losses. They are written when the book has all scenarios of the page."""


def title(scenario: Scenario) -> str:
    return f"{scenario.name}: {scenario.about}, {scenario.devices} devices, load {scenario.load:g}"


def put(folder: Path, scenarios: Sequence[Scenario], book: Book) -> None:
    """Write `studies-NAME.svg`, and into the page what stands between `<!-- NAME -->` and `<!-- end of NAME -->`.

    :raises ValueError: the page has no such marks
    """
    page = folder / PAGE
    text = page.read_text()
    for scenario in scenarios:
        name = scenario.name.replace(" ", "-")
        found = book.found(scenario.name, scenario.names())
        picture = f"{PAGE.removesuffix('.md')}-{name}.svg"
        text = between(text, name, block(scenario, found, book.endless(scenario.name), picture))
        (folder / picture).write_text(plots.picture(title(scenario), found, BASE))
    wanted = [name for name in marks(text) if name != VERDICT]
    results = {name: book.found(name, list(CONTENDERS)) for name in wanted if name in book.names()}
    if VERDICT in marks(text) and all(BASE in results.get(name, {}) for name in wanted):
        text = between(text, VERDICT, verdict.text(results, BASE, (RESTART, SAVING)))
    page.write_text(text)


def marks(text: str) -> list[str]:
    """Names of the scenarios that a page has room for, and `VERDICT`."""
    return [name.replace("-", " ") for name in re.findall(r"<!-- end of (\S+) -->", text)]


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


def block(scenario: Scenario, found: Found, endless: Sequence[str], picture: str) -> str:
    count = "1 seed" if scenario.seeds == 1 else f"{scenario.seeds} seeds"
    seeds = f"{count}, {scenario.days:g} days of arrivals."
    if endless:
        seeds += f" Left out, because its jobs preempt each other without an end: {', '.join(endless)}."
    unplayed = [name for name in scenario.names() if name not in found and name not in endless]
    if unplayed:
        seeds += f" Not played: {', '.join(unplayed)}."
    leave_out = {"slowdown_p95"} | (set() if scenario.classes else {"promises_kept", "premium_kept"})
    return f"![{title(scenario)}]({picture})\n\n{seeds} Means over the seeds:\n\n{plots.table(found, leave_out)}"
