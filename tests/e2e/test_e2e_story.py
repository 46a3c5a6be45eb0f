"""The story of the demo, through the demo's own code: an Airflow task survives preemption, move, shrink and growth."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from localcluster.demo import main, quickstart, report
from localcluster.demo.model import Outcome
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.timeout(2400)]


def test_story_passes_with_every_figure_measured(stage: Stage, tmp_path: Path) -> None:
    expect, record = quickstart.play(stage)
    comparison = quickstart.compare_with_reference(stage, record.job, expect.ranks)
    outcome = Outcome(record, comparison)
    content = report.build(expect, outcome)
    main.write(tmp_path, expect, outcome, content)
    stage.say("\n" + report.table(content) + "\n" + report.summary(content))
    assert [c for c in content["checks"] if not c["ok"]] == []
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["verdict"] == "pass"
    assert expect.steps == quickstart.STEPS
    assert (written["steps_lost"], written["bit_identical"], written["steps_total"]) == (0, True, expect.steps)
    assert written["airflow"]["state"] == "success"
    assert written["airflow"]["try_number"] == 1
    assert all(value >= 0 for value in written["timings_s"].values())
    assert 0 < written["checkpoint_bytes_stored"] <= written["checkpoint_bytes"]
    assert "preempted by" in (tmp_path / "timeline.svg").read_text()


def test_the_script_of_the_story_knows_nothing_of_this_project() -> None:
    tree = ast.parse(quickstart.SCRIPT.read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {m.split(".")[0] for m in modules} <= {
        "__future__",
        "argparse",
        "math",
        "numpy",
        "os",
        "pathlib",
        "shutil",
        "time",
        "torch",
    }
