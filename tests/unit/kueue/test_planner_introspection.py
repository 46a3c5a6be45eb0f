"""The policy introspection: who goes to a cheaper flavor, who tries one, who comes back, and who stays."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW

from kueue_integration.planner import policies
from kueue_integration.planner.arbiter import Arbiter, Terms
from kueue_integration.planner.job import Job, Request, Workload
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.policies import introspection, tidy
from kueue_integration.planner.proposals import Proposal
from kueue_integration.planner.settings import Introspection
from singularity_proxy.protocol.messages import Gpus

PRICES = {"a100": 3.0, "t4": 0.5}
QUEUE = scene.queue(flavors=("a100", "t4"))
PINNED = Request("migrate", "policy/introspection: cheaper", "done", 1, NOW - 500, pins=True)


def ran(attempt: int, flavor: str, step_s: float, steps: int = 100, **more: Any) -> Any:
    """An attempt of two pods that made `steps` steps, long ago."""
    begun = NOW - 20_000 + 1000 * attempt
    ended = begun + steps * step_s
    return scene.record(
        attempt, flavor=flavor, first_step=0, first_step_at=begun, admitted_at=begun - 20, last_step=steps,
        evicted_at=ended, released_at=ended + 10, ended_by="Migrated", **more,
    )  # fmt: skip


def job(*past: Any, step_s: float = 1.0, busy: float | None = None, flavor: str = "a100", **changes: Any) -> Job:
    """It trains for 900 s at `step_s` on `flavor`, and has 100,000 s left."""
    found = scene.job(history=tuple(past), since=NOW - 900)
    last = replace(found.attempts[-1], flavor=flavor, gpus=None if busy is None else Gpus(2, busy))
    assert found.given is not None
    given = replace(found.given, flavor=flavor, flavors={GPU: flavor})
    done = int(900 / step_s)
    values = {"given": given, "attempts": (*past, last), "steps_done": done, "steps_seen_at": NOW,
              "steps_printed": done, "steps_total": done + int(100_000 / step_s)}  # fmt: skip
    return replace(found, **{**values, **changes})


def propose(*jobs: Job, **how: Any) -> list[Proposal]:
    prices, settings = how.pop("prices", PRICES), how.pop("settings", Introspection("act"))
    seen = scene.snapshot(*jobs, queues=how.pop("queues", (QUEUE,)), **how)

    def trouble(policy: str, what: str, error: BaseException | None) -> None:
        raise AssertionError(what) from error

    def policy(snapshot: ClusterSnapshot) -> list[Proposal]:
        return introspection.propose(snapshot, prices, settings)

    return policies.ask({introspection.NAME: policy}, seen, trouble)


def test_a_job_that_a_cheaper_flavor_serves_as_well_goes_there():
    (found,) = propose(job(ran(1, "t4", 1.05)))
    assert (found.action, found.flavor) == ("migrate", "t4")
    assert found.reason == "a100 -> t4: 0.000292 instead of 0.00167 for a step; 95% of the speed"
    # A step costs 3.0 for 1 s there, and 0.5 for 1.05 s here: so much of the left 100,000 s of two devices is saved.
    assert found.gain_device_seconds == pytest.approx(2 * 100_000 * (3.0 - 0.5 * 1.05) / 3.0, rel=0.01)


@pytest.mark.parametrize(
    ("there", "prices"),
    [
        (1.2, PRICES),  # too slow
        (1.05, {"a100": 3.0, "t4": 2.95}),  # a step costs more there
        (1.05, {"a100": 0.5, "t4": 3.0}),
        (1.05, {"a100": 3.0}),  # no price: no move
        (1.05, {"t4": 0.5}),
        (1.05, {}),
    ],
)
def test_who_would_lose_speed_or_money_stays(there, prices):
    assert propose(job(ran(1, "t4", there)), prices=prices) == []


def test_how_much_speed_may_be_lost_is_a_setting():
    assert propose(job(ran(1, "t4", 1.9)), settings=Introspection("act", min_speed=0.5)) != []


def test_idle_gpus_try_a_flavor_that_was_never_tried_and_busy_ones_do_not():
    (found,) = propose(job(busy=12.0))
    assert found.flavor == "t4" and "a trial: its GPUs are busy for 12 %" in found.reason
    assert propose(job(busy=30.0)) == propose(job()) == []
    assert propose(job(busy=0.0), settings=Introspection("act", try_below_percent=0.0)) == []
    assert propose(job(ran(1, "t4", 2.0), busy=12.0)) == []  # it was tried


def test_a_trial_that_was_slower_is_taken_back():
    slow = job(ran(1, "a100", 1.0), step_s=2.0, flavor="t4", flavors=("t4",), change=PINNED)
    (found,) = propose(slow)
    assert (found.flavor, found.reason) == ("a100", "50% of the speed that it had on a100: it goes back")
    assert found.gain_device_seconds == pytest.approx(2 * 100_000 / 2.0, rel=0.01)
    assert propose(job(ran(1, "a100", 1.0), step_s=1.05, flavor="t4", flavors=("t4",), change=PINNED)) == []
    # Where somebody else has sent it there, it stays.
    assert propose(replace(slow, change=replace(PINNED, by="ann"))) == []
    assert propose(replace(slow, change=None, flavors=())) == []


@pytest.mark.parametrize(
    "changes",
    [{"flavors": ("a100",)}, {"topology": True}, {"node_selector": True}, {"whole": False}, {"wanted": 4},
     {"held": False}, {"change": Request("resize", "ann", "running")}],
    ids=["bound by its owner", "topology", "node selector", "starts", "is to grow", "hold is off", "is asked"],
)
def test_who_is_bound_or_not_ready_stays(changes):
    assert propose(job(ran(1, "t4", 1.0), **changes)) == []


def test_it_needs_room_and_takes_nothing_from_those_who_wait():
    ready = job(ran(1, "t4", 1.0))
    full = scene.queue(devices=1, flavors=("a100", "t4"))
    assert propose(ready, queues=(full,)) == []
    pending = Workload("team", "w", "w", "training", 0, NOW, asks={GPU: Fraction(2)}, waits=True)
    assert propose(ready, others=(pending,)) == []
    too_big = replace(pending, asks={GPU: Fraction(99)})
    assert propose(ready, others=(too_big,)) != []


def test_one_of_a_queue_at_a_time_and_who_gains_most_first():
    """A job whose move does not pay keeps nobody else where it is."""
    poor = replace(job(ran(1, "t4", 1.0), steps_total=920), key=("team", "a"), uid="a")
    rich, other = job(ran(1, "t4", 1.0)), replace(job(ran(1, "t4", 1.0)), key=("team", "z"), uid="z")
    found = propose(poor, rich, other)
    assert [p.job[1] for p in found] == ["digits", "z", "a"]
    judge = Arbiter({introspection.NAME: Terms()})
    rulings = judge.rule(scene.snapshot(poor, rich, other, queues=(QUEUE,)), found, 0.0)
    assert [r.allowed for r in rulings] == [True, False, False]


def test_the_gain_has_to_pay_for_the_move():
    """A job that is nearly done stays."""
    short = job(ran(1, "t4", 1.0), steps_total=920)
    seen = scene.snapshot(short, queues=(QUEUE,))
    found = introspection.propose(seen, PRICES, Introspection("act"))
    (ruling,) = Arbiter({introspection.NAME: Terms()}).rule(seen, found, 0.0)
    assert not ruling.allowed and ruling.why.startswith("it ends by itself in about 20 s")


def test_a_job_that_prints_no_length_is_expected_to_run_as_long_again():
    (found,) = propose(job(ran(1, "t4", 1.0), steps_total=None, steps_printed=None))
    assert found.gain_device_seconds == pytest.approx(2 * 900 * 2.5 / 3.0, rel=0.01)


def test_while_it_waits_for_quota_it_may_go_everywhere_again():
    waits = replace(scene.waiting(), flavors=("t4",), change=PINNED)
    (found,) = propose(waits)
    assert (found.action, found.reason) == ("unpin", "it waits for quota, and need not wait for t4")
    assert propose(replace(waits, change=replace(PINNED, by="ann"))) == []
    assert propose(replace(waits, flavors=())) == []


def test_a_policy_that_is_off_lets_its_jobs_go_everywhere():
    bound = job(flavors=("t4",), change=PINNED)
    (found,) = tidy.propose(scene.snapshot(bound), acting={"cordon"})
    assert (found.action, found.reason) == ("unpin", "policy introspection is off")
    assert tidy.propose(scene.snapshot(bound), acting={"introspection"}) == []


def test_flavors_without_a_price_are_named():
    seen = scene.snapshot(job(), queues=(QUEUE,))
    assert introspection.unpriced(seen, {"t4": 1.0}) == ["a100"]
    assert introspection.unpriced(seen, PRICES) == []
    assert introspection.unpriced(scene.snapshot(queues=(QUEUE,)), {}) == []
