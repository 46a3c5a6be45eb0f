"""A planner in a hurry, and what it says on jobs."""

from __future__ import annotations

from rows import TIMEOUT_S, Rows

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import EVENT, selector
from localcluster.demo.wait import wait_for

SOON = {"planner__everySeconds": 1, "planner__limits__minRunSeconds": 0, "planner__limits__movesPerHour": 100}
"""Values of the chart with which a policy acts at once."""
LIMITS = {"planner__everySeconds": 30, "planner__limits__minRunSeconds": 300, "planner__limits__movesPerHour": 4}
"""What the chart has instead."""


def told(rows: Rows, policy: str, reason: str) -> list[str]:
    """Messages of the planner's Events of that policy and reason."""
    events = rows.kube.list(EVENT, rows.namespace, selector({job_names.LABEL_PLANNER: policy}))
    return [str(event["message"]) for event in events if event["reason"] == reason]


def first_told(rows: Rows, policy: str, reason: str) -> str:
    """The first of these messages, waited for."""
    return wait_for(lambda: told(rows, policy, reason) or None, f"an Event {reason} of {policy}", TIMEOUT_S)[0]
