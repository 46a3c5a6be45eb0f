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
from benchmarks.cluster.history import EPOCH
from benchmarks.cluster.model import HELD, PLAIN, SAVES, Cluster, Costs, Flavor, Job, Setting
from benchmarks.cluster.outcome import Outcome
from benchmarks.cluster.seam import Planner
from benchmarks.cluster.simulator import Simulation
from kueue_integration.planner.arbiter import Limits, Terms
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.policies import Policy
from kueue_integration.planner.proposals import Action, Proposal

SURE = replace(HELD, fails=0.0)
AGAIN_S = Setting().requeue_s
ONE = Cluster([Flavor("v100", 2, 2.0)], [0.5, 0.5])
TWO = Cluster([Flavor("v100", 2, 2.0), Flavor("p100", 2, 1.0)], [0.5, 0.3, 0.2])


def job(number: int, workers: int = 8, tenant: int = 0, at: float = 0.0, work_s: float = 1000.0, **more) -> Job:
    given_ = {"least": workers, "most": workers, "alpha": 1.0, "spread": 0.5, "speeds": {"v100": 1.0, "p100": 0.5}}
    return Job(number, tenant, at, workers, family="X", work_s=work_s, gb=1.0, **{**given_, **more})


def planner(policy: Policy, every_s: float = 50.0, limits: Limits | None = None) -> Planner:
    """Of one policy, called `test`, whose moves are not weighed."""
    return Planner({"test": policy}, {"test": Terms(limits or Limits(100.0), weigh=False)}, every_s)


def about(job: int, action: Action, tenant: int = 0, **more) -> Proposal:
    return Proposal(action, (f"tenant-{tenant}", f"job-{job}"), "for a test", 1.0, "test", **more)


