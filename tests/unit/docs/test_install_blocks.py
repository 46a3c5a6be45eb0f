"""The commands that install, as the documentation shows them: helm renders with the same settings, Kueue has the fields
that are patched, the package has the extras, and the scripts take the arguments."""

from __future__ import annotations

import ast
import json
import os
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from rendered import HELM, NO_HELM, helm, render
from shell_blocks import PAGES, ROOT, calls, words_after

from airflow_provider import VERSION

CRDS = os.environ.get("SINGULARITY_KUEUE_CRDS", "")
NO_CRDS = "no definitions of Kueue: SINGULARITY_KUEUE_CRDS is printed by `python -m localcluster.prepare --env`"
ONLY_IN_A_CLUSTER = ("--reuse-values", "--create-namespace", "--install", "--values=backup/values.json")
RENDERED = ("install", "upgrade")
needs_helm = pytest.mark.skipif(HELM is None, reason=NO_HELM)


def named(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def helm_calls(*verbs: str) -> list[tuple[str, list[str]]]:
    return [(page, words) for page, words in calls("helm") if words[0] in verbs]


def as_template(words: list[str]) -> list[str]:
    """`helm install NAME CHART ...` as a command that needs no cluster."""
    return ["template", *anywhere(words)[1:], "--kube-version", "1.36.0"]


def anywhere(words: list[str]) -> list[str]:
    """Without what needs a cluster, or values that were saved from one."""
    rest = [str(ROOT / word) if word.startswith("charts/") else word for word in words]
    return [word for word in rest if word not in ONLY_IN_A_CLUSTER]


def as_lint(words: list[str]) -> list[str]:
    sets = [word for flag, value in pairwise(words) if flag == "--set" for word in (flag, value)]
    return ["lint", "--strict", anywhere(words)[2], "--kube-version", "1.36.0", *sets]


@needs_helm
@pytest.mark.parametrize(("page", "words"), helm_calls(*RENDERED), ids=named)
def test_helm_takes_what_a_page_shows(page: str, words: list[str]) -> None:
    done = helm(*as_template(words))
    assert done.returncode == 0, f"{page}: {done.stderr}"
    kinds = {document["kind"] for document in yaml.safe_load_all(done.stdout) if document}
    assert {"Deployment", "ValidatingAdmissionPolicy", "AdmissionCheck"} <= kinds
    linted = helm(*as_lint(words))
    assert linted.returncode == 0, f"{page}: {linted.stdout}"


@needs_helm
@pytest.mark.parametrize("wrong", ["images.agnet=x", "planner.cordon.mode=perhaps"])
def test_helm_refuses_a_value_that_the_chart_does_not_have(wrong: str) -> None:
    words = ["install", "singularity", "charts/singularity", "-n", "x", "--create-namespace", "--set", wrong]
    assert helm(*as_template(words)).returncode != 0
    assert helm(*as_lint(words)).returncode != 0


def test_helm_is_shown_for_nothing_else() -> None:
    """`template` is for `test_keys_of_renders.py`; the others name a release and nothing of the chart's."""
    assert {words[0] for _, words in calls("helm")} <= {*RENDERED, "test", "template", "get", "rollback", "uninstall"}
    assert {page for page, _ in helm_calls("install")} >= {"README.md", "docs/administration/install.md"}


def patches() -> list[tuple[str, str, dict[str, Any]]]:
    """(page, resource, JSON) of each `kubectl patch`."""
    found = [(page, words) for page, words in calls("kubectl") if words[0] == "patch"]
    return [(page, words[1], json.loads(words[words.index("-p") + 1])) for page, words in found]


def unknown(schema: dict[str, Any], value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each field that the schema of a CRD does not have, or has with another type."""
    if isinstance(value, dict):
        fields, any_name = schema.get("properties", {}), schema.get("additionalProperties")
        for name, below in value.items():
            found = fields.get(name, any_name)
            yield from unknown(found, below, f"{path}.{name}") if isinstance(found, dict) else [f"{path}.{name}"]
    elif isinstance(value, list):
        for below in value:
            yield from unknown(schema.get("items", {}), below, f"{path}[]")
    elif schema.get("x-kubernetes-int-or-string"):
        yield from () if isinstance(value, (int, str)) else [f"{path}: not a number"]
    elif schema.get("type") != {str: "string", bool: "boolean", int: "integer"}.get(type(value)):
        yield f"{path}: not a {schema.get('type')}"


def schema_of(resource: str) -> dict[str, Any]:
    """Of a resource's stored version, by its singular name."""
    plural = f"{resource}es" if resource.endswith("s") else f"{resource}s"
    crd = yaml.safe_load((Path(CRDS) / f"kueue.x-k8s.io_{plural}.yaml").read_text())
    assert crd["spec"]["names"]["singular"] == resource
    (stored,) = (version for version in crd["spec"]["versions"] if version["storage"])
    schema: dict[str, Any] = stored["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.skipif(not CRDS, reason=NO_CRDS)
@pytest.mark.parametrize(("page", "resource", "patch"), patches(), ids=named)
def test_kueue_has_the_fields_that_a_page_patches(page: str, resource: str, patch: dict[str, Any]) -> None:
    assert not [*unknown(schema_of(resource), patch)], page


@pytest.mark.skipif(not CRDS, reason=NO_CRDS)
def test_a_field_that_kueue_does_not_have_is_found() -> None:
    patch = {"spec": {"admissionChecks": ["x"], "stopPolicy": 3, "queueingStrategy": "StrictFIFO"}}
    assert [*unknown(schema_of("clusterqueue"), patch)] == [".spec.admissionChecks", ".spec.stopPolicy: not a string"]


@needs_helm
def test_the_chart_makes_what_pages_name() -> None:
    made = render()
    checks = [
        check["name"]
        for _, _, patch in patches()
        for check in patch["spec"]["admissionChecksStrategy"]["admissionChecks"]
    ]
    assert all(("AdmissionCheck", name) in made for name in checks)
    words = [word for _, call in calls("kubectl") for word in call]
    named_kinds = {word for word in words if word.startswith("deployment/")}
    assert named_kinds == {"deployment/singularity-controller"} and ("Deployment", "singularity-controller") in made
    labels = {call[3] for _, call in calls("kubectl") if call[:2] == ["label", "namespace"]}
    bindings = json.dumps([made[key] for key in made if key[0].startswith("ValidatingAdmissionPolicy")])
    assert labels and all(label.split("=")[0].rstrip("-") in bindings for label in labels)


def test_pip_is_given_the_package_and_extras_that_it_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [word for _, words in calls("pip") if words[0] == "install" for word in words[1:]]
    assert len(wanted) > 2
    for word in wanted:
        name, _, extras = word.rstrip("]").partition("[")
        assert name in (project["name"], f"dist/{project['name'].replace('-', '_')}-{VERSION}-py3-none-any.whl")
        assert {extra for extra in extras.split(",") if extra} <= set(project["optional-dependencies"])


def arguments_of(script: Path) -> Any:
    """The script's `parse_args`, without its imports: torch is not there."""
    (found,) = (
        node
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "parse_args"
    )
    module = ast.Module([ast.parse("from __future__ import annotations").body[0], found], [])
    place: dict[str, Any] = {"argparse": __import__("argparse"), "Path": Path}
    exec(compile(module, str(script), "exec"), place)
    return place["parse_args"]


def shown_scripts() -> Iterator[tuple[str, list[str]]]:
    """Yield the words behind train_digits.py, of shell blocks and of `script_args` in Python blocks."""
    for page in PAGES:
        text = page.read_text()
        for words in words_after("singularityctl", text):
            if "train_digits.py" in words:
                yield page.name, words[words.index("train_digits.py") + 1 :]
        for line in text.splitlines():
            if "script_args=[" in line and "train_digits.py" in text:
                yield page.name, ast.literal_eval(line[line.index("[") : line.index("]") + 1])


@pytest.mark.parametrize(("page", "words"), [*shown_scripts()], ids=named)
def test_the_script_of_the_examples_takes_the_arguments(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train_digits.py", *words])
    assert arguments_of(ROOT / "dags/scripts/train_digits.py")().steps > 0


def test_the_examples_are_found_and_a_wrong_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {page for page, _ in shown_scripts()} >= {"README.md", "command-line.md", "first-dag.md"}
    monkeypatch.setattr("sys.argv", ["train_digits.py", "--stpes", "9"])
    monkeypatch.setattr(ArgumentParser, "exit", lambda *_: (_ for _ in ()).throw(ValueError))
    with pytest.raises(ValueError):
        arguments_of(ROOT / "dags/scripts/train_digits.py")()
