"""The rules of Kueue's scheduler that decide who is preempted, each in a scene of its own.

They were read in Kueue 0.19.2 (pkg/scheduler, pkg/cache/queue). `test_cluster_simulator.py` has the rest.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks.cluster import kueue as rules
from benchmarks.cluster.active import Active, State
from benchmarks.cluster.kueue import Admit, Kueue, Preempt
from benchmarks.cluster.model import Cluster, Flavor, Job
from benchmarks.cluster.preemption import _Attempt, victims

ONE = Cluster([Flavor("v100", 2, 2.0)], [0.5, 0.5])
THREE = Cluster([Flavor("v100", 2, 2.0)], [0.5, 0.25, 0.25])


@pytest.fixture(autouse=True)
def no_release_within_a_cycle(monkeypatch):
    monkeypatch.setattr(rules, "UNDER_WAY", 0.0)


def active(number: int, workers: int, tenant: int = 0, priority: int = 0, least: int = 0, one_node=False) -> Active:
    speeds = {"v100": 1.0, "p100": 0.5}
    fewest = least or workers
    job = Job(number, tenant, float(number), workers, fewest, workers, "X", 9.0, 1.0, 1.0, speeds, 1.0, one_node)
    return Active(job, workers, priority=priority)


def decide(kueue: Kueue, now: float = 0.0) -> list[tuple]:
    """Carry out all that can be done now: (number, devices) of those that start, (number, victims) of preemptors."""
    made: list[tuple] = []
    while (decision := kueue.next()) is not None:
        one = decision.active
        if isinstance(decision, Admit):
            kueue.admit(decision)
            one.flavor, one.placement, one.devices = (
                decision.flavor, decision.placement, sum(decision.placement.values()),
            )  # fmt: skip
            one.state, one.admitted_at = State.RUNNING, now
            made.append((one.job.id, one.devices))
        else:
            for victim in decision.victims:
                victim.state = State.LEAVING
                kueue.holders[victim.job.tenant].touch()
            made.append((one.job.id, [victim.job.id for victim in decision.victims]))
    return made


def begin(cluster: Cluster, running: Sequence[Active]) -> Kueue:
    """Admitted one after the other."""
    kueue = Kueue(cluster)
    for place, one in enumerate(running):
        kueue.enqueue(one)
        assert decide(kueue, float(place)) == [(one.job.id, one.job.workers)]
    return kueue


def leave(kueue: Kueue, one: Active, queued: bool = True) -> None:
    kueue.release(one)
    one.state, one.devices, one.placement = State.WAITING, 0, {}
    if queued:
        kueue.enqueue(one)


def test_preemptors_of_one_moment_share_the_victims_that_leave_already():
    borrower = active(0, 16)
    kueue = begin(THREE, [borrower])
    kueue.enqueue(active(1, 4, tenant=1))
    assert decide(kueue) == [(1, [0])]
    kueue.enqueue(active(2, 4, tenant=2))
    assert decide(kueue) == [], "the victim that leaves makes room for both"
    leave(kueue, borrower)
    assert decide(kueue) == [(1, 4), (2, 4)]


def test_two_preemptors_of_a_cycle_have_no_victim_in_common():
    first, second = active(0, 8), active(1, 8)
    kueue = begin(THREE, [first, second])
    for one in (active(2, 4, tenant=1), active(3, 4, tenant=2)):
        kueue.enqueue(one)
    assert decide(kueue) == [(2, [1])], "the other one waits for the same victim in the next cycle"
    leave(kueue, second)
    assert decide(kueue) == [(2, 4), (3, 4)]


def test_a_preemptor_stays_the_head_of_its_queue_until_it_is_admitted():
    borrower = active(0, 12, tenant=1)
    kueue = begin(ONE, [borrower])
    kueue.enqueue(active(1, 8))
    assert decide(kueue) == [(1, [0])]
    kueue.enqueue(active(2, 2, priority=9))
    assert decide(kueue) == [], "there is quota for it, but it is not the head"
    leave(kueue, borrower, queued=False)
    assert decide(kueue) == [(1, 8), (2, 2)]


def test_who_asks_for_more_than_the_nominal_quota_preempts_nobody_for_quota():
    low = active(0, 8)
    kueue = begin(ONE, [low, active(1, 4, tenant=1)])
    kueue.enqueue(active(2, 9, priority=5))
    assert decide(kueue) == []
    kueue.requeue()
    kueue.enqueue(active(3, 8, priority=5))
    assert decide(kueue) == [(3, [0])]


def test_to_stay_within_its_quota_a_queue_gives_up_its_own_lower_jobs_and_reclaims():
    mine, other = active(0, 4), active(1, 12, tenant=1)
    kueue = begin(ONE, [mine, other])
    assert [one.job.id for one in victims(kueue, active(2, 8, priority=5), "v100", 8)] == [1, 0]
    assert [one.job.id for one in victims(kueue, active(3, 4, priority=5), "v100", 4)] == [1]
    assert victims(kueue, active(4, 8), "v100", 8) == (), "without a lower job of its own it would borrow"


def test_fewer_workers_may_preempt_where_all_of_them_may_not():
    borrower = active(0, 8, tenant=1)
    kueue = begin(ONE, [active(1, 2), borrower, active(2, 6, tenant=1)])
    elastic = active(3, 12, least=2)
    kueue.enqueue(elastic)
    (made,) = decide(kueue)
    assert made == (3, [2]), "six workers are within the quota: the last one of the others leaves"


def test_victims_that_are_not_needed_are_given_back():
    kueue = begin(ONE, [active(0, 8, tenant=1), active(1, 1, tenant=1), active(2, 7, tenant=1)])
    assert [one.job.id for one in victims(kueue, active(3, 7), "v100", 7)] == [2]
    assert [one.job.id for one in victims(kueue, active(3, 8), "v100", 8)] == [2, 1]


def test_what_could_not_be_admitted_waits_for_the_next_batch():
    first, second = active(0, 16), active(1, 16, tenant=1)
    kueue = begin(ONE, [first])
    kueue.enqueue(second)
    assert decide(kueue) == []
    leave(kueue, first, queued=False)
    assert decide(kueue) == []
    kueue.requeue()
    assert decide(kueue) == [(1, 16)]


def test_two_borrowers_put_each_other_out_until_a_release_falls_into_a_cycle(monkeypatch):
    """The older one takes all as a borrower, the other one reclaims a part: Kueue has nothing that ends it."""
    older, younger = active(1, 12, tenant=1, least=4), active(2, 16, least=4)
    kueue = Kueue(ONE)
    filler = active(0, 4)
    for one in (filler, older):
        kueue.enqueue(one)
        decide(kueue)
    kueue.enqueue(younger)
    assert decide(kueue) == [(2, [1])]
    for _ in range(5):
        leave(kueue, older)
        assert decide(kueue) == [(1, 12), (2, [1])]
    monkeypatch.setattr(rules, "UNDER_WAY", 1.0)
    leave(kueue, older)
    assert decide(kueue)[0] == (2, 12)


def test_a_preemptor_takes_its_node_before_those_that_come_after_it():
    small = [active(number, 4, tenant=1) for number in range(4)]
    kueue = begin(ONE, small)
    kueue.enqueue(active(5, 8, one_node=True))
    (made,) = decide(kueue)
    assert made[0] == 5 and len(made[1]) == 2
    gone = [one for one in small if one.state is State.LEAVING]
    leave(kueue, gone[0])
    assert decide(kueue) == [], "who has left would borrow, and comes after it"
    leave(kueue, gone[1])
    assert decide(kueue) == [(5, 8)]


def test_a_decision_names_only_who_does_not_leave_yet():
    first, second = active(0, 8, tenant=1), active(1, 8, tenant=1)
    kueue = begin(ONE, [first, second])
    first.state = State.LEAVING
    kueue.holders[1].touch()
    kueue.enqueue(active(2, 8))
    assert kueue.next() is None
    kueue.enqueue(active(3, 4))
    assert not isinstance(kueue.next(), Preempt)


def searched(kueue: Kueue, one: Active, count: int) -> tuple[Active, ...]:
    """As `victims`, without any of its short cuts: all candidates are sorted, and every attempt is made."""
    tenant, used, nominal = one.job.tenant, kueue.used["v100"], kueue.nominal["v100"]
    held = [job for holders in kueue.holders for job in holders.on("v100").jobs]
    mine = [job for job in held if job.job.tenant == tenant and job.priority < one.priority]
    others = [job for job in held if job.job.tenant != tenant and used[job.job.tenant] > nominal[job.job.tenant]]
    entitled = used[tenant] + count <= nominal[tenant]
    attempts = [True] if not others or used[tenant] >= nominal[tenant] else [entitled, not entitled]
    for borrowing in attempts:
        allowed = [*mine, *others] if entitled or not borrowing else mine
        allowed.sort(
            key=lambda job: (
                job.state is not State.LEAVING, job.job.tenant == tenant, job.priority, -job.admitted_at, job.job.id
            )
        )  # fmt: skip
        found = _Attempt(kueue, one, "v100", count, borrowing).smallest(allowed)
        if found:
            return found
    return ()


def test_short_cuts_find_the_same_victims():
    dice, some = random.Random(7), 0
    for _ in range(300):
        kueue = Kueue(Cluster([Flavor("v100", 4, 2.0)], [0.5, 0.25, 0.25], borrow=dice.choice([0.5, 1.0])))
        for number in range(12):
            kueue.enqueue(active(number, dice.choice([1, 2, 4, 8]), dice.randrange(3), dice.randrange(3)))
            decide(kueue, float(dice.randrange(5)))
        new = active(99, 1, dice.randrange(3), dice.randrange(4), one_node=dice.random() < 0.3)
        count = dice.choice([1, 2, 4, 8])
        found = victims(kueue, new, "v100", count)
        assert [one.job.id for one in found] == [one.job.id for one in searched(kueue, new, count)]
        some += bool(found)
    assert some > 50
