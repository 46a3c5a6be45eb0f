"""The real JobSet controller on a running cluster: custom resource, webhooks and program, all from its own Go module.

An optional part: a cluster starts without it, and only who asks for it builds it.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import build, host, kueue, processes, registry, sandbox
from .cache import Progress
from .clock import Clock
from .config import JOBSET_HEALTH_PORT, JOBSET_WEBHOOK_PORT, ClusterConfig, cache_dir
from .errors import CommandError, NotReadyError
from .kubectl import Kubectl, for_cluster
from .probe import http_ok
from .processes import Part
from .sandbox import Sandbox
from .shell import wait_until
from .status import health_urls

TIMEOUT = 120.0
PROBE = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "suspend": True,
        "replicatedJobs": [
            {
                "name": "probe",
                "template": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
                    }
                },
            }
        ],
    },
}


def start(name: str = "default", progress: Progress = print) -> None:
    """Install and start it on cluster `name`, which must run; Kueue is restarted once to take notice. Idempotent.

    :raises LocalClusterError: the message says what failed, and where its log is
    """
    host.check_root()
    clock = Clock(progress)
    cache = cache_dir()
    config = registry.find(name)
    box = sandbox.find(config) if config is not None else None
    if config is None or box is None:
        raise NotReadyError(f"cluster {name} does not run: `singularityctl local up --name {name}`")
    binaries = build.build_all(cache, clock.say)
    folder = build.build(build.JOBSET, cache, clock.say)
    kubectl = for_cluster(config, binaries)
    fresh = processes.running(box, "jobset") is None
    if fresh:
        _install(config, kubectl, folder)
        processes.start(box, part(config, folder))
    _await(box, "jobset", "JobSet's controller is ready", clock)
    if fresh:
        processes.stop(box, "kueue")  # it asks for new kinds ever more rarely
        processes.start(box, kueue.part(config, binaries))
    _await(box, "kueue", "", clock)
    wait_until(lambda: _answers(kubectl), "the webhooks of JobSet and Kueue answer", timeout=TIMEOUT, interval=0.5)
    clock.say("JobSet is ready")


def configuration(config: ClusterConfig, certificates: Path) -> dict[str, Any]:
    """JobSet's own Configuration; what is not named here has its default."""
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{config.address}:{JOBSET_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": JOBSET_WEBHOOK_PORT, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }


def part(config: ClusterConfig, folder: Path) -> Part:
    """The process; it acts as the cluster's administrator. Writes its configuration and certificate."""
    certificates = config.root / "jobset-certs"
    certificates.mkdir(exist_ok=True)
    for ending in ("crt", "key"):
        shutil.copyfile(config.pki / f"kueue-server.{ending}", certificates / f"tls.{ending}")
    path = config.root / "jobset.json"
    path.write_text(json.dumps(configuration(config, certificates), indent=1))
    return Part("jobset", [str(folder / "jobset"), f"--config={path}", f"--kubeconfig={config.pki}/admin.kubeconfig"])


def webhooks(documents: Iterable[Mapping[str, Any]], ca: bytes) -> list[dict[str, Any]]:
    """JobSet's webhooks for its own kind, called by URL. Those for pods serve exclusive placement only."""
    found = []
    for document in documents:
        kept = []
        for hook in document["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            if path.endswith("-jobset-x-k8s-io-v1alpha2-jobset"):
                url = f"https://127.0.0.1:{JOBSET_WEBHOOK_PORT}{path}"
                kept.append({**hook, "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()}})
        found.append({**document, "metadata": {"name": "jobset-" + document["metadata"]["name"]}, "webhooks": kept})
    return found


def _install(config: ClusterConfig, kubectl: Kubectl, folder: Path) -> None:
    kubectl.apply_path("-f", folder / "crds")
    documents = kubectl.documents(folder / "webhooks.yaml")
    kubectl.apply(webhooks(documents, (config.pki / "ca.crt").read_bytes()))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", folder / "crds", timeout=70)


def _await(box: Sandbox, name: str, what: str, clock: Clock) -> None:
    url = {**health_urls(box.config), "jobset": f"http://{box.config.address}:{JOBSET_HEALTH_PORT}/readyz"}[name]
    wait_until(
        lambda: http_ok(url),
        what or f"{name} answers",
        timeout=TIMEOUT,
        log=processes.log_path(box, name),
        alive=lambda: processes.running(box, name) is not None,
    )
    if what:
        clock.say(what)


def _answers(kubectl: Kubectl) -> bool:
    try:
        kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(PROBE))
    except CommandError:
        return False
    return True
