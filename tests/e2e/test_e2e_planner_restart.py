"""The planner dies between two moves that its limits keep apart. Whoever comes after it counts the first one."""

from __future__ import annotations

from collections.abc import Sequence

import controllers
import pytest
from faults import Faults
from planning import LIMITS, SOON, told
from rows import CPU, TIMEOUT_S, Rows, Training

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.requests import verbs
from kueue_integration.requests.user_requests import CHANGE, Exchange, asked, exchange
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "planner-restart"
FLAVORS = ("ondemand", "spot")
BUDGET = "planner__limits__tenantMovesPerHour"
USUAL = {
    **LIMITS, BUDGET: 20, "planner__introspection__mode": "none", "planner__introspection__minSpeed": 0.9,
    "planner__prices__ondemand": 0, "planner__prices__spot": 0,
}  # fmt: skip
BEFORE = 4
"""Moves that the two jobs have behind them when the planner begins: they know both flavors."""


def _state(found: Exchange) -> str:
    return "" if found.request is None else found.answer.state if found.answer is not None else "asked"


def where(job: Training) -> tuple[int, str | None]:
    """Attempt and flavor."""
    status = job.look()
    return status.attempt, status.flavor


@pytest.fixture
def jobs(rows: Rows, faults: Faults) -> list[Training]:
    """Two jobs on the first flavor, both measured on the second one, too: a step will cost less there."""
    here, there = FLAVORS
    jobs = []
    for name in ("one", "two"):
        rows.queue(name, {here: CPU, there: CPU})  # without a cohort: only the budget of the namespace keeps them apart
        jobs.append(rows.train(name, name, workers=1, world_size=2, args=["--total"]))
    for job in jobs:
        assert job.until_steps(20).flavor == here
        verbs.migrate(rows.kube, rows.namespace, job.name, flavor=there, by="ann")
    for job in jobs:
        job.until_attempt(2, steps=20)
        verbs.migrate(rows.kube, rows.namespace, job.name, anywhere=True, by="ann")
    for job in jobs:
        job.until_attempt(3, steps=20)
        assert where(job) == (3, here)
    return jobs


def test_the_planner_dies_between_two_moves(rows: Rows, faults: Faults, jobs: list[Training]) -> None:
    here, there = FLAVORS
    rows.say("--> one of them is asked to move, and its planner is killed while no step ends")
    for job in jobs:
        job.slow()
    faults.upgrade(
        **{**SOON, BUDGET: BEFORE + 1}, planner__prices__ondemand=10, planner__prices__spot=1,
        planner__introspection__minSpeed=0.2, planner__introspection__mode="act",
    )  # fmt: skip
    first = wait_for(lambda: next(filter(asked_by_policy, jobs), None), "a first move", TIMEOUT_S, tick_s=0.05)
    second = next(job for job in jobs if job is not first)
    pod = controllers.restart(rows.kube)
    refused_again(rows, pod, second)
    assert _state(exchange(first.job(), CHANGE)) in ("asked", "running"), "it was to be counted while under way"

    rows.say(f"--> the move of {first.name} is completed, and its planner is killed again")
    for job in jobs:
        job.slow(False)
    first.until_attempt(4)
    assert where(first) == (4, there)
    pod = controllers.restart(rows.kube)
    refused_again(rows, pod, second)
    second.until_steps(25)
    assert where(second) == (3, here)

    rows.say(f"--> the budget has room for one more: {second.name} moves, too")
    faults.upgrade(**{BUDGET: BEFORE + 2})
    second.until_attempt(4)
    assert where(second) == (4, there)
    begun, left = moved_once(first)[3].first_step_at, moved_once(second)[2].evicted_at
    assert begun is not None and left is not None and begun <= left, "two moves at once"
    assert sum(": migrate " in message for message in told(rows, "introspection", "PlannerAction")) <= 2


def asked_by_policy(job: Training) -> bool:
    """Whether the policy has asked it to move."""
    request = asked(job.job(), CHANGE)
    return request is not None and request.by.startswith("policy/introspection")


def moved_once(job: Training) -> Sequence[AttemptRecord]:
    """Its attempts when it has ended: the policy has moved it once, for a reason on record, and no step was lost."""
    last = job.finish()
    assert [record.ended_by for record in last.attempts[2:]] == ["Migrated", "Finished"], last
    note = last.attempts[2].note
    assert note and f"policy/introspection: {FLAVORS[0]} -> {FLAVORS[1]}" in note, last
    job.assert_exact(last)
    return last.attempts


def refused_again(rows: Rows, pod: str, job: Training) -> None:
    """The process that runs in `pod` now has looked at `job`, and says that the budget holds it back."""
    move = f"introspection: migrate to {FLAVORS[1]} of {rows.namespace}/{job.name}: "
    budget = f"jobs of namespace {rows.namespace} were moved {BEFORE + 1} times within an hour, the budget"

    def refused() -> bool:
        assert not asked_by_policy(job), f"{job.name} is to move beyond the budget"
        return any(move in line and budget in line for line in controllers.log(rows.kube, pod).splitlines())

    wait_for(refused, f"the move of {job.name} is refused", TIMEOUT_S, detail=lambda: controllers.log(rows.kube, pod))
