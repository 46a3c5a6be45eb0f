"""Lending: who grows into spare quota, and who gives how much of it back to whom."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW

from kueue_integration.planner import quota
from kueue_integration.planner.arbiter import Arbiter, Terms
from kueue_integration.planner.job import BY, Job, Request, Workload
from kueue_integration.planner.model import Queue
from kueue_integration.planner.policies import lending, returns

EXPECT_S = 1800.0
KEY = ("a100", GPU)


def lent(name: str, devices: int, borrowed: int | None = None, kept: int | None = None, reported: int = 0) -> Queue:
    """A queue of cohort c: it borrows at most `borrowed`, and lends all but `kept`."""
    (group,) = scene.queue(name, devices).groups
    most = {} if borrowed is None else {KEY: Fraction(borrowed)}
    lends = {} if kept is None else {KEY: Fraction(devices - kept)}
    limited = replace(group, most_borrowed=most, most_lent=lends)
    return Queue(name, "c", [limited], {KEY: Fraction(reported)} if reported else {})


def owner(queue: str = "owner", devices: int = 2, priority: int = 10, **changes) -> Workload:
    """A Workload of somebody else that waits in `queue`."""
    each = {GPU: Fraction(1)}
    values = {"asks": {GPU: Fraction(devices)}, "waits": True, "pods": devices, "per_pod": each, **changes}
    return Workload("team", f"ray-{queue}", f"wl-{queue}", queue, priority, NOW - 50, **values)


def grows(*jobs: Job, queues: tuple[Queue, ...] = (), others: tuple[Workload, ...] = ()):
    seen = scene.snapshot(*jobs, queues=queues or (lent("training", 2), lent("owner", 6)), others=others)
    return [(p.job[1], p.workers, round(p.gain_device_seconds)) for p in lending.propose(seen, EXPECT_S)]


def gives(*jobs: Job, queues: tuple[Queue, ...] = (), others: tuple[Workload, ...] = (owner(),)):
    seen = scene.snapshot(*jobs, queues=queues or (lent("training", 2), lent("owner", 6)), others=others)
    return [(p.job[1], p.workers, round(p.gain_device_seconds)) for p in returns.propose(seen, EXPECT_S)]


# --- what Kueue would lend ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("queues", "room"),
    [
        ((lent("training", 2), lent("owner", 6)), 6),
        ((lent("training", 2), lent("owner", 6, reported=4)), 2),
        ((lent("training", 2, borrowed=3), lent("owner", 6)), 3),
        ((lent("training", 2), lent("owner", 6, kept=5)), 1),
        ((lent("training", 2), lent("owner", 6, kept=5, reported=4)), 1),
        ((lent("training", 4, kept=4), lent("owner", 6, reported=10)), 0),
    ],
)
def test_room_is_what_kueue_would_still_admit(queues, room):
    """Two of the queue's own are taken. In the last case its rest is lent to nobody, and the other has overdrawn."""
    seen = scene.snapshot(scene.job(), queues=queues)
    found = seen.spare[queues[0].name]
    assert found[KEY] == (room if queues[0].groups[0].most_lent == {} else 4 - 2 + 6 - 10)


