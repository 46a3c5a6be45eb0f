"""Time sharing and marginal gain: whose turn it is, and who gets the next worker."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW

from kueue_integration.planner.arbiter import Arbiter, Terms
from kueue_integration.planner.job import BY, Job, Request, Workload
from kueue_integration.planner.policies import marginal_gain, time_sharing

QUANTUM = 600.0


def turns(*jobs: Job, devices: int = 2, others: tuple[Workload, ...] = ()):
    seen = scene.snapshot(*jobs, queues=(scene.queue(devices=devices),), others=others)
    return [(p.action, p.job[1], round(p.gain_device_seconds)) for p in time_sharing.propose(seen, QUANTUM)]


# --- time sharing ---------------------------------------------------------------------------------------------------
def test_a_job_whose_quantum_is_over_makes_room_for_who_waits():
    assert turns(scene.job("runs"), scene.waiting()) == [("pause", "runs", 1200)]
    assert turns(scene.job("runs", since=NOW - 500), scene.waiting()) == []
    assert turns(scene.job("runs")) == []  # nobody waits


def test_who_fits_is_admitted_by_kueue():
    assert turns(scene.job("runs"), scene.waiting(), devices=4) == []


def test_who_can_never_fit_makes_nobody_wait():
    assert turns(scene.job("runs"), scene.waiting(devices=9)) == []


def test_other_priorities_are_kueues_matter():
    assert turns(scene.job("runs", priority=100), scene.waiting(priority=10)) == []
    assert turns(scene.job("runs", priority=10), scene.waiting(priority=100)) == []


def test_the_one_that_has_run_longest_goes_first():
    short, long = scene.job("short", since=NOW - 700), scene.job("long", since=NOW - 5000)
    found = turns(short, long, scene.waiting(), devices=4)
    assert found == [("pause", "long", 1200), ("pause", "short", 1200)], "the arbiter takes the first that may go"


def test_a_parked_job_gets_its_turn_when_it_fits():
    parked = scene.parked(scene.job("parked"), time_sharing.NAME)
    assert turns(parked) == [("resume", "parked", 0)]
    assert turns(parked, scene.job("runs")) == [("pause", "runs", 1200)]
    assert turns(parked, scene.job("runs", since=NOW - 10)) == []


def test_who_has_waited_longer_than_a_parked_job_comes_before_it():
    parked = scene.parked(scene.job("parked"), time_sharing.NAME, ago=100)
    parked = scene.parked(scene.job("parked"), time_sharing.NAME, ago=50)
    assert turns(parked, scene.waiting(since=NOW - 300)) == []  # it fits: Kueue admits it
    assert turns(parked, scene.waiting(since=NOW - 40)) == [("resume", "parked", 0)]


def test_a_parked_job_that_ran_on_borrowed_quota_comes_back_when_nobody_else_waits():
    wide = scene.parked(scene.job("wide", count=4), time_sharing.NAME)
    assert turns(wide) == [("resume", "wide", 0)]
    assert turns(wide, scene.waiting(since=NOW - 10)) == [], "Kueue admits who waits"


def test_a_parked_job_reclaims_what_its_queue_has_lent():
    parked = scene.parked(scene.job("parked"), time_sharing.NAME)
    borrower = scene.job("borrower", namespace="other", queue_name="other", count=4)
    queues = tuple(scene.queue(name, devices=2, cohort="all") for name in ("training", "other"))
    seen = scene.snapshot(parked, borrower, queues=queues)
    assert [(p.action, p.job[1]) for p in time_sharing.propose(seen, 600)] == [("resume", "parked")]


def test_a_parked_job_goes_on_with_what_its_cohort_has_free():
    """The planner's review: it stayed parked for days beside idle devices, and the job that ran was paused for it."""
    parked = scene.parked(scene.job("wide", count=4), time_sharing.NAME, ago=500)
    runs = scene.job("runs", since=NOW - 4000)
    queues = (scene.queue(devices=2, cohort="all"), scene.queue("lends", devices=6, cohort="all"))
    seen = scene.snapshot(parked, runs, queues=queues)
    assert [(p.action, p.job[1]) for p in time_sharing.propose(seen, QUANTUM)] == [("resume", "wide")]


@pytest.mark.parametrize("reclaims", ["Any", "LowerPriority", "Never"])
def test_who_waits_for_what_its_queue_has_lent_is_kueues_matter_where_kueue_takes_that_back(reclaims):
    borrower = scene.job("borrower", namespace="other", queue_name="other", count=4)
    own = replace(scene.queue(devices=4, cohort="all"), reclaims=reclaims)
    seen = scene.snapshot(scene.job("runs"), scene.waiting(), borrower, queues=(own, scene.queue("other", 2, "all")))
    expected = [] if reclaims == "Any" else [("pause", "runs")]
    assert [(p.action, p.job[1]) for p in time_sharing.propose(seen, QUANTUM)] == expected


