"""The steps that stock Kueue omits after its own deactivation of a Workload, so that `spec.active: true` works. Pure.

Read and seen in Kueue 0.19.2 (workload_controller.go):

- Kueue queues a reactivated Workload again only when `Requeued` has the reason `Deactivated`, a user's doing. After
  `DeactivatedDueTo...` (a rejected check, the execution time, the requeuing limit) it would stay out for ever.
- While a hold lasts, the Workload is still admitted and its execution time still exceeded. So Kueue sets
  `DeactivationTarget` a second time and never takes it back: every reactivation would be undone at once.
- The time of the last attempt is added after Kueue has cleared the sum: the next admission would be over at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..kube import server_time
from ..kube.resources import Object, condition, is_true
from . import views

BY_KUEUE = "DeactivatedDueTo"
REASON = "Reactivated"
"""As Kueue itself says it after a user's deactivation."""


def due(workload: Object, now: float) -> Mapping[str, Any] | None:
    """Merge patch of the Workload's status that is due, None if none is."""
    evicted = condition(workload, "Evicted") or {}
    ended = is_true(workload, "Evicted") and str(evicted.get("reason", "")).startswith(BY_KUEUE)
    if not ended or views.reservation(workload) is not None or is_true(workload, "Finished"):
        return None
    conditions = [dict(item) for item in workload["status"]["conditions"]]
    if not (workload.get("spec") or {}).get("active", True):
        kept = [item for item in conditions if item["type"] != "DeactivationTarget"]
        return {"conditions": kept} if len(kept) < len(conditions) else None
    requeued = condition(workload, "Requeued") or {}
    if is_true(workload, "DeactivationTarget") or requeued.get("status") != "False":
        return None
    new = {
        **requeued,
        "status": "True",
        "reason": REASON,
        "message": "The workload was reactivated",
        "lastTransitionTime": server_time.to_whole(now),
    }
    changed = [new if item["type"] == "Requeued" else item for item in conditions]
    return {"conditions": changed, "accumulatedPastExecutionTimeSeconds": None}
