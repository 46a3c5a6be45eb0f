"""The product's policies in the simulator: what they are shown, and what they are worth where they should help."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.cluster import seam, study
from benchmarks.cluster.history import EPOCH
from benchmarks.cluster.model import HELD, Cluster, Flavor, Job, Setting, Tier
from benchmarks.cluster.seam import DEVICE, Planner, acting, modes
from benchmarks.cluster.simulator import Simulation
from kueue_integration.controller.planning.selection import chosen
from kueue_integration.planner import free, measure
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.policies import sla_tiers
from kueue_integration.planner.settings import PlannerSettings

HOUR_S = 3600.0
SURE = replace(HELD, fails=0.0)


def a_job(number: int, workers: int, at: float, hours: float, **more: Any) -> Job:
    values = {"least": workers, "most": workers, "alpha": 0.9, "spread": 0.5, "speeds": {"v100": 1.0}, **more}
    return Job(number, 0, at, workers, family="X", work_s=hours * HOUR_S, gb=1.0, **values)


def played(jobs: list[Job], nodes: int, names: tuple[str, ...], regrowth: bool, classes: bool = False) -> Simulation:
    told = Planner.of(acting(names, 120.0), regrowth) if names or regrowth else None
    made = Simulation(Cluster([Flavor("v100", nodes, 2.0)], [1.0]), jobs, Setting(SURE, classes), told)
    made.run()
    return made


def completion(made: Simulation) -> float:
    return sum((a.finished_at or 0) - a.job.arrival_s for a in made.jobs.values()) / len(made.jobs)


def looks(jobs: list[Job], nodes: int = 2, classes: bool = False) -> list[ClusterSnapshot]:
    """One look after each event."""
    found: list[ClusterSnapshot] = []

    def watch(made: Simulation) -> None:
        found.append(made._look())

    Simulation(Cluster([Flavor("v100", nodes, 2.0)], [1.0]), jobs, Setting(SURE, classes), watch=watch).run()
    return found


def test_a_job_that_runs_and_one_that_waits_as_the_planner_sees_them() -> None:
    runs, waits = (
        a_job(0, 12, 0, 1, tier=Tier.PREMIUM),
        a_job(1, 8, 60, 1, least=6, most=16, tier=Tier.PREMIUM),
    )
    seen = next(one for one in looks([runs, waits], classes=True) if one.now == EPOCH + 60)
    first, second = (seen.jobs["tenant-0", f"job-{n}"] for n in (0, 1))
    assert first.trains and first.given is not None and first.given.usage == {DEVICE: 12}
    assert first.runs_since == EPOCH + SURE.start_s and first.nodes == {"v100-0", "v100-1"} <= seen.nodes.keys()
    assert not first.resizable and second.resizable and (second.fewest, second.wanted, second.ranks) == (6, 8, 16)
    assert second.given is None and second.workload is not None and second.workload.waits
    assert (second.priority_class, second.own_priority) == ("premium", Tier.PREMIUM.priority)
    queue = seen.queues["queue-0"]
    assert free.room(seen, queue) == {("v100", DEVICE): 4}
    assert [one.name for one in free.waiting(seen, queue)] == ["job-1"] and second.workload.asks == {DEVICE: 6}


def test_its_records_tell_what_a_move_cost_and_how_fast_it_was() -> None:
    owner, borrower = a_job(1, 8, 500, 1), replace(a_job(0, 16, 0, 1, least=4, most=16), tenant=1)
    found: list[ClusterSnapshot] = []

    def watch(made: Simulation) -> None:
        found.append(made._look())

    Simulation(Cluster([Flavor("v100", 2, 2.0)], [0.5, 0.5]), [borrower, owner], Setting(SURE), watch=watch).run()
    last = [seen.jobs["tenant-1", "job-0"] for seen in found if ("tenant-1", "job-0") in seen.jobs][-1]
    assert [(r.pods, r.ended_by) for r in last.attempts] == [(16, "Preempted"), (8, None)]
    assert measure.save_s(last) == pytest.approx(SURE.leave_s + 2.0 * 8)
    assert measure.restore_s(last) == pytest.approx(SURE.come_s + 2.4 * 16)
    (full,) = (speed for speed in measure.speeds(last) if speed.workers == 16)
    assert full.steps_per_s == pytest.approx(1.0, rel=0.01), "a step is a second of its work"


def test_what_has_not_changed_is_not_made_again() -> None:
    seen = looks([a_job(0, 8, 0, 1), *(a_job(n, 8, 60 * n, 1) for n in (1, 2, 3))])
    pairs = pairwise(seen)
    same = [a.jobs[k] is b.jobs[k] for a, b in pairs for k in a.jobs.keys() & b.jobs.keys()]
    assert any(same) and not all(same)


@pytest.mark.parametrize("name", study.HERE)
def test_every_policy_of_the_planner_is_played_as_the_controller_has_it(name: str) -> None:
    settings = acting([name], 60.0)
    assert list(chosen(settings, "act")), "its mode switches it on"
    jobs = [a_job(n, 4 + 4 * (n % 2), 120.0 * n, 0.4, least=2, most=8) for n in range(12)]
    made = played(jobs, 2, (name,), regrowth=False)
    assert all(active.finished_at for active in made.jobs.values())
    assert made.planner is not None and not made.planner.refused["nonsense"]
    assert name.replace("_", " ") in study.CONTENDERS


def test_a_policy_that_is_added_to_the_settings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Borrowing:
        mode: str = "none"

    before = modes()
    more = make_dataclass(
        "More", [("borrowing", Borrowing, field(default_factory=Borrowing))], bases=(PlannerSettings,), frozen=True
    )
    monkeypatch.setattr(seam, "PlannerSettings", more)
    assert modes() == [*before, "borrowing"]
    assert acting(["borrowing"], 60.0).borrowing.mode == "act"  # type: ignore[attr-defined]


def test_settings_that_the_controller_would_refuse() -> None:
    with pytest.raises(ValueError, match="both set priorities"):
        acting(["attained_service", "sla_tiers"], 60.0)
    with pytest.raises(ValueError, match="policy luck: there is none of this name; there are cordon, "):
        acting(["luck"], 60.0)
    assert study.compatible(["attained_service", "sla_tiers", "time_sharing"]) == ["attained_service", "time_sharing"]


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("attained_service", [a_job(0, 16, 0, 40), a_job(1, 16, 60, 0.5)]),
        ("time_sharing", [a_job(0, 16, 0, 40), a_job(1, 16, 60, 0.5)]),
        ("", [a_job(0, 12, 0, 1), a_job(1, 16, 60, 20, least=4)]),
        ("marginal_gain", [a_job(0, 12, 0, 1), a_job(1, 8, 60, 40, least=2, most=16)]),
    ],
    ids=["attained service", "time sharing", "regrowth", "marginal gain"],
)
def test_a_policy_helps_the_workload_that_it_is_for(name: str, jobs: list[Job]) -> None:
    regrowth = name in ("", "marginal_gain")
    base = played(jobs, 2, (), regrowth and bool(name))
    assert completion(played(jobs, 2, (name,) if name else (), regrowth)) < 0.95 * completion(base)


def test_who_is_behind_its_promise_is_served_first() -> None:
    basic = [a_job(n, 8, 0.0, 20, tier=Tier.BASIC) for n in range(2)]
    jobs = [*basic, a_job(2, 8, 600, 2, tier=Tier.BASIC)]
    waited = [made.jobs[2].first_admitted for made in (played(jobs, 2, names, False, True) for names in ((), SLA))]
    assert waited[1] is not None and waited[0] is not None and waited[1] < waited[0] - 10 * HOUR_S


SLA = ("sla_tiers",)


def test_taking_turns_costs_where_all_jobs_are_alike() -> None:
    jobs = [a_job(n, 16, n, 10) for n in range(3)]
    assert completion(played(jobs, 2, ("time_sharing",), False)) > 1.15 * completion(played(jobs, 2, (), False))


def test_the_order_in_which_policies_win_is_the_products() -> None:
    told = Planner.of(acting(["sla_tiers", "time_sharing"], 60.0), regrowth=True)
    assert list(told._policies) == ["regrow", sla_tiers.NAME, "timeSharing"]
