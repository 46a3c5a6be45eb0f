"""The figures as a markdown table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .model import reaches

HEADER = ("key", "measured", "aim", "reached", "compared with", "command")


def render(figures: Sequence[dict[str, Any]]) -> str:
    """`figures` as figures.json has them."""
    rows = [HEADER, tuple("---" for _ in HEADER)]
    for entry in figures:
        reached = {True: "yes", False: "**no**", None: "-"}[reaches(entry["value"], entry["aim"])]
        value = f"{entry['value']:g} {entry['unit']}".strip()
        aim = f"{entry['aim']} {entry['unit']}".strip() if entry["aim"] else "report"
        key, command = f"`{entry['key']}`", f"`{entry['command']}`"
        rows.append((key, value, aim, reached, entry["baseline"] or "-", command))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
