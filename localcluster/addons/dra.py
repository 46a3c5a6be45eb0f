"""The real example driver of Dynamic Resource Allocation on a node of a running cluster.

https://github.com/kubernetes-sigs/dra-example-driver. Its devices are made up: a container that claims one gets
environment variables. Everything around them is real: slices, claims, the scheduler, kubelet, containerd's CDI.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cache import Progress
from ..clock import Clock
from ..config import NODES, ClusterConfig, Node, cache_dir
from ..errors import ConfigError
from ..images import gobuild
from ..namespaces import processes
from ..namespaces.processes import Part
from ..nodes import node
from ..shell import wait_until
from . import controllers

DRIVER = "gpu.example.com"
"""Name of the driver (hard-coded in it) and of the DeviceClass of its devices."""
TIMEOUT = 120.0
LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket (`sun_path`, without the end)."""


@contextmanager
def running(name: str, on: str, devices: int, progress: Progress = print) -> Iterator[None]:
    """Until the end of the block node `on` of cluster `name` has so many devices, and there is their DeviceClass.

    The first use builds the driver.

    :raises LocalClusterError: no such cluster or node, or the message says what failed, and where its log is
    """
    clock = Clock(progress)
    member = next((member for member in NODES if member.name == on), None)
    if member is None:
        raise ConfigError(f"node = {on!r}: use {', '.join(member.name for member in NODES)}")
    check_socket(ClusterConfig(name, 0), member)
    found = controllers.find(name, clock)
    folder = gobuild.build(gobuild.DRA_DRIVER, cache_dir(), clock.say)
    driver = part(found.config, folder, member, devices)
    found.kubectl.apply([device_class()])
    try:
        processes.start(found.box, driver)
        wait_until(
            lambda: _published(found, on) == devices,
            f"{driver.name} has published {devices} devices",
            timeout=TIMEOUT,
            log=processes.log_path(found.box, driver.name),
            alive=lambda: processes.running(found.box, driver.name) is not None,
            interval=0.5,
        )
        clock.say(f"node {on} has {devices} devices of {DRIVER}")
        yield
    finally:
        processes.stop(found.box, driver.name)
        # The kubelet would delete them half a minute after the driver has gone, or does so at this moment.
        found.kubectl("delete", "resourceslices", _of(on), "--ignore-not-found")
        found.kubectl("delete", "deviceclass", DRIVER, "--ignore-not-found")


def check_socket(config: ClusterConfig, member: Node) -> None:
    """Kubelet and driver meet at a Unix socket whose path has the name of the cluster in it.

    :raises ConfigError: that name makes the path longer than the kernel allows
    """
    socket = config.node_dir(member) / node.KUBELET_ROOT / "plugins_registry" / f"{DRIVER}-reg.sock"
    over = len(os.fsencode(socket)) - LONGEST_SOCKET
    if over > 0:
        raise ConfigError(
            f"cluster name = {config.name!r}: too long for a driver on node {member.name}, as its socket would be "
            f"{socket}; give the cluster a name of at most {len(config.name) - over} characters"
        )


def part(config: ClusterConfig, folder: Path, member: Node, devices: int) -> Part:
    """The driver's process for one node; it acts as the cluster's administrator."""
    directory = config.node_dir(member)
    kubelet = directory / node.KUBELET_ROOT
    command = [
        str(folder / "dra-driver"),
        f"--node-name={member.name}",
        f"--num-devices={devices}",
        f"--cdi-root={directory / node.CDI}",
        f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
        f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
        f"--kubeconfig={config.pki / 'admin.kubeconfig'}",
    ]
    # It makes the devices' serial numbers, and a variable of their containers, from this one.
    return Part(f"dra-driver-{member.name}", command, env={"NODE_NAME": member.name})


def device_class() -> dict[str, object]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == {json.dumps(DRIVER)}"}}]},
    }


def _published(found: controllers.Found, on: str) -> int:
    slices = found.kubectl.json("get", "resourceslices", _of(on))["items"]
    return sum(len(each["spec"].get("devices") or ()) for each in slices)


def _of(on: str) -> str:
    """Selects the slices of the driver on one node."""
    return f"--field-selector=spec.driver={DRIVER},spec.nodeName={on}"
