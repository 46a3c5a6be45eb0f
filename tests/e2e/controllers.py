"""The controller's replicas on a real cluster: which are ready, which one leads, and a kill that nobody hears of."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from kueue_integration.contract import job_names
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import LEASE, POD, Object
from localcluster.demo.wait import wait_for

SYSTEM = job_names.SYSTEM_NAMESPACE
TIMEOUT_S = 600.0
_LABELS = "app.kubernetes.io/component=controller"


def pods(kube: Kube) -> list[Object]:
    return kube.list(POD, SYSTEM, _LABELS)


def ready(kube: Kube) -> list[str]:
    """Names of the pods that are ready and stay."""
    return [
        str(pod["metadata"]["name"])
        for pod in pods(kube)
        if not pod["metadata"].get("deletionTimestamp")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions") or ())
    ]


def leader(kube: Kube) -> str:
    """The pod that holds the Lease, "" for none."""
    return str((kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE).get("spec") or {}).get("holderIdentity") or "")


def leaders_node(kube: Kube) -> str:
    """The node of the pod that holds the Lease."""
    return str(kube.get(POD, SYSTEM, leader(kube))["spec"]["nodeName"])


def kill(pod: str) -> int:
    """SIGKILL to the controller in `pod`: no handler runs, no Lease is given up. Number of processes killed."""
    killed = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not process.name.isdigit():
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
            if (
                b"SINGULARITY_POD=" + pod.encode() in environment
                and b"kueue_integration.serve" in (process / "cmdline").read_bytes()
            ):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    return killed


def restart(kube: Kube) -> str:
    """Kill the controller that leads; the name of the pod that leads then, once both are ready.

    That may be the same one: who holds the Lease by name may go on with it.
    """
    pod = leader(kube)
    before = _restarts(kube, pod)
    assert kill(pod), "the fault did not fire"
    last = _renewed(kube)
    wait_for(lambda: _restarts(kube, pod) > before and pod in ready(kube), f"{pod} is back", TIMEOUT_S)
    wait_for(lambda: _renewed(kube) != last and leader(kube), "a controller leads", TIMEOUT_S)
    return leader(kube)


def _renewed(kube: Kube) -> str:
    return str((kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE).get("spec") or {}).get("renewTime"))


def _restarts(kube: Kube, pod: str) -> int:
    """Processes of the controller that have run in `pod` and ended; the next one runs by now, or -1."""
    found = kube.get(POD, SYSTEM, pod).get("status", {}).get("containerStatuses") or ()
    return next((int(c["restartCount"]) for c in found if c["name"] == "controller" and c["state"].get("running")), -1)


def log(kube: Kube, pod: str) -> str:
    """What the process that runs in `pod` now has logged."""
    return "\n".join(kube.pod_logs(SYSTEM, pod, "controller"))
