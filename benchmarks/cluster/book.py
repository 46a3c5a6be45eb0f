"""The book of all runs: studies.json. Each run is saved when it is done, so that a study can be played piece by piece.

A run counts for a scenario with the same parameters only. Whether the code is the same is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .study import Run, Scenario

BOOK = "studies.json"
Found = dict[str, list[dict[str, float]]]
"""Contender -> its measures, seed by seed."""
NO_PARAMETERS = ("name", "about", "seeds", "contenders")


class Book:
    """:param path: None: it is kept in memory only

    :raises ValueError: the file is no such book
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._all = json.loads(path.read_text())
            if any(set(one) != {"asked", "seeds", "runs", "endless"} for one in self._all.values()):
                raise ValueError(f"{path} is of an earlier version: remove it, or choose another folder")

    def begin(self, scenario: Scenario, first_seed: int, go_on: bool) -> None:
        """Make room. Runs with other parameters go, and without `go_on` those that will be played again, too."""
        asked = json.loads(json.dumps({k: v for k, v in asdict(scenario).items() if k not in NO_PARAMETERS}))
        entry = self._all.get(scenario.name)
        if entry is None or entry["asked"] != asked:
            entry = self._all[scenario.name] = {"asked": asked, "runs": {}, "endless": {}}
        entry["seeds"] = list(range(first_seed, first_seed + scenario.seeds))
        for name in () if go_on else scenario.names():
            entry["runs"].pop(name, None)
            entry["endless"].pop(name, None)

    def has(self, run: Run) -> bool:
        """A contender that has no end with one seed is not played with the others."""
        entry = self._all[run.scenario.name]
        return run.contender in entry["endless"] or str(run.seed) in entry["runs"].get(run.contender, {})

    def enter(self, run: Run, measures: Mapping[str, float]) -> None:
        """Raises OSError."""
        self._all[run.scenario.name]["runs"].setdefault(run.contender, {})[str(run.seed)] = dict(measures)
        self._save()

    def enter_endless(self, run: Run, why: str) -> None:
        """Raises OSError."""
        self._all[run.scenario.name]["endless"][run.contender] = f"seed {run.seed}: {why}"
        self._save()

    def names(self) -> Sequence[str]:
        """Of the scenarios."""
        return list(self._all)

    def endless(self, scenario: str) -> Sequence[str]:
        return list(self._all[scenario]["endless"])

    def found(self, scenario: str, order: Sequence[str] = ()) -> Found:
        """Contenders that were played with all seeds, those of `order` first."""
        entry = self._all[scenario]
        seeds = [str(seed) for seed in entry["seeds"]]
        names = [*(name for name in order if name in entry["runs"]), *(n for n in entry["runs"] if n not in order)]
        runs = {name: entry["runs"][name] for name in names if name not in entry["endless"]}
        return {name: [of[seed] for seed in seeds] for name, of in runs.items() if all(seed in of for seed in seeds)}

    def _save(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self._all, indent=1) + "\n")
            draft.replace(self._path)
