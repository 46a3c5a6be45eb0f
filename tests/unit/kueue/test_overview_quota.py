"""Nominal, borrowed, used, free and available quota of queues and cohorts."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overview_scene import NOW, cluster_queue, cohort, local_queue, workload

from kueue_integration.kube import quantities
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import Object
from kueue_integration.overview import quota
from kueue_integration.overview.look import look
from kueue_integration.overview.model import Cohort, Limit, Queue
from kueue_integration.overview.quota import Line, Usage
from kueue_integration.overview.report import overview

CPU = ("ondemand", "cpu")


def shown(*objects: Object, **options: Any) -> dict[str, Line]:
    """Lines of one look by name; `objects` have one flavor and one resource."""
    report = overview(look(FakeKube(*objects), NOW, **options))
    return {line.name: line for line in report.lines}


def numbers(line: Line) -> tuple[str, ...]:
    """nominal, borrowed, used, free, available."""
    return tuple(quantities.text(a) for a in (line.nominal, line.borrowed, line.used, line.free, line.available))


def holds(owner: str, queue: str, cpu: str, **options: Any) -> Object:
    return workload(owner, queue=queue, holds=(queue, {CPU: cpu}), **options)


def test_a_queue_alone() -> None:
    lines = shown(cluster_queue("a", {CPU: "4"}), holds("one", "a", "1500m"))
    assert numbers(lines["a"]) == ("4", "0", "1500m", "2500m", "2500m")


def test_what_one_queue_borrows_the_other_cannot_have() -> None:
    lines = shown(
        cluster_queue("a", {CPU: "4"}, "c"), cluster_queue("b", {CPU: "4"}, "c"), holds("one", "b", "6")
    )  # fmt: skip
    assert numbers(lines["a"]) == ("4", "0", "0", "4", "2"), "two of its four are lent"
    assert numbers(lines["b"]) == ("4", "2", "6", "0", "2")
    assert numbers(lines["c"]) == ("8", "0", "6", "2", "2")
    assert (lines["c"].depth, lines["a"].depth, lines["a"].cohort) == (0, 1, "c")


def test_quota_that_its_lending_limit_keeps_is_its_own() -> None:
    lines = shown(
        cluster_queue("a", {CPU: "4"}, "c", limits={"lendingLimit": "1"}), cluster_queue("b", {CPU: "4"}, "c"),
        holds("one", "b", "4"),
    )  # fmt: skip
    assert lines["a"].available == 4 and lines["b"].available == 1


def test_a_borrowing_limit_caps_what_the_cohort_gives() -> None:
    capped = cluster_queue("a", {CPU: "4"}, "c", limits={"borrowingLimit": "1"})
    lines = shown(capped, cluster_queue("b", {CPU: "4"}, "c"))
    assert lines["a"].available == 5 and lines["b"].available == 8


def test_a_cohort_has_quota_of_its_own_and_a_cohort_above_it() -> None:
    lines = shown(
        cohort("all", {CPU: "10"}), cohort("team", {CPU: "2"}, parent="all"), cluster_queue("a", {CPU: "4"}, "team"),
        cluster_queue("b", {CPU: "1"}, "all"), holds("one", "a", "9"),
    )  # fmt: skip
    assert numbers(lines["all"]) == ("17", "0", "9", "8", "8")
    assert numbers(lines["team"]) == ("6", "3", "9", "0", "8")
    assert numbers(lines["a"]) == ("4", "5", "9", "0", "8")
    assert [(line.name, line.depth) for line in lines.values()] == [("all", 0), ("team", 1), ("a", 2), ("b", 1)]


def test_a_stopped_queue_can_be_given_nothing() -> None:
    lines = shown(cluster_queue("a", {CPU: "4"}, "c", stopPolicy="Hold"), cluster_queue("b", {CPU: "1"}, "c"))
    assert numbers(lines["a"]) == ("4", "0", "0", "4", "0") and lines["b"].available == 5


def test_cohorts_in_a_circle_are_shown_all_the_same() -> None:
    lines = shown(cohort("x", parent="y"), cohort("y", parent="x"), cluster_queue("a", {CPU: "4"}, "x"))
    assert numbers(lines["a"]) == ("4", "0", "0", "4", "4") and {"x", "y"} >= {lines["a"].cohort}


def test_pods_that_are_done_give_their_quota_back() -> None:
    done = holds("one", "a", "4", pods=4, reclaimablePods=[{"name": "main", "count": 3}])
    assert shown(cluster_queue("a", {CPU: "4"}), done)["a"].used == 1


def test_without_a_right_to_see_all_workloads_kueues_own_account_fills_in() -> None:
    queue = cluster_queue("a", {CPU: "4"}, reserved={CPU: "3"})
    mine, theirs = holds("one", "a", "1"), holds("two", "a", "2", namespace="other")
    line = shown(queue, mine, theirs, namespace="default")["a"]
    assert line.used == 3 and line.usage == Usage(other=Fraction(1), unseen=Fraction(2))
    assert shown(queue, mine, theirs)["a"].usage == Usage(other=Fraction(3))
    late = cluster_queue("a", {CPU: "4"}, reserved={CPU: "0"})
    assert shown(late, mine, namespace="default")["a"].used == 1, "Kueue's status lags behind"


def test_more_was_admitted_than_there_is_now() -> None:
    lines = shown(cluster_queue("a", {CPU: "1"}), holds("one", "a", "3"), local_queue("q", "a"))
    assert numbers(lines["a"]) == ("1", "2", "3", "0", "0")


@pytest.mark.parametrize(
    ("amount", "resource", "text", "rounded"),
    [
        ("250m", "cpu", "250m", "250m"), ("4", "cpu", "4", "4"), ("1024", "nvidia.com/gpu", "1024", "1024"),
        ("16Gi", "memory", "17179869184", "16Gi"), ("1500Mi", "memory", "1572864000", "1.5Gi"),
        ("0", "memory", "0", "0"), ("1", "hugepages-2Mi", "1", "1"), ("100n", "cpu", "100n", "100n"),
    ],
)  # fmt: skip
def test_amounts_in_words(amount: str, resource: str, text: str, rounded: str) -> None:
    found = quantities.parse(amount)
    assert (quantities.text(found), quantities.rounded(found, resource)) == (text, rounded)
    assert quantities.parse(quantities.text(found)) == found


# --- what always holds ----------------------------------------------------------------------------------------------
amounts = st.builds(Fraction, st.integers(0, 40), st.just(4))
limits = st.builds(Limit, amounts, st.none() | amounts, st.none() | amounts)
KEYS = [("ondemand", "cpu"), ("spot", "cpu")]
usages = st.dictionaries(st.sampled_from(KEYS), st.builds(Usage, amounts, amounts, amounts))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Queue], list[Cohort], dict[str, Mapping[tuple[str, str], Usage]]]:
    names = ["", "c0", "c1", "c2"]
    quotas = st.dictionaries(st.sampled_from(KEYS), limits)
    cohorts = [Cohort(n, draw(st.sampled_from(names)), draw(quotas)) for n in names[1:] if draw(st.booleans())]
    queues = [
        Queue(f"q{i}", draw(st.sampled_from(names)), draw(quotas)) for i in range(draw(st.integers(0, 4)))
    ]
    return queues, cohorts, {queue.name: draw(usages) for queue in queues}


@settings(deadline=None)
@given(trees())
def test_used_and_free_are_nominal_and_borrowed_and_shares_add_up(
    tree: tuple[list[Queue], list[Cohort], dict[str, Mapping[tuple[str, str], Usage]]],
) -> None:
    queues, cohorts, usage = tree
    lines = quota.lines(queues, cohorts, usage)
    for line in lines:
        assert line.used + line.free == line.nominal + line.borrowed
        assert line.usage.training + line.usage.other + line.usage.unseen == line.used
        assert min(line.borrowed, line.free, line.available) == 0 or line.borrowed == 0
        assert line.available >= 0
    for key in KEYS:
        of = [line for line in lines if (line.flavor, line.resource) == key]
        held = sum((held[key].total for held in usage.values() if key in held), Fraction(0))
        assert sum(line.used for line in of if line.scope == "queue") == held
        assert sum(line.used for line in of if line.depth == 0) == held, "each queue is below one root"
        given = [q.limits[key].nominal for q in (*queues, *cohorts) if key in q.limits]
        assert sum(line.nominal for line in of if line.depth == 0) == sum(given, Fraction(0))


@settings(deadline=None)
@given(trees())
def test_what_is_available_could_be_admitted_without_more_quota_than_there_is(
    tree: tuple[list[Queue], list[Cohort], dict[str, Mapping[tuple[str, str], Usage]]],
) -> None:
    """A queue that takes all that is available leaves no queue of the tree with more than it had, and itself none."""
    queues, cohorts, usage = tree
    before = {(line.name, line.flavor, line.resource): line for line in quota.lines(queues, cohorts, usage)}
    for name, flavor, resource in before:
        line = before[name, flavor, resource]
        if line.scope != "queue" or line.available == 0:
            continue
        more = {**usage, name: {**usage[name], (flavor, resource): line.usage + Usage(other=line.available)}}
        after = {(one.name, one.flavor, one.resource): one for one in quota.lines(queues, cohorts, more)}
        assert after[name, flavor, resource].available == 0
        assert all(after[key].available <= before[key].available for key in before)
