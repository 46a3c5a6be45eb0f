"""The policies that set priorities: least attained service and service tiers; and what gives it all back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_scene import GPU, NOW

from kueue_integration.contract import priority
from kueue_integration.contract.priority import Mark
from kueue_integration.planner.arbiter import Arbiter, Limits, Terms
from kueue_integration.planner.job import Job, Request
from kueue_integration.planner.policies import attained_service, sla_tiers, tidy

STEPS = [1000.0, 10_000.0]


def service(*jobs: Job, promote: float = 8.0):
    found = attained_service.propose(scene.snapshot(*jobs), STEPS, promote, 60.0)
    return {p.job[1]: (p.priority, round(p.gain_device_seconds)) for p in found}


def boosted(job: Job, to: int, policy: str) -> Job:
    assert job.workload is not None
    return replace(job, boosted_by=policy, workload=replace(job.workload, priority=to))


# --- least attained service -----------------------------------------------------------------------------------------
def test_who_has_had_more_falls_behind_who_has_had_less():
    old = scene.job("old")  # 2 devices for 1000 s
    assert service(old, scene.waiting()) == {"old": (9, 2000)}
    assert service(scene.job("young", since=NOW - 100), scene.waiting()) == {}
    ancient = scene.job("ancient", since=NOW - 6000)
    assert service(ancient)["ancient"][0] == 8


def test_nobody_moves_for_it_while_nobody_waits():
    """The gain is 0 then, and the arbiter asks for more than a move costs."""
    job = scene.job("old")
    (proposal,) = attained_service.propose(scene.snapshot(job), STEPS, 8.0, 60.0)
    judge = Arbiter({attained_service.NAME: Terms(Limits())})
    assert not judge.rule(scene.snapshot(job), [proposal], 0.0)[0].allowed
    later = scene.snapshot(job, scene.waiting())
    (proposal,) = attained_service.propose(later, STEPS, 8.0, 60.0)
    assert judge.rule(later, [proposal], 0.0)[0].allowed


@pytest.mark.parametrize(
    ("own", "other", "borrowed", "gains"),
    [
        ("LowerPriority", "Never", 0, False), ("LowerPriority", "Any", 0, False),
        ("LowerPriority", "Any", 2, True), ("LowerPriority", "Never", 2, False),
    ],
)  # fmt: skip
def test_nobody_gives_way_to_a_job_of_another_queue_that_may_not_preempt_it(own, other, borrowed, gains):
    """The planner's review: who trains within the nominal quota of its own queue lost its priority for nothing."""
    queues = (
        replace(scene.queue(devices=4 - borrowed, cohort="all"), preempts=own),
        replace(scene.queue("other", 2, "all"), reclaims=other),
    )
    waits = scene.waiting()
    assert waits.workload is not None
    waits = replace(waits, workload=replace(waits.workload, queue="other"))
    behind = tier(waits, "premium", 10)
    ahead = tier(scene.job("ahead", count=4), "basic", 10)
    found = sla_tiers.propose(scene.snapshot(ahead, behind, queues=queues), TIERS, 1000.0, 60.0)
    assert bool(found) is gains


def test_nobody_gives_way_where_its_queue_preempts_nobody():
    queues = (replace(scene.queue(devices=2), preempts="Never"),)
    ahead, behind = tier(scene.job("ahead"), "basic", 100), tier(scene.waiting("behind"), "basic", 10)
    assert not sla_tiers.propose(scene.snapshot(ahead, behind, queues=queues), TIERS, 1000.0, 60.0)


def test_who_starves_starts_again_in_the_first_queue():
    run = scene.record(1, admitted_at=NOW - 2100, first_step_at=NOW - 2080, released_at=NOW - 1600)
    assert service(waits_since(run)) == {"digits": (9, 0)}  # 500 s run, 1600 s waited
    assert service(waits_since(run), promote=3.0) == {}
    again = scene.record(2, admitted_at=NOW - 100, queued_at=NOW - 1700)
    back = replace(scene.job(since=NOW - 80), attempts=(run, again))
    assert service(back, promote=3.0) == {}  # what it had before does not count any more
    assert service(back) == {"digits": (9, 0)}


