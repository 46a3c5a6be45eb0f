"""The cluster's kubectl, as far as it has a will of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localcluster.config import ClusterConfig
from localcluster.control_plane import kubectl as module
from localcluster.control_plane.kubectl import Kubectl
from localcluster.errors import NotReadyError

ESTABLISHED = {"conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]}


def program(folder: Path, *answers: object) -> Kubectl:
    """Each call gives the next answer, the last one for ever."""
    for number, answer in enumerate(answers):
        (folder / f"{number}").write_text(json.dumps(answer))
    script = folder / "kubectl"
    script.write_text(
        f"""#!/bin/sh
cd {folder}
n=$(cat count 2>/dev/null || echo 0)
test -e $n || n=$((n - 1))
cat $n
echo $((n + 1)) > count
"""
    )
    script.chmod(0o755)
    return Kubectl(ClusterConfig("unit", 0), str(script))


def crd(status: object) -> dict[str, object]:
    return {"kind": "CustomResourceDefinition", "metadata": {"name": "c"}, "status": status}


def test_a_definition_without_a_status_is_waited_for(tmp_path: Path) -> None:
    none, early, ready = crd({"conditions": None}), crd({"conditions": []}), crd(ESTABLISHED)
    both = {"kind": "List", "items": [ready, early]}
    program(tmp_path, none, both, {"kind": "List", "items": [ready, ready]}).await_kinds(tmp_path)
    assert (tmp_path / "count").read_text().strip() == "3"


def test_a_definition_that_is_never_served_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS_S", 0.5)
    with pytest.raises(NotReadyError, match="are served"):
        program(tmp_path, crd({})).await_kinds(tmp_path)
