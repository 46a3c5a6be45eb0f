"""What is wrong with this cluster for training jobs, and what to do about it: `run` gives a list of `Check`.

Reads only (access reviews leave nothing behind) and never raises for what the cluster is like: that is a finding.
Printing belongs to `kueue_integration.cli.doctor`; the checks of one submission to `kueue_integration.jobs.preflight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..kube.api import Kube
from ..spec.platform_config import PlatformConfig
from . import (
    access,
    authorities,
    capacity,
    chart,
    cluster,
    encryption,
    gates,
    gpu_probe,
    jobs,
    narrow,
    placement,
    probe,
    queues,
    release,
    security,
    user_namespaces,
)
from .check import FAIL, OK, WARN, Check, guarded

__all__ = ["FAIL", "OK", "WARN", "Check", "run", "run_gpu_probe", "run_probe"]


def run_probe(kube: Kube, namespace: str, timeout_s: float) -> list[Check]:
    """Store and nodes, tried by a short-lived pod per flavor in `namespace`; nothing where the chart is missing."""
    return _probed(kube, lambda installed: probe.flavors(kube, namespace, installed, timeout_s))


def run_gpu_probe(kube: Kube, namespace: str, image: str, timeout_s: float) -> list[Check]:
    """GPUs of each flavor that has some, tried by a pod with `image` (default: the platform's training image)."""
    return _probed(kube, lambda installed: gpu_probe.flavors(kube, namespace, installed, image, timeout_s))


def _probed(kube: Kube, checks: Callable[[PlatformConfig], Iterable[Check]]) -> list[Check]:
    installed = chart.config(kube)
    if isinstance(installed, Check) or not installed.store:
        return []
    return guarded("probe", checks(installed))


def run(kube: Kube, namespace: str | None, now: float) -> list[Check]:
    """Every check, in the order in which a platform is built. `now` is Unix seconds, for the Lease and deadlines.

    `namespace` None: only what the platform team installs. What cannot be there without something that is missing is
    left out: without Kueue there are no queues to check.
    """
    found = guarded("API server", cluster.api_server(kube))
    if any(check.status == FAIL for check in found):
        return found
    found += guarded("feature gates", gates.api_gates(kube))
    found += guarded("nodes", cluster.nodes(kube))
    kueue = guarded("Kueue", cluster.kueue(kube))
    found += kueue
    installed = chart.config(kube)
    found += guarded("chart", chart.config_checks(installed))
    if not isinstance(installed, Check):
        found += guarded("store", chart.store(installed))
        found += guarded("controller", chart.controller(kube))
        found += guarded("controller memory", capacity.controller_memory(kube))
        found += guarded("authorities", authorities.published(installed, now))
        found += guarded("keys", release.keys(kube))
        found += guarded("certificate", release.certificate(kube, now))
        found += guarded("release", release.interrupted(kube))
        found += guarded("controller RBAC", access.controller(kube, installed.namespaces))
        found += guarded("lease", chart.lease(kube, now))
        found += guarded("hold policy", chart.policy(kube))
        found += guarded("guard policies", chart.guards(kube))
    served = all(check.status != FAIL for check in kueue)
    if served and not isinstance(installed, Check):
        found += guarded("fence", chart.fence(kube))
        found += guarded("user namespaces", user_namespaces.flavors(kube, installed))
    if served:
        found += guarded("Kueue config", gates.kueue_config(kube))
        found += guarded("visibility", gates.visibility(kube))
        found += guarded("device classes", placement.device_classes(kube))
        found += guarded("priority classes", queues.priority_classes(kube))
    if namespace is None:
        return found
    exists = guarded(f"namespace {namespace}", security.pod_security(kube, namespace))
    found += exists
    if any(check.status == FAIL and check.name == security.MISSING for check in exists):
        return found
    if not isinstance(installed, Check):
        found += guarded("pod guard", security.training(kube, namespace))
        found += guarded("encryption", encryption.keys(kube, namespace, installed))
        found += guarded("followed", narrow.followed(kube, namespace, installed.namespaces))
    found += guarded("permissions", security.permissions(kube, namespace))
    if served:
        found += guarded("queues", queues.local_queues(kube, namespace, not isinstance(installed, Check)))
        found += guarded("topologies", placement.topologies(kube, namespace))
    known = None if isinstance(installed, Check) else installed
    return found + guarded("jobs", jobs.running(kube, namespace, now, known))
