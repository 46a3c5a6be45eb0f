"""The planner dies between two moves that its limits keep apart. Whoever comes after it counts the first one."""

from __future__ import annotations

import controllers
import pytest
from faults import Faults
from planning import LIMITS, SOON, told
from rows import CPU, TIMEOUT_S, Rows, Training, places

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.requests import placement
from kueue_integration.requests.user_requests import CHANGE, CHECKPOINT, Exchange, asked, exchange
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "planner-restart"
NODES = ("ondemand-0", "ondemand-1")
BUDGET = "planner__limits__tenantMovesPerHour"
USUAL = {**LIMITS, BUDGET: 20, "planner__cordon__mode": "none"}
LONG_S = 100_000
"""No job trains so long in this test: none is moved, but all are saved."""


def saved(job: Training) -> bool:
    """The policy has had it saved, which is not yet a move."""
    save = exchange(job.job(), CHECKPOINT)
    return save.request is not None and save.request.by.startswith("policy/cordon") and _state(save) == "done"


def _state(found: Exchange) -> str:
    return "" if found.request is None else found.answer.state if found.answer is not None else "asked"


@pytest.fixture
def jobs(rows: Rows, faults: Faults) -> list[Training]:
    """Two jobs on a node that is to be left: both are saved ahead of time, and have to train on before a move."""
    leaves, refuge = NODES
    jobs = []
    faults.kubectl("cordon", refuge)  # so that both start on the other node
    for name in ("one", "two"):
        rows.queue(name, {"ondemand": CPU})  # without a cohort: only the budget of the namespace keeps them apart
        jobs.append(rows.train(name, name, workers=1, world_size=2))
    for job in jobs:
        job.until_steps()
        assert places(job) == {leaves}
    faults.kubectl("uncordon", refuge)
    limits = {**SOON, "planner__limits__minRunSeconds": LONG_S, BUDGET: 1}
    faults.upgrade(**limits, planner__cordon__mode="act")
    faults.kubectl("cordon", leaves)
    wait_for(lambda: all(map(saved, jobs)), "both are saved for the policy", TIMEOUT_S)
    assert [asked(job.job(), CHANGE) for job in jobs] == [None, None]
    return jobs


def test_the_planner_dies_between_two_moves(rows: Rows, faults: Faults, jobs: list[Training]) -> None:
    leaves, refuge = NODES
    rows.say("--> they may move: one of them is asked to, and its planner is killed while no step ends")
    for job in jobs:
        job.slow()
    faults.upgrade(planner__limits__minRunSeconds=0)
    first = wait_for(
        lambda: next((job for job in jobs if asked(job.job(), CHANGE)), None), "a first move", TIMEOUT_S, tick_s=0.05
    )
    second = next(job for job in jobs if job is not first)
    pod = controllers.restart(rows.kube)
    refused_again(rows, pod, second)
    assert _state(exchange(first.job(), CHANGE)) in ("asked", "running"), "it was to be counted while under way"

    rows.say(f"--> the move of {first.name} is completed, and its planner is killed again")
    for job in jobs:
        job.slow(False)
    first.until_attempt(2)
    assert places(first) == {refuge}
    pod = controllers.restart(rows.kube)
    refused_again(rows, pod, second)
    status = second.until_steps()
    assert (status.attempt, places(second)) == (1, {leaves}), status
    wait_for(lambda: placement.of(first.job()) == placement.ANYWHERE, "no node is avoided any more", TIMEOUT_S)

    rows.say(f"--> the budget has room for one more: {second.name} moves, too")
    faults.upgrade(**{BUDGET: 2})
    second.until_attempt(2)
    assert places(second) == {refuge}
    begun, left = moved_once(first).first_step_at, moved_once(second, 0).evicted_at
    assert begun is not None and left is not None and begun <= left, "two moves at once"
    assert sum(": migrate " in message for message in told(rows, "cordon", "PlannerAction")) <= 2


def moved_once(job: Training, index: int = 1) -> AttemptRecord:
    """Its attempt of that index when it has ended: it was moved once, for a reason on record, and lost no step."""
    last = job.finish()
    assert [record.ended_by for record in last.attempts] == ["Migrated", "Finished"], last
    note = last.attempts[0].note
    assert note and f"policy/cordon: node {NODES[0]} is cordoned" in note, last
    job.assert_exact(last)
    return last.attempts[index]


def refused_again(rows: Rows, pod: str, job: Training) -> None:
    """The process that runs in `pod` now has looked at `job`, and says that the budget holds it back."""
    move = f"cordon: migrate of {rows.namespace}/{job.name}: "
    budget = f"jobs of namespace {rows.namespace} were moved 1 times within an hour, the budget"

    def refused() -> bool:
        assert asked(job.job(), CHANGE) is None, f"{job.name} is to move beyond the budget"
        return any(move in line and budget in line for line in controllers.log(rows.kube, pod).splitlines())

    wait_for(refused, f"the move of {job.name} is refused", TIMEOUT_S, detail=lambda: controllers.log(rows.kube, pod))
