"""Bring the parts of a cluster up: what waits for what, and how each is known to be ready.

Every step does nothing when its part runs already, so that running all of them again repairs what died.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from . import shared_folder
from .addons import kueue, network
from .cache import Progress, digest, made_once
from .clock import Clock
from .config import NODES, ClusterConfig, Node
from .control_plane import components, pki
from .control_plane.kubectl import UNCHECKED, Kubectl, for_cluster
from .control_plane.probe import http_ok, resolve
from .errors import BuildError, CommandError
from .images.gobuild import Binaries
from .images.oci import Image, ImageStore, add_busybox
from .namespaces import cgroups, processes, sandbox
from .namespaces.processes import Part
from .namespaces.sandbox import Sandbox
from .nodes import node
from .nodes.images import NodeImages
from .shell import wait_until
from .status import health_urls

READY_TIMEOUT = 120.0
"""Seconds that any one part may take; a busy machine with two cores needs a third of it."""
BUSYBOX = Path("/bin/busybox")
PAUSE = "pause"


def start(config: ClusterConfig, binaries: Binaries, cache: Path, clock: Clock, *, alone: bool = False) -> Sandbox:
    """Start everything and wait until it is ready.

    :param alone: only the API server and Kueue: nothing runs pods, and no controller of Kubernetes is there
    :raises LocalClusterError: the message says which part, and where its log is
    """
    pause = _pause_image(cache, clock.say)
    config.logs.mkdir(parents=True, exist_ok=True)
    shared_folder.prepare(config.shared)
    _link_programs(config, binaries)
    pki.create(config)
    cgroups.create(config, NODES)
    box = sandbox.start(config, [cache])
    for member in NODES:
        node.write_files(config, member, binaries["runc"])
    starter = _Starter(box, binaries, for_cluster(config, binaries), pause, clock)
    if alone:
        starter.api_server()
        starter.kueue()
        return box
    with ThreadPoolExecutor(max_workers=8) as pool:
        runtimes = [pool.submit(starter.containerd, member) for member in NODES]
        server = pool.submit(starter.api_server)
        _finish([*runtimes, server])
        rest = [starter.controller_manager, starter.scheduler, starter.dns, starter.proxy, starter.kueue]
        kubelets = [pool.submit(starter.kubelet, member) for member in NODES]
        _finish([*kubelets, *(pool.submit(step) for step in rest)])
    return box


def restart_kueue(box: Sandbox, binaries: Binaries, cache: Path, clock: Clock) -> None:
    """End Kueue and start it with the configuration that it has now; returns when it is ready."""
    processes.stop(box, "kueue")
    _Starter(box, binaries, for_cluster(box.config, binaries), _pause_image(cache, clock.say), clock).kueue()


def restart_runtime(box: Sandbox, binaries: Binaries, cache: Path, clock: Clock, member: Node) -> None:
    """Write a node's configuration anew and restart its containerd; its pods stay. Returns when it answers."""
    node.write_files(box.config, member, binaries["runc"])
    processes.stop(box, node.containerd_name(member))
    starter = _Starter(box, binaries, for_cluster(box.config, binaries), _pause_image(cache, clock.say), clock)
    starter.containerd(member)
    starter.kubelet(member)


def _finish(jobs: list[Future[None]]) -> None:
    """Wait for all; the first error counts, as the others may only follow from it."""
    for job in as_completed(jobs):
        job.result()


