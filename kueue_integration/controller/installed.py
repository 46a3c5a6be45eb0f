"""What the chart installs beside the controller, and whether it is there: the AdmissionCheck and the policies."""

from __future__ import annotations

import logging

from ..contract import job_names
from ..guard import in_force
from ..guard import names as guards
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import ADMISSION_CHECK, ADMISSION_POLICY, ADMISSION_POLICY_BINDING, condition
from .metrics import Metrics

log = logging.getLogger(__name__)

_PARTS = (ADMISSION_POLICY, ADMISSION_POLICY_BINDING)


def claim_check(kube: Kube, name: str, now: float) -> None:
    """Kueue keeps a ClusterQueue inactive until its checks show that a controller answers them."""
    check = kube.find(ADMISSION_CHECK, None, name)
    if check is None:
        log.warning("no AdmissionCheck %s: the chart is not completely installed", name)
        return
    controller = (check.get("spec") or {}).get("controllerName")
    if controller != job_names.ADMISSION_CHECK_CONTROLLER:
        log.error("AdmissionCheck %s belongs to %s, left alone", name, controller)
        return
    active = condition(check, "Active")
    if active is not None and active.get("status") == "True":
        return
    new = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "the controller answers",
        "lastTransitionTime": server_time.to_whole(now),
        "observedGeneration": check["metadata"].get("generation", 1),
    }
    kube.patch(
        ADMISSION_CHECK,
        None,
        name,
        {"status": {"conditions": [new]}},
        resource_version=check["metadata"]["resourceVersion"],
        subresource="status",
    )
    log.info("AdmissionCheck %s is active", name)


def look_at_policies(kube: Kube, metrics: Metrics) -> str:
    """Count and log the policies that are not in force. Return what of the guard of pods is not, "" if all of it is.

    The hold is an admission policy with its binding: without either, no preemption waits for a checkpoint.
    """
    missing = _missing(kube, job_names.HOLD_LEASE)
    metrics.set("singularity_hold_policy_missing", float(bool(missing)))
    if missing:
        log.error("no %s: preemption does not wait for checkpoints; upgrade the chart", missing)
    objects = {name: [kube.find(kind, None, name) for kind in _PARTS] for name in guards.POLICIES}
    problems = {name: text for name, found in objects.items() if (text := in_force.problem(name, *found))}
    metrics.set("singularity_guard_policies_missing", float(len(problems)))
    if problems:
        log.error("%s: tenants can write what is the platform's; upgrade the chart", "; ".join(problems.values()))
    return "; ".join(text for name, text in problems.items() if name in guards.OF_PODS)


def _missing(kube: Kube, policy: str) -> str:
    """Which of a policy and its binding is missing, for people; "" if both exist."""
    return " and ".join(f"{kind.name} {policy}" for kind in _PARTS if kube.find(kind, None, policy) is None)
