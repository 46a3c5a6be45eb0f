"""Further controllers on a running cluster, real ones: custom resources, webhooks and program, from their Go modules.

Optional parts: a cluster starts without them, and only who asks for one builds it. `jobset` and `trainer` are such.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import host, registry
from ..cache import Progress
from ..clock import Clock
from ..config import ClusterConfig, cache_dir
from ..control_plane.kubectl import UNCHECKED, Kubectl, for_cluster
from ..control_plane.probe import http_ok
from ..errors import CommandError, NotReadyError
from ..images import gobuild
from ..images.gobuild import Binaries, GoPart
from ..namespaces import processes, sandbox
from ..namespaces.processes import Part
from ..namespaces.sandbox import Sandbox
from ..shell import wait_until
from ..status import health_urls
from . import kueue

TIMEOUT = 120.0


@dataclass(frozen=True)
class Controller:
    """One of them.

    :param part: name, program and manifests (`crds`, `webhooks.yaml`)
    :param webhook_paths: ends of the paths of the webhooks that are wanted; the program serves them on `webhook_port`
    :param command: `(cluster, folder of the build, folder of tls.crt and tls.key)` to the process; may write files
    :param probe: what the API server must take in a dry run before the controller counts as ready
    """

    part: GoPart
    title: str
    webhook_port: int
    health_port: int
    webhook_paths: Sequence[str]
    command: Callable[[ClusterConfig, Path, Path], Part]
    probe: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.part.name


@dataclass(frozen=True)
class Found:
    """A running cluster with its tools."""

    config: ClusterConfig
    box: Sandbox
    binaries: Binaries
    kubectl: Kubectl


def find(name: str, clock: Clock) -> Found:
    """:raises LocalClusterError: no such cluster, or it does not run"""
    host.check_root()
    config = registry.find(name)
    box = sandbox.find(config) if config is not None else None
    if config is None or box is None:
        raise NotReadyError(f"cluster {name} does not run: `singularityctl local up --name {name}`")
    binaries = gobuild.build_all(cache_dir(), clock.say)
    return Found(config, box, binaries, for_cluster(config, binaries))


def start(controller: Controller, name: str = "default", progress: Progress = print) -> None:
    """Install and start it on cluster `name`, which must run; Kueue is restarted once to take notice. Idempotent.

    :raises LocalClusterError: the message says what failed, and where its log is
    """
    clock = Clock(progress)
    found = find(name, clock)
    folder = gobuild.build(controller.part, cache_dir(), clock.say)
    fresh = processes.running(found.box, controller.name) is None
    if fresh:
        _install(controller, found, folder)
        processes.start(found.box, controller.command(found.config, folder, _certificates(found.config)))
    url = f"http://{found.config.address}:{controller.health_port}/readyz"
    _await(found.box, controller.name, url, f"{controller.title}'s controller is ready", clock)
    if fresh:
        processes.stop(found.box, "kueue")  # it asks for new kinds ever more rarely
        processes.start(found.box, kueue.part(found.config, found.binaries))
    _await(found.box, "kueue", health_urls(found.config)["kueue"], "", clock)
    wait_until(
        lambda: _takes(found.kubectl, controller.probe),
        f"the webhooks of {controller.title} and Kueue answer",
        timeout=TIMEOUT,
        interval=0.5,
    )
    clock.say(f"{controller.title} is ready")


def webhooks(controller: Controller, documents: Iterable[Mapping[str, Any]], ca: bytes) -> list[dict[str, Any]]:
    """Its webhook configurations with what is wanted of them, called by URL instead of through a Service."""
    found = []
    for document in documents:
        kept = []
        for hook in document["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            if path.endswith(tuple(controller.webhook_paths)):
                url = f"https://127.0.0.1:{controller.webhook_port}{path}"
                kept.append({**hook, "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()}})
        name = f"{controller.name}-{document['metadata']['name']}"
        found.append({**document, "metadata": {"name": name}, "webhooks": kept})
    return found


def written(config: ClusterConfig, name: str, configuration: Mapping[str, Any]) -> Path:
    """`configuration` in a file of the cluster."""
    path = config.root / f"{name}.json"
    path.write_text(json.dumps(configuration, indent=1))
    return path


def _certificates(config: ClusterConfig) -> Path:
    """Folder with the server certificate of 127.0.0.1, under the names that controllers look for."""
    folder = config.root / "controller-certs" / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("crt", "key"):
        shutil.copyfile(config.pki / f"kueue-server.{ending}", folder / f"tls.{ending}")
    return folder


def _install(controller: Controller, found: Found, folder: Path) -> None:
    # Server-side: a whole pod template in a CRD is too long for the annotation that plain apply leaves.
    found.kubectl.apply_path("-f", folder / "crds")
    documents = found.kubectl.documents(folder / "webhooks.yaml")
    found.kubectl.apply(webhooks(controller, documents, (found.config.pki / "ca.crt").read_bytes()))
    found.kubectl.await_kinds(folder / "crds")


def _await(box: Sandbox, name: str, url: str, what: str, clock: Clock) -> None:
    wait_until(
        lambda: http_ok(url),
        what or f"{name} answers",
        timeout=TIMEOUT,
        log=processes.log_path(box, name),
        alive=lambda: processes.running(box, name) is not None,
    )
    if what:
        clock.say(what)


def _takes(kubectl: Kubectl, probe: Mapping[str, Any]) -> bool:
    try:
        kubectl("create", "--dry-run=server", UNCHECKED, "-f", "-", stdin=json.dumps(probe))
    except CommandError:
        return False
    return True
