"""What the simulator must never do, whatever the workload and whatever a policy proposes; and single scenes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster import generator
from benchmarks.cluster.active import Active, State
from benchmarks.cluster.model import HELD, PLAIN, SAVES, Cluster, Costs, Flavor, Job, Limits, Setting
from benchmarks.cluster.seam import Action, Move, Policy, Priority, Resize, View, nobody
from benchmarks.cluster.simulator import Outcome, Simulation

SURE = replace(HELD, fails=0.0)
ONE = Cluster([Flavor("v100", 2, 2.0)], [0.5, 0.5])
TWO = Cluster([Flavor("v100", 2, 2.0), Flavor("p100", 2, 1.0)], [0.5, 0.3, 0.2])


def job(number: int, workers: int = 8, tenant: int = 0, at: float = 0.0, work_s: float = 1000.0, **more) -> Job:
    given_ = {"least": workers, "most": workers, "alpha": 1.0, "spread": 0.5, "speeds": {"v100": 1.0, "p100": 0.5}}
    return Job(number, tenant, at, workers, family="X", work_s=work_s, gb=1.0, **{**given_, **more})


def wild(seed: int) -> Policy:
    """Propose anything, sense or not, for a day: for ever would let no job without a checkpoint end."""
    dice = random.Random(seed)

    def propose(view: View) -> list[Action]:
        made: list[Action] = []
        for one in dice.choices(view.jobs, k=5) if view.jobs and view.now < 86400 else ():
            made.append(Priority(one.id, dice.randint(-3, 3), "any"))
            made.append(Resize(one.id, dice.choice([0, one.least, one.workers, one.most, 99]), "any"))
            made.append(Move(one.id, dice.choice(["v100", "p100", "none"]), dice.choice([None, 0, 1, 99, -5]), "any"))
        return made

    return propose


def check(simulation: Simulation) -> None:
    """Invariants at any moment."""
    kueue, holders = simulation.kueue, [a for a in simulation.present.values() if a.holds]
    for name, total in kueue.total.items():
        mine = [a for a in holders if a.flavor == name]
        used, nominal = kueue.used[name], kueue.nominal[name]
        assert sum(used) == sum(a.devices for a in mine) <= total
        for tenant, amount in enumerate(used):
            assert amount == sum(a.devices for a in mine if a.job.tenant == tenant)
            assert amount <= nominal[tenant] + int(simulation.cluster.borrow * (total - nominal[tenant]))
        for node, free in enumerate(kueue.nodes[name].free):
            assert free == 8 - sum(a.placement.get(node, 0) for a in mine) >= 0
    for active in holders:
        assert active.devices == sum(active.placement.values())
        assert active.job.least <= active.devices <= active.job.most, "a gang has all of its devices or none"
        assert not active.job.one_node or len(active.placement) == 1
    waiting = list(kueue.waiting())
    assert {a.job.id for a in waiting} == {a.job.id for a in simulation.present.values() if a.state is State.WAITING}


def complete(outcome: Outcome, jobs: list[Job]) -> None:
    assert [active.job for active in outcome.jobs] == jobs, "no job is lost"
    for active in outcome.jobs:
        assert active.state is State.DONE and active.first_admitted is not None and active.finished_at is not None
        assert active.job.arrival_s <= active.first_admitted < active.finished_at
        assert active.done_s == active.job.work_s and not active.devices


def facts(outcome: Outcome) -> list[tuple]:
    return [(a.finished_at, a.attempts, a.run_device_s, a.dollars, tuple(a.moves)) for a in outcome.jobs]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    strict=st.booleans(),
    borrow=st.sampled_from([0.0, 0.5, 1.0]),
    costs=st.sampled_from([PLAIN, SAVES, HELD, replace(HELD, fails=0.2)]),
    policy=st.sampled_from(["nobody", "wild"]),
)
def test_nothing_is_lost_or_given_twice(seed: int, strict: bool, borrow: float, costs: Costs, policy: str) -> None:
    cluster = replace(TWO, strict=strict, borrow=borrow)
    mix = generator.Mix(elastic=0.7, one_node=0.7, longest_s=20_000)
    made = generator.workload(seed, 1e6, 5e4, ["v100", "p100"], mix)
    narrow = [replace(one, tenant=one.tenant % 3) for one in made if one.workers <= 3]
    jobs = [replace(one, id=number) for number, one in enumerate(narrow)]
    setting = Setting(costs, Limits(least_run_s=60, at_once=0.5), tick_s=200)
    runs = [
        Simulation(cluster, jobs, setting, nobody if policy == "nobody" else wild(seed), seed, check).run(200_000)
        for _ in range(2)
    ]
    complete(runs[0], jobs)
    assert facts(runs[0]) == facts(runs[1]), "a seed repeats all of it"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), costs=st.sampled_from([PLAIN, SAVES, HELD]))
def test_work_is_conserved(seed: int, costs: Costs) -> None:
    mix = generator.Mix(elastic=0.0, longest_s=20_000)
    jobs = [replace(j, spread=1.0, tenant=j.tenant % 2) for j in generator.workload(seed, 1e6, 5e4, ["v100"], mix)]
    jobs = [replace(j, id=number) for number, j in enumerate(j for j in jobs if j.workers <= 8)]
    wide = Cluster([Flavor("v100", 2, 2.0)], [0.7, 0.3])
    outcome = Simulation(wide, jobs, Setting(costs), nobody, seed, check).run(200_000)
    complete(outcome, jobs)
    for active in outcome.jobs:
        trained = (active.run_device_s - active.redone_device_s) * costs.slowdown(active.job)
        assert trained == pytest.approx(active.job.workers * active.job.work_s)
        assert costs.hold <= (active.redone_device_s == 0), "with the hold nothing is made again"


def run(jobs: list[Job], cluster: Cluster = ONE, costs: Costs = SURE, policy: Policy = nobody) -> list[Active]:
    setting = Setting(costs, Limits(least_run_s=100), tick_s=50)
    outcome = Simulation(cluster, jobs, setting, policy, watch=check).run(100_000)
    complete(outcome, jobs)
    return list(outcome.jobs)


def test_a_job_alone_takes_its_work_and_its_start() -> None:
    (alone,) = run([job(0)])
    assert alone.finished_at == 1000 + SURE.start_s


def test_unused_quota_is_lent_and_reclaimed_and_a_move_costs_what_it_costs() -> None:
    borrower, owner = run([job(0, 16), job(1, 8, tenant=1, at=500)])
    leave, come = SURE.leave_s + 2.0 * 8, SURE.come_s + 2.4 * 8
    assert owner.first_admitted == 500 + leave, "the devices are busy until the state is saved"
    assert borrower.preempted == 1 and borrower.redone_device_s == 0
    ended = owner.first_admitted + SURE.start_s + 1000
    assert borrower.finished_at == pytest.approx(ended + come + 1000 - (500 - SURE.start_s))


def test_nobody_is_preempted_for_a_borrower() -> None:
    first, second = run([job(0, 16), job(1, 16, tenant=1, at=500)])
    assert (first.preempted, second.first_admitted) == (0, first.finished_at)


@pytest.mark.parametrize(("costs", "lost_s"), [(PLAIN, 2500.0), (SAVES, 2500.0 - 1800.0)])
def test_without_a_hold_the_work_since_the_last_checkpoint_is_lost(costs: Costs, lost_s: float) -> None:
    costs = replace(costs, fails=0.0)
    borrower, _ = run([job(0, 16, work_s=9000.0), job(1, 8, tenant=1, at=2500 + costs.start_s)], costs=costs)
    assert borrower.redone_device_s == pytest.approx(16 * lost_s)


def test_a_higher_priority_preempts_in_its_own_queue_only() -> None:
    def raise_second(view: View) -> list[Action]:
        return [Priority(one.id, 5, "raised") for one in view.jobs if one.id == 1 and one.priority == 0]

    jobs = [job(0), job(1, 8, at=10), job(2, 8, tenant=1)]
    low, high, other = run(jobs, policy=raise_second)
    assert (low.preempted, other.preempted) == (1, 0)
    assert high.first_admitted is not None and high.first_admitted < 100


def test_the_smallest_set_of_victims_leaves_latest_admitted_first() -> None:
    jobs = [*(job(n, 4, at=n) for n in range(4)), job(4, 4, tenant=1, at=500)]
    assert [active.preempted for active in run(jobs)] == [0, 0, 0, 1, 0]


def test_strict_fifo_blocks_and_best_effort_does_not() -> None:
    jobs = [job(0, 12), job(1, 16, at=1), job(2, 4, at=2)]
    assert run(jobs)[2].first_admitted == 2
    assert run(jobs, replace(ONE, strict=True))[2].first_admitted > 1000


def test_partial_admission_goes_down_to_the_least_and_not_below() -> None:
    elastic = job(1, 16, at=1, least=4, most=16)
    small = run([job(0, 12), elastic])[1]
    assert small.first_admitted == 1 and small.run_device_s == pytest.approx(16 * 1000)
    assert small.finished_at == pytest.approx(1 + SURE.start_s + 4000)
    assert run([job(0, 13), elastic])[1].first_admitted == 1000 + SURE.start_s


def test_flavors_are_tried_in_order_before_anyone_is_preempted() -> None:
    first, second = run([job(0, 16), job(1, 8, tenant=1, at=5)], TWO)
    assert (first.preempted, second.flavor) == (0, "p100")
    assert second.finished_at == pytest.approx(5 + SURE.start_s + 2000)


def test_a_gang_of_one_node_waits_for_one_node_and_others_are_spread() -> None:
    fillers = [job(n, 5, at=0, work_s=1000) for n in range(2)]
    together, spread = run([*fillers, job(2, 6, at=1, one_node=True), job(3, 6, at=2, work_s=100)])[2:]
    assert together.first_admitted == 1000 + SURE.start_s
    assert spread.first_admitted == 2 and spread.finished_at == pytest.approx(2 + SURE.start_s + 200)


def test_pods_that_are_never_ready_are_tried_again_with_a_doubling_wait() -> None:
    (unlucky,) = run([job(0)], costs=replace(SURE, fails=0.9))
    failures = unlucky.attempts - 1
    waits = sum(min(60 * 2.0**n, 3600) for n in range(failures))
    assert failures > 0
    assert unlucky.finished_at == pytest.approx(failures * SURE.ready_s + waits + SURE.start_s + 1000)


def test_the_arbiter_keeps_its_limits() -> None:
    def restless(view: View) -> list[Action]:
        return [Move(one.id, "v100", None, "for fun") for one in view.jobs for _ in range(2)]

    simulation = Simulation(ONE, [job(0, work_s=9000)], Setting(SURE, Limits(least_run_s=300), 50), restless)
    (moved,) = simulation.run().jobs
    for place, at in enumerate(moved.moves):
        assert sum(at - 3600 < earlier <= at for earlier in moved.moves[: place + 1]) <= 2
    assert len(moved.moves) > 3
    assert {"has just come", "moved too often", "a second move"} <= simulation.refused.keys()


def test_nonsense_is_refused() -> None:
    def confused(view: View) -> list[Action]:
        return [Resize(0, 99, ""), Resize(0, 0, ""), Move(0, "h900", None, ""), Move(77, "v100", None, "")]

    simulation = Simulation(ONE, [job(0)], Setting(SURE, tick_s=500), confused)
    assert not simulation.run().jobs[0].moves
    assert simulation.refused == Counter({"size out of bounds": 4, "cannot run there": 2, "no such job": 2})


@pytest.mark.parametrize("bad", [job(0, 17), job(0, tenant=2), job(0, speeds={"k80": 1.0})])
def test_a_job_that_can_never_run_is_told_before_the_start(bad: Job) -> None:
    with pytest.raises(ValueError, match="job 0: tenant = "):
        Simulation(ONE, [bad], Setting())