def test_the_time_of_a_pause_is_no_waiting_and_an_admission_changes_nothing():
    """It ran for 500 s, was paused for a day, and was queued again five seconds ago."""
    day = 86_400.0
    run = scene.record(1, admitted_at=NOW - day - 500, first_step_at=NOW - day - 480, released_at=NOW - day)
    back = replace(waits_since(run), change=Request("resume", "ann", "done", 1, NOW - 5))
    assert service(back) == {"digits": (9, 0)}
    again = scene.record(2, admitted_at=NOW, queued_at=NOW - 5)
    admitted = replace(scene.job(since=NOW - 100), attempts=(run, again))
    assert attained_service.served(back, NOW, 8.0) == attained_service.served(admitted, NOW, 8.0) == 1000.0


def waits_since(*records) -> Job:
    job = scene.job()
    assert job.workload is not None
    waiting = replace(job.workload, holds=None, waits=True, asks={GPU: Fraction(2)})
    return replace(job, given=None, runs_since=None, whole=False, attempts=records, workload=waiting)


def test_who_has_just_started_keeps_its_own_priority():
    """Kueue would send it away at once, and its restore would be for nothing."""
    past = (scene.moved(1, 2000),)
    started, trained = scene.job(history=past, since=NOW - 30), scene.job(history=past, since=NOW - 90)
    assert service(started, scene.waiting()) == {}
    assert service(boosted(started, 9, attained_service.NAME), scene.waiting())["digits"][0] == 10
    assert service(trained, scene.waiting())["digits"][0] == 9
    assert service(replace(started, runs_since=None), scene.waiting()) == {}  # it is being restored


def test_paused_jobs_keep_their_priority():
    assert service(scene.parked(scene.job(), "timeSharing")) == {}


@given(st.lists(st.floats(0, 1e5), max_size=4), st.floats(1, 100))
def test_its_queue_is_one_of_the_queues(ago, promote):
    job = scene.job("j", history=tuple(scene.moved(n + 1, a + 1000) for n, a in enumerate(ago)))
    for proposal in attained_service.propose(scene.snapshot(job, scene.waiting()), STEPS, promote, 60.0):
        assert 8 <= proposal.priority <= 10 and proposal.gain_device_seconds >= 0


# --- service tiers --------------------------------------------------------------------------------------------------
TIERS = {"premium": 0.9, "basic": 0.2, "free": 0.0}


def tier(job: Job, name: str, own: int) -> Job:
    assert job.workload is not None
    return replace(job, priority_class=name, own_priority=own, workload=replace(job.workload, priority=own))


def tiers(*jobs: Job):
    return {p.job[1]: p.priority for p in sla_tiers.propose(scene.snapshot(*jobs), TIERS, 1000.0, 60.0)}


def test_who_is_ahead_gives_way_to_who_is_behind():
    ahead, behind = tier(scene.job("ahead"), "basic", 100), tier(scene.waiting("behind"), "basic", 10)
    assert tiers(ahead, behind) == {"ahead": 9}
    assert tiers(ahead) == {}  # nobody waits


def test_nobody_gives_way_to_one_that_can_never_start():
    """Kueue would give the quota to somebody else, who has had what was promised."""
    ahead = scene.job("ahead", priority_class="basic")
    for devices, lowered in (8, True), (9, False):
        behind = replace(scene.waiting(devices=devices, since=NOW - 900), priority_class="premium")
        assert bool(tiers(ahead, behind)) is lowered


def test_who_gets_what_was_promised_keeps_its_place():
    served = tier(scene.job("served"), "premium", 100)  # 100 % of the window, promised 90 %: ahead by more than 5 %
    just = tier(scene.job("just", since=NOW - 900 + 20), "premium", 100)  # 90 %
    behind = tier(scene.waiting("behind", since=NOW - 500), "basic", 10)
    assert tiers(served, just, behind) == {"served": 9}


def test_a_tier_does_not_send_away_who_has_just_started():
    past, behind = (scene.moved(1, 500),), tier(scene.waiting("behind", since=NOW - 500), "premium", 10)
    fresh = tier(scene.job("fresh", history=past, since=NOW - 30), "free", 100)
    assert tiers(fresh, behind) == {}
    assert tiers(boosted(fresh, 9, sla_tiers.NAME), behind) == {"fresh": 100}
    assert tiers(tier(scene.job("old", history=past, since=NOW - 90), "free", 100), behind) == {"old": 9}


def test_classes_that_are_not_listed_are_left_alone():
    assert tiers(tier(scene.job("other"), "production", 100), tier(scene.waiting("behind"), "basic", 10)) == {}
    gone = boosted(tier(scene.job("gone"), "production", 100), 9, sla_tiers.NAME)
    assert tiers(gone) == {"gone": 100}


