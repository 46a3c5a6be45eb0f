"""Cohorts with limits: what is free for a queue, and who waits for it in another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW
from test_planner_introspection import PRICES, ran
from test_planner_introspection import job as priced
from test_planner_sharing import measured

from kueue_integration.planner import free, model
from kueue_integration.planner.job import Job, Request, Workload
from kueue_integration.planner.model import ClusterSnapshot, Queue
from kueue_integration.planner.policies import introspection, lending, marginal_gain, regrow, time_sharing
from kueue_integration.planner.quota import Amounts
from kueue_integration.planner.settings import Introspection

KEY = ("a100", GPU)


def queue(name: str, devices: int, lends: int | None = None) -> Queue:
    """A queue of cohort c; `lends`: its lendingLimit."""
    found = scene.queue(name, devices, cohort="c")
    limit = {} if lends is None else {KEY: Fraction(lends)}
    return replace(found, groups=[replace(found.groups[0], most_lent=limit)])


def other(name: str, queue: str, *, holds: int = 0, asks: int = 0, priority: int = 10) -> Workload:
    """A Workload of somebody else that holds quota, or waits for it."""
    held = {KEY: Fraction(holds)} if holds else None
    wants = {GPU: Fraction(asks or holds)}
    return Workload("team", name, f"wl-{name}", queue, priority, NOW - 50, holds=held, asks=wants, waits=held is None)


def small() -> Job:
    return scene.job(wanted=4)


def regrown(*others: Workload, queues: tuple[Queue, ...]) -> bool:
    return bool(regrow.propose(scene.snapshot(small(), queues=queues, others=others), True, 0.0))


def test_quota_that_another_queue_lends_to_nobody_is_not_free():
    """The borrower has all that `training` has left. What `guarded` does not use is its own."""
    borrower = other("borrows", "guest", holds=2)
    queues = queue("training", 4), queue("guarded", 4, lends=0), queue("guest", 0)
    assert not regrown(borrower, queues=queues)
    assert regrown(borrower, queues=(queues[0], queue("guarded", 4), queues[2]))
    assert regrown(borrower, queues=(queue("training", 4, lends=0), queue("guarded", 4), queues[2]))


def test_what_is_kept_of_quota_that_is_lent_to_nobody_is_not_taken_from_others():
    queues = queue("training", 4), queue("guarded", 4, lends=0)
    seen = scene.snapshot(scene.job(), queues=queues)
    wish = {"guarded": {KEY: Fraction(4)}}
    assert free.room(seen, queues[0], wish)[KEY] == 2
    assert free.room(seen, queues[1], wish)[KEY] == 0
    assert free.room(seen, queues[0], {"guarded": {KEY: Fraction(5)}})[KEY] == 1


# `training` has 2 of its 4. `owner` waits for 6 of its 8, and 5 of these are lent to a guest: 5 are free.
QUEUES = queue("training", 4), queue("owner", 8), queue("guest", 0)
GUEST = other("borrows", "guest", holds=5)


@pytest.mark.parametrize("priority", [1, 10])
def test_who_waits_for_more_than_the_job_s_own_queue_has_counts(priority: int):
    """It would be admitted as soon as the job stops, and the job would wait for it to end."""
    assert not regrown(GUEST, other("waits", "owner", asks=6, priority=priority), queues=QUEUES)
    assert regrown(GUEST, queues=QUEUES)


def test_who_could_borrow_what_the_job_gives_up_would_slip_in():
    queues = queue("training", 4), queue("guest", 0)
    assert not regrown(other("waits", "guest", asks=3), queues=queues)
    assert regrown(other("waits", "guest", asks=5), queues=queues)


def gainers() -> dict[str, Job]:
    """By policy: a job that it would make larger, or cheaper, in free quota."""
    fast = measured("fast", one_s=2.0, two_s=1.0)
    cheap = priced(ran(1, "t4", 1.05))
    return {"regrow": small(), "marginalGain": fast, "lending": scene.job(), "introspection": cheap}


def proposes(policy: str, seen: ClusterSnapshot) -> bool:
    asked = {
        "regrow": lambda: regrow.propose(seen, True, 0.0),
        "marginalGain": lambda: marginal_gain.propose(seen),
        "lending": lambda: lending.propose(seen, 1800.0),
        "introspection": lambda: introspection.propose(seen, PRICES, Introspection("act")),
    }
    return bool(asked[policy]())


@pytest.mark.parametrize("policy", ["marginalGain", "lending", "introspection"])
def test_nobody_grows_or_moves_into_quota_that_the_owner_of_a_larger_queue_waits_for(policy: str):
    sizes = {"training": 4, "owner": 8, "guest": 0}
    queues = tuple(scene.queue(name, size, "c", ("a100", "t4")) for name, size in sizes.items())
    waits = other("waits", "owner", asks=6)
    for others, found in ((GUEST,), True), ((GUEST, waits), False):
        seen = scene.snapshot(gainers()[policy], queues=queues, others=others)
        assert proposes(policy, seen) is found


def test_who_may_never_have_so_much_in_its_own_queue_keeps_nobody_small():
    """It fits into the quota of the job's queue, and may not use that."""
    capped = queue("capped", 1)
    capped = replace(capped, groups=[replace(capped.groups[0], most_borrowed={KEY: Fraction(0)})])
    waits = other("waits", "capped", asks=3)
    assert regrown(waits, queues=(queue("training", 4), capped))