def test_a_job_that_somebody_else_has_paused_stays_paused():
    job = scene.parked(scene.job("parked"), time_sharing.NAME)
    theirs = replace(job, change=Request("pause", "ann", "done", 1, NOW - 100))
    assert turns(theirs) == []
    assert turns(replace(job, change=Request("pause", f"{BY}other: why", "done", 1, NOW - 100))) == []


def test_workloads_of_others_take_their_turn_too():
    other = Workload("team", "ray", "wl-ray", "training", 10, NOW - 50, asks={GPU: Fraction(1)}, waits=True)
    assert turns(scene.job("runs"), others=(other,)) == [("pause", "runs", 1200)]


@pytest.mark.parametrize("change", [{"held": False}, {"change": Request("resize", "ann", "running")}])
def test_who_cannot_be_paused_keeps_nobody_else_running(change):
    long = scene.job("long", since=NOW - 5000, **change)
    assert turns(long, scene.job("short", since=NOW - 700), scene.waiting(), devices=4) == [("pause", "short", 1200)]
    assert turns(long, scene.waiting()) == []


def test_of_two_that_only_together_are_enough_one_whose_move_pays_goes_first():
    dear = scene.job("dear", since=NOW - 5000, history=(scene.moved(1, 9000, save=900.0),))
    waits = scene.waiting(devices=4)
    assert turns(dear, scene.job("b"), waits, devices=4) == [("pause", "dear", 1200)]
    assert turns(dear, scene.job("b"), scene.job("c", since=NOW - 900), waits, devices=6) == [("pause", "b", 1200)]


@pytest.mark.parametrize("how", ["asked", "leaves"])
def test_nobody_else_is_paused_while_one_makes_room(how):
    going = scene.job("going", since=NOW - 5000)
    assert going.workload is not None
    if how == "leaves":
        going = replace(going, whole=False, workload=replace(going.workload, leaves=True))
    else:
        going = replace(going, change=Request("pause", f"{BY}timeSharing: its turn", "asked"))
    assert turns(going, scene.job("stays"), scene.waiting(), devices=4) == []
    assert turns(going, scene.job("stays"), scene.waiting(devices=4), devices=4) == [("pause", "stays", 1200)]


def test_who_was_parked_goes_on_when_kueue_leaves_the_oldest_waiting_though_it_fits():
    """No node suits it, say. The devices would stand idle for ever."""
    stuck = scene.waiting("stuck", since=NOW - 300)
    parked = scene.parked(scene.job("parked"), time_sharing.NAME, ago=100)
    seen = scene.snapshot(stuck, parked, queues=(scene.queue(devices=2),))
    (back,) = time_sharing.propose(seen, QUANTUM)
    assert (back.action, back.job[1]) == ("resume", "parked")
    assert back.reason.endswith("; Kueue leaves waiting though there was room: team/job-stuck")
    just_left = scene.parked(scene.job("parked"), time_sharing.NAME, ago=30)
    assert turns(stuck, just_left) == [], "Kueue has had no time to admit it"
    started = scene.job("started", since=NOW - 10)
    assert turns(stuck, parked, started, devices=4) == [], "quota has just changed hands"
    own = Request("resume", f"{BY}{time_sharing.NAME}: its turn", "done", 1, NOW - 10)
    assert turns(replace(stuck, change=own), parked) == [], "it was queued a moment ago"


@pytest.mark.parametrize("policy", [time_sharing.NAME, "tidy"])
def test_nobody_is_paused_again_for_one_that_kueue_leaves_waiting(policy):
    stuck, other = scene.waiting("stuck", since=NOW - 300), scene.waiting("other", since=NOW - 200)
    told = ("team/job-gone", "team/job-stuck")
    turn = Request("resume", f"{BY}{policy}: its turn", "done", 1, NOW - 2000, memory=told)
    back = scene.job("back", change=turn)
    paused = turns(back, stuck)
    assert paused == ([] if policy == time_sharing.NAME else [("pause", "back", 1200)])
    seen = scene.snapshot(back, stuck, other, queues=(scene.queue(devices=2),))
    (pause,) = time_sharing.propose(seen, QUANTUM)
    whom = "other" if policy == time_sharing.NAME else "stuck"
    assert pause.reason.startswith(f"its turn is over after 980 s: job-{whom} has waited")
    assert pause.reason.endswith("team/job-stuck") == (policy == time_sharing.NAME)
    assert pause.memory == (("team/job-stuck",) if policy == time_sharing.NAME else ()), "it is not forgotten"


