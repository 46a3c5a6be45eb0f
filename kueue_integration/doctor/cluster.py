"""What a cluster must be before anything of ours is installed: API server, nodes, Kueue."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import NotFound
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    KUEUE_GROUP,
    KUEUE_VERSION,
    LOCAL_QUEUE,
    NODE,
    PRIORITY_CLASS,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Object,
    is_true,
)
from ..kube.user_namespaces import info, release
from .check import FAIL, OK, WARN, Check, listing

KUBERNETES = (1, 33)
KERNEL = (5, 9)
"""CRIU restores process ids with clone3(set_tid) and asks for CAP_CHECKPOINT_RESTORE: 5.5 and 5.9."""
_NEEDED = (WORKLOAD, LOCAL_QUEUE, CLUSTER_QUEUE, ADMISSION_CHECK, PRIORITY_CLASS, RESOURCE_FLAVOR)
_RELEASE = "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml"
_INSTALL_KUEUE = (
    "Install it before the chart, which makes objects of its kinds: 0.19, or 0.15 and later, as "
    "https://kueue.sigs.k8s.io/docs/installation says, for example:\n"
    f"kubectl apply --server-side -f \\\n  {_RELEASE}\n"
    "kubectl -n kueue-system rollout status deployment/kueue-controller-manager"
)


def api_server(kube: Kube) -> Iterator[Check]:
    """Reachable, and new enough for ValidatingAdmissionPolicy and native sidecars."""
    version = kube.get_path("/version")
    text = str(version.get("gitVersion") or f"{version.get('major')}.{version.get('minor')}")
    if release(f"{version.get('major')}.{version.get('minor')}") >= KUBERNETES:
        yield Check("API server", OK, f"Kubernetes {text}")
    else:
        wanted = ".".join(map(str, KUBERNETES))
        yield Check(
            "API server",
            FAIL,
            f"Kubernetes {text} is older than {wanted}",
            f"Upgrade the cluster to Kubernetes {wanted} or later.",
        )


def kueue(kube: Kube) -> Iterator[Check]:
    """Kueue's kinds are served in the version that this project speaks. Discovery needs no permission."""
    try:
        group = kube.get_path(f"/apis/{KUEUE_GROUP}")
    except NotFound:
        yield Check("Kueue", FAIL, f"not installed: nobody serves {KUEUE_GROUP}", _INSTALL_KUEUE)
        return
    served = [str(version.get("version")) for version in group.get("versions") or ()]
    if KUEUE_VERSION not in served:
        yield Check(
            "Kueue",
            FAIL,
            f"{KUEUE_GROUP} is served as {listing(served)} only, not as {KUEUE_VERSION}",
            "Upgrade Kueue to 0.19 (0.15 or later), its CRDs first.",
        )
        return
    listed = kube.get_path(f"/apis/{KUEUE_GROUP}/{KUEUE_VERSION}").get("resources") or ()
    there = {str(resource.get("name")) for resource in listed}
    missing = [kind.plural for kind in _NEEDED if kind.plural not in there]
    if missing:
        yield Check(
            "Kueue",
            FAIL,
            f"{KUEUE_VERSION} lacks {listing(missing, 6)}",
            "Apply all CRDs of your Kueue release again; some are missing or of another version.",
        )
    else:
        yield Check("Kueue", OK, f"{KUEUE_GROUP} served as {listing(served)}")


def nodes(kube: Kube) -> Iterator[Check]:
    """Ready nodes: one architecture, a kernel that CRIU can restore on, a container runtime that was tried."""
    ready = [node for node in kube.list(NODE) if is_true(node, "Ready")]
    if not ready:
        yield Check("nodes", WARN, "no node is Ready", "Add nodes, or see `kubectl describe nodes`.")
        return
    yield _architecture(ready)
    old = [node for node in ready if info(node, "operatingSystem") != "linux" or not _kernel_ok(node)]
    wanted = ".".join(map(str, KERNEL))
    if old:
        kinds = listing(f"{_name(n)} ({info(n, 'operatingSystem')} {info(n, 'kernelVersion')})" for n in old)
        yield Check(
            "node kernel",
            FAIL if len(old) == len(ready) else WARN,
            f"{len(old)} of {len(ready)} nodes cannot restore: {kinds}",
            f"Use nodes with Linux {wanted} or later; keep training off others by nodeLabels of the ResourceFlavor.",
        )
    else:
        kernels = sorted({info(n, "kernelVersion") for n in ready})
        yield Check("node kernel", OK, f"{len(ready)} ready nodes, Linux {listing(kernels)}")
    runtimes = sorted({info(n, "containerRuntimeVersion") for n in ready})
    if all(runtime.startswith("containerd://") for runtime in runtimes):
        yield Check("container runtime", OK, listing(runtimes))
    else:
        yield Check(
            "container runtime",
            WARN,
            f"{listing(runtimes)}: only containerd has been tried",
            "Preempt a small job on such a node first, or keep training on nodes with containerd.",
        )


def _architecture(ready: list[Object]) -> Check:
    count: dict[str, int] = {}
    for node in ready:
        count[info(node, "architecture")] = count.get(info(node, "architecture"), 0) + 1
    text = listing(f"{name} ({number})" for name, number in sorted(count.items()))
    if len(count) == 1:
        return Check("node architecture", OK, text)
    return Check(
        "node architecture",
        WARN,
        f"{text}: a checkpoint restores on its own architecture only",
        "Give each ClusterQueue flavors of one architecture: nodeLabels kubernetes.io/arch in the ResourceFlavor.",
    )


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _kernel_ok(node: Object) -> bool:
    return release(info(node, "kernelVersion")) >= KERNEL
