"""The documentation site builds strictly without a network, and its generated pages say what the code says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from module_files import loaded

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return loaded(ROOT / "docs/reference.py")


def test_the_site_builds_strictly_without_a_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    if os.geteuid() == 0:
        command = ["unshare", "--net", *command]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/reference/operator.html").read_text()
    assert "checkpoint_budget_s" in page


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("[nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ntheme: material\nstrict: true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0


def test_every_parameter_of_the_operator_has_a_row_with_a_meaning(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.operator().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_pages_at_the_top_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_no_page_is_left_out_of_the_navigation() -> None:
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/-]+\.md", text))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed


@pytest.mark.parametrize("page", ["faults.md", "programs.md", "evictions.md", "project/reviews.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"\btest_\w+\.py", (ROOT / "docs" / page).read_text()))
    assert named and named <= files, sorted(named - files)
