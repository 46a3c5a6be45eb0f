"""YAML and commands of the pages against a real API server: roles grant what doctor asks for, renders keep the keys."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer
from rendered import HELM, NO_HELM, helm
from shell_blocks import ROOT, lines

from kueue_integration.contract import job_names
from kueue_integration.doctor import security
from kueue_integration.errors import AlreadyExists
from kueue_integration.kube.resources import JOB, POD, Kind, Object

PAGES = ROOT / "docs/administration"
AIRFLOW = "system:serviceaccount:airflow:airflow"
RBAC = "rbac.authorization.k8s.io"


def documents(page: str) -> Iterator[Object]:
    """Yield the objects in the YAML blocks of a page."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL):
        yield from (found for found in yaml.safe_load_all(block) if found)


def make(server: ApiServer, obj: Mapping[str, Any], namespace: str | None) -> None:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = Kind(obj["kind"], group, version, f"{obj['kind'].lower()}s", namespace is not None)
    with contextlib.suppress(AlreadyExists):  # by another test with the same API server
        server.kube()._json("POST", kind.path(namespace), body=obj)


def test_the_roles_of_the_page_grant_what_doctor_asks_for(server: ApiServer) -> None:
    kube, namespace = server.kube(), "paged"
    make(server, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, None)
    asked = [(verb, kind, part) for kind, part, verbs in security._NEEDED for verb in verbs]

    def denied() -> list[object]:
        return [(v, k.plural, p) for v, k, p in asked if not kube.allowed(v, k, namespace, p, user=AIRFLOW)]

    assert len(denied()) == len(asked) > 10
    for obj in documents("access.md"):
        place = namespace if obj["metadata"].get("namespace") == "NAMESPACE" else None
        make(server, {**obj, "metadata": {**obj["metadata"], "namespace": place} if place else obj["metadata"]}, place)
    assert not denied()
    assert not kube.allowed("create", POD, namespace, "exec", user=AIRFLOW)
    assert not kube.allowed("create", JOB, "default", None, user=AIRFLOW)


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_two_renders_of_the_page_are_equal_and_have_no_keys(tmp_path: Path) -> None:
    (command,) = (
        shlex.split(line)[1:] for line in lines((PAGES / "gitops.md").read_text()) if line.startswith("helm template")
    )
    (tmp_path / "values.yaml").write_text("replicas: 2\n")
    places = {"charts/singularity": str(ROOT / "charts/singularity"), "values.yaml": str(tmp_path / "values.yaml")}
    words = [places.get(word, word) for word in command[: command.index(">")]]
    first, again = helm(*words), helm(*words)
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    made = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(first.stdout) if d}
    assert not made["Secret", job_names.KEYS_SECRET].get("data")
    assert ("Deployment", job_names.CONTROLLER_NAME) in made
    assert not any("helm.sh/hook" in (obj["metadata"].get("annotations") or {}) for obj in made.values())
