"""Releases of this project on the local cluster: this checkout's, one of before from its commit, and one to come.

    before = releases.before(stage, say)   # the last of releases.toml: source from git, images by its own code
    after = releases.after(stage, say)     # this one, with fields that it does not know and a higher schema
    before.install(trusted=[...])          # its chart, its images, as an administrator upgrades or rolls back
    before.ctl("pause", "job", "-n", "ns") # its singularityctl
    before.submit(spec)                    # its library, as its Airflow provider does it
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tomllib

from kueue_integration.contract import attempt_records
from kueue_integration.spec.train_spec import TrainSpec
from localcluster import registry
from localcluster.addons.chart import NAMESPACE, RELEASE, Chart, local_values
from localcluster.cache import made_once
from localcluster.config import NODES, ClusterConfig, cache_dir
from localcluster.control_plane.kubectl import for_cluster
from localcluster.demo.stage import CHECKOUT, Stage
from localcluster.images import containers, gobuild, rootfs
from localcluster.images.containers import AGENT, CONTROLLER, TRAIN
from localcluster.images.oci import Image, ImageStore
from localcluster.namespaces import sandbox
from localcluster.nodes.images import NodeImages

TOML = Path(__file__).with_name("releases.toml")
TIMEOUT_S = 600.0
NEXT_SCHEMA = attempt_records.SCHEMA + 1
# Run by the release's own code: what goes into its images, only it knows.
_BUILD = """
import json, sys
from pathlib import Path
from localcluster.images import containers, rootfs
cache, say = Path(sys.argv[1]), lambda text: print(text, file=sys.stderr)
containers.build_all(cache, say)
base = rootfs.debian(cache, say).name
recipes = (containers.AGENT, containers.CONTROLLER, containers.TRAIN)
print(json.dumps({r.name: f"{r.name}-{containers.image_key(r, base, containers.CHECKOUT)}" for r in recipes}))
"""
_SUBMIT = """
import json, sys
from kueue_integration.jobs import lifecycle
try:
    from kueue_integration.kube.credentials import connect
except ImportError:  # release 0.1.0
    from kueue_integration.kube.client import connect
from kueue_integration.spec import platform_config
from kueue_integration.spec.train_spec import TrainSpec
kube = connect(sys.argv[1])
lifecycle.submit(kube, TrainSpec(**json.load(sys.stdin)), platform_config.load(kube))
"""


# Appended to a module: each message and record of these has one field more, which is written.
_GROWN = """

def _grown(base):
    def fill(self):
        object.__setattr__(self, "weather", "fair")
    more = {"__annotations__": {"weather": str}, "weather": "", "__post_init__": fill}
    more |= {"__module__": __name__, "__doc__": base.__doc__}
    return dataclass(frozen=True)(type(base.__name__, (base,), more))


for _name in {names!r}:
    globals()[_name] = _grown(globals()[_name])
