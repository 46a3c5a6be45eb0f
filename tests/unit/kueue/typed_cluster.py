"""An API server with Kueue's definitions and the chart's own Helm, in which a test types what a page shows.

Nothing runs pods there: a release with a hook that has to end is not played.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from rendered import HELM
from shell_blocks import ROOT, scripts

from localcluster.api_server import ADMIN, ApiServer, api_server

PAGES = ROOT / "docs/administration"
CRDS = os.environ.get("SINGULARITY_KUEUE_CRDS", "")
NAMES = {
    r"(?<= )NAMESPACE\b": "default",
    r"@sha256:\.\.\.": "@sha256:" + 64 * "1",
    r"\bREGISTRY\b": "registry.example",
}
"""Names in capitals, and digests, that a block leaves to its reader."""

APPROVAL = "api-approved.kubernetes.io"


class Cluster:
    """An API server with Kueue's definitions, and a folder with the chart in which a person types."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.kube, self.folder = server.kube(), folder
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
        # The API server has named them, and still answers 429 for those whose objects it has not looked for yet.
        kinds = "$(kubectl get crd -o name | cut -d/ -f2 | paste -sd,)"
        self.type(f"for i in $(seq 60); do kubectl get {kinds} -A && exit 0; sleep 1; done; exit 1")
        self.type("kubectl -n default create serviceaccount default 2>&1 || true")  # a controller's, which is not here

    def type(self, script: str, codes: tuple[int, ...] = (0,)) -> str:
        command = ["bash", "-euc", script]
        done = subprocess.run(
            command, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode in codes, f"{script}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A program that goes on while the test does; nobody reads what it prints."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, env=self._env, stdout=quiet, stderr=quiet)

    def play(
        self,
        page: str,
        heading: str,
        codes: tuple[int, ...] = (0,),
        flag: str = "",
        edit: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Type the shell blocks below a heading of a page, with one more flag for `kubectl apply`, and with the texts
        of `edit` replaced; what they print."""
        script = scripts((PAGES / page).read_text(), "sh", "console")[heading]
        for pattern, value in NAMES.items():
            script = re.sub(pattern, value, script)
        for old, new in edit.items():
            script = script.replace(old, new)
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
