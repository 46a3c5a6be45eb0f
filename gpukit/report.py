"""report.json and report.md: the same, for programs and for people."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from .kit import Result, write_json

JSON, MARKDOWN = "report.json", "report.md"


def read(out: Path) -> dict[str, Result]:
    """Parts that an earlier run has finished; none for a report that cannot be read."""
    try:
        data = json.loads((out / JSON).read_text())
        return {name: Result.from_dict(part) for name, part in data["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write(out: Path, parts: Mapping[str, Result], fake: bool, running: str = "") -> None:
    """Both files, whole, after each part."""
    head = {
        "device": "fake driver" if fake else "NVIDIA GPU",
        "machine": platform.platform(),
        "python": platform.python_version(),
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    running_now = {"running": running} if running else {}
    write_json(out / JSON, {**head, **running_now, "parts": {name: part.to_dict() for name, part in parts.items()}})
    temporary = out / (MARKDOWN + ".tmp")
    temporary.write_text(markdown(head, parts, fake, running))
    temporary.replace(out / MARKDOWN)


def markdown(head: Mapping[str, str], parts: Mapping[str, Result], fake: bool, running: str = "") -> str:
    lines = ["# GPU kit: report", "", *(f"- {name}: {value}" for name, value in head.items())]
    if fake:
        lines += ["", "**No GPU: the driver was the fake one. Seconds and rates below say nothing about a GPU.**"]
    if running:
        lines += ["", f"Running now: {running}."]
    lines += ["", "| part | result | seconds | |", "| --- | --- | --- | --- |"]
    lines += [f"| {n} | {p.status} | {p.seconds:.0f} | {_cell(p.sentence)} |" for n, p in parts.items()]
    for name, part in parts.items():
        lines += ["", f"## {name}", ""]
        for check in part.checks:
            detail = f": {check.detail}" if check.detail else ""
            lines.append(f"- {'ok' if check.ok else '**FAILED**'}: {check.name}{detail}")
        lines += [f"- {note}" for note in part.notes]
        if part.figures:
            lines += ["", "| | |", "| --- | --- |"]
            lines += [f"| {_cell(key)} | {_cell(str(value))} |" for key, value in part.figures.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
