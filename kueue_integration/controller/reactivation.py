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
from .snapshot import Workload

BY_KUEUE = "DeactivatedDueTo"
REASON = "Reactivated"
"""As Kueue itself says it after a user's deactivation."""


def due(workload: Workload, now: float) -> Mapping[str, Any] | None:
    """Merge patch of the Workload's status that is due, None if none is."""
    evicted = workload.condition("Evicted")
    ended = workload.is_true("Evicted") and str(evicted.get("reason", "")).startswith(BY_KUEUE)
    if not ended or workload.reservation is not None or workload.is_true("Finished"):
        return None
    conditions = [dict(item) for item in workload.raw["status"]["conditions"]]
    if not workload.active:
        kept = [item for item in conditions if item["type"] != "DeactivationTarget"]
        return {"conditions": kept} if len(kept) < len(conditions) else None
    requeued = workload.condition("Requeued")
    if workload.is_true("DeactivationTarget") or requeued.get("status") != "False":
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
