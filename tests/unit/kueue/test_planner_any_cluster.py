"""Whatever the cluster looks like: no policy raises or proposes nonsense, and together they stay within the limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import planner_scene as scene
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_scene import GPU, NOW

from kueue_integration.controller.planning.selection import ORDER, chosen, in_order, terms
from kueue_integration.planner import blocked, measure, policies
from kueue_integration.planner.arbiter import Arbiter
from kueue_integration.planner.job import BY, Job, Request
from kueue_integration.planner.model import ClusterSnapshot, Symptom
from kueue_integration.planner.placing import HOSTNAME
from kueue_integration.planner.policies import Policy, cordon, defragmentation, lending, regrow, returns, tidy
from kueue_integration.planner.proposals import moves
from kueue_integration.planner.settings import (
    AttainedService,
    Cordon,
    Defragmentation,
    Health,
    Introspection,
    Lending,
    MarginalGain,
    PlannerSettings,
    SlaTiers,
    TimeSharing,
)  # fmt: skip
from singularity_proxy.protocol.messages import Gpus

TIME = st.floats(NOW - 20_000, NOW + 1000)
ENDS = st.sampled_from([None, "Preempted", "Migrated", "Paused", "Deleted", "Regrown"])
ALL = PlannerSettings(
    cordon=Cordon("act"), attained_service=AttainedService("act", [100.0, 5000.0]), marginal_gain=MarginalGain("act"),
    sla_tiers=SlaTiers("act", {"high": 0.9, "low": 0.1}), time_sharing=TimeSharing("act", 300.0),
    defragmentation=Defragmentation("act"), lending=Lending("act"),
    health=Health("act", failures=1, conditions=["Bad"]), prices={"a100": 3.0, "h100": 1.0},
    introspection=Introspection("act", min_speed=0.5),
)  # fmt: skip


@st.composite
def attempts(draw: Any) -> tuple[Any, ...]:
    """Records with any times, in any order: clocks jump, and annotations are lost."""
    return tuple(scene.record(number + 1, **draw(RECORD)) for number in range(draw(st.integers(0, 5))))


# Made once: a strategy that is made in each draw costs more than what it draws.
RECORD = st.fixed_dictionaries(
    {"pods": st.sampled_from([0, 1, 2, 4]), "admitted_at": TIME, "ended_by": ENDS,
     "flavor": st.sampled_from(["a100", "h100"]), "gpus": st.sampled_from([None, Gpus(1, 5.0)])},
    optional={
        "queued_at": TIME, "first_step_at": TIME, "evicted_at": TIME, "released_at": TIME,
        "committed_at": TIME, "barrier_at": TIME, "last_step": st.integers(0, 10**6),
        "restored_from": st.just("c1"), "readmitted_for": st.just("regrow"),
    },
)  # fmt: skip
REQUEST = st.builds(
    Request, st.sampled_from(["resize", "pause", "migrate"]), st.sampled_from(["ann", f"{BY}cordon: why"]),
    st.sampled_from(["asked", "running", "done", "failed"]), st.integers(0, 6), TIME,
)  # fmt: skip
MORE = st.fixed_dictionaries(
    {},
    optional={
        "attempts": attempts(), "runs_since": TIME, "whole": st.booleans(), "held": st.booleans(),
        "change": REQUEST, "save": REQUEST, "priority_class": st.sampled_from(["high", "low", "other"]),
        "wanted": st.sampled_from([1, 2, 4]), "fewest": st.sampled_from([1, 2]),
        "boosted_by": st.just("slaTiers"), "flavors": st.sampled_from([(), ("a100",), ("h100",)]),
        "created": TIME, "saved_at": TIME, "unplaced": st.integers(0, 2),
        "steps_done": st.integers(0, 10**6), "steps_seen_at": TIME, "steps_total": st.integers(0, 10**6),
        "steps_printed": st.integers(0, 10**6), "devices_per_pod": st.sampled_from([1, 8]),
    },
)  # fmt: skip
SYMPTOMS = st.lists(st.builds(
    Symptom, st.sampled_from(["n1", "n2", "gone"]), TIME, st.sampled_from([("team", "j0"), ("team", "j9")]),
    st.integers(0, 3), st.sampled_from(["program", "memory", "machine", "gpu"]), st.sampled_from(["", "a 1", "b"]),
    st.sampled_from([frozenset(), frozenset({"n2"})]),
), max_size=6)  # fmt: skip
SIZE = st.sampled_from([0, 1, 4, 16])
FREE = st.dictionaries(st.just(GPU), st.integers(-2, 8).map(Fraction))
FLAVORS = st.dictionaries(st.sampled_from(["h100", "a100"]), st.just(dict[str, str]()))


@st.composite
def jobs(draw: Any, name: str) -> Job:
    queue, own = f"q{draw(st.integers(0, 3))}", draw(st.sampled_from([1, 10, 100]))
    made = draw(st.sampled_from(["runs", "waits", "parked"]))
    job = scene.job(name, queue_name=queue, priority=own, count=draw(st.sampled_from([1, 2, 4])))
    if made == "waits":
        found = scene.waiting(name, devices=draw(st.sampled_from([1, 2, 4])), priority=own, since=draw(TIME))
        assert found.workload is not None
        job = replace(found, workload=replace(found.workload, queue=queue))
    elif made == "parked":
        job = scene.parked(job, draw(st.sampled_from(["timeSharing", "gone"])))
    more = draw(MORE)
    alike = {"pods": draw(st.integers(0, 4)), "per_pod": draw(st.sampled_from([{}, {GPU: Fraction(1)}]))}
    level = draw(st.sampled_from(["", "rack", HOSTNAME]))
    assert job.workload is not None
    stopped = draw(st.sampled_from([False, False, False, True]))
    return replace(job, workload=replace(job.workload, level=level, stopped=stopped, **alike), **more)


@st.composite
def clusters(draw: Any) -> ClusterSnapshot:
    known = [draw(jobs(f"j{n}")) for n in range(draw(st.integers(0, 6)))]
    symptoms = draw(SYMPTOMS)
    queues = tuple(scene.queue(f"q{n}", draw(SIZE), "c" if n < 2 else "", ("h100", "a100")) for n in range(3))
    queues = tuple(replace(q, stopped=draw(st.sampled_from([False, False, False, True]))) for q in queues)
    seen = scene.snapshot(*known, queues=queues, nodes={"n1": draw(st.sampled_from(["", "is cordoned"])), "n2": ""})
    nodes = {
        name: replace(node, labels={"rack": draw(st.sampled_from("ab")), HOSTNAME: name}, free=draw(FREE))
        for name, node in seen.nodes.items()
    }
    return replace(seen, nodes=nodes, flavors=draw(FLAVORS), symptoms=tuple(symptoms))


def all_policies() -> dict[str, Policy]:
    usual: dict[str, Callable[..., Any]] = {
        tidy.NAME: partial(tidy.propose, acting=set()),
        regrow.NAME: partial(regrow.propose, enabled=True, min_run_s=10.0),
    }
    return in_order({**chosen(ALL, "act"), **usual})


@settings(max_examples=120, deadline=None)
@given(clusters())
def test_no_policy_raises_or_proposes_nonsense(seen: ClusterSnapshot) -> None:
    def trouble(policy: str, what: str, error: BaseException | None) -> None:
        raise AssertionError(f"{policy} {what}") from error

    policies.ask(all_policies(), seen, trouble)


@settings(max_examples=120, deadline=None)
@given(clusters())
def test_together_they_touch_no_job_twice_and_none_that_is_busy(seen: ClusterSnapshot) -> None:
    asked = all_policies()
    proposals = policies.ask(asked, seen, lambda *what: None)
    rulings = Arbiter(terms(ALL, asked)).rule(seen, proposals, 0.0)
    assert len(rulings) == len(proposals) and all(r.why for r in rulings)
    done = [r.proposal for r in rulings if r.allowed]
    assert len({p.job for p in done}) == len(done)
    pools = []
    for proposal in done:
        job = seen.jobs[proposal.job]
        assert job.busy is None or (proposal.asked and job.busy is job.change)
        if moves(proposal, job):
            assert job.trains and (job.held or proposal.policy == regrow.NAME)
            assert job.workload is not None and not seen.stopped(job.workload)
            queue = seen.queue_of(job)
            pools.append(queue.pool if queue is not None else "")
    assert len(set(pools)) == len(pools)


@settings(max_examples=120, deadline=None)
@given(clusters())
def test_lending_stays_within_the_cohort_and_takes_back_for_its_members_only(seen: ClusterSnapshot) -> None:
    taken = seen.used
    for proposal in lending.propose(seen, 1800.0):
        job = seen.jobs[proposal.job]
        queue = seen.queue_of(job)
        assert queue is not None and job.given is not None and job.ranks % proposal.workers == 0
        fits = [size for size in returns.sizes(job) if job.given.count < size <= proposal.workers]
        more = {key: amount * (fits[0] - job.given.count) for key, amount in returns.per_pod(job).items()}
        around = seen.around(queue)
        for key, amount in more.items():
            whole = sum(q.nominal.get(key, Fraction(0)) for q in around)
            assert sum(taken[q.name].get(key, Fraction(0)) for q in around) + amount <= whole
    for proposal in returns.propose(seen, 1800.0):
        job = seen.jobs[proposal.job]
        queue = seen.queue_of(job)
        assert queue is not None and job.given is not None
        assert job.fewest <= proposal.workers < job.given.count
        borrowed = {key: taken[queue.name][key] - queue.nominal[key] for key in returns.per_pod(job)}
        assert any(amount > 0 for amount in borrowed.values())
        assert any(w.waits and w.queue in {q.name for q in seen.around(queue)} - {queue.name} for w in seen.workloads)


@settings(max_examples=120, deadline=None)
@given(clusters())
def test_defragmentation_moves_only_smaller_jobs_and_all_moves_pay_or_none(seen: ClusterSnapshot) -> None:
    proposals = defragmentation.propose(seen, 4)
    worth = [p.gain_device_seconds > measure.cost(seen.jobs[p.job]) for p in proposals]
    for reason in {p.reason for p in proposals}:
        same = [pays for p, pays in zip(proposals, worth, strict=True) if p.reason == reason]
        assert len(same) <= 4 and len({*same}) == 1
    most = max((b.devices for b in blocked.of(seen)), default=0)
    assert all(seen.jobs[p.job].devices < most and seen.jobs[p.job].trains for p in proposals)


def test_the_page_and_the_code_agree_on_who_wins() -> None:
    """Owners get what they have asked for before policies find something better, and after nodes that go."""
    page = (Path(__file__).parents[3] / "docs/policies/index.md").read_text()
    named = re.findall(r"^\| \[.*?\| `(?:planner\.)?(\w+)\.", page, re.MULTILINE)
    assert named == [name for name in ORDER if name not in (returns.NAME, tidy.NAME)]
    everything = list(in_order({"other": cordon.propose, **all_policies()}))
    assert everything == [*ORDER, "other"]


def test_all_of_them_are_in_the_list() -> None:
    assert set(chosen(ALL, "act")) == {
        "cordon", "slaTiers", "attainedService", "timeSharing", "marginalGain", "lending", "lendingReturn",
        "defragmentation", "health", "introspection",
    }  # fmt: skip
