"""The generated pages of the documentation say what the code says. `make docs` builds the site, strictly."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from module_files import loaded

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return loaded(ROOT / "docs/reference.py")


def test_every_parameter_of_the_operator_has_a_row_with_a_meaning(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.operator().splitlines() if line.startswith("| `")]
    assert len(rows) > 30 and any(row[0].startswith("| `checkpoint_budget_s`") for row in rows)
    assert all(row[2].strip(" |") for row in rows)


def test_every_field_of_train_spec_has_a_row(reference: ModuleType) -> None:
    from kueue_integration.spec.train_spec import TrainSpec

    page = reference.train_spec()
    assert not [name for name in TrainSpec.__dataclass_fields__ if f"| `{name}` |" not in page]


def test_every_command_is_in_the_reference(reference: ModuleType) -> None:
    page = reference.singularityctl()
    for name in ("submit", "status", "migrate", "doctor", "checkpoints verify"):
        assert f" singularityctl {name}\n" in page
    assert "singularityctl demo" not in page


def test_every_chart_value_has_a_meaning(reference: ModuleType) -> None:
    rows = [line for line in reference.chart_values().splitlines() if line.startswith("| `")]
    keys = yaml.safe_load((ROOT / "charts/singularity/values.yaml").read_text())
    assert len(rows) >= len(keys)
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_annotation_is_explained(reference: ModuleType) -> None:
    page = reference.annotations()
    names = {
        node.target.id
        for source in ("kueue_integration/contract/job_names.py", "proxy/protocol/names.py")
        for node in ast.parse((ROOT / source).read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.startswith("ANN_")
    }
    assert len(re.findall(r"\| annotation \|", page)) == len(names)


def test_every_metric_is_in_the_reference(reference: ModuleType) -> None:
    from kueue_integration.controller.metrics import Metrics

    page = reference.metrics()
    text = Metrics().text() if hasattr(Metrics, "text") else ""
    for name in re.findall(r"# TYPE (singularity_\w+) ", str(text)):
        assert name in page or f"{name}_total" in page
    assert page.count("| `singularity_") > 20


def test_every_exit_code_is_in_the_reference(reference: ModuleType) -> None:
    from proxy.protocol.exit_codes import TABLE

    page = reference.exit_codes()
    assert all(f"| {row.code} |" in page for row in TABLE if row.code is not None)
