"""The table, and the files of a run."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from .record import Outcome, cell
from .scenarios import CONTENDERS, PACE_S, SCENARIOS, STEPS

Results = Mapping[str, Mapping[str, Outcome]]
"""Scenario -> contender -> outcome."""

PACKAGES = ("apache-airflow", "apache-airflow-providers-cncf-kubernetes", "airflow-provider-singularity")


def table(results: Results) -> str:
    """Markdown, one row per scenario that was played."""
    lines = [
        "| scenario | " + " | ".join(f"`{contender.title}`" for contender in CONTENDERS) + " |",
        "| --- |" + " --- |" * len(CONTENDERS),
    ]
    for scenario in SCENARIOS:
        outcomes = results.get(scenario.name)
        if outcomes:
            cells = [cell(scenario, outcomes[c.name]) if c.name in outcomes else "-" for c in CONTENDERS]
            lines.append(f"| **{scenario.title}**: {scenario.asks} | " + " | ".join(cells).replace("\n", " ") + " |")
    return "\n".join(lines)


def write(folder: Path, results: Results) -> None:
    """`anchor.json` and `anchor.md` below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {package: version(package) for package in PACKAGES}
    content = {
        "versions": {**versions, "python": platform.python_version()},
        "training": {"steps": STEPS, "pace_s": PACE_S},
        "scenarios": {
            name: {contender: outcome.to_dict() for contender, outcome in outcomes.items()}
            for name, outcomes in results.items()
        },
    }
    (folder / "anchor.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "anchor.md").write_text(table(results) + "\n")
