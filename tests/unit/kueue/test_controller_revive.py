"""A Workload that Kueue itself deactivated goes on when it is activated: the part that stock Kueue leaves undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.controller import reactivation
from kueue_integration.controller.actions import Revive
from kueue_integration.controller.snapshot import Workload
from kueue_integration.kube.resources import condition, merge_patch

REASON = "DeactivatedDueToMaximumExecutionTimeExceeded"


def deactivated(active: bool, *more: Any, reason: str = REASON, requeued: bool = False) -> dict[str, Any]:
    own = [
        scene.condition("Evicted", True, 30, reason),
        scene.condition("QuotaReserved", False, 40),
        scene.condition("Requeued", requeued, 40, reason),
    ]
    found = scene.workload(reserved_at=None, extra_conditions=[*own, *more])
    found["spec"] = {**found.get("spec", {}), "active": active}
    found["status"]["accumulatedPastExecutionTimeSeconds"] = 99
    return dict(found)


def due(workload: dict[str, Any]) -> Any:
    return reactivation.due(Workload.parse(workload), T0 + 50)


def test_a_second_deactivation_target_is_taken_back_while_the_workload_is_inactive() -> None:
    target = scene.condition("DeactivationTarget", True, 31, "MaximumExecutionTimeExceeded")
    workload = deactivated(False, target)
    patch = due(workload)
    after = merge_patch(workload, {"status": patch})
    assert condition(after, "DeactivationTarget") is None
    assert condition(after, "Requeued") == condition(workload, "Requeued")
    assert due(after) is None


def test_an_activated_workload_is_queued_again_with_a_new_allowance() -> None:
    workload = deactivated(True)
    after = merge_patch(workload, {"status": due(workload)})
    requeued = condition(after, "Requeued") or {}
    assert (requeued["status"], requeued["reason"]) == ("True", "Reactivated")
    assert "accumulatedPastExecutionTimeSeconds" not in after["status"]
    assert due(after) is None


@pytest.mark.parametrize(
    "workload",
    [
        deactivated(False),
        deactivated(True, reason="Deactivated"),  # Kueue does this one itself
        deactivated(True, reason="Preempted"),
        deactivated(True, requeued=True),
        deactivated(True, scene.condition("DeactivationTarget", True, 31, "x")),  # Kueue is about to deactivate
        scene.workload(state="Ready", admitted=True),
    ],
)
def test_everything_else_is_left_to_kueue(workload: dict[str, Any]) -> None:
    assert due(workload) is None


def test_it_is_done_once_the_end_of_the_attempt_is_recorded() -> None:
    ended = scene.record(evicted_at=T0 + 30, ended_by=REASON, committed_at=T0 + 32, pods_gone_at=T0 + 33)
    job = scene.job(annotations=scene.history(replace(ended, released_at=T0 + 40)))
    action = scene.decide(job, deactivated(True), [], T0 + 60).action
    assert isinstance(action, Revive)