@pytest.mark.parametrize("policy", ["defragmentation", "introspection"])
def test_a_job_that_has_made_room_does_not_take_it_back_before_the_next_one_has_moved(policy: str):
    """It left `a100` for one that borrows, for which another job has to leave, too. Both moved back and forth."""
    change = Request("migrate", f"policy/{policy}: makes room in flavor a100 for waits", "done", 1, NOW - 900)
    moved = scene.job(wanted=2, change=change)
    given = replace(moved.given, flavor="t4", flavors={GPU: "t4"})
    moved = replace(moved, given=given, workload=replace(moved.workload, holds={("t4", GPU): Fraction(2)}))
    queues = tuple(scene.queue(name, 4, "c", ("a100", "t4")) for name in ("training", "owner"))
    there = replace(other("there", "owner", holds=1), holds={("t4", GPU): Fraction(1)})
    others = there, other("stays", "training", holds=2), other("waits", "owner", asks=8)
    back = regrow.propose(scene.snapshot(moved, queues=queues, others=others), True, 0.0)
    assert bool(back) is (policy != "defragmentation")
    assert regrow.propose(scene.snapshot(moved, queues=queues, others=others[:2]), True, 0.0)


# --- who is parked --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["regrow", "marginalGain", "lending", "introspection"])
def test_a_job_that_is_parked_until_its_turn_waits_for_the_quota_that_comes_free(policy: str):
    """Regrowth looks at each change, time sharing only now and then: it took what the next one in turn waits for."""
    parked = scene.parked(scene.job("parked", count=2), time_sharing.NAME)
    by_ann = replace(parked, change=Request("pause", "ann", "done", 1, NOW - 100))
    for waits, found in ((), True), ((parked,), False), ((by_ann,), True):
        seen = scene.snapshot(gainers()[policy], *waits, queues=(scene.queue(devices=6, flavors=("a100", "t4")),))
        assert proposes(policy, seen) is found


def test_a_cohort_is_summed_up_once_and_not_for_each_of_its_queues(monkeypatch: pytest.MonkeyPatch):
    """For each queue, and there for each queue in which somebody waits, 100 queues took 20 s after every change."""
    usual, sums = model.in_common, list[int]()

    def counted(queues: Sequence[Queue], used: Mapping[str, Amounts]) -> Amounts:
        sums.append(len(queues))
        return usual(queues, used)

    monkeypatch.setattr(model, "in_common", counted)
    monkeypatch.setattr(free, "in_common", counted)
    names = [f"q{number}" for number in range(20)]
    jobs = [scene.job(f"of-{name}", queue_name=name, wanted=4) for name in names]
    later = [other(f"later-{name}", name, asks=400) for name in names]
    queues = tuple(queue(name, 12) for name in names)
    assert len(regrow.propose(scene.snapshot(*jobs, queues=queues, others=tuple(later)), True, 0.0)) == 20
    assert sums == [20, 20], "what is held, and what a queue could hold at most"
