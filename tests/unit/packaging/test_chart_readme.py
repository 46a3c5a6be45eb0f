"""The chart's README has the values that the chart has."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import yaml
from module_files import loaded

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/singularity"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return loaded(ROOT / "docs/chart_reference.py")


def test_the_readme_is_current(generator: ModuleType) -> None:
    assert (CHART / "README.md").read_text() == generator.readme(), "run `make chart-docs`"


def test_a_row_has_path_type_default_and_meaning(generator: ModuleType) -> None:
    rows = [line.split(" | ") for line in (CHART / "README.md").read_text().splitlines() if line.startswith("| ")][2:]
    by_key = {row[0].removeprefix("| "): row[1:] for row in rows}
    assert by_key["replicas"][:2] == ["int", "`2`"]
    assert by_key["images.trusted"][:2] == ["list", "`[]`"]
    assert by_key["guard.anyExec"][:2] == ["bool", "`false`"]
    assert not [row for row in rows if len(row) != 4 or not row[3].strip(" |")]
    tops = {key.partition(".")[0] for key in by_key}
    assert tops == set(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_another_value_makes_another_readme(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Chart.yaml", "values.yaml"):
        (tmp_path / name).write_text((CHART / name).read_text().replace("replicas: 2", "replicas: 3"))
    monkeypatch.setattr(generator, "CHART", tmp_path)
    assert generator.readme() != (CHART / "README.md").read_text()
