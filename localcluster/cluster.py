"""`up` and `down` of a whole cluster: the interface for people, tests and the demonstration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import host, registry
from .addons import kueue
from .addons.chart import Chart
from .cache import Progress
from .clock import Clock
from .config import NODES, STATE_ROOT, ClusterConfig, Node, cache_dir, check_name
from .control_plane.kubectl import for_cluster
from .errors import NotReadyError
from .images import containers, gobuild, rootfs
from .images.gobuild import Binaries
from .images.oci import Image
from .locks import locked
from .namespaces import cgroups, guests, sandbox
from .nodes.images import NodeImages
from .start import restart_kueue, start


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    :param kubeconfig: of its administrator
    :param shared: folder that training pods see as /shared
    :param root: everything of the cluster; `logs` has a file per part, `bin` its programs
    """

    name: str
    root: Path
    kubeconfig: Path
    shared: Path
    logs: Path
    kubectl: Path


def up(
    name: str = "default", progress: Progress = print, *, only: str | None = None, privileges: str = ""
) -> Cluster:
    """Bring the cluster up, or what of it does not run; returns when every part is ready.

    :param only: "cluster" leaves our images and chart out; "images" does nothing else, on a cluster that runs;
        "kueue" starts an API server and Kueue alone, which no other `only` completes
    :param privileges: the chart's `pods.privileges`; "": its default
    :raises LocalClusterError: the message says which part, and where its log is
    """
    check_name(name)
    host.check_root()
    clock = Clock(progress)
    with cluster_lock(name, clock.say):
        cache = cache_dir()
        host.check(cache, clock.say)
        binaries = gobuild.build_all(cache, clock.say)
        config = registry.allocate(name)
        if only == "kueue":
            start(config, binaries, cache, clock, alone=True)
        elif only == "cluster" or not containers.available():
            start(config, binaries, cache, clock)
        else:
            _with_product(config, binaries, cache, clock, privileges, start_first=only != "images")
    clock.say(f"cluster {name} is ready: export KUBECONFIG={config.kubeconfig}")
    return describe(config)


def reconfigure_kueue(name: str, fields: Mapping[str, Any], progress: Progress = print) -> None:
    """Restart Kueue with these top-level fields of its Configuration added or replaced; none: as it was at first.

    :raises LocalClusterError: the cluster does not run, or Kueue does not start with the fields: see its log
    """
    clock = Clock(progress)
    with cluster_lock(name, clock.say):
        config = registry.find(name)
        box = sandbox.find(config) if config is not None else None
        if config is None or box is None:
            raise NotReadyError(f"cluster {name} does not run: `singularityctl local up --name {name}`")
        kueue.change(config, fields)
        cache = cache_dir()
        restart_kueue(box, gobuild.build_all(cache, clock.say), cache, clock)


def _with_product(
    config: ClusterConfig, binaries: Binaries, cache: Path, clock: Clock, privileges: str, *, start_first: bool
) -> None:
    """The cluster with our images and chart in it; images are built while the cluster starts."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        building = pool.submit(containers.build_all, cache, clock.say)
        if start_first:
            start(config, binaries, cache, clock)
        box = sandbox.find(config)
        if box is None:
            raise NotReadyError(f"cluster {config.name} does not run: `singularityctl local up --name {config.name}`")
        torch = rootfs.torch(cache, clock.say)
        made = building.result()
        imports = [pool.submit(_import, box, member, binaries, made) for member in NODES]
        count = sum(job.result() for job in imports)
    if count:
        clock.say(f"imported {count} images into {len(NODES)} nodes")
    chart = Chart(config, binaries, for_cluster(config, binaries), torch)
    changed = chart.install(made, clock, privileges)
    clock.say(f"the controller is {'rolled out' if changed else 'ready'}")


def _import(box: sandbox.Sandbox, member: Node, binaries: Binaries, made: Mapping[str, Image]) -> int:
    node = NodeImages(box, member, binaries["ctr"])
    return sum(node.ensure(image) for image in made.values())


def describe(config: ClusterConfig) -> Cluster:
    return Cluster(
        config.name, config.root, config.kubeconfig, config.shared, config.logs, kubectl=config.bin / "kubectl"
    )


def down(name: str = "default", progress: Progress = print) -> None:
    """End the cluster and remove everything of it, however much of it there is.

    :raises LocalClusterError: something could not be removed
    """
    check_name(name)
    host.check_root()
    clock = Clock(progress)
    if registry.find(name) is None:
        clock.say(f"cluster {name} does not exist")
        return
    with cluster_lock(name, clock.say):
        config = registry.find(name)
        if config is not None:
            guests.stop(config.root)
            sandbox.kill(config)
            clock.say("all processes have ended")
            sandbox.remove_link(config)
            cgroups.remove(config)
            if config.root.exists():
                shutil.rmtree(config.root)
            registry.release(name)
    registry.remove_empty_root()
    clock.say(f"cluster {name} is gone")


@contextmanager
def cluster_lock(name: str, say: Progress) -> Iterator[None]:
    with locked(
        STATE_ROOT / f"{name}.lock",
        timeout=3600,
        on_wait=lambda: say(f"waiting for another command that works on cluster {name}"),
    ):
        yield