def wild(seed: int) -> Policy:
    """Propose anything, sense or not, for a day: for ever would let no job without a checkpoint end."""
    dice, until = random.Random(seed), EPOCH + 86400

    def propose(seen: ClusterSnapshot) -> list[Proposal]:
        made: list[Proposal] = []
        for job in dice.choices(list(seen.jobs.values()), k=5) if seen.jobs else ():
            by = "test"
            made.append(Proposal("resume", job.key, "any", 1.0, by))
            made.append(Proposal("unpin", job.key, "any", 1.0, by))  # one flavor may never have room for it
            if seen.now > until:
                continue
            made.append(Proposal("priority", job.key, "any", 1.0, by, priority=dice.randint(-3, 3)))
            sizes = [0, job.fewest, job.wanted, job.ranks, 99]
            made.append(Proposal("resize", job.key, "any", 1.0, by, workers=dice.choice(sizes)))
            made.append(Proposal("migrate", job.key, "any", 1.0, by, nodes=tuple(dice.sample(sorted(seen.nodes), 2))))
            made.append(Proposal("migrate", job.key, "any", 1.0, by, flavor=dice.choice(["v100", "p100"])))
            made.append(Proposal(dice.choice(["pause", "readmit"]), job.key, "any", 1.0, by))
        dice.shuffle(made)
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
        # One that leaves has its old size, and may have another goal already.
        fewest = 1 if active.state is State.LEAVING else min(active.job.least, active.goal)
        assert fewest <= active.devices <= active.job.most, "a gang has all of its devices or none"
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
    runs = [
        Simulation(
            cluster, jobs, Setting(costs), None if policy == "nobody" else planner(wild(seed), 200), seed, watch
        ).run(200_000)
        for watch in (check, None)
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
    outcome = Simulation(wide, jobs, Setting(costs), None, seed, check).run(200_000)
    complete(outcome, jobs)
    for active in outcome.jobs:
        trained = (active.run_device_s - active.redone_device_s) * costs.slowdown(active.job)
        assert trained == pytest.approx(active.job.workers * active.job.work_s)
        assert costs.hold <= (active.redone_device_s == 0), "with the hold nothing is made again"


def run(jobs: list[Job], cluster: Cluster = ONE, costs: Costs = SURE, policy: Policy | None = None) -> list[Active]:
    told = None if policy is None else planner(policy)
    outcome = Simulation(cluster, jobs, Setting(costs), told, watch=check).run(100_000)
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
    ended = owner.first_admitted + SURE.start_s + 1000 + AGAIN_S
    assert borrower.finished_at == pytest.approx(ended + come + 1000 - (500 - SURE.start_s))


def test_nobody_is_preempted_for_a_borrower() -> None:
    first, second = run([job(0, 16), job(1, 16, tenant=1, at=500)])
    assert (first.preempted, second.first_admitted) == (0, first.finished_at + AGAIN_S)


@pytest.mark.parametrize(("costs", "lost_s"), [(PLAIN, 2500.0), (SAVES, 2500.0 - 1800.0)])
def test_without_a_hold_the_work_since_the_last_checkpoint_is_lost(costs: Costs, lost_s: float) -> None:
    costs = replace(costs, fails=0.0)
    borrower, _ = run([job(0, 16, work_s=9000.0), job(1, 8, tenant=1, at=2500 + costs.start_s)], costs=costs)
    assert borrower.redone_device_s == pytest.approx(16 * lost_s)


def test_a_higher_priority_preempts_in_its_own_queue_only() -> None:
    def raise_second(seen: ClusterSnapshot) -> list[Proposal]:
        return [about(1, "priority", priority=5)] if ("tenant-0", "job-1") in seen.jobs else []

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
    assert run([job(0, 13), elastic])[1].first_admitted == 1000 + SURE.start_s + AGAIN_S


def test_flavors_are_tried_in_order_before_anyone_is_preempted() -> None:
    first, second = run([job(0, 16), job(1, 8, tenant=1, at=5)], TWO)
    assert (first.preempted, second.flavor) == (0, "p100")
    assert second.finished_at == pytest.approx(5 + SURE.start_s + 2000)


def test_a_gang_of_one_node_waits_for_one_node_and_others_are_spread() -> None:
    fillers = [job(n, 5, at=0, work_s=1000) for n in range(2)]
    together, spread = run([*fillers, job(2, 6, at=1, one_node=True), job(3, 6, at=2, work_s=100)])[2:]
    assert together.first_admitted == 1000 + SURE.start_s + AGAIN_S
    assert spread.first_admitted == 2 and spread.finished_at == pytest.approx(2 + SURE.start_s + 200)


def test_pods_that_are_never_ready_are_tried_again_with_a_doubling_wait() -> None:
    (unlucky,) = run([job(0)], costs=replace(SURE, fails=0.9))
    failures = unlucky.attempts - 1
    waits = sum(min(60 * 2.0**n, 3600) for n in range(failures))
    assert failures > 0
    assert unlucky.finished_at == pytest.approx(failures * SURE.ready_s + waits + SURE.start_s + 1000)


@pytest.mark.parametrize(("action", "more"), [("readmit", {}), ("resize", {"workers": 4}), ("pause", {})])
def test_a_move_leaves_comes_back_and_costs_what_it_costs(action: Action, more: dict) -> None:
    def once(seen: ClusterSnapshot) -> list[Proposal]:
        (job,) = seen.jobs.values()
        return [about(0, "resume")] if job.paused else [about(0, action, **more)] if job.attempt < 2 else []

    (moved,) = run([job(0, least=2, most=8)], policy=once)
    leave, come = SURE.leave_s + 2.0 * 8, SURE.come_s + 2.4 * 8
    parked = 0.0 if action != "pause" else moved.records[1].queued_at - moved.records[0].released_at
    assert 0 <= parked <= 50 and len(moved.moves) == 1 and moved.redone_device_s == 0
    trained, rest = moved.moves[0] - SURE.start_s, 1000 - (moved.moves[0] - SURE.start_s)
    slower = 2 if action == "resize" else 1
    assert moved.finished_at == pytest.approx(SURE.start_s + trained + leave + parked + come + slower * rest)


def test_who_migrates_keeps_away_from_the_node_for_one_start() -> None:
    def away(seen: ClusterSnapshot) -> list[Proposal]:
        one = seen.jobs.get(("tenant-0", "job-0"))
        return [about(0, "migrate", nodes=tuple(one.nodes))] if one is not None and one.attempt == 1 else []

    places: list[frozenset[str]] = []

    def watch(simulation: Simulation) -> None:
        for seen in simulation._look().jobs.values():
            if seen.nodes and seen.nodes not in places:
                places.append(seen.nodes)

    Simulation(ONE, [job(0)], Setting(SURE), planner(away), watch=watch).run()
    assert places == [{"v100-0"}, {"v100-1"}]


def test_who_waits_for_one_flavor_and_may_go_everywhere_again_is_admitted() -> None:
    def there_and_back(seen: ClusterSnapshot) -> list[Proposal]:
        one = seen.jobs[("tenant-0", "job-0")]
        return [about(0, "unpin")] if one.flavors else [about(0, "migrate", flavor="p100")] if one.attempt == 1 else []

    cluster = Cluster([Flavor("v100", 1, 2.0), Flavor("p100", 1, 1.0)], [1.0])
    moved, _ = run([job(0, at=0.0), job(1, at=1.0, work_s=200.0)], cluster, policy=there_and_back)
    assert [record.flavor for record in moved.records] == ["v100", "v100"], "the other one had all of p100"


def test_the_planner_keeps_the_limits_of_the_product() -> None:
    def restless(seen: ClusterSnapshot) -> list[Proposal]:
        return [about(0, "readmit") for _ in range(2)]

    told = planner(restless, limits=Limits(300.0, moves_per_hour=2))
    simulation = Simulation(ONE, [job(0, work_s=9000)], Setting(SURE), told)
    (moved,) = simulation.run().jobs
    for place, at in enumerate(moved.moves):
        assert sum(at - 3600 < earlier <= at for earlier in moved.moves[: place + 1]) <= 2
    assert len(moved.moves) > 3
    assert told.refused["test"] > 100


def test_nonsense_is_refused_and_a_policy_that_raises_ends_the_study() -> None:
    def confused(seen: ClusterSnapshot) -> list[Proposal]:
        return [about(0, "resize", workers=99), about(0, "migrate", nodes=("moon",)), about(77, "readmit")]

    def broken(seen: ClusterSnapshot) -> list[Proposal]:
        raise KeyError("x")

    told = planner(confused, 500)
    assert not Simulation(ONE, [job(0)], Setting(SURE), told).run().jobs[0].moves
    assert told.refused == Counter({"nonsense": 6})
    with pytest.raises(KeyError):
        Simulation(ONE, [job(0)], Setting(SURE), planner(broken, 500)).run()
    save = planner(lambda seen: [about(0, "checkpoint")], 500)
    with pytest.raises(ValueError, match="policy test: the simulator has no checkpoint"):
        Simulation(ONE, [job(0)], Setting(SURE), save).run()


@pytest.mark.parametrize("bad", [job(0, 17), job(0, tenant=2), job(0, speeds={"k80": 1.0})])
def test_a_job_that_can_never_run_is_told_before_the_start(bad: Job) -> None:
    with pytest.raises(ValueError, match="job 0: tenant = "):
        Simulation(ONE, [bad], Setting())


def test_a_simulation_without_an_end_is_an_error_and_looks_do_not_count() -> None:
    idle = planner(lambda seen: [], every_s=1.0)
    assert Simulation(ONE, [job(0, work_s=9000)], Setting(SURE), idle).run().events < 10
    with pytest.raises(RuntimeError, match="after 2 events 1 jobs are not done"):
        Simulation(ONE, [job(0)], Setting(SURE)).run(2)
