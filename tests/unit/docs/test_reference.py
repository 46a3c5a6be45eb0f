"""The generated pages of the documentation say what the code says. `make docs` builds the site, strictly."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from module_files import loaded

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return loaded(ROOT / "docs/reference.py")


def test_every_parameter_of_the_operator_stands_in_one_group_with_type_and_meaning(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.operator().splitlines() if line.startswith("| [`")]
    names = re.findall(r"\{#(\w+)\}", reference.operator())
    operator = reference.class_named(ROOT / "airflow_provider/operators.py", "SingularityTrainOperator")
    init = next(n for n in operator.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    assert sorted(names) == sorted(reference.defaults(init)) and len(names) > 30
    assert all(row[1].startswith("`") and row[3].strip(" |") for row in rows)


def test_every_field_of_train_spec_has_a_row(reference: ModuleType) -> None:
    from kueue_integration.spec.train_spec import TrainSpec

    page = reference.train_spec()
    assert not [name for name in TrainSpec.__dataclass_fields__ if f"| `{name}` |" not in page]


def test_every_command_has_a_page_with_an_anchor_for_each_option(reference: ModuleType) -> None:
    pages = {name: reference.cli_reference.page(name) for name in reference.cli_reference.commands()}
    assert {"submit", "status", "migrate", "doctor"} <= pages.keys() and not {"demo", "local"} & pages.keys()
    assert "{#start-from}" in pages["submit"] and "## singularityctl checkpoints verify" in pages["checkpoints"]
    for name, page in pages.items():
        anchors = re.findall(r"\{#([\w-]+)\}", page)
        assert len(anchors) == len(set(anchors)) and anchors, name
    overview = reference.cli_reference.overview()
    assert all(f"(cli/{name}.md)" in overview for name in pages)


def test_every_chart_value_has_a_meaning(reference: ModuleType) -> None:
    rows = [line for line in reference.chart_values().splitlines() if line.startswith("| `")]
    keys = yaml.safe_load((ROOT / "charts/singularity/values.yaml").read_text())
    assert len(rows) >= len(keys)
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_annotation_is_explained(reference: ModuleType) -> None:
    page = reference.annotations()
    names = {
        node.target.id
        for source in ("kueue_integration/contract/job_names.py", "proxy/singularity_proxy/protocol/names.py")
        for node in ast.parse((ROOT / source).read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.startswith("ANN_")
    }
    assert len(re.findall(r"\| annotation \|", page)) == len(names)


def test_every_exit_code_is_in_the_reference(reference: ModuleType) -> None:
    from singularity_proxy.protocol.exit_codes import TABLE

    page = reference.exit_codes()
    assert all(f"| {row.code} |" in page for row in TABLE if row.code is not None)


def test_the_evidence_has_every_file_of_tests_with_what_it_shows(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.evidence().splitlines() if line.startswith("| `")]
    assert len(rows) == len([*(ROOT / "tests").rglob("test_*.py")])
    assert [row[0] for row in rows if len(row[1].strip(" |").split()) < 3] == []


def test_a_picture_opens_in_full_size_and_a_file_of_the_repository_is_a_name() -> None:
    pages = loaded(ROOT / "docs/pages.py")
    shown = pages.on_page_content('<p><img alt="x" src="../a-dark.png#only-dark" /></p>')
    assert shown == '<p><a class="picture" href="../a-dark.png"><img alt="x" src="../a-dark.png#only-dark" /></a></p>'
    assert pages.on_page_markdown("[cut](../../proxy/singularity_proxy/protocol/cut.py), [b](b.md)") == (
        "cut (`proxy/singularity_proxy/protocol/cut.py`), [b](b.md)"
    )


def test_a_name_in_a_table_breaks_between_its_words_only() -> None:
    pages = loaded(ROOT / "docs/pages.py")
    row = "<tr><td><code>singularity_jobs_total</code></td><td><code>short_name</code></td></tr>"
    broken = row.replace("singularity_jobs_total", "singularity_<wbr>jobs_<wbr>total")
    text = "<p><code>a_long_name_in_a_text</code></p>"

    def shown(name: str) -> object:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return pages.on_post_page(f"{text}<table>{row}</table>", page=page)

    assert shown("store.md") == f"{text}<table>{broken}</table>"
    assert shown("metrics.md") == shown("reference/operator.md") == f"{text}<table data-list>{broken}</table>"


def test_the_pages_of_the_commands_stand_below_that_of_singularityctl(reference: ModuleType) -> None:
    class Config:
        nav = ({"Reference": [{"singularityctl": "singularityctl.md"}, {"Exit codes": "reference/exit-codes.md"}]},)

    (section,) = reference.on_config(Config()).nav
    first, *below = section["Reference"][0]["singularityctl"]
    assert first == {"All commands": "singularityctl.md"}
    assert below == [f"cli/{name}.md" for name in reference.cli_reference.commands()]
