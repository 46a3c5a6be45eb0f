"""Make the nodes of one flavor of a running cluster announce other machines than the rest, and undo it.

Jobs whose processes were saved elsewhere are then sent back from that flavor, as they are from real machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from kueue_integration.controller import checkpoint_fit

from . import registry
from .cache import Progress
from .clock import Clock
from .cluster import cluster_lock
from .config import NODES, ClusterConfig, cache_dir
from .control_plane.kubectl import for_cluster
from .errors import LocalClusterError, NotReadyError
from .images import gobuild
from .images.gobuild import Binaries
from .namespaces import sandbox
from .nodes import machine
from .start import restart_runtime


def differ(name: str, flavor: str, progress: Progress = print) -> list[str]:
    """The nodes of `flavor` announce older machines; what they lack, in the words of node feature discovery.

    :raises LocalClusterError: the cluster does not run, or a node did not become ready; the message says which
    """
    here = machine.CPUINFO.read_text()
    other = machine.lesser(here)
    shown = {member.name: other if member.flavor == flavor else here for member in NODES}
    lacking = machine.lacks(here, other)
    clock = Clock(progress)
    with cluster_lock(name, clock.say):
        _show(name, shown, here, clock)
    clock.say(f"nodes of {flavor} announce other machines: they lack {', '.join(lacking)}")
    return lacking


def alike(name: str, progress: Progress = print) -> None:
    """All nodes announce what there is. Nothing happens where they do.

    :raises LocalClusterError: see `differ`
    """
    config = registry.find(name)
    if config is None or not any(machine.announced(config, member) for member in NODES):
        return
    clock = Clock(progress)
    with cluster_lock(name, clock.say):
        _show(name, {}, "", clock)
    clock.say("all nodes announce the machine that they are on")


@contextmanager
def different(name: str, flavor: str, progress: Progress = print) -> Iterator[list[str]]:
    """`differ`, and in the end `alike`."""
    lacking = differ(name, flavor, progress)
    try:
        yield lacking
    except BaseException:
        with suppress(LocalClusterError):  # what went wrong first is what counts
            alike(name, progress)
        raise
    alike(name, progress)


def _show(name: str, shown: Mapping[str, str], here: str, clock: Clock) -> None:
    """`shown`: node -> its /proc/cpuinfo; a node that it has not announces nothing."""
    config = registry.find(name)
    box = sandbox.find(config) if config is not None else None
    if config is None or box is None:
        raise NotReadyError(f"cluster {name} does not run: `singularityctl local up --name {name}`")
    cache = cache_dir()
    binaries = gobuild.build_all(cache, clock.say)
    spec = json.loads(box.run([binaries["ctr"], "oci", "spec"]))
    for member in NODES:
        cpuinfo = shown.get(member.name, here)
        before = machine.announced(config, member)
        if cpuinfo != here:
            machine.announce(config, member, cpuinfo, spec)
        else:
            machine.forget(config, member)
        if before or cpuinfo != here:
            restart_runtime(box, binaries, cache, clock, member)
        _label(config, binaries, member.name, machine.labels(cpuinfo))


def _label(config: ClusterConfig, binaries: Binaries, node: str, wanted: Mapping[str, str]) -> None:
    kubectl = for_cluster(config, binaries)
    labels = kubectl.json("get", "node", node)["metadata"]["labels"]
    old = [f"{key}-" for key in labels if key.startswith(checkpoint_fit.CPUID) and key not in wanted]
    changes = [*old, *(f"{key}={value}" for key, value in wanted.items())]
    if changes:
        kubectl("label", "node", node, "--overwrite", *changes)