@dataclass(frozen=True)
class _Starter:
    box: Sandbox
    binaries: Binaries
    kubectl: Kubectl
    pause: Image
    clock: Clock

    @property
    def config(self) -> ClusterConfig:
        return self.box.config

    def api_server(self) -> None:
        processes.start(self.box, components.etcd(self.config, self.binaries))
        part = components.apiserver(self.config, self.binaries)
        processes.start(self.box, part)
        url, ca = health_urls(self.config)[part.name], self.config.pki / "ca.crt"
        self._await(part, lambda: http_ok(url, ca=ca), "the API server is ready")

    def controller_manager(self) -> None:
        self._healthy(components.controller_manager(self.config, self.binaries), "the controller manager is ready")

    def scheduler(self) -> None:
        self._healthy(components.scheduler(self.config, self.binaries), "the scheduler is ready")

    def proxy(self) -> None:
        wait_until(
            lambda: bool(self.kubectl("get", "node", NODES[0].name, "--ignore-not-found", "-o", "name").strip()),
            f"node {NODES[0].name} is registered",
            timeout=READY_TIMEOUT,
            log=processes.log_path(self.box, node.kubelet_name(NODES[0])),
            interval=0.5,
        )
        self._healthy(network.kube_proxy(self.config, self.binaries), "kube-proxy is ready")

    def dns(self) -> None:
        self.kubectl.apply(network.coredns_rbac())
        part = network.coredns(self.config, self.binaries)
        self._healthy(part, "")
        wanted = [str(self.config.service_subnet[1])]
        name = "kubernetes.default.svc.cluster.local"
        self._await(part, lambda: resolve(self.config.address, name) == wanted, "CoreDNS answers")

    def kueue(self) -> None:
        manifests = self.binaries.folders["kueue"]
        marker = self.config.root / f"applied-{manifests.name}"
        if not marker.exists():
            self._install_kueue(manifests)
            marker.touch()
        self.kubectl.apply([kueue.config_map(self.config)])
        kueue.install_certificates(self.box)
        part = kueue.part(self.config, self.binaries)
        self._healthy(part, "")
        self._await(part, self._webhook_answers, "Kueue is ready and its webhooks answer")

    def _install_kueue(self, manifests: Path) -> None:
        self.kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pki.KUEUE_NAMESPACE}}])
        self.kubectl.apply_path("-f", manifests / "crds")
        kustomization = self.config.root / "kueue"
        kueue.write_kustomization(manifests, kustomization)
        self.kubectl.apply_path("-k", kustomization)
        self.kubectl.apply(kueue.visibility(self.config))
        documents = self.kubectl.documents(manifests / "webhooks.yaml")
        self.kubectl.apply(kueue.webhooks(documents, (self.config.pki / "ca.crt").read_bytes()))
        self.kubectl.await_kinds(manifests / "crds")
        self.clock.say("Kueue's resources are installed")

    def _webhook_answers(self) -> bool:
        """Kueue's webhooks are failurePolicy Fail: a dry run gets through only when they answer."""
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
        try:
            self.kubectl("create", "--dry-run=server", UNCHECKED, "-f", "-", stdin=json.dumps(flavor))
        except CommandError:
            return False
        return True

    def containerd(self, member: Node) -> None:
        part = node.containerd(self.config, member, self.binaries)
        processes.start(self.box, part)
        images = NodeImages(self.box, member, self.binaries["ctr"])
        self._await(part, images.answers, "")
        images.ensure(self.pause)

    def kubelet(self, member: Node) -> None:
        part = node.kubelet(self.config, member, self.binaries)
        self._healthy(part, "")  # the node's own word may be from before a crash
        condition = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"

        def node_ready() -> bool:
            return self.kubectl("get", "node", member.name, "--ignore-not-found", "-o", condition).strip() == "True"

        self._await(part, node_ready, f"node {member.name} is ready", interval=0.5)

    def _healthy(self, part: Part, what: str) -> None:
        processes.start(self.box, part)
        url = health_urls(self.config)[part.name]
        self._await(part, lambda: http_ok(url), what)

    def _await(self, part: Part, check: Callable[[], bool], what: str, *, interval: float = 0.1) -> None:
        """Wait for `check`; a progress line unless `what` is empty."""
        wait_until(
            check,
            what or f"{part.name} answers",
            timeout=READY_TIMEOUT,
            log=processes.log_path(self.box, part.name),
            alive=lambda: processes.running(self.box, part.name) is not None,
            interval=interval,
        )
        if what:
            self.clock.say(what)


def _link_programs(config: ClusterConfig, binaries: Binaries) -> None:
    """`bin/` of the cluster's folder: kubectl, helm, ctr and the rest, for people."""
    config.bin.mkdir(parents=True, exist_ok=True)
    for name, path in binaries.files.items():
        link = config.bin / name
        if not link.is_symlink() or link.readlink() != path:
            link.unlink(missing_ok=True)
            link.symlink_to(path)


def _pause_image(cache: Path, say: Progress) -> Image:
    data = BUSYBOX.read_bytes()
    folder = made_once(
        cache / "images" / f"pause-{digest([data])}",
        lambda draft: add_busybox(ImageStore(draft), PAUSE, data),
        what="the pod sandbox image",
        progress=say,
    )
    image = ImageStore(folder).find(PAUSE, node.SANDBOX_IMAGE)
    if image is None:
        raise BuildError(f"{folder} holds no image: remove it and try again")
    return image
