"""The Grafana dashboards of the chart: made by `docs/dashboards.py`, of metrics and labels that the controller has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from module_files import loaded
from shell_blocks import ROOT

from kueue_integration.controller import metrics

BOARDS = ROOT / "charts/singularity/dashboards"
PROMTOOL = os.environ.get("SINGULARITY_PROMTOOL") or shutil.which("promtool")
LABELS = {"le", "pod"}
"""What Prometheus adds to those of the controller."""


def targets(board: str) -> list[dict[str, Any]]:
    panels = json.loads((BOARDS / f"{board}.json").read_text())["panels"]
    return [target for panel in panels for target in panel["targets"]]


def test_the_files_are_made_from_the_tables() -> None:
    made = loaded(ROOT / "docs/dashboards.py").files()
    assert set(made) == set(BOARDS.iterdir()), "make chart-docs"
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name}: make chart-docs"


@pytest.mark.parametrize("board", ["jobs", "control-plane", "planner"])
def test_queries_name_what_the_controller_exports(board: str) -> None:
    known = set(metrics.series_names())
    tables = metrics._COUNTERS, metrics._GAUGES, metrics._HISTOGRAMS
    labels = LABELS | {label for table in tables for of in table.values() for label in of[1]}
    for target in targets(board):
        named = set(re.findall(r"singularity_\w+", target["expr"]))
        assert named and named <= known, target["expr"]
        used = re.findall(r"by \(([\w,]+)\)", target["expr"]) + re.findall(r"{{(\w+)}}", target["legendFormat"])
        assert {label for each in used for label in each.split(",")} <= labels, target


def test_between_them_they_show_every_metric_but_those_of_the_table() -> None:
    shown = {
        re.sub("_(bucket|sum|count)$", "", name)
        for path in BOARDS.iterdir()
        for target in targets(path.stem)
        for name in re.findall(r"singularity_\w+", target["expr"])
    }
    known = {*metrics._COUNTERS, *metrics._GAUGES, *metrics._HISTOGRAMS}
    assert known - shown <= {
        "singularity_gpu_ecc_errors_total", "singularity_gpu_memory_peak_bytes", "singularity_jobs_given_up_total",
        "singularity_save_trials_total",
    }  # fmt: skip


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: see test_alerts.py")
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    every = [
        target["expr"].replace("$__rate_interval", "5m") for path in BOARDS.iterdir() for target in targets(path.stem)
    ]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(every)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [str(PROMTOOL), "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and f"{len(every)} rules found" in done.stdout, done.stdout + done.stderr
