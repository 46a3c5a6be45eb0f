"""The arbiter's limits, one by one, and whatever policies propose and clocks do."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import planner_scene as scene
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_scene import NOW

from kueue_integration.planner import measure, policies
from kueue_integration.planner.arbiter import Arbiter, Limits, Ruling, Terms
from kueue_integration.planner.job import BY, Ended, Job, Request
from kueue_integration.planner.proposals import Proposal
from kueue_integration.planner.recent_moves import SETTLE_S

LIMITS = Limits(min_run_s=100.0, moves_per_hour=2, tenant_moves_per_hour=3)


def arbiter(limits: Limits = LIMITS, weigh: bool = True, names: tuple[str, ...] = ("one", "two")) -> Arbiter:
    return Arbiter({name: Terms(limits, weigh) for name in names})


def propose(job: Job, action: Any = "pause", gain: float = 1e6, policy: str = "one", **more: Any) -> Proposal:
    return Proposal(action, job.key, "because", gain, policy, **more)


def rule(job: Job, *proposals: Proposal, by: Arbiter | None = None, clock: float = 0.0) -> list[Ruling]:
    return (by or arbiter()).rule(scene.snapshot(job), proposals or [propose(job)], clock)


def test_a_job_that_trains_long_enough_is_moved():
    (ruling,) = rule(scene.job())
    assert ruling.allowed and ruling.why == "costs about 240 device-seconds"  # 2 devices, nothing measured: 120 s


def test_a_job_trains_a_useful_time_first():
    (ruling,) = rule(scene.job(since=NOW - 60))
    assert (ruling.allowed, ruling.wait_s) == (False, 40.0)
    assert "has to train 100 s" in ruling.why


def test_a_clock_that_jumps_ahead_shortens_no_useful_time():
    judge, job = arbiter(), scene.job(since=NOW - 10)
    assert not judge.rule(scene.snapshot(job), [propose(job)], 0.0)[0].allowed
    assert not judge.rule(scene.snapshot(job, now=NOW + 7200), [propose(job)], 30.0)[0].allowed
    assert judge.rule(scene.snapshot(job, now=NOW + 7200), [propose(job)], 90.0)[0].allowed


def test_a_move_has_to_gain_more_than_it_costs():
    job = scene.job(history=(scene.moved(1, 4000, save=10, restore=20),))
    assert measure.cost(job) == pytest.approx(2 * (10 + 20))
    (poor,) = rule(job, propose(job, gain=60.0))
    assert not poor.allowed and poor.why == "costs 60 device-seconds, and gains 60"
    assert rule(job, propose(job, gain=61.0))[0].allowed
    assert rule(job, propose(job, gain=0.0), by=arbiter(weigh=False))[0].allowed


def test_nobody_gives_to_one_that_may_not_move_yet():
    """The quota would lie idle, and the giver would take it back: two moves for nothing."""
    giver = scene.job("giver")
    often = tuple(scene.moved(n, 3000 - 600 * n) for n in (1, 2))
    for other, why in (
        (scene.job("other"), "costs about 240 device-seconds"),
        (scene.job("other", since=NOW - 60), "is for team/other: has to train 100 s before it is moved"),
        (scene.job("other", history=often), "is for team/other: was moved 2 times within an hour, the limit"),
    ):
        (ruling,) = arbiter().rule(scene.snapshot(giver, other), [propose(giver, helps=other.key)], 0.0)
        assert ruling.why == why


def test_moves_of_one_job_are_counted_over_an_hour_whoever_wanted_them():
    twice = scene.job(history=(scene.moved(1, 3000), scene.moved(2, 2000, by="Resized")), since=NOW - 900)
    (ruling,) = rule(twice)
    assert not ruling.allowed and "was moved 2 times within an hour" in ruling.why
    long_ago = scene.job(history=(scene.moved(1, 9000), scene.moved(2, 2000)), since=NOW - 900)
    assert rule(long_ago)[0].allowed
    preempted = scene.job(history=(scene.moved(1, 3000), scene.moved(2, 2000, by="Preempted")), since=NOW - 900)
    assert rule(preempted)[0].allowed  # that was Kueue


def begun_migration(state: str) -> Job:
    return scene.job("mine", change=Request("migrate", f"{BY}one: because", state, int(state == "running")))


def readmitted() -> Job:
    job = scene.job("mine")
    return replace(job, attempts=(replace(job.attempts[-1], readmitted_for="regrow"),))


def preempted(ago: float) -> Job:
    """By a lower priority, which is its own again."""
    gone = replace(scene.moved(1, ago, by="Preempted"), lowered_by="one")
    return scene.job("mine", history=(gone,), since=NOW - 500)


@pytest.mark.parametrize(
    ("begun", "counts"),
    [
        (begun_migration("asked"), True),
        (begun_migration("running"), True),
        (readmitted(), True),
        (scene.job("mine", lowered=1, lowered_at=NOW - 600), True),
        (scene.job("mine", lowered=1, lowered_at=NOW - 4000), False),
        (preempted(600), True),
        (preempted(4000), False),
    ],
    ids=["asked", "running", "readmitted", "lowered", "lowered long ago", "preempted", "preempted long ago"],
)
def test_a_new_process_counts_what_the_one_before_has_begun(begun, counts):
    other = scene.job("other", queue_name="else")
    seen = scene.snapshot(begun, other, queues=(scene.queue(), scene.queue("else")))
    (ruling,) = arbiter(Limits(0.0, None, 1)).rule(seen, [propose(other)], 0.0)
    assert ruling.allowed is not counts, ruling
    again = arbiter(Limits(0.0, 1, None)).rule(seen, [propose(begun)], 0.0)[0]
    assert again.allowed is not counts, again


def test_a_request_that_lets_a_job_go_everywhere_again_is_no_move():
    freed = scene.job("mine", change=Request("migrate", f"{BY}one: because", "running", 1, frees=True))
    other = scene.job("other")
    assert arbiter(Limits(0.0, None, 1)).rule(scene.snapshot(freed, other), [propose(other)], 0.0)[0].allowed


def test_the_moves_of_a_job_that_has_ended_count_for_its_tenant():
    other = scene.job("other")
    seen = replace(scene.snapshot(other), ended=[Ended("team", "gone", (scene.moved(1, 600), scene.moved(2, 4000)))])
    assert not arbiter(Limits(0.0, None, 1)).rule(seen, [propose(other)], 0.0)[0].allowed
    assert arbiter(Limits(0.0, None, 2)).rule(seen, [propose(other)], 0.0)[0].allowed


def test_a_priority_that_was_lowered_a_moment_ago_is_given_time_after_a_restart_too():
    job = scene.job(lowered=1, lowered_at=NOW - 20)
    (ruling,) = rule(job, by=arbiter(Limits(0.0, None, None)))
    assert (ruling.allowed, ruling.wait_s) == (False, SETTLE_S - 20)


def test_a_tenant_has_a_budget():
    jobs = [scene.job(f"j{n}", history=(scene.moved(1, 2000),), queue_name=f"q{n}") for n in range(3)]
    fresh, other = scene.job("fresh", queue_name="q8"), scene.job("other", namespace="else", queue_name="q9")
    queues = tuple(scene.queue(f"q{n}") for n in range(10))
    seen = scene.snapshot(*jobs, fresh, other, queues=queues)
    mine, theirs = arbiter().rule(seen, [propose(fresh), propose(other)], 0.0)
    assert not mine.allowed and "jobs of namespace team were moved 3 times" in mine.why
    assert theirs.allowed


@pytest.mark.parametrize("slot", ["change", "save"])
@pytest.mark.parametrize(("state", "free"), [("asked", False), ("running", False), ("done", True), ("failed", True)])
def test_a_job_with_a_request_under_way_is_left_alone(slot, state, free):
    job = scene.job(**{slot: Request("resize", "ann", state)})
    for action in ("pause", "checkpoint", "priority"):
        (ruling,) = rule(job, propose(job, action, priority=99))
        assert ruling.allowed == free
    if not free:
        assert "a request by ann is under way: resize" in ruling.why


def test_what_somebody_has_asked_for_is_done_at_once():
    job = scene.job(since=NOW - 1, change=Request("resize", "ann", "running"))
    assert rule(job, propose(job, "readmit", asked=True))[0].allowed
    assert not rule(job, propose(job, "readmit"))[0].allowed


@pytest.mark.parametrize("change", [{"whole": False}, {"runs_since": None}, {"given": None}])
def test_a_job_that_does_not_train_is_not_stopped(change):
    job = replace(scene.job(), **change)
    assert [rule(job, propose(job, action))[0].allowed for action in ("pause", "checkpoint")] == [False, False]


def test_a_job_whose_hold_is_off_is_not_moved():
    job = scene.job(held=False)
    (ruling,) = rule(job)
    assert not ruling.allowed and ruling.why == "its hold is off: it would lose steps"
    assert rule(job, by=Arbiter({"one": Terms(LIMITS, only_held=False)}))[0].allowed


def test_a_job_that_is_being_evicted_is_not_stopped_again():
    job = scene.job()
    assert job.workload is not None
    leaving = replace(job, workload=replace(job.workload, leaves=True))
    assert not rule(leaving)[0].allowed


def test_the_first_policy_wins_and_the_other_one_is_told():
    job = scene.job()
    won, lost = rule(job, propose(job, policy="two"), propose(job, "resize", policy="one", workers=4))
    assert (won.proposal.policy, won.allowed, lost.allowed) == ("one", True, False)
    assert lost.why == "policy one comes first for this job (resize)"


def test_one_job_of_a_cohort_moves_at_a_time():
    first, second = scene.job("a"), scene.job("b", queue_name="other")
    queues = (scene.queue(cohort="c"), scene.queue("other", cohort="c"))
    one, two = arbiter().rule(scene.snapshot(first, second, queues=queues), [propose(first), propose(second)], 0.0)
    assert one.allowed and not two.allowed
    assert two.why == "cohort c has one move at a time: team/a (one) is first"
    assert two.quiet, "it is the next one of its policy: nothing to tell"


def test_the_same_attempt_is_not_asked_twice_while_our_copies_may_be_behind():
    judge, job = arbiter(Limits(0.0, None, None)), scene.job()
    assert rule(job, by=judge)[0].allowed
    (again,) = rule(job, by=judge, clock=1.0)
    assert not again.allowed and again.wait_s == SETTLE_S - 1
    assert rule(job, by=judge, clock=SETTLE_S)[0].allowed


def test_what_a_job_is_about_to_take_is_promised_to_nobody_else_while_our_copies_may_be_behind():
    judge, first, second = arbiter(Limits(0.0, None, None)), scene.job("a"), scene.job("b")
    seen = scene.snapshot(first, second)
    assert judge.rule(seen, [propose(first), propose(second)], 0.0)[0].allowed
    again, other = judge.rule(seen, [propose(first), propose(second, policy="two")], 1.0)
    assert not again.allowed and again.settles
    assert (other.allowed, other.quiet, other.why.endswith("team/a (one) is first")) == (False, False, True)
    (alone,) = judge.rule(seen, [propose(second)], 1.0)
    assert alone.allowed, "the policy asks for it no more: our copies show the move"


def test_what_could_not_be_written_does_not_count():
    judge, job = arbiter(Limits(0.0, 1, None)), scene.job()
    (ruling,) = rule(job, by=judge)
    judge.undo(ruling)
    assert rule(job, by=judge)[0].allowed
    assert not rule(job, by=judge)[0].allowed


def test_a_request_of_ours_that_has_failed_is_not_made_again_at_once():
    job = scene.job(change=Request("pause", "policy/one: why", "failed", 1, NOW - 20))
    (ruling,) = rule(job)
    assert (ruling.allowed, ruling.wait_s) == (False, 40.0)


def test_a_lower_priority_may_cost_a_move_and_a_higher_one_does_not():
    job = scene.job(since=NOW - 10)
    assert not rule(job, propose(job, "priority", priority=9))[0].allowed
    assert rule(job, propose(job, "priority", priority=11))[0].allowed


# --- nonsense -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"policy": "other"}, "is signed by 'other'"),
        ({"action": "explode"}, "action 'explode' is unknown"),
        ({"job": ("team", "nobody")}, "is not there"),
        ({"reason": ""}, "its reason has to have"),
        ({"gain_device_seconds": math.nan}, "is not a finite number"),
        ({"not_before": math.inf}, "is not a finite number"),
        ({"asked": True}, "nobody has asked for it"),
        ({"action": "resize", "workers": 3}, "3 workers do not divide its 4 ranks evenly"),
        ({"action": "resize", "workers": 2}, "it has that size already"),
        ({"action": "migrate", "nodes": ("n9",)}, "'n9'"),
        ({"action": "migrate", "nodes": ("n2",)}, "it has no pod on these nodes"),
        ({"action": "migrate"}, "is not there"),
        ({"action": "priority", "priority": 2**40}, "is not a whole number"),
        ({"action": "priority", "priority": 10}, "it has that priority already"),
        ({"action": "resume"}, "it is not paused"),
    ],
)
def test_nonsense_is_named_and_left_out(change, why):
    job, told = scene.job(), list[tuple[str, str]]()
    bad = replace(propose(job), **change)
    good = propose(job)
    found = policies.ask({"one": lambda seen: [bad, good]}, scene.snapshot(job), lambda *what: told.append(what[:2]))
    assert found == [good]
    assert told[0][0] == "one" and why in told[0][1], told


def test_a_policy_that_raises_or_returns_rubbish_stops_no_other():
    job, told = scene.job(), list[str]()

    def broken(seen: Any) -> Any:
        raise ZeroDivisionError

    asked: dict[str, Any] = {
        "one": broken, "rubbish": lambda seen: [None, "move"], "none": lambda seen: None,
        "two": lambda seen: [propose(job, policy="two")],
    }  # fmt: skip
    found = policies.ask(asked, scene.snapshot(job), lambda policy, what, error: told.append(f"{policy} {what}"))
    assert [p.policy for p in found] == ["two"]
    assert told[0] == "one raised ZeroDivisionError" and "rubbish proposed nonsense" in told[1] and len(told) == 4


# --- moves that nobody gains by -------------------------------------------------------------------------------------
def ending(left: int, **changes: Any) -> Job:
    """A job at a step a second that makes so many more."""
    steps = {"steps_done": 981, "steps_seen_at": NOW, "steps_total": 980 + left, "steps_printed": 980, **changes}
    return replace(scene.job(), **steps)


@pytest.mark.parametrize("action", ["pause", "readmit"])
def test_a_job_that_ends_before_it_would_be_back_stays(action):
    (ruling,) = rule(ending(5), propose(ending(5), action))
    assert (ruling.allowed, ruling.why) == (False, "it ends by itself in about 5 s, before it would be back")
    assert rule(ending(500), propose(ending(500), action))[0].allowed
    silent = ending(5, steps_total=None)
    assert rule(silent, propose(silent, action))[0].allowed, "its program does not say how much is left"


def test_a_program_that_always_says_that_it_is_about_to_end_is_believed_once():
    judge = arbiter()
    assert not rule(ending(20), by=judge)[0].allowed
    assert not rule(ending(20), by=judge, clock=39.0)[0].allowed
    assert rule(ending(20), by=judge, clock=42.0)[0].allowed


def test_who_leaves_a_node_that_goes_is_not_asked_when_it_ends():
    judge = Arbiter({"one": Terms(Limits(0.0, None, None), weigh=False)})
    assert rule(ending(5), by=judge)[0].allowed


def test_a_job_that_its_queue_could_never_hold_again_stays():
    """Its queue had more quota when it came, say. In a tree of cohorts nobody here knows what there is."""
    wide = scene.job(count=4)
    assert wide.workload is not None
    wide = replace(wide, workload=replace(wide.workload, asks={scene.GPU: Fraction(4)}))
    for cohort, nested, allowed in (("", (), False), ("all", (), False), ("all", ("all",), True)):
        seen = scene.snapshot(wide, queues=(scene.queue(devices=2, cohort=cohort),))
        (ruling,) = arbiter().rule(replace(seen, nested=frozenset(nested)), [propose(wide)], 0.0)
        assert ruling.allowed is allowed
        if not allowed:
            assert ruling.why == "it would not come back: ClusterQueue training can never hold what it asks for"
    enough = scene.snapshot(wide, queues=(scene.queue(devices=2, cohort="all"), scene.queue("lends", 2, "all")))
    assert arbiter().rule(enough, [propose(wide)], 0.0)[0].allowed


def test_many_proposals_for_one_cohort_hide_none_for_another():
    jobs = [scene.job(f"j{number}") for number in range(1100)]
    last = scene.job("last", queue_name="other")
    seen = scene.snapshot(*jobs, last, queues=(scene.queue(devices=9999), scene.queue("other")))
    asked = {"one": lambda seen: [propose(job) for job in (*jobs, last)]}
    rulings = arbiter(Limits(0.0, None, None)).rule(seen, policies.ask(asked, seen, lambda *told: None), 0.0)
    assert [r.proposal.job[1] for r in rulings if r.allowed] == ["j0", "last"]


# --- whatever happens -----------------------------------------------------------------------------------------------
HOUR = 3600.0


LEAVES_S, COMES_BACK_S = 15.0, 30.0


class Play:
    """A cluster that carries everything out, with a clock that jumps, and an account of its own in true time.

    A move is on record as the cluster has it: first a request or a mark, after `LEAVES_S` the end of the attempt.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.true, self.jump, self.limits = 0.0, 0.0, limits
        queues = [scene.queue("q0", cohort="c"), scene.queue("q1", cohort="c"), scene.queue("q2")]
        self.queues = tuple(queues)
        self.since: dict[int, float | None] = {}
        self.leaves: dict[int, tuple[float, str]] = {}
        """When a move was begun, and how the attempt will have ended."""
        self.jobs: dict[int, Job] = {}
        self.ended: list[Ended] = []
        for n in range(6):
            self._submit(n)
        self.moves: list[tuple[float, str, str]] = []
        """(true time, UID of the job, namespace)."""
        self.restart()
        self.round([])

    def restart(self) -> None:
        """A new process, which knows what stands on the jobs and nothing else."""
        self.judge = arbiter(self.limits)

    def _submit(self, n: int) -> None:
        name = f"j{n}-{len(self.ended)}"
        self.jobs[n] = scene.job(name, namespace=f"team-{n % 2}", queue_name=f"q{n % 3}", since=self.wall)
        self.since[n] = self.true

    @property
    def wall(self) -> float:
        return NOW + self.true + self.jump

    def pass_time(self, seconds: float) -> None:
        self.true += seconds
        for n, (begun, ended_by) in list(self.leaves.items()):
            job, after = self.jobs[n], self.true - begun
            if job.change is not None:
                state = "running" if after < LEAVES_S + COMES_BACK_S else "done"
                job = replace(job, change=replace(job.change, state=state, attempt=job.change.attempt or job.attempt))
            if after >= LEAVES_S and job.runs_since is not None:
                by = "one" if ended_by == "Preempted" else None
                last = replace(job.attempts[-1], ended_by=ended_by, lowered_by=by, evicted_at=self.wall)
                job = replace(job, runs_since=None, attempts=(*job.attempts[:-1], last), whole=False)
            elif after >= LEAVES_S + COMES_BACK_S:  # in its next attempt, with the priority of its own
                self.since[n] = self.true
                last = scene.record(job.attempt + 1, admitted_at=self.wall - 20, first_step_at=self.wall)
                job = replace(job, runs_since=self.wall, attempts=(*job.attempts, last), whole=True, lowered=0)
                assert job.workload is not None
                job = replace(job, workload=replace(job.workload, priority=job.own_priority, leaves=False))
                del self.leaves[n]
            self.jobs[n] = job

    def finish(self, n: int) -> None:
        """The job has ended, and another one comes in its place."""
        if n not in self.leaves:
            job = self.jobs[n]
            self.ended.append(Ended(job.key[0], job.uid, job.attempts))
            self._submit(n)

    def round(self, wishes: list[tuple[int, str, float, bool]]) -> None:
        proposals = [
            propose(self.jobs[n], action, gain, "one" if first else "two", workers=4, nodes=("n1",), priority=1)
            for n, action, gain, first in wishes
        ]
        seen = scene.snapshot(*self.jobs.values(), queues=self.queues, now=self.wall)
        seen, pools = replace(seen, ended=self.ended), set()
        for ruling in self.judge.rule(seen, proposals, self.true):
            if ruling.allowed and ruling.counted:
                job = seen.jobs[ruling.proposal.job]
                queue = seen.queue_of(job)
                assert queue is not None and queue.pool not in pools, "two moves in one cohort"
                pools.add(queue.pool)
                self._move(ruling, job)

    def _move(self, ruling: Ruling, job: Job) -> None:
        """What the limits promise, in true time."""
        (n,) = [number for number, known in self.jobs.items() if known.uid == job.uid]
        since, action = self.since[n], ruling.proposal.action
        assert ruling.proposal.gain_device_seconds > measure.cost(job)
        assert since is not None and job.trains and job.busy is None, "it was on its way already"
        assert self.true - since >= self.limits.min_run_s, "it has not trained long enough"
        self.moves.append((self.true, job.uid, job.key[0]))
        self.since[n] = None
        recent = [m for m in self.moves if self.true - m[0] < HOUR]
        assert sum(m[1] == job.uid for m in recent) <= (self.limits.moves_per_hour or 0)
        assert sum(m[2] == job.key[0] for m in recent) <= (self.limits.tenant_moves_per_hour or 0)
        if action == "priority":
            assert job.workload is not None
            lower = replace(job.workload, priority=ruling.proposal.priority)
            job = replace(job, lowered=job.attempt, lowered_at=self.wall, workload=lower)
        elif action == "readmit":
            last = replace(job.attempts[-1], readmitted_for="regrow")
            assert job.workload is not None
            job = replace(job, attempts=(*job.attempts[:-1], last), workload=replace(job.workload, leaves=True))
        else:
            job = replace(job, change=Request(action, f"{BY}{ruling.proposal.policy}: because", "asked"))
        self.jobs[n] = job
        self.leaves[n] = self.true, {"priority": "Preempted", "readmit": "Regrown"}.get(action, "Migrated")


