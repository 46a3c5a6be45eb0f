"""One MultiKueue manager and its worker clusters on this machine, with one folder for the checkpoints of all of them.

    python -m localcluster.multikueue up NAME       # clusters NAME (the manager), NAME-a and NAME-b
    python -m localcluster.multikueue down NAME

Jobs are submitted at the manager, to LocalQueue `global`. In each worker its copies come into ClusterQueue `training`
of the chart's sample queues, beside that cluster's own jobs.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import cluster, registry, shared_folder
from .addons.chart import CHART, DEPLOYMENT, NAMESPACE, RELEASE, Chart
from .cache import Progress
from .cluster import Cluster
from .config import ClusterConfig, cache_dir
from .control_plane.kubectl import Kubectl, for_cluster
from .control_plane.pki import KUEUE_NAMESPACE
from .errors import LocalClusterError, NotReadyError
from .images import gobuild
from .images.gobuild import Binaries
from .shell import wait_until

SHARED_ROOT = Path("/srv/singularity-local")
"""Every cluster of this machine sees it, where a cluster's own folder is its own."""
QUEUE = "global"
WORKER_QUEUE = "training"
SUFFIXES = ("a", "b")
ACCOUNT = "singularity-multikueue"
SECRET = "singularity-keys"  # noqa: S105 - a name
READY_S = 120.0
KUEUE = "kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class Federation:
    """:param workers: by the name that MultiKueue knows them by; :param shared: the folder that pods see as /shared

    :param kubeconfigs: with which the manager reaches the workers
    """

    manager: Cluster
    workers: Mapping[str, Cluster]
    shared: Path
    kubeconfigs: Mapping[str, Mapping[str, Any]] = field(repr=False)


def up(name: str, progress: Progress = print, worker_lost_timeout: str = "15m") -> Federation:
    """Bring all of it up and connect it; returns when the manager's queue takes jobs. Idempotent.

    :param worker_lost_timeout: how long Kueue waits for a worker that does not answer before it gives up on it
    :raises LocalClusterError: the message says which part, and where its log is
    """
    clusters = {each: cluster.up(each, progress) for each in names(name)}
    shared = SHARED_ROOT / name
    shared_folder.prepare(shared)
    binaries = gobuild.build_all(cache_dir(), progress)
    configs = {each: _config(each) for each in clusters}
    workers = [each for each in clusters if each != name]
    for config in configs.values():
        forward(config)
    manager = for_cluster(configs[name], binaries)
    identity = manager.json("get", "secret", SECRET, "-n", NAMESPACE)["data"]
    kubeconfigs = {}
    for each in workers:
        kubectl = for_cluster(configs[each], binaries)
        # A pod trusts the controller of the cluster that its Job was submitted to, whichever cluster it runs in.
        kubectl("patch", "secret", SECRET, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"data": identity}))
        _upgrade(configs[each], binaries, {"multikueue": {"worker": {"enabled": True}}}, shared)
        kubectl.apply([_local_queue(WORKER_QUEUE)])
        kubeconfigs[each] = _kubeconfig(configs[each], kubectl)
    # Kueue connects to a worker only when it can watch every kind of its integrations there.
    fields = {
        "integrations": {"frameworks": ["batch/job"]},
        "multiKueue": {"workerLostTimeout": worker_lost_timeout, "gcInterval": "1m"},
    }
    cluster.reconfigure_kueue(name, fields, progress)
    federation = Federation(clusters[name], {each: clusters[each] for each in workers}, shared, kubeconfigs)
    send_to(federation, kubeconfigs, progress)
    return federation


def send_to(federation: Federation, kubeconfigs: Mapping[str, Mapping[str, Any]], progress: Progress = print) -> None:
    """Have the manager send the jobs of its queue to these clusters; returns when it is connected to all of them.

    :param kubeconfigs: by the name that MultiKueue is to know the cluster by
    :raises LocalClusterError: the message says which cluster is not reached
    """
    name, workers = federation.manager.name, list(kubeconfigs)
    binaries = gobuild.build_all(cache_dir(), progress)
    config = _config(name)
    manager = for_cluster(config, binaries)
    manager.apply([_secret(each, kubeconfig) for each, kubeconfig in kubeconfigs.items()])
    enabled = {"enabled": True, "kueueNamespace": KUEUE_NAMESPACE, "secrets": workers}
    _upgrade(config, binaries, {"multikueue": {"manager": enabled}}, federation.shared)
    manager.apply(manager_objects(workers))
    wait_until(lambda: not _unready(manager, workers), "the manager's queue and its worker clusters are active",
               timeout=READY_S)  # fmt: skip
    progress(f"manager {name} sends the jobs of queue {QUEUE} to {', '.join(workers)}")