def test_its_own_priority_comes_back_when_nobody_is_behind():
    low = boosted(tier(scene.job("low"), "basic", 100), 9, sla_tiers.NAME)
    assert tiers(low) == {"low": 100}
    assert tiers(low, tier(scene.waiting("behind"), "basic", 10)) == {}  # it has it already


def test_who_gave_way_does_not_take_the_quota_back_before_the_other_has_had_its_promise():
    """Else both would send each other away as soon as one has the quota."""
    past = (scene.moved(1, 200),)
    waits = boosted(tier(scene.waiting("low", since=NOW - 2000), "free", 1000), 9, sla_tiers.NAME)
    waits = replace(waits, attempts=past)
    recovers = tier(scene.job("recovers", since=NOW - 100, created=NOW - 1000), "premium", 10)
    assert tiers(waits, recovers) == {}
    recovered = tier(scene.job("recovered", since=NOW - 1000), "premium", 10)
    assert tiers(waits, recovered) == {"low": 1000}


@pytest.mark.parametrize("leaves", [False, True])
def test_nor_while_the_other_has_quota_and_does_not_run(leaves):
    """Between the reservation of the quota and the start, and in an eviction by somebody else."""
    gave_way = boosted(tier(scene.waiting("low", since=NOW - 2000), "free", 1000), 9, sla_tiers.NAME)
    gave_way = replace(gave_way, attempts=(scene.moved(1, 200),))
    recovers = tier(scene.job("recovers", since=NOW - 100, created=NOW - 1000), "premium", 10)
    assert recovers.workload is not None
    begins = replace(recovers, given=None, whole=False, workload=replace(recovers.workload, leaves=leaves))
    assert tiers(gave_way, begins) == {}
    begins = replace(begins, attempts=(), runs_since=None)
    assert tiers(gave_way, begins) == {}
    assert tiers(gave_way, replace(begins, workload=replace(recovers.workload, holds=None))) == {"low": 1000}


def test_who_gave_way_and_is_no_longer_ahead_gets_its_own_priority_back():
    behind = boosted(tier(scene.waiting("low", since=NOW - 2000), "basic", 1000), 9, sla_tiers.NAME)
    recovers = tier(scene.job("recovers", since=NOW - 100, created=NOW - 1000), "premium", 10)
    assert tiers(behind, recovers) == {"low": 1000}


def test_the_gain_is_what_is_owed_and_no_more_than_the_surplus():
    ahead, behind = tier(scene.job("ahead"), "free", 100), tier(scene.waiting("behind", devices=1), "premium", 10)
    (proposal,) = sla_tiers.propose(scene.snapshot(ahead, behind), TIERS, 1000.0, 60.0)
    assert proposal.gain_device_seconds == pytest.approx(0.9 * 100)  # one device for 100 s
    assert proposal.reason == "had 100% of its device time, promised 0%: gives way to 1 that are behind"


def test_a_job_that_was_just_made_is_no_case():
    assert tiers(tier(scene.job("ahead"), "free", 100), tier(scene.waiting("new", since=NOW - 30), "premium", 10)) == {}


# --- given back -----------------------------------------------------------------------------------------------------
def test_what_a_policy_has_changed_is_given_back_when_it_is_off():
    low, parked = boosted(scene.job("low"), 3, "slaTiers"), scene.parked(scene.job("parked"), "timeSharing")
    seen = scene.snapshot(low, parked, scene.job("untouched"))
    assert {(p.action, p.job[1], p.priority) for p in tidy.propose(seen, set())} == {
        ("priority", "low", 10), ("resume", "parked", 0),
    }  # fmt: skip
    assert tidy.propose(seen, {"slaTiers", "timeSharing"}) == []


def test_a_priority_that_somebody_else_has_set_since_is_the_jobs_own():
    mark = Mark("slaTiers", 10, 9)
    assert (priority.unplanned(mark, 9), priority.unplanned(mark, 50), priority.unplanned(None, 7)) == (10, 50, 7)
    change = priority.change("slaTiers", 8, 9, mark)
    workload = {"metadata": {"annotations": change["metadata"]["annotations"]}}
    assert (change["spec"], priority.read(workload)) == ({"priority": 8}, Mark("slaTiers", 10, 8))
    back = priority.change("tidy", 10, 8, Mark("slaTiers", 10, 8))
    assert set(back["metadata"]["annotations"].values()) == {None} and back["spec"] == {"priority": 10}
