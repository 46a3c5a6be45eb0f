"""Defragmentation: who moves so that a job that waits fits, and when it is worth it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW

from kueue_integration.planner import blocked
from kueue_integration.planner.job import Job, Request
from kueue_integration.planner.model import ClusterSnapshot, Node
from kueue_integration.planner.policies import defragmentation
from kueue_integration.planner.policies.defragmentation import NAME
from kueue_integration.planner.proposals import nonsense

RACK = "example.com/rack"
FLAVORS = {"a100": {"gpu": "a100"}, "h100": {"gpu": "h100"}}


def node(name: str, rack: str, free: int, flavor: str = "a100", leaving: str = "") -> Node:
    labels = {RACK: rack, "kubernetes.io/hostname": name, "gpu": flavor}
    return Node(name, leaving, labels=labels, free={GPU: Fraction(free)})


def small(name: str, on: str, count: int = 1, **changes) -> Job:
    """A job that trains on one node, and whose moves were never measured: each of its devices costs 120 s."""
    job = scene.job(name, count=count, nodes=frozenset({on}), **changes)
    return replace(job, workload=replace(job.workload, pods=count, per_pod={GPU: Fraction(1)}))


def wide(pods: int = 4, level: str = RACK, waited: float = 1000.0, priority: int = 10, each: int = 1) -> Job:
    """A job that waits, and requires one domain of `level` for all of its pods."""
    found = scene.waiting("wide", devices=pods * each, priority=priority, since=NOW - waited)
    shape = {"pods": pods, "per_pod": {GPU: Fraction(each)}, "level": level}
    return replace(found, ranks=pods, workload=replace(found.workload, **shape))


def seen(
    *jobs: Job, nodes: tuple[Node, ...], devices: int = 16, flavors: tuple[str, ...] = ("a100",)
) -> ClusterSnapshot:
    made = scene.snapshot(*jobs, queues=(scene.queue(devices=devices, flavors=flavors),))
    return replace(made, nodes={n.name: n for n in nodes}, flavors=FLAVORS)


def moves(snapshot: ClusterSnapshot, most: int = 4):
    found = defragmentation.propose(snapshot, most)
    assert not [why for p in found if (why := nonsense(p, NAME, snapshot))]
    return [(p.job[1], p.nodes, round(p.gain_device_seconds)) for p in found]


TWO_RACKS = (node("n1", "a", 3), node("n2", "a", 0), node("n3", "b", 2))
"""Rack a lacks one device for four pods, rack b has room for two."""


def test_a_small_job_leaves_the_rack_that_a_wide_one_needs():
    found = moves(seen(small("small", "n2"), wide(), nodes=TWO_RACKS))
    assert found == [("small", ("n1", "n2"), 4000)]


@pytest.mark.parametrize(
    ("ends", "back", "since"),
    [
        ({"released_at": NOW - 90_000}, None, 90_000), ({"evicted_at": NOW - 70}, None, 70),
        ({"released_at": NOW - 90_000}, Request("resume", "ann", "done", 1, NOW - 5), 5),
        ({"released_at": NOW - 90_000}, Request("resize", "ann", "done", 1, NOW - 5), 90_000),
    ],
    ids=["left", "leaves", "paused for a day", "resized"],
)  # fmt: skip
def test_a_job_waits_since_it_left_or_was_queued_again(ends, back, since):
    """What it waits for is expected to take as long again: a job that was paused for a day would move everybody."""
    run = scene.record(1, admitted_at=NOW - 95_000, first_step_at=NOW - 94_000, **ends)
    waits = replace(wide(waited=99_000), attempts=(run,), change=back)
    (found,) = blocked.of(seen(waits, nodes=TWO_RACKS))
    assert NOW - found.since == since


def test_a_rack_with_room_is_kueues_matter():
    assert moves(seen(small("small", "n2"), wide(3), nodes=TWO_RACKS)) == []


def test_nobody_moves_who_would_find_no_other_place():
    full = (*TWO_RACKS[:2], node("n3", "b", 0))
    assert moves(seen(small("small", "n2"), wide(), nodes=full)) == []
    going = (*TWO_RACKS[:2], node("n3", "b", 2, leaving="is cordoned"))
    assert moves(seen(small("small", "n2"), wide(), nodes=going)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"topology": True}, {"held": False}, {"whole": False}, {"kind": "JobSet"}, {"priority": 11},
        {"change": Request("resize", "ann", "running")}, {"nodes": frozenset({"n1", "n2"})},
    ],
)  # fmt: skip
def test_who_is_not_to_be_moved_stays(change):
    job = small("small", "n2", **{k: v for k, v in change.items() if k != "nodes"})
    job = replace(job, nodes=change.get("nodes", job.nodes))
    assert moves(seen(job, wide(), nodes=TWO_RACKS)) == []


def test_who_is_as_large_as_the_one_that_waits_stays():
    places = (node("n1", "a", 0), node("n3", "b", 1))
    assert moves(seen(small("same", "n1", 2), wide(2), nodes=places)) == []


def test_the_cheapest_moves_are_chosen_and_none_that_is_not_needed():
    measured = scene.moved(1, 5000, save=5, restore=5)
    cheap = small("cheap", "n2", history=(measured,))
    assert [m[0] for m in moves(seen(small("dear", "n2"), cheap, wide(), nodes=TWO_RACKS))] == ["cheap"]
    # The cheapest for each device comes first, but it does not make enough room alone.
    places = (node("n1", "a", 2), node("n2", "a", 0), node("n3", "b", 3))
    assert [m[0] for m in moves(seen(cheap, small("pair", "n2", 2), wide(), nodes=places))] == ["pair"]


def test_a_plan_of_too_many_moves_is_none():
    places = (node("n1", "a", 1), node("n3", "b", 3))
    three = [small(f"s{n}", "n1") for n in range(3)]
    snapshot = seen(*three, wide(), nodes=places)
    assert [m[0] for m in moves(snapshot)] == ["s0", "s1", "s2"] and moves(snapshot, most=2) == []


def test_the_gain_is_shared_so_that_all_moves_pay_or_none():
    places = (node("n1", "a", 2), node("n3", "b", 3))
    two = [small("a", "n1"), small("b", "n1")]
    assert [m[2] for m in moves(seen(*two, wide(waited=100), nodes=places))] == [200, 200]  # each costs 120
    assert [m[2] for m in moves(seen(*two, wide(waited=50), nodes=places))] == [100, 100]  # the arbiter refuses both


def test_nobody_moves_while_quota_changes_hands_or_is_missing():
    leaving = small("leaves", "n3")
    leaving = replace(leaving, workload=replace(leaving.workload, leaves=True))
    assert moves(seen(small("small", "n2"), leaving, wide(), nodes=TWO_RACKS)) == []
    assert moves(seen(small("small", "n2"), wide(), nodes=TWO_RACKS, devices=4)) == []


def test_a_pod_that_no_node_has_room_for_gets_one():
    """It has quota, and no topology: two nodes have half of what it needs."""
    large = small("large", "n1", whole=False, unplaced=1)
    large = replace(large, nodes=frozenset(), devices_per_pod=8,
                    workload=replace(large.workload, per_pod={GPU: Fraction(8)}))  # fmt: skip
    places = (node("n1", "a", 7), node("n2", "a", 4), node("n3", "b", 3))
    assert moves(seen(small("small", "n1"), large, nodes=places)) == [("small", ("n1",), 8000)]


def test_a_job_leaves_the_flavor_whose_quota_another_one_needs():
    """Four of each flavor: two are taken on each, and three are asked for."""
    places = (node("n1", "a", 2), node("n2", "b", 2, "h100"))
    one = small("one", "n1")
    other = small("other", "n2", 2)
    used = {("h100", GPU): Fraction(2)}
    other = replace(other, given=replace(other.given, flavor="h100", flavors={GPU: "h100"}),
                    workload=replace(other.workload, holds=used))  # fmt: skip
    two = small("two", "n1")
    snapshot = seen(one, two, other, wide(3, level=""), nodes=places, devices=4, flavors=("a100", "h100"))
    assert moves(snapshot) == [("one", ("n1",), 3000)]
    pinned = [replace(job, flavors=("a100",)) for job in (one, two)]
    assert moves(seen(*pinned, replace(other, node_selector=True), wide(3, level=""), nodes=places, devices=4,
                      flavors=("a100", "h100"))) == []  # fmt: skip


def test_without_a_look_at_the_nodes_nothing_is_proposed():
    snapshot = replace(seen(small("small", "n2"), wide(), nodes=TWO_RACKS), flavors={})
    assert len(blocked.of(snapshot)) == 1 and moves(snapshot) == []


def test_nobody_is_blocked_in_a_cluster_where_all_fits():
    assert blocked.of(seen(small("small", "n2"), wide(level=""), nodes=TWO_RACKS)) == []


def test_nobody_leaves_a_stopped_queue_and_who_waits_in_one_is_not_helped():
    found = seen(small("small", "n2"), wide(), nodes=TWO_RACKS)
    stopped = {name: replace(queue, stopped=True) for name, queue in found.queues.items()}
    assert moves(replace(found, queues=stopped)) == []
    elsewhere = replace(wide(), workload=replace(wide().workload, queue="open"))
    two = seen(small("small", "n2"), elsewhere, nodes=TWO_RACKS)
    assert moves(replace(two, queues={**two.queues, "open": scene.queue("open", 16)})) != []
    assert moves(replace(two, queues={**stopped, "open": scene.queue("open", 16)})) == []
