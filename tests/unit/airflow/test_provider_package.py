"""What Airflow reads about the package, and what the package may import."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest

import airflow_provider

ROOT = Path(airflow_provider.__file__).parents[1]


def schema() -> object:
    return json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())


def test_provider_info_is_valid_and_names_modules_that_exist() -> None:
    info = airflow_provider.get_provider_info()
    jsonschema.validate(info, schema())
    for section in ("operators", "triggers"):
        for entry in info[section]:
            for module in entry["python-modules"]:
                assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


def test_provider_info_names_guides_that_exist_and_the_connection_is_airflows() -> None:
    info = airflow_provider.get_provider_info()
    guides = [guide for entry in info["integrations"] for guide in entry["how-to-guide"]]
    assert guides and all(guide.startswith("/docs/") and (ROOT / guide[1:]).is_file() for guide in guides)
    requires = importlib.metadata.requires(airflow_provider.PACKAGE) or []
    assert any(name.startswith("apache-airflow-providers-cncf-kubernetes") for name in requires)
    assert not {"connection-types", "hooks", "hook-class-names"} & set(info)


def test_the_schema_check_can_fail() -> None:
    broken = {**airflow_provider.get_provider_info(), "name": 3}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema())


def test_the_entry_point_leads_to_it() -> None:
    found = [
        point
        for point in importlib.metadata.entry_points(group="apache_airflow_provider")
        if point.value == "airflow_provider:get_provider_info"
    ]
    assert found, "the package is not installed: pip install -e ."
    assert found[0].load() is airflow_provider.get_provider_info


def test_airflow_providers_list_shows_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = {entry["package_name"]: entry for entry in json.loads(done.stdout[done.stdout.index("[{") :])}
    assert shown[airflow_provider.PACKAGE]["version"] == airflow_provider.VERSION
    assert shown[airflow_provider.PACKAGE]["description"].startswith("Training steps on Kueue")


def test_only_compat_touches_what_is_not_public_in_airflow() -> None:
    private = ("airflow.sdk.execution_time", "airflow.jobs", "airflow.models")
    guilty = []
    for path in sorted((ROOT / "airflow_provider").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if path.name != "compat.py" and any(module.startswith(private) for module in modules):
                guilty.append(path.name)
    assert not guilty
