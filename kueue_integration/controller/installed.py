"""What the chart installs beside the controller, and whether it is there: the AdmissionCheck and the policies."""

from __future__ import annotations

import logging

from ..contract import job_names
from ..guard import names as guards
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import ADMISSION_CHECK, ADMISSION_POLICY, ADMISSION_POLICY_BINDING, condition
from .metrics import Metrics

log = logging.getLogger(__name__)


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


def count_missing_policies(kube: Kube, metrics: Metrics) -> None:
    """The hold is an admission policy with its binding: without either, no preemption waits for a checkpoint."""
    missing = _missing(kube, job_names.HOLD_LEASE)
    metrics.set("singularity_hold_policy_missing", float(bool(missing)))
    if missing:
        log.error("no %s: preemption does not wait for checkpoints; upgrade the chart", missing)
    unguarded = [what for policy in guards.POLICIES if (what := _missing(kube, policy))]
    metrics.set("singularity_guard_policies_missing", float(len(unguarded)))
    if unguarded:
        log.error("no %s: tenants can write what is the platform's; upgrade the chart", ", ".join(unguarded))


def _missing(kube: Kube, policy: str) -> str:
    """Which of a policy and its binding is missing, for people; "" if both exist."""
    parts = (ADMISSION_POLICY, ADMISSION_POLICY_BINDING)
    return " and ".join(f"{kind.name} {policy}" for kind in parts if kube.find(kind, None, policy) is None)