"""
_GROW = {
    "proxy/singularity_proxy/protocol/messages.py": (
        "CheckpointRef", "Command", "HelloReply", "Hello", "CommitRequest",
    ),
    "kueue_integration/contract/record_types.py": ("AttemptRecord", "RequestStatus"),
}  # fmt: skip


@dataclass(frozen=True)
class Release:
    """`tree`: its checkout; `images`: those of agent and controller by recipe, tagged with the version."""

    version: str
    tree: Path
    images: Mapping[str, Image]
    config: ClusterConfig
    kubeconfig: Path

    @property
    def agent(self) -> str:
        return self.images[AGENT.name].name

    def install(self, trusted: Sequence[str] = (), privileges: str = "") -> None:
        """Upgrade, or roll back, the platform to this release; its controller leads afterwards.

        `privileges`: the chart's `pods.privileges`; "": its default.
        """
        binaries = gobuild.build_all(cache_dir(), lambda text: None)
        chart = Chart(self.config, binaries, for_cluster(self.config, binaries), self.config.root)
        torch = rootfs.torch(cache_dir(), lambda text: None)
        values = local_values(self.config, torch, self.images)
        values["images"] |= {"agent": self.agent, "controller": self.images[CONTROLLER.name].name}
        values["images"]["trusted"] = [*trusted]
        values["pods"] |= {"privileges": privileges} if privileges else {}
        folder = self.tree / "charts" / "singularity"
        if "encryption:" not in (folder / "values.yaml").read_text():
            del values["store"]["encryption"]  # 0.1.0 does not know it
        path = self.config.root / f"values-{self.version}.json"
        path.write_text(json.dumps(values))
        chart.helm("upgrade", "--install", RELEASE, str(folder), "--reset-values", "--values", str(path))
        chart.await_controller()
        chart.kubectl("rollout", "status", "deployment/singularity-controller", "-n", NAMESPACE, "--timeout=180s")

    def ctl(self, *arguments: str) -> str:
        """Standard output of this release's `singularityctl`; fails unless it exits 0."""
        return self.python("-c", "from kueue_integration.cli import main; main()", *arguments)

    def submit(self, spec: TrainSpec) -> None:
        """As `lifecycle.submit` of this release."""
        usual = TrainSpec(name="x", queue="x", command=["x"])
        given = {f.name: v for f in dataclasses.fields(spec) if (v := getattr(spec, f.name)) != getattr(usual, f.name)}
        self.python("-c", _SUBMIT, str(self.kubeconfig), stdin=json.dumps(given))

    def python(self, *arguments: str, stdin: str = "") -> str:
        done = _python(self.tree, arguments, stdin, {"KUBECONFIG": str(self.kubeconfig)})
        assert done.returncode == 0, f"{self.version}: {arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def _python(
    tree: Path, arguments: Sequence[str], stdin: str, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    full = {**os.environ, **env, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    return subprocess.run(command, cwd=tree, env=full, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)


def of_checkout(stage: Stage) -> Release:
    """This checkout's own, under the tags that the cluster has it by."""
    images = containers.build_all(cache_dir(), lambda text: None)
    return Release("this", CHECKOUT, images, config_of(stage), stage.cluster.kubeconfig)


def before(stage: Stage, say: Callable[[str], None]) -> Release:
    """The last release before this one, its images on every node. Skips the test if its commit is not in the clone."""
    newest: Mapping[str, Any] = tomllib.loads(TOML.read_text())["release"][-1]
    version, commit = str(newest["version"]), str(newest["commit"])
    folder, what = cache_dir() / "releases" / commit, f"the source of {version}"
    tree = made_once(folder, lambda draft: _extract(commit, draft), what=what, progress=say)
    return _built(stage, version, tree)


def after(stage: Stage, say: Callable[[str], None]) -> Release:
    """A release to come, its images on every node: it writes fields that this one does not know."""
    folder = cache_dir() / "releases" / "next"
    shutil.rmtree(folder, ignore_errors=True)
    sources = {source for recipe in (AGENT, CONTROLLER, TRAIN) for source in (recipe.dockerfile, *recipe.sources)}
    for source in sorted({*sources, "charts", "localcluster", "kueue_integration", "proxy"}):
        path, target = CHECKOUT / source, folder / source
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    for module, grown in _GROW.items():
        with (folder / module).open("a") as source:
            source.write(_GROWN.replace("{names!r}", repr(grown)))
    records = folder / "kueue_integration/contract/attempt_records.py"
    text = records.read_text()
    assert text.count(f"\nSCHEMA = {attempt_records.SCHEMA}\n") == 1
    records.write_text(text.replace(f"\nSCHEMA = {attempt_records.SCHEMA}\n", f"\nSCHEMA = {NEXT_SCHEMA}\n"))
    return _built(stage, "next", folder)


def _built(stage: Stage, version: str, tree: Path) -> Release:
    config, cache = config_of(stage), cache_dir()
    done = _python(tree, ["-c", _BUILD, str(cache)], "", {})
    assert done.returncode == 0, f"images of {version}: {done.stdout}{done.stderr}"
    store = ImageStore(cache / "images" / "store")
    images: dict[str, Image] = {}
    for name, reference in json.loads(done.stdout.splitlines()[-1]).items():
        found = store.find(reference, f"localhost/{name}:{version}")
        assert found is not None, f"no image {reference}"
        images[name] = found
    box = sandbox.find(config)
    assert box is not None
    ctr = gobuild.build_all(cache, lambda text: None)["ctr"]
    for node in NODES:
        for name in (AGENT.name, CONTROLLER.name):
            NodeImages(box, node, ctr).ensure(images[name])
    return Release(version, tree, images, config, stage.cluster.kubeconfig)


def _extract(commit: str, folder: Path) -> None:
    done = subprocess.run(["git", "-C", str(CHECKOUT), "archive", "--format=tar", commit], capture_output=True)
    if done.returncode:
        pytest.skip(f"commit {commit} is not in this clone (`git fetch --unshallow`): {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def config_of(stage: Stage) -> ClusterConfig:
    found = registry.find(stage.name)
    assert found is not None
    return found