ACTIONS = ("pause", "resize", "migrate", "readmit", "priority", "checkpoint")
WISH = st.tuples(
    st.integers(0, 5), st.sampled_from(ACTIONS),
    st.sampled_from([-5.0, 0.0, 100.0, 1e5, 1e9]), st.booleans(),
)  # fmt: skip
ROUND = st.tuples(st.floats(1, 900), st.floats(-20_000, 20_000) | st.just(0.0), st.lists(WISH, max_size=8))


@settings(max_examples=60, deadline=None)
@given(st.lists(ROUND, max_size=40))
def test_no_limit_is_ever_exceeded(rounds):
    play = Play()  # the clock is right when the planner starts
    for seconds, jump, wishes in rounds:
        play.pass_time(seconds)
        play.jump += jump
        play.round(wishes)


EAGER = st.tuples(
    st.sampled_from([1.0, 10.0, 20.0, 130.0, 700.0]), st.booleans(), st.none() | st.integers(0, 5),
    st.lists(st.sampled_from(ACTIONS), min_size=6, max_size=6),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(EAGER, max_size=20))
def test_nor_after_a_restart_of_the_planner(rounds):
    """What it did before stands on the jobs: in their records, or what is on its way in requests and marks."""
    play = Play(replace(LIMITS, tenant_moves_per_hour=2))
    for seconds, restarts, finishes, actions in rounds:
        play.pass_time(seconds)
        if restarts:
            play.restart()
        if finishes is not None:
            play.finish(finishes)
        play.round([(n, action, 1e9, True) for n, action in enumerate(actions)])


def test_the_play_does_move_jobs():
    play = Play()
    for _ in range(40):
        play.pass_time(200.0)
        play.round([(n, "pause", 1e9, True) for n in range(6)])
    assert len(play.moves) >= 6
