"""Two policies of the planner: jobs leave a node that keeps losing them, and go where a step costs less.

An error of a program is not held against its nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from faults import Faults
from planning import LIMITS, SOON, told
from rows import TIMEOUT_S, Rows, Training, places

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import EVENT, NODE
from kueue_integration.requests import placement, verbs
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "health"
NODES = ("ondemand-0", "ondemand-1")
USUAL = {
    **LIMITS,
    "planner__health__mode": "none", "planner__health__taint": False, "planner__health__failures": 3,
    "planner__introspection__mode": "none", "planner__introspection__minSpeed": 0.9,
    "planner__prices__ondemand": 0, "planner__prices__spot": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _untainted(rows: Rows) -> Iterator[None]:
    """Takes taints away once `faults` has switched the policy off."""
    yield
    for node in NODES:
        if marks(rows, node):
            Faults(rows.stage, rows.namespace).kubectl("taint", "nodes", node, f"{job_names.TAINT_UNHEALTHY}-")


def marks(rows: Rows, node: str) -> list[str]:
    """Effects of our taint on the node."""
    taints = rows.kube.get(NODE, None, node)["spec"].get("taints") or ()
    return [str(taint["effect"]) for taint in taints if taint["key"] == job_names.TAINT_UNHEALTHY]


def of_node(rows: Rows, node: str) -> list[str]:
    events = [e for e in rows.kube.list(EVENT, "default") if e["reason"] == job_names.EVENT_NODE_SICK]
    return [str(event["message"]) for event in events if event["involvedObject"]["name"] == node]


def test_a_node_that_keeps_losing_attempts_is_left_and_tainted(rows: Rows, faults: Faults) -> None:
    sick, refuge = NODES
    rows.queue("health", {"ondemand": "100m"})
    faults.kubectl("cordon", refuge)
    job = rows.train("pair", "health", workers=2)
    for attempt in (1, 2):
        job.until_attempt(attempt)
        assert places(job) == {sick}
        rows.say(f"--> attempt {attempt} loses a pod")
        faults.kill_pod(next(p for p in job.pods() if p["status"].get("phase") == "Running"))
    job.until_attempt(3)
    faults.kubectl("uncordon", refuge)

    rows.say("--> a dry run names the node, and does nothing")
    faults.upgrade(**SOON, planner__health__mode="propose", planner__health__taint=True, planner__health__failures=2)
    wait_for(lambda: told(rows, "health", "PlannerProposal") or None, "a proposal in an Event", TIMEOUT_S)
    why = f"node {sick} alone has lost 2 attempts"
    assert why in told(rows, "health", "PlannerProposal")[0]
    (message,) = of_node(rows, sick)
    assert why in message and "it would be tainted" in message
    status = job.look()
    assert (status.attempt, status.requests, marks(rows, sick)) == (3, [], []), status

    rows.say("--> the policy acts: saved, moved, and no new pod goes there")
    faults.upgrade(planner__health__mode="act")
    status = job.until_attempt(4)
    assert places(job) == {refuge} and marks(rows, sick) == ["NoSchedule"]
    third = status.attempts[2]
    assert (third.ended_by, third.checkpoint is not None) == ("Migrated", True), third
    assert third.note and f"policy/health: {why}" in third.note, third
    assert status.attempts[3].first_step == (third.last_step or 0) + 1  # nothing was lost by the move
    job.finish()
    job.repeated()


def test_a_job_goes_where_a_step_costs_less(rows: Rows, faults: Faults) -> None:
    rows.queue("prices", {"ondemand": "50m", "spot": "50m"})
    job = rows.train("thrifty", "prices")
    assert job.until_steps(20).flavor == "ondemand"
    verbs.migrate(rows.kube, rows.namespace, "thrifty", flavor="spot", by="ann")
    job.until_attempt(2, steps=20)
    rows.say("--> free again, it goes back to the first flavor of its queue: regrowth knows no prices")
    verbs.migrate(rows.kube, rows.namespace, "thrifty", anywhere=True, by="ann")
    status = job.until_attempt(3, steps=20)
    assert [a.flavor for a in status.attempts] == ["ondemand", "spot", "ondemand"]
    assert not status.cost

    rows.say("--> a step costs a tenth on spot, where it is about as fast")
    faults.upgrade(
        **SOON, planner__prices__ondemand=10, planner__prices__spot=1, planner__introspection__mode="act",
        planner__introspection__minSpeed=0.2,
    )  # fmt: skip
    status = job.until_attempt(4, steps=20)
    assert status.flavor == "spot"
    assert status.attempts[3].price == 1.0
    third = status.attempts[2]
    assert third.ended_by == "Migrated" and third.note and "policy/introspection: ondemand -> spot" in third.note
    assert status.cost is not None and status.cost > 0 and status.cost_per_step is not None

    rows.say("--> switched off, it may go everywhere again, and does")
    faults.upgrade(planner__introspection__mode="none")
    wait_for(lambda: placement.of(job.job()) == placement.ANYWHERE, "no flavor is chosen any more", TIMEOUT_S)
    assert job.until_attempt(5).flavor == "ondemand"
    last = job.finish()
    assert all(b.first_step == (a.last_step or 0) + 1 for a, b in itertools.pairwise(last.attempts))
    job.assert_exact(last)


def test_an_error_of_a_program_on_two_nodes_is_the_programs_own(rows: Rows, faults: Faults) -> None:
    """Two jobs fail on one node alone, which would make it sick. The third one has the same error on another node."""
    one, other = NODES
    before = {node: of_node(rows, node) for node in NODES}
    rows.queue("own", {"ondemand": "100m"})
    tries = {"try-0": one, "try-1": one, "try-2": other}
    for number, (name, node) in enumerate(tries.items()):
        rows.say(f"--> {name} fails on node {node}")
        for each in NODES:
            faults.kubectl("uncordon" if each == node else "cordon", each)
        program = f"raise ValueError('shard {number} of 64 is not there')\n"
        job = rows.train(name, "own", script="shards.py", files={"shards.py": program})
        status = wait_for(lambda: s if (s := job.look()).final else None, f"the end of {name}", TIMEOUT_S)  # noqa: B023
        assert (status.phase, places_of_failed(job)) == ("Failed", {node}), status
    faults.uncordon_all()

    rows.say("--> two failures make a node sick, and it would be tainted; but these are the program's")
    faults.upgrade(**SOON, planner__health__mode="act", planner__health__taint=True, planner__health__failures=2)
    told_of = lambda: {name: own_errors(rows, name) for name in tries}  # noqa: E731
    wait_for(lambda: all(told_of().values()), "each of the jobs has an Event", TIMEOUT_S, detail=lambda: str(told_of()))
    for number, (name, messages) in enumerate(told_of().items()):
        assert len(messages) == 1, messages
        assert f"the same error on nodes {one}, {other}: the program's own." in messages[0], messages
        assert f"ValueError: shard {number} of 64 is not there (shards.py:1 in <module>)" in messages[0], (
            name,
            messages,
        )
    # A look tells of sick nodes before it tells of errors.
    assert {node: of_node(rows, node) for node in NODES} == before
    assert [mark for node in NODES for mark in marks(rows, node)] == []


def places_of_failed(job: Training) -> set[str]:
    return {str(pod["spec"].get("nodeName")) for pod in job.pods() if pod["status"].get("phase") == "Failed"}


def own_errors(rows: Rows, job: str) -> list[str]:
    events = [e for e in rows.kube.list(EVENT, rows.namespace) if e["reason"] == job_names.EVENT_OWN_ERROR]
    return [str(event["message"]) for event in events if event["involvedObject"]["name"] == job]


def test_the_last_line_of_a_traceback_is_what_the_user_reads(rows: Rows) -> None:
    rows.queue("errors", {"ondemand": "50m"})
    program = "def load():\n    raise ValueError('no such data')\n\nload()\n"
    job = rows.train("broken", "errors", script="broken.py", files={"broken.py": program})
    status = wait_for(lambda: s if (s := job.look()).final else None, "the end of the job", TIMEOUT_S)
    said = "ValueError: no such data (broken.py:4 in <module>, broken.py:2 in load)"
    note = lambda: next((a.note for a in job.look().attempts if a.note and said in a.note), None)  # noqa: E731
    assert status.phase == "Failed" and wait_for(note, "the record says why", TIMEOUT_S)