def test_who_was_paused_by_a_user_waits_since_it_was_queued_again_and_who_was_parked_keeps_its_place():
    left = scene.job("left", history=(scene.moved(1, 5000, by="Paused"),))
    assert left.workload is not None
    out = replace(left, given=None, runs_since=None, whole=False, attempts=left.attempts[:1],
                  workload=replace(left.workload, holds=None, waits=True, asks={GPU: Fraction(2)}))  # fmt: skip
    for by, first in (("ann", "later"), (f"{BY}{time_sharing.NAME}: its turn", "left")):
        back = replace(out, change=Request("resume", by, "done", 1, NOW - 20))
        seen = scene.snapshot(back, scene.waiting(), scene.job("runs"), queues=(scene.queue(devices=2),))
        (pause,) = time_sharing.propose(seen, QUANTUM)
        assert f": job-{first} has waited" in pause.reason


def test_everybody_gets_a_turn():
    """Three jobs on the devices of one: played out by hand for an hour, each of them runs."""
    served = dict.fromkeys("abc", 0)
    jobs = {n: scene.waiting(n, since=NOW - 10 + i) for i, n in enumerate("abc")}
    now = NOW
    for _ in range(60):
        now += 60
        seen = scene.snapshot(*jobs.values(), queues=(scene.queue(devices=2),), now=now)
        for proposal in time_sharing.propose(seen, QUANTUM):
            name = proposal.job[1]
            if proposal.action == "pause":
                jobs[name] = scene.parked(jobs[name], time_sharing.NAME, ago=NOW - now)
            else:
                jobs[name] = replace(jobs[name], paused=False)
        if not any(job.given for job in jobs.values()):
            waiting = [n for n, job in jobs.items() if not job.paused]
            if waiting:
                jobs[waiting[0]] = scene.job(waiting[0], since=now)
        for name, job in jobs.items():
            served[name] += job.given is not None
    assert min(served.values()) >= 15, served


# --- marginal gain --------------------------------------------------------------------------------------------------
def measured(name: str, *, one_s: float, two_s: float, left: int = 10_000, count: int = 2, **changes) -> Job:
    """A job of up to four workers that makes a step in `one_s` seconds with one worker, in `two_s` with two."""
    last = {1: one_s, 2: two_s}
    past = [
        scene.record(
            n, pods=w, admitted_at=NOW - 50_000, first_step_at=NOW - 49_000, last_step=1000,
            evicted_at=NOW - 49_000 + 1000 * s, released_at=NOW - 48_990 + 1000 * s, ended_by="Preempted",
        )
        for n, (w, s) in enumerate(last.items(), 1)
    ]  # fmt: skip
    job = scene.job(name, history=tuple(past), count=count, **changes)
    seen = NOW - 980 + 99 * last[count]
    return replace(job, steps_done=100, steps_seen_at=seen, steps_total=left + 100, steps_printed=100, ranks=4)


def gains(*jobs: Job, devices: int = 8, waiting: tuple[Job, ...] = ()):
    seen = scene.snapshot(*jobs, *waiting, queues=(scene.queue(devices=devices),))
    return [(p.action, p.job[1], p.workers) for p in marginal_gain.propose(seen)]


def test_the_next_workers_go_where_they_shorten_completion_most():
    scales, flat = measured("scales", one_s=2.0, two_s=1.0), measured("flat", one_s=1.1, two_s=1.0)
    assert gains(flat, scales) == [("resize", "scales", 4), ("resize", "flat", 4)], "the arbiter starts one of them"
    assert gains(flat) == [("resize", "flat", 4)]


def test_one_whose_growth_does_not_pay_keeps_nobody_else_small():
    """It was refused at every look, and nobody else was ever proposed."""
    dear, cheap = measured("dear", one_s=2.0, two_s=1.0), measured("cheap", one_s=1.6, two_s=1.0)
    slow = replace(dear.attempts[0], released_at=(dear.attempts[0].evicted_at or 0.0) + 40_000)
    seen = scene.snapshot(replace(dear, attempts=(slow, *dear.attempts[1:])), cheap)
    rulings = Arbiter({marginal_gain.NAME: Terms()}).rule(seen, marginal_gain.propose(seen), 0.0)
    assert [(r.proposal.job[1], r.allowed) for r in rulings] == [("dear", False), ("cheap", True)]


@pytest.mark.parametrize("change", [{"held": False}, {"change": Request("pause", "ann", "running")}])
def test_who_cannot_be_resized_neither_grows_nor_gives(change):
    scales, flat = measured("scales", one_s=2.0, two_s=1.0), measured("flat", one_s=1.1, two_s=1.0)
    assert gains(replace(scales, **change), flat) == [("resize", "flat", 4)]
    small, gives = measured("small", one_s=2.0, two_s=1.0, count=1, wanted=1), measured("flat", one_s=1.01, two_s=1.0)
    assert gains(small, replace(gives, **change), devices=3) == []