def test_limits_are_read_from_the_cluster_queue():
    resources = [{"name": "cpu", "nominalQuota": "4", "borrowingLimit": "2", "lendingLimit": "500m"}]
    flavors = [{"name": "a", "resources": resources}, {"name": "b", "resources": [{"name": "cpu", "nominalQuota": 1}]}]
    (group,) = quota.groups({"spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}})
    assert group.most_borrowed == {("a", "cpu"): 2} and group.most_lent == {("a", "cpu"): Fraction(1, 2)}


# --- growth ---------------------------------------------------------------------------------------------------------
def test_a_job_grows_into_quota_that_its_cohort_does_not_use():
    assert grows(scene.job()) == [("digits", 4, 3600)]  # two more devices for half an hour
    assert grows(scene.job(), queues=(lent("training", 2), lent("owner", 1))) == []


def test_without_a_cohort_the_spare_quota_of_its_own_queue_counts():
    assert grows(scene.job(), queues=(scene.queue(devices=4),)) == [("digits", 4, 3600)]
    assert grows(scene.job(), queues=(scene.queue(devices=3),)) == []


def test_nobody_grows_in_a_cohort_of_a_tree():
    """A cohort beside it may have borrowed what looks spare."""
    seen = scene.snapshot(scene.job(), queues=(lent("training", 2), lent("owner", 6)))
    assert lending.propose(replace(seen, nested=frozenset({"other"})), EXPECT_S) != []
    assert lending.propose(replace(seen, nested=frozenset({"c"})), EXPECT_S) == []


def test_a_borrowing_limit_is_kept():
    assert grows(scene.job(), queues=(lent("training", 2, borrowed=1), lent("owner", 6))) == []
    assert grows(scene.job(count=1), queues=(lent("training", 1, borrowed=1), lent("owner", 6)))[0][:2] == ("digits", 2)


@pytest.mark.parametrize(
    "change", [{"resizable": False}, {"held": False}, {"whole": False}, {"change": Request("resize", "ann", "running")}]
)
def test_who_cannot_be_resized_without_loss_does_not_grow(change):
    assert grows(scene.job(**change)) == []


def test_nobody_grows_while_somebody_waits_who_could_have_it():
    assert grows(scene.job(), others=(owner(),)) == []
    assert grows(scene.job(), others=(owner(devices=9),)) == [("digits", 4, 3600)]  # it never fits


def test_nobody_grows_while_quota_changes_hands():
    leaves = owner(waits=False, holds={KEY: Fraction(1)}, leaves=True)
    assert grows(scene.job(), others=(leaves,)) == []
    returning = scene.job("other", change=Request("resize", f"{BY}{returns.NAME}: back", "running"), wanted=1)
    assert grows(scene.job(), returning) == []
    growing = scene.job("other", change=Request("resize", f"{BY}timeSharing: x", "running", 1), wanted=4)
    assert grows(scene.job(), growing) == [] != grows(scene.job(), replace(growing, change=None))


@pytest.mark.parametrize(
    ("queues", "grown"),
    [
        ((lent("training", 2), lent("owner", 6)), ["digits"]),  # four are spare: two for each of them
        ((lent("training", 2), lent("owner", 5)), []),
        ((lent("training", 2), lent("owner", 3)), []),  # one is spare: kept until the other one comes free
        ((lent("training", 2), lent("owner", 1)), []),
    ],
)
def test_a_users_wish_for_more_workers_keeps_so_many_and_no_more(queues, grown):
    """It trains on until they are free, however long that takes."""
    wishes = scene.job("other", change=Request("resize", "ann", "running", 1), wanted=4)
    assert [name for name, _, _ in grows(scene.job(), wishes, queues=queues)] == grown


def test_a_wish_that_the_cohort_can_never_meet_keeps_nothing():
    wishes = scene.job("other", change=Request("resize", "ann", "running", 1), wanted=8, ranks=8)
    assert grows(scene.job(), wishes, queues=(lent("training", 2), lent("owner", 6))) == []
    assert grows(scene.job(), wishes, queues=(lent("training", 2), lent("owner", 5)))[0][:2] == ("digits", 4)


def test_a_job_that_does_not_get_faster_does_not_grow():
    flat = scene.record(1, pods=1, first_step=0, last_step=100, first_step_at=NOW - 5000, evicted_at=NOW - 4900,
                        ended_by="Resized")  # fmt: skip
    fast = scene.job(history=(flat,), steps_done=481, steps_seen_at=NOW - 500)
    slow = replace(fast, attempts=(*fast.attempts[:-1], replace(fast.attempts[-1], first_step=0)))
    assert grows(slow) == []


def test_the_end_of_the_job_bounds_the_gain():
    near = scene.job(steps_done=481, steps_seen_at=NOW - 500, steps_total=491, steps_printed=481)
    ((_, _, gain),) = grows(near)
    assert gain == 2 * 10  # ten steps of a second


def test_who_was_admitted_with_less_than_it_wants_keeps_its_wish():
    assert grows(scene.job(count=1, wanted=4), queues=(lent("training", 1), lent("owner", 2)))[0][:2] == ("digits", 4)


def test_one_job_of_a_cohort_grows_at_a_time_priority_first():
    low, high = scene.job("low", count=1), scene.job("high", count=1, priority=100)
    seen = scene.snapshot(low, high, queues=(lent("training", 2), lent("owner", 6)))
    found = lending.propose(seen, EXPECT_S)
    assert [p.job[1] for p in found] == ["high", "low"]
    rulings = Arbiter({lending.NAME: Terms()}).rule(seen, found, 0.0)
    assert [r.allowed for r in rulings] == [True, False]


def test_one_whose_growth_does_not_pay_keeps_nobody_else_small():
    """It was refused at every look, and nobody else was ever proposed."""
    near = {"steps_done": 481, "steps_seen_at": NOW - 500, "steps_total": 491, "steps_printed": 481}
    high, low = scene.job("high", priority=100, count=1, **near), scene.job("low", count=1)
    seen = scene.snapshot(high, low, queues=(lent("training", 2), lent("owner", 6)))
    rulings = Arbiter({lending.NAME: Terms()}).rule(seen, lending.propose(seen, EXPECT_S), 0.0)
    assert [(r.proposal.job[1], r.allowed) for r in rulings] == [("high", False), ("low", True)]
    assert rulings[0].why == "it ends by itself in about 10 s, before it would be back"


# --- the way back ---------------------------------------------------------------------------------------------------
def test_a_borrower_shrinks_just_enough_for_who_waits_for_its_own_quota():
    grown = scene.job(count=4)
    queues = (lent("training", 2), lent("owner", 2))
    assert gives(grown, queues=queues) == [("digits", 2, 3600)]
    assert gives(grown, queues=queues, others=(owner(devices=1),)) == [("digits", 2, 1800)]  # sizes divide the ranks
    assert gives(grown, queues=(lent("training", 2), lent("owner", 3)), others=(owner(devices=1),)) == []  # it fits


def test_who_waits_beyond_the_quota_of_its_own_queue_has_no_claim():
    assert gives(scene.job(count=4), queues=(lent("training", 2), lent("owner", 2)), others=(owner(devices=3),)) == []


def test_who_is_within_its_own_quota_gives_nothing():
    assert gives(scene.job(count=4), queues=(lent("training", 4), lent("owner", 0)), others=(owner(devices=1),)) == []


def test_nobody_goes_below_its_fewest_workers():
    queues = (lent("training", 2), lent("owner", 2))
    assert gives(scene.job(count=4, fewest=4), queues=queues) == []


def test_the_lower_priority_gives_first_and_one_alone_if_that_is_enough():
    low, high = scene.job("low", count=2), scene.job("high", count=4, priority=100)
    queues = (lent("training", 2), lent("owner", 4))
    assert gives(low, high, queues=queues, others=(owner(devices=1),)) == [("low", 1, 1800)]
    assert gives(low, high, queues=queues, others=(owner(devices=2),)) == [("high", 2, 3600)]
    assert gives(low, high, queues=queues, others=(owner(devices=3),)) == [("high", 1, 5400)]
    both = scene.job("a", count=2), scene.job("b", count=2)
    tight = (lent("training", 2), lent("owner", 2))
    assert gives(*both, queues=tight) == [("a", 1, 3600)]  # and b when a leaves


def test_nobody_gives_if_that_is_not_enough():
    fixed = scene.job("fixed", count=4, resizable=False)
    queues = (lent("training", 1), lent("owner", 5))
    assert gives(fixed, scene.job("elastic", count=2), queues=queues, others=(owner(devices=3),)) == []


def test_what_is_on_its_way_back_already_counts():
    queues = (lent("training", 2), lent("owner", 2))
    grown = scene.job(count=4)
    leaving = replace(grown, workload=replace(grown.workload, leaves=True))
    assert gives(leaving, scene.job("other", count=2), queues=queues) == []
    asked = Request("resize", f"{BY}{returns.NAME}: back", "asked")
    assert gives(replace(grown, change=asked), scene.job("other", count=2), queues=queues) == []
    running = replace(grown, change=replace(asked, state="running"), wanted=2)
    assert gives(running, queues=queues) == []


def test_of_two_owners_the_second_one_gets_its_own_when_the_first_one_fits():
    queues = (lent("training", 2), lent("owner", 2), lent("third", 2))
    first, second = owner(devices=2, priority=50), owner("third")
    assert gives(scene.job(count=4), queues=queues, others=(first,)) == []
    assert gives(scene.job(count=4), queues=queues, others=(first, second)) == [("digits", 2, 3600)]


def test_an_elastic_owner_gets_its_whole_size_if_that_can_come_back_and_else_its_least():
    waits = scene.waiting("mine", devices=1)
    mine = replace(waits, wanted=4, fewest=1, workload=replace(waits.workload, queue="owner"))
    a, b = (scene.job(name, count=4, ranks=8) for name in "ab")
    assert gives(a, b, mine, queues=(lent("training", 2), lent("owner", 6)), others=()) == [("a", 1, 7200)]
    assert gives(a, mine, queues=(lent("training", 0), lent("owner", 4)), others=()) == [("a", 2, 1800)]


def test_several_queues_without_a_cohort_owe_each_other_nothing():
    queues = (scene.queue("training", 2), scene.queue("owner", 2))
    assert gives(scene.job(count=4), queues=queues) == []


def test_who_leaves_a_stopped_queue_would_not_come_back_and_who_waits_in_one_is_not_helped():
    stopped, owns = replace(lent("training", 2), stopped=True), lent("owner", 2)
    assert grows(scene.job(), queues=(stopped, lent("owner", 6))) == []
    assert gives(scene.job(count=4), queues=(stopped, owns)) == []
    assert gives(scene.job(count=4), queues=(lent("training", 2), replace(owns, stopped=True))) == []
    waits = (owner(),)
    assert grows(scene.job(), queues=(lent("training", 2), replace(owns, stopped=True)), others=waits)[0][1] == 4
