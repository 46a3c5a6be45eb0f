"""Policies of the planner on a real Kueue: attained service and tiers preempt, time sharing takes turns, and marginal
gain gives the next worker.

Nothing is measured yet when these jobs begin, so a move counts as 120 device-seconds: less is never gained.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from faults import Faults
from planning import LIMITS, SOON, first_told
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.contract import priority
from kueue_integration.kube.resources import WORKLOAD
from kueue_integration.planner.policies import marginal_gain
from kueue_integration.requests import verbs
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "policies"
USUAL = {
    **LIMITS,
    "planner__attainedService__mode": "none", "planner__timeSharing__mode": "none", "planner__slaTiers__mode": "none",
    "planner__timeSharing__quantumSeconds": 1800, "planner__marginalGain__mode": "none",
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
    mark = priority.read(workload)
    assert mark is not None and (mark.policy, mark.own, mark.given) == ("attainedService", own, own - 1)
    assert (mark.attempt, ended.lowered_by) == (1, "attainedService")

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


def test_the_next_worker_goes_where_it_shortens_completion(rows: Rows, faults: Faults) -> None:
    """At first each is as fast as it was measured with two workers and with one; then one worker is free."""
    rows.queue("gain", {"ondemand": "150m"})
    gains = _measured_twice(rows, "gains", ["--turns"])
    flat = _measured_twice(rows, "flat", [])

    rows.say("--> a dry run says what it would do, and does nothing")
    faults.upgrade(**SOON, planner__marginalGain__mode="propose")
    assert "gains: 1 -> 2 workers: done in " in first_told(rows, marginal_gain.NAME, "PlannerProposal")
    assert [job.look().attempt for job in (gains, flat)] == [2, 2]

    rows.say("--> the policy acts: who is faster with two workers gets the free one, the other one trains on")
    faults.upgrade(planner__marginalGain__mode="act")
    status = gains.until_attempt(3)
    assert [record.pods for record in status.attempts] == [2, 1, 2]
    before = status.attempts[1]
    assert (before.ended_by, before.checkpoint is not None) == ("Resized", True), before
    assert before.note and "policy/marginalGain: 1 -> 2 workers" in before.note, before
    others = flat.look().attempts
    assert [record.pods for record in others] == [2, 1], others
    faults.upgrade(planner__marginalGain__mode="none")
    for job in (gains, flat):
        job.assert_exact(job.finish())


def _measured_twice(rows: Rows, name: str, args: list[str]) -> Training:
    """A job of two ranks that says how many steps it makes, once with two workers and now with one."""
    job = rows.train(
        name, "gain", workers=2, min_workers=1, world_size=2, pace=0.4, args=["--total", "--steps", "20000", *args]
    )
    job.until_steps(8)
    verbs.resize(rows.kube, rows.namespace, name, workers=1)
    job.until_attempt(2, steps=8)
    assert job.until_ended(1).ended_by == "Resized"
    return job
