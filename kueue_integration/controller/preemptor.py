"""The names of a preemptor: `attempt_history.stored` records them while the preemptor still exists. Pure."""

from __future__ import annotations

from ..contract.record_types import Preemptor
from ..kube.resources import KUEUE_JOB_UID_LABEL, Object, label


def of(workload: Object) -> Preemptor:
    """What identifies `workload` for people."""
    spec = workload.get("spec") or {}
    owners = workload["metadata"].get("ownerReferences") or ()
    owner = next((o for o in owners if o.get("controller")), owners[0] if owners else {})
    return Preemptor(
        workload=str(workload["metadata"]["name"]),
        namespace=str(workload["metadata"].get("namespace", "")),
        kind=str(owner.get("kind", "")),
        job=str(owner.get("name") or label(workload, KUEUE_JOB_UID_LABEL) or ""),
        queue=str(spec.get("queueName", "")),
        priority=int(spec.get("priority") or 0),
    )