def down(name: str, progress: Progress = print) -> None:
    """End all of it. Raises LocalClusterError."""
    for each in names(name):
        cluster.down(each, progress)
    shutil.rmtree(SHARED_ROOT / name, ignore_errors=True)


def names(name: str) -> list[str]:
    """The manager's name, then the workers'."""
    return [name, *(f"{name}-{suffix}" for suffix in SUFFIXES)]


# --- objects: pure ----------------------------------------------------------------------------------------------------
def manager_objects(workers: Sequence[str], quota: str = "100") -> list[dict[str, Any]]:
    """Queue `global`, whose jobs go to one of `workers`. The quota is the manager's own limit over all of them."""
    check = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": QUEUE}
    flavor = {"name": "anywhere", "resources": [{"name": "cpu", "nominalQuota": quota}]}
    return [
        *(
            _kueue("MultiKueueCluster", each, {"clusterSource": {"kubeConfig": {"locationType": "Secret",
                                                                                "location": each}}})
            for each in workers
        ),
        _kueue("MultiKueueConfig", QUEUE, {"clusters": list(workers)}),
        _kueue("AdmissionCheck", QUEUE, {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": check}),
        _kueue("ResourceFlavor", "anywhere", {}),
        _kueue(
            "ClusterQueue",
            QUEUE,
            {
                "namespaceSelector": {},
                "admissionChecksStrategy": {"admissionChecks": [{"name": QUEUE}]},
                "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}],
            },
        ),
        _local_queue(QUEUE),
    ]  # fmt: skip


def _local_queue(cluster_queue: str) -> dict[str, Any]:
    made = _kueue("LocalQueue", QUEUE, {"clusterQueue": cluster_queue})
    return {**made, "metadata": {"name": QUEUE, "namespace": "default"}}


def _kueue(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def _secret(name: str, kubeconfig: Mapping[str, Any]) -> dict[str, Any]:
    text = base64.b64encode(json.dumps(kubeconfig).encode()).decode()
    meta = {"name": name, "namespace": KUEUE_NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"kubeconfig": text}}


def overlay(values: Mapping[str, Any], more: Mapping[str, Any], shared: Path) -> dict[str, Any]:
    """A local cluster's values for the chart with `more`, and with the folder that all clusters share as /shared."""
    pods = values["pods"]
    volumes = [
        {**volume, "hostPath": {"path": str(shared), "type": "Directory"}} if volume["name"] == "shared" else volume
        for volume in pods["volumes"]
    ]
    return {**values, **more, "pods": {**pods, "volumes": volumes}}


# --- steps ------------------------------------------------------------------------------------------------------------
def _config(name: str) -> ClusterConfig:
    found = registry.find(name)
    if found is None:
        raise NotReadyError(f"cluster {name} does not exist")
    return found


def forward(config: ClusterConfig) -> None:
    """Let the host pass packets on from this cluster to the others."""
    Path(f"/proc/sys/net/ipv4/conf/{config.link}/forwarding").write_text("1")


def _upgrade(config: ClusterConfig, binaries: Binaries, more: Mapping[str, Any], shared: Path) -> None:
    kubectl = for_cluster(config, binaries)
    values = json.loads((config.root / "values.json").read_text())
    path = config.root / "values-multikueue.json"
    path.write_text(json.dumps(overlay(values, more, shared), indent=1))
    chart = Chart(config, binaries, kubectl, Path("/nonexistent"))
    chart.helm("upgrade", RELEASE, str(CHART), "--values", str(path))
    kubectl("rollout", "restart", f"deployment/{DEPLOYMENT}", "-n", NAMESPACE)
    chart.await_controller()


def _kubeconfig(config: ClusterConfig, kubectl: Kubectl) -> dict[str, Any]:
    """For the manager, as the account that the chart has made for it."""
    token = kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=24h").strip()
    authority = base64.b64encode((config.pki / "ca.crt").read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "worker",
        "clusters": [{"name": "worker", "cluster": {"server": config.server, "certificate-authority-data": authority}}],
        "users": [{"name": ACCOUNT, "user": {"token": token}}],
        "contexts": [{"name": "worker", "context": {"cluster": "worker", "user": ACCOUNT}}],
    }


def _unready(manager: Kubectl, workers: Sequence[str]) -> list[str]:
    """What is not active yet."""
    wanted = [*(("multikueuecluster", each) for each in workers), ("admissioncheck", QUEUE), ("clusterqueue", QUEUE)]
    return [f"{kind} {each}" for kind, each in wanted if not _active(manager.json("get", kind, each))]


def _active(obj: Mapping[str, Any]) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Active" and c["status"] == "True" for c in conditions)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localcluster.multikueue", description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("name")
    args = parser.parse_args()
    try:
        (up if args.verb == "up" else down)(args.name)
    except LocalClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
