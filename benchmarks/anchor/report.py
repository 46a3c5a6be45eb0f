"""The table, and the files of a run; what an earlier run has left there is kept if it was of the same kind."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from .record import Outcome, cell
from .scenarios import CONTENDERS, PACE_S, SCENARIOS

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


def played(results: Results) -> str:
    """When each scenario was played, and at which load of the machine."""
    told = []
    for scenario in SCENARIOS:
        outcomes = results.get(scenario.name)
        if outcomes:
            at = datetime.fromtimestamp(min(o.started_at for o in outcomes.values()), timezone.utc)
            load = max(o.load for o in outcomes.values())
            told.append(f"`{scenario.name}` {at:%Y-%m-%d %H:%M} at a load of up to {load:.0f}")
    return f"Played (UTC): {'; '.join(told)}."


def write(folder: Path, results: Results) -> None:
    """`anchor.json` and `anchor.md` below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        **_kind(),
        "scenarios": {
            name: {contender: outcome.to_dict() for contender, outcome in outcomes.items()}
            for name, outcomes in results.items()
        },
    }
    (folder / "anchor.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "anchor.md").write_text(f"{table(results)}\n\n{played(results)}\n")


def read(folder: Path) -> dict[str, dict[str, Outcome]]:
    """What `write` has left below `folder`; nothing if that was of other versions or of another training."""
    try:
        content = json.loads((folder / "anchor.json").read_text())
        if {key: content[key] for key in _kind()} != _kind():
            return {}
        return {
            name: {contender: Outcome(**outcome) for contender, outcome in outcomes.items()}
            for name, outcomes in content["scenarios"].items()
        }
    except (OSError, ValueError, TypeError, KeyError):  # no file, or one of an older benchmark
        return {}


def _kind() -> dict[str, Mapping[str, object]]:
    """What must be the same for two runs to be rows of one table."""
    versions = {package: version(package) for package in PACKAGES}
    return {"versions": {**versions, "python": platform.python_version()}, "training": {"pace_s": PACE_S}}
