"""The policy health: which nodes are sick, and which errors are a program's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import planner_scene as scene
import pytest
from planner_scene import NOW

from kueue_integration.planner import policies
from kueue_integration.planner.job import Request
from kueue_integration.planner.model import ClusterSnapshot, Symptom
from kueue_integration.planner.policies import health
from kueue_integration.planner.settings import Health

SETTINGS = Health("act", failures=2, window_s=1000.0, conditions=["KernelDeadlock"])
BUG = "rank 0 ended with code 1: ValueError: bad (train.py:12 in main)"
KILL = "it was killed (SIGKILL)"


def failed(node: str = "n1", attempt: int = 1, words: str = KILL, kind: Any = "machine", **more: Any) -> Symptom:
    values: dict[str, Any] = {"at": NOW - 10, "job": ("team", "digits"), "beside": frozenset()}
    return Symptom(node=node, attempt=attempt, kind=kind, words=words, **{**values, **more})


def bug(node: str = "n1", attempt: int = 1, rank: int = 0, **more: Any) -> Symptom:
    return failed(node, attempt, BUG.replace("rank 0", f"rank {rank}"), "program", **more)


def seen(*symptoms: Symptom, **more: Any) -> ClusterSnapshot:
    return scene.snapshot(scene.job(), symptoms=symptoms, **more)


def sick(*symptoms: Symptom) -> dict[str, str]:
    return {each.node: each.why for each in health.sick(seen(*symptoms), SETTINGS)}


def test_a_node_that_alone_has_lost_several_attempts_is_sick():
    assert sick(failed(attempt=1)) == {}
    assert sick(failed(attempt=1), failed(attempt=2)) == {
        "n1": "alone has lost 2 attempts, the last so: it was killed (SIGKILL)"
    }
    assert sick(failed(attempt=1), failed(attempt=1)) == {}  # two pods of one attempt: one fault
    assert sick(failed(attempt=1), failed(attempt=2, at=NOW - 2000)) == {}  # too long ago


def test_what_a_job_does_on_two_nodes_is_its_own():
    assert sick(failed("n1", 1), failed("n1", 2), failed("n2", 3)) == {}
    assert sick(failed("n1", 1), failed("n1", 2), failed("n2", 3, job=("team", "other"))) != {}


def test_the_same_traceback_on_two_nodes_is_the_users():
    errors = [bug("n1", 1, 0), bug("n1", 2, 1), bug("n2", 3, 7)]
    assert sick(*errors) == {}
    (own,) = health.own_errors(seen(*errors), SETTINGS)
    assert (own.job, own.nodes) == (("team", "digits"), ("n1", "n2"))
    # Users try again under another name, not in another namespace.
    again = [bug("n1", 1), bug("n2", 1, job=("team", "digits-2"))]
    assert {own.job[1] for own in health.own_errors(seen(*again), SETTINGS)} == {"digits", "digits-2"}
    assert health.own_errors(seen(bug("n1"), bug("n2", job=("others", "digits"))), SETTINGS) == []


def test_an_error_of_one_node_is_the_nodes_where_others_were_well():
    """A program that runs on one node only, and fails there, says nothing of the node."""
    alone = [bug(attempt=1), bug(attempt=2)]
    assert sick(*alone) == {}
    assert "n1" in sick(*(replace(s, beside=frozenset({"n2"})) for s in alone))
    other = [bug(attempt=1), failed(words="OSError: no NVLink", kind="program", job=("x", "y"))]
    assert "n1" in sick(*other)


def test_memory_is_nobodys_but_the_programs():
    assert sick(*(failed(attempt=n, kind="memory", words="out of memory") for n in range(5))) == {}


def test_what_the_hardware_says_counts_at_once():
    assert sick(failed(kind="gpu", words="Xid 79 (the GPU has fallen off the bus)")) == {
        "n1": "has a bad GPU: Xid 79 (the GPU has fallen off the bus)"
    }


def test_conditions_of_the_node_count_while_it_answers():
    snapshot = seen()
    bad = replace(snapshot.nodes["n1"], conditions=frozenset({"KernelDeadlock", "Other"}))
    known = replace(snapshot, nodes={**snapshot.nodes, "n1": bad})
    assert [(s.node, s.why) for s in health.sick(known, SETTINGS)] == [("n1", "reports KernelDeadlock")]
    gone = replace(snapshot, nodes={"n1": replace(bad, ready=False)})
    assert health.sick(gone, SETTINGS) == []


def test_nodes_that_are_gone_are_not_named():
    assert sick(failed("n9", 1), failed("n9", 2)) == {}


@pytest.mark.parametrize(
    ("save", "action"), [(None, "checkpoint"), ("policy/health: why", "migrate"), ("ann", "checkpoint")]
)
def test_jobs_are_saved_and_then_leave(save, action):
    request = None if save is None else Request("checkpoint", save, "done", 1, NOW - 5)
    job = scene.job(save=request)
    snapshot = scene.snapshot(job, symptoms=(failed(attempt=1), failed(attempt=2)))

    def trouble(policy: str, what: str, error: BaseException | None) -> None:
        raise AssertionError(what) from error

    (found,) = policies.ask({"health": lambda s: health.propose(s, SETTINGS)}, snapshot, trouble)
    assert (found.action, found.policy) == (action, "health")
    assert found.reason.startswith("node n1 alone has lost 2 attempts")
    assert found.gain_device_seconds > 0
    assert health.propose(scene.snapshot(job), SETTINGS) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rank 3 ended with code 1: KeyError: 7", "rank 12 ended with code 1: KeyError: 9", True),
        ("bus error at 0x7f31ab", "bus error at 0xdeadbeef", True),
        ("KeyError: 'a'", "KeyError: 'b'", False),
    ],
)
def test_numbers_do_not_make_another_error(one, other, same):
    assert (health.signature(one) == health.signature(other)) is same