def test_nobody_gives_to_one_that_finds_free_quota():
    small, flat = measured("small", one_s=2.0, two_s=1.0, count=1, wanted=1), measured("flat", one_s=1.01, two_s=1.0)
    assert gains(small, flat, devices=4) == [("resize", "small", 2)]


def test_a_job_that_more_workers_slow_down_gets_none():
    assert gains(measured("worse", one_s=1.0, two_s=2.0)) == []


def test_without_free_quota_the_one_that_gains_least_gives():
    scales, flat = measured("scales", one_s=2.0, two_s=1.0), measured("flat", one_s=1.01, two_s=1.0)
    assert gains(scales, flat, devices=4) == []  # one worker of `flat` is not enough for the next size of `scales`
    small = measured("small", one_s=2.0, two_s=1.0, count=1, wanted=1)
    assert gains(small, flat, devices=3) == [("resize", "flat", 1)]
    (trade,) = marginal_gain.propose(scene.snapshot(small, flat, queues=(scene.queue(devices=3),)))
    assert trade.helps == small.key  # the arbiter refuses it while that one may not move


def test_a_trade_has_to_gain_more_than_both_moves_cost():
    flat = measured("flat", one_s=1.01, two_s=1.0)
    nearly_done = measured("small", one_s=2.0, two_s=1.0, left=100, count=1, wanted=1)
    assert gains(nearly_done, flat, devices=3) == []


def test_quota_that_somebody_waits_for_is_left_to_them():
    assert gains(measured("scales", one_s=2.0, two_s=1.0), waiting=(scene.waiting(),)) == []


@pytest.mark.parametrize("op", ["resize", "migrate"])
@pytest.mark.parametrize("state", ["asked", "running"])
@pytest.mark.parametrize("stage", ["trains", "leaves", "starts"])
def test_quota_that_a_job_on_the_move_is_about_to_take_is_left_to_it(op, state, stage):
    """The third device looks free while the other job is stopped and started for it."""
    flat = measured("flat", one_s=1.1, two_s=1.0, count=1, wanted=1)
    change = Request(op, f"{BY}marginalGain: because", state, 3)
    other = scene.job("other", count=1, wanted=2, change=change)
    assert gains(flat, replace(other, change=None), devices=3) == [("resize", "flat", 2)]
    if stage == "leaves":
        other = replace(other, workload=replace(other.workload, leaves=True), whole=False)
    if stage == "starts":
        other = replace(other, given=None, workload=replace(other.workload, holds=None), whole=False)
    assert gains(flat, other, devices=3) == []
    done = replace(other, change=replace(change, state="done"))
    assert gains(flat, done, devices=3) == [("resize", "flat", 2)]


def test_a_wish_that_the_quota_can_never_meet_keeps_nobody_small():
    flat = measured("flat", one_s=1.1, two_s=1.0, count=1, wanted=1)
    other = scene.job("other", count=1, wanted=4, change=Request("resize", "ann", "running", 3))
    assert other.workload is not None
    other = replace(other, workload=replace(other.workload, per_pod={GPU: Fraction(1)}))
    assert gains(flat, other, devices=3) == [("resize", "flat", 2)]
    assert gains(flat, other, devices=4) == []


@pytest.mark.parametrize(("devices", "sizes"), [(3, []), (4, []), (5, []), (6, [4]), (7, [4])])
def test_a_users_wish_for_more_workers_keeps_so_many_and_no_more(devices, sizes):
    """It trains on until they are free: two of those that the others do not hold."""
    scales = measured("scales", one_s=2.0, two_s=1.0)
    other = scene.job("other", count=1, wanted=2, ranks=2, change=Request("resize", "ann", "running", 1))
    assert [size for _, _, size in gains(scales, other, devices=devices)] == sizes


def test_a_user_s_wish_in_another_queue_keeps_what_is_left_of_the_cohort():
    scales, change = measured("scales", one_s=2.0, two_s=1.0), Request("resize", "ann", "running", 1)
    other = scene.job("other", queue_name="theirs", count=1, wanted=2, ranks=2, change=change)
    for theirs, found in ((2, 1), (1, 1), (0, 0)):
        queues = (scene.queue(devices=4, cohort="c"), scene.queue("theirs", theirs, "c"))
        assert len(marginal_gain.propose(scene.snapshot(scales, other, queues=queues))) == found, theirs


@pytest.mark.parametrize("change", [
    {"steps_total": None}, {"resizable": False}, {"attempts": ()}, {"wanted": 4}, {"runs_since": None},
])  # fmt: skip
def test_a_job_whose_completion_is_not_known_is_left_alone(change):
    job = measured("scales", one_s=2.0, two_s=1.0)
    if "attempts" in change:
        change = {"attempts": job.attempts[-1:]}  # one size
    assert gains(replace(job, **change)) == []
