"""Policies of the planner on a real Kueue: attained service and tiers preempt, and time sharing takes turns.

Nothing is measured yet when these jobs begin, so a move counts as 120 device-seconds: less is never gained.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from faults import Faults
from planning import LIMITS, SOON
from rows import TIMEOUT_S, Rows
from shell import Shell

from kueue_integration.kube.resources import WORKLOAD
from kueue_integration.planner import priority
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "policies"
USUAL = {
    **LIMITS,
    "planner__attainedService__mode": "none", "planner__timeSharing__mode": "none", "planner__slaTiers__mode": "none",
    "planner__timeSharing__quantumSeconds": 1800,
}  # fmt: skip
QUANTUM_S = 125


def test_who_has_had_much_is_preempted_by_who_has_had_nothing(rows: Rows, faults: Faults) -> None:
    rows.queue("service", {"ondemand": "50m"})
    first = rows.train("first", "service")
    first.until_steps()
    second = rows.train("second", "service")
    own = int(rows.workload("first")["spec"]["priority"])
    rows.say("--> without the policy the second one waits for ever: both have the same priority")
    faults.upgrade(
        **SOON, planner__attainedService__mode="act", planner__attainedService__thresholds=[20],
        planner__attainedService__promoteAfter=1000,
    )  # fmt: skip
    second.until_attempt(1)
    ended = first.until_ended(1)
    assert (ended.ended_by, ended.checkpoint is not None) == ("Preempted", True), ended
    workload = rows.workload("first")
    assert workload["spec"]["priority"] == own - 1
    assert priority.read(workload) == priority.Mark("attainedService", own, own - 1)

    rows.say("--> switched off, the priority is the job's own again")
    faults.upgrade(planner__attainedService__mode="none")
    name = workload["metadata"]["name"]
    wait_for(
        lambda: rows.kube.get(WORKLOAD, rows.namespace, name)["spec"]["priority"] == own, "its own priority", TIMEOUT_S
    )
    second.assert_exact(second.finish())
    first.until_attempt(2)
    first.assert_exact(first.finish())


def test_who_has_had_more_than_promised_gives_way_to_who_has_had_less(rows: Rows, faults: Faults) -> None:
    rows.queue("tiers", {"ondemand": "50m"})
    served = rows.train("served", "tiers", priority_class="high")
    served.until_steps()
    promised = rows.train("promised", "tiers", priority_class="low")
    rows.say("--> without the policy the second one waits for ever: the first one has a higher priority")
    tiers = {"planner__slaTiers__tiers__low": 1, "planner__slaTiers__tiers__high": 0}
    faults.upgrade(**SOON, **tiers, planner__slaTiers__mode="act")
    shell = Shell(rows.stage.cluster)
    told = wait_for(lambda: _measured(shell, rows, "promised"), "a share of the one that waits", TIMEOUT_S)
    assert (told["promised"], told["delivered"], told["served_s"]) == (1.0, 0.0, 0.0) and told["owed_s"] >= 60
    promised.until_attempt(1)
    ended = served.until_ended(1)
    assert (ended.ended_by, ended.checkpoint is not None) == ("Preempted", True), ended
    own = _measured(shell, rows, "served")
    assert own is not None and own["promised"] == 0.0 and own["delivered"] > 0 and own["owed_s"] == 0
    assert _measured(shell, rows, "promised")["delivered"] > 0

    done = promised.finish()
    promised.assert_exact(done)
    assert len(done.attempts) == 1, "it keeps the quota until it has had its promise"
    served.until_attempt(2)
    served.assert_exact(served.finish())


def _measured(shell: Shell, rows: Rows, name: str) -> Any:
    """What `singularityctl report` says about a job, None while it has no share yet."""
    jobs = json.loads(shell.run("report", "-n", rows.namespace, "--json"))["jobs"]
    return next((job for job in jobs if job["job"] == name and job["delivered"] is not None), None)


def test_two_jobs_take_turns_on_the_quota_of_one(rows: Rows, faults: Faults) -> None:
    rows.queue("turns", {"ondemand": "50m"})
    first, second = rows.train("first", "turns"), rows.train("second", "turns")
    first.until_steps()
    faults.upgrade(**SOON, planner__timeSharing__mode="act", planner__timeSharing__quantumSeconds=QUANTUM_S)
    rows.say(f"--> a quantum is {QUANTUM_S} s: the second one gets its turn, then the first one again")
    second.until_attempt(1)
    ended = first.until_ended(1)
    assert (ended.ended_by, ended.checkpoint is not None) == ("Paused", True), ended
    first.until_attempt(2)
    assert second.until_ended(1).ended_by == "Paused"

    rows.say("--> switched off, whoever is parked is queued again")
    faults.upgrade(planner__timeSharing__mode="none")
    first.assert_exact(first.finish())
    second.until_attempt(2)
    second.assert_exact(second.finish())
