"""Blocks of the pages for the platform team, typed as they stand, on a real API server with the chart's own Helm.

Nothing runs pods there, so a release with a hook that has to end (upgrade, rollback, removal) is not played.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rendered import HELM, NO_HELM
from shell_blocks import ROOT, scripts

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import NAMESPACE, SECRET
from localcluster.api_server import ADMIN, ApiServer, api_server

PAGES = ROOT / "docs/administration"
SYSTEM = job_names.SYSTEM_NAMESPACE
CRDS = os.environ.get("SINGULARITY_KUEUE_CRDS", "")
NAMES = {
    r"(?<= )NAMESPACE\b": "default",
    r"@sha256:\.\.\.": "@sha256:" + 64 * "1",
    r"\bREGISTRY\b": "registry.example",
}
"""Names in capitals, and digests, that a block leaves to its reader."""

APPROVAL = "api-approved.kubernetes.io"

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


class Cluster:
    """An API server with Kueue's definitions, and a folder with the chart in which a person types."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.kube, self._folder = server.kube(), folder
        (folder / "charts").symlink_to(ROOT / "charts")
        (folder / "values.yaml").write_text("replicas: 2\n")
        programs = (Path(sys.executable), Path(str(HELM)), Path(os.environ["SINGULARITY_APISERVER"]))
        path = ":".join([*(str(program.parent) for program in programs), os.environ["PATH"]])
        config = str(server.kubeconfig(ADMIN))
        self._env = {**os.environ, "PATH": path, "KUBECONFIG": config, "HOME": str(folder), "COLUMNS": "200"}
        for crd in sorted(Path(CRDS).glob("*.yaml")):
            found = yaml.safe_load(crd.read_text())
            found["spec"].pop("conversion", None)  # the webhook of a running Kueue
            found["metadata"] = {"name": found["metadata"]["name"], "annotations": {APPROVAL: "unapproved, a test"}}
            (folder / "crd.json").write_text(json.dumps(found))
            self.type("kubectl create -f crd.json")
        self.type("kubectl wait --for=condition=Established crd --all --timeout=60s")
        self.type("kubectl -n default create serviceaccount default 2>&1 || true")  # a controller's, which is not here

    def type(self, script: str, codes: tuple[int, ...] = (0,)) -> str:
        command = ["bash", "-euc", script]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode in codes, f"{script}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def play(self, page: str, heading: str, codes: tuple[int, ...] = (0,), flag: str = "") -> str:
        """Type the shell blocks below a heading of a page, with one more flag for `kubectl apply`; what they print."""
        script = scripts((PAGES / page).read_text(), "sh", "console")[heading]
        for pattern, value in NAMES.items():
            script = re.sub(pattern, value, script)
        return self.type(script.replace("kubectl apply", f"kubectl apply {flag}"), codes)


@contextlib.contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs) or not CRDS:
        pytest.skip("no API server, or no CRDs of Kueue: `python -m localcluster.prepare --env` makes them")
    for name in ("server", "checkout"):
        (folder / name).mkdir()
    with api_server(folder / "server", *map(str, programs), (), ()) as server:
        yield Cluster(server, folder / "checkout")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The chart is there, by the command of the page."""
    with cluster_in(tmp_path_factory.mktemp("helm")) as cluster:
        assert "STATUS: deployed" in cluster.play("install.md", "Install", codes=(0, 3))  # doctor misses Kueue
        yield cluster


def test_namespaces_are_prepared(installed: Cluster) -> None:
    installed.play("install.md", "What you allow")
    labels = installed.kube.get(NAMESPACE, None, "default")["metadata"]["labels"]
    assert labels[job_names.LABEL_TRAINING] == job_names.TRAINING_ENABLED
    installed.play("images.md", "Private registries")
    assert installed.kube.get(SECRET, "default", "registry")["type"] == "kubernetes.io/dockerconfigjson"


def test_before_an_upgrade_jobs_and_images_are_listed(installed: Cluster) -> None:
    said = installed.play("upgrade.md", "Before the upgrade")
    assert said.startswith("NAMESPACE") and job_names.TRUSTED_IMAGES_LEASE in said and "USER-SUPPLIED VALUES" in said


def test_keys_are_marked_for_a_rotation_saved_and_restored(installed: Cluster) -> None:
    installed.play("keys.md", "Rotate")
    meta = installed.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["metadata"]
    assert "singularity.dev/rotate" in meta["annotations"]
    installed.play("keys.md", "Backup and restore")


def test_a_render_is_applied(installed: Cluster, tmp_path: Path) -> None:
    """In a cluster without the chart as the page has it, and over a release of Helm's with the flag that it names."""
    with cluster_in(tmp_path) as fresh:
        for cluster, flag in ((fresh, ""), (installed, "--force-conflicts")):
            cluster.type(f"kubectl create namespace {SYSTEM} 2>&1 || true")
            cluster.type(f"kubectl -n {SYSTEM} create secret generic {job_names.CONTROLLER_NAME}")  # of 0.1.0
            cluster.play("gitops.md", "With Argo CD or Flux", flag=flag)
            kept = cluster.kube.get(SECRET, SYSTEM, job_names.CONTROLLER_NAME)["metadata"]["annotations"]
            assert kept["helm.sh/resource-policy"] == "keep"
