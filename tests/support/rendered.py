"""The chart as helm renders it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kueue_integration.contract import job_names

CHART = Path(__file__).parents[2] / "charts" / "singularity"
HELM = os.environ.get("SINGULARITY_HELM") or shutil.which("helm")
NO_HELM = "no helm: put it on PATH or in SINGULARITY_HELM"


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *args], capture_output=True, text=True, timeout=120, check=False)


def render(*sets: str, values: str = "", served: Sequence[str] = ()) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by (kind, name)."""
    return {(d["kind"], d["metadata"]["name"]): d for d in rendered(*sets, values=values, served=served)}


def rendered(*sets: str, values: str = "", served: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All objects, also where several namespaces have one of the same name."""
    command = ["template", "singularity", str(CHART), "-n", job_names.SYSTEM_NAMESPACE, "--kube-version", "1.36.0"]
    for item in sets:
        command += ["--set", item]
    if values:
        command += ["-f", values]
    command += [f"--api-versions={version}" for version in served]
    done = helm(*command)
    assert done.returncode == 0, done.stderr
    return [d for d in yaml.safe_load_all(done.stdout) if d]


def controller_env(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """The variables of the controller as the kubelet gives them: `$$` is one `$`."""
    (container,) = objects["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"].replace("$$", "$") for item in container["env"] if "value" in item}
