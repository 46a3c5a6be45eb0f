"""Regrowth: when moving a job back is worth an eviction, and when it would only thrash."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import controller_scene as scene
import planner_scene as plan
import pytest
from controller_scene import T0
from hypothesis import given, settings
from hypothesis import strategies as st

from kueue_integration.contract import job_names, leaves
from kueue_integration.contract.record_types import AttemptRecord, JobRequest, NodeRequirement, Placement, RequestStatus
from kueue_integration.controller import leave
from kueue_integration.controller.actions import RequestReadmission
from kueue_integration.controller.planning import carry_out
from kueue_integration.controller.planning.look import read_job, read_queue, read_workload
from kueue_integration.controller.planning.selection import terms
from kueue_integration.controller.snapshot import Pod, Snapshot
from kueue_integration.kube.resources import merge_patch
from kueue_integration.planner import job as planned
from kueue_integration.planner import measure, model
from kueue_integration.planner.arbiter import Arbiter, Limits, Terms
from kueue_integration.planner.policies import regrow
from kueue_integration.planner.settings import MoveLimits, PlannerSettings
from singularity_proxy.protocol.messages import from_json, to_json

FLAVORS = (("ondemand", "1"), ("spot", "500m"))


def queue(name="training", flavors=FLAVORS, reserved=None, cohort=None):
    spec = {
        "resourceGroups": [
            {
                "coveredResources": ["cpu"],
                "flavors": [{"name": f, "resources": [{"name": "cpu", "nominalQuota": q}]} for f, q in flavors],
            }
        ]
    }
    if cohort:
        spec["cohortName"] = cohort
    status = {}
    if reserved:
        status["flavorsReservation"] = [
            {"name": f, "resources": [{"name": "cpu", "total": total}]} for f, total in reserved.items()
        ]
    return {"metadata": {"name": name}, "spec": spec, "status": status}


@dataclass
class Running:
    """A candidate's objects, which a test may change before the look."""

    job: Any
    workload: Any
    pods: list[Any]
    history: list[AttemptRecord]

    def raw(self) -> Any:
        return merge_patch(self.job, {"metadata": {"annotations": scene.history(*self.history)}})

    def candidate(self) -> tuple[str, str]:
        return scene.NS, self.job["metadata"]["name"]

    def seen(self, workloads: dict[str, planned.Workload]) -> planned.Job:
        found = read_job(self.raw(), self.workload, [Pod.parse(pod) for pod in self.pods], workloads)
        assert found is not None
        return found


@dataclass
class Outcome:
    """What comes of the policy's proposals: the one that the arbiter allows, and when to look again."""

    candidate: tuple[str, str] | None = None
    action: RequestReadmission | None = None
    wake_at: float | None = None


def shrunk(*, count=2, flavor="spot", wanted=4, name="train", uid=None, priority=10, created=0, history=None):
    """A job that runs with `count` of `wanted` workers of 250m since second 20."""
    record = scene.record(first_step=5, first_step_at=T0 + 20, flavor=flavor, pods=count)
    records = [*(history or []), record]
    notes = {job_names.ANN_WORKERS: str(wanted), job_names.ANN_HOLD: "armed"}
    job = scene.job(name, suspend=False, uid=uid or f"uid-{name}", annotations=notes)
    workload = scene.workload(
        f"job-{name}", state="Ready", admitted=True, count=count, flavor=flavor, cpu=f"{250 * count}m", owner=name,
        uid=uid or f"uid-{name}", priority=priority, created=created,
    )  # fmt: skip
    pods = [scene.pod(i, job_name=name) for i in range(count)]
    return Running(job, workload, pods, records)


def look(candidates, *, others=(), pending=(), of=None, now=T0 + 100, min_run=10.0, cohort=None):
    """The regrowth of the jobs that hold quota, as the controller has it: a snapshot, the policy, the arbiter."""
    of = of or queue()
    raw = [*(c.workload for c in candidates), *others, *pending]
    workloads = {w["metadata"]["uid"]: read_workload(w, of["metadata"]["name"]) for w in raw}
    queues = {q["metadata"]["name"]: read_queue(q) for q in cohort or [of]}
    jobs = {c.candidate(): c.seen(workloads) for c in candidates}
    snapshot = model.ClusterSnapshot(now, queues, list(workloads.values()), jobs)
    proposals = regrow.propose(snapshot, True, min_run)
    rulings = Arbiter({regrow.NAME: Terms(Limits(0.0, None, None), weigh=False)}).rule(snapshot, proposals, 0.0)
    chosen = next((r.proposal for r in rulings if r.allowed), None)
    if chosen is None:
        return Outcome(wake_at=min((now + r.wait_s for r in rulings if r.wait_s is not None), default=None))
    running = next(c for c in candidates if c.candidate() == chosen.job)
    return Outcome(chosen.job, readmission(running, chosen.reason, now))


def readmission(running: Running, reason: str, now: float) -> RequestReadmission:
    """What follows once the job is saved."""
    job = running.raw()
    begun = carry_out.saved_first(job, reason, 600.0, now)
    (text,) = begun.job_annotations.values()
    assert text is not None
    saved = leaves.stored(leave.saved(from_json(leaves.Leave, text), "train-a1-g1", now))
    seen = Snapshot.parse(merge_patch(job, {"metadata": {"annotations": saved}}), running.workload, running.pods)
    assert seen.workload is not None
    action = leave.follow(seen, seen.workload, 600.0, now).action
    assert isinstance(action, RequestReadmission)
    return action


def big(state="reserved", cpu="1", priority=1000, request="250m", wanted=4, flavor="ondemand", queue_name="training"):
    reserved = 5 if state == "reserved" else None
    return scene.workload(
        "job-big", reserved_at=reserved, state=None, cpu=cpu, count=wanted, wanted=wanted, flavor=flavor,
        priority=priority, owner="big", uid="uid-big", request=request, queue=queue_name,
    )  # fmt: skip


def test_free_quota_on_the_first_flavor_brings_a_small_job_back():
    result = look([shrunk()])
    assert result.action is not None
    assert result.action.message == "quota is free again: 2 -> 4 workers on ondemand"
    record = scene.stored(result.action.job_annotations)[-1]
    assert record.note == result.action.message
    assert job_names.ANN_HOLD not in result.action.job_annotations  # same hold, same barrier as for any eviction


def test_a_full_job_on_a_later_flavor_moves_to_the_earlier_one():
    result = look([shrunk(count=2, wanted=2)])
    assert result.action is not None
    assert "2 -> 2 workers on ondemand" in result.action.message


def test_its_own_quota_counts_when_it_grows_in_place():
    of = queue(flavors=(("ondemand", "1"),))
    result = look([shrunk(flavor="ondemand")], of=of)
    assert result.action is not None
    assert "2 -> 4 workers on ondemand" in result.action.message


@pytest.mark.parametrize("how", ["required", "preferred"])
def test_quotas_do_not_tell_whether_a_rack_has_room(how):
    bound = shrunk()
    template = {"metadata": {"annotations": {f"kueue.x-k8s.io/podset-{how}-topology": "rack"}}}
    bound.workload["spec"]["podSets"][0]["template"] = template
    assert look([bound]).action is None
    assert look([asking(bound)]).action is not None, "a user has asked for it"


def test_a_job_with_a_node_selector_grows_where_it_is():
    bound = shrunk()
    bound.workload["spec"]["podSets"][0]["template"] = {"spec": {"nodeSelector": {"disk": "fast"}}}
    assert look([bound]).action is None, "whether the earlier flavor has such nodes is not known"
    result = look([bound], of=queue(flavors=(("ondemand", "0"), ("spot", "1"))))
    assert result.action is not None and "2 -> 4 workers on spot" in result.action.message


def test_a_job_that_has_what_it_wants_stays():
    assert look([shrunk(count=4, flavor="ondemand")]).action is None


def test_it_never_moves_to_a_later_flavor():
    of = queue(flavors=(("ondemand", "500m"), ("spot", "4")))
    assert look([shrunk(flavor="ondemand")], of=of).action is None


def test_quota_in_use_is_not_free():
    assert look([shrunk()], others=[big()]).action is None


def test_what_kueue_reports_counts_even_if_the_workload_was_not_seen_yet():
    assert look([shrunk()], of=queue(reserved={"ondemand": "300m", "spot": "500m"})).action is None


def test_nothing_moves_while_an_eviction_is_under_way():
    leaving = big()
    leaving["status"]["conditions"].append(scene.condition("Evicted", True, 90, "Preempted"))
    assert look([shrunk()], others=[leaving]).action is None


def test_nothing_moves_while_a_readmission_has_been_asked_for():
    asked = shrunk(name="a")
    asked.workload["status"]["admissionChecks"][0]["state"] = "Retry"
    assert look([asked]).action is None
    assert look([shrunk(name="b")], others=[asked.workload]).action is None


def test_a_job_moves_only_after_it_has_trained_for_a_while():
    early = look([shrunk()], now=T0 + 25)
    assert early.action is None
    assert early.wake_at == T0 + 30
    assert look([shrunk()], now=T0 + 30).action is not None


@pytest.mark.parametrize("case", ["no step yet", "a pod is missing", "a pod is leaving", "evicted before"])
def test_a_job_that_is_not_training_is_not_moved(case):
    candidate = shrunk()
    pods, history = [copy.deepcopy(p) for p in candidate.pods], list(candidate.history)
    if case == "no step yet":
        history = [scene.record(flavor="spot", pods=2)]
    elif case == "a pod is missing":
        pods = pods[:1]
    elif case == "a pod is leaving":
        pods[0]["metadata"]["deletionTimestamp"] = scene.at(99)
    else:
        history = [scene.record(flavor="spot", pods=2, first_step_at=T0 + 20, ended_by="Preempted")]
    assert look([Running(candidate.job, candidate.workload, pods, history)]).action is None


def test_whoever_waits_with_at_least_the_same_priority_goes_first():
    for priority in (10, 1000):
        assert look([shrunk()], pending=[big("pending", priority=priority)]).action is None


def test_one_of_lower_priority_would_slip_in_during_the_move():
    assert look([shrunk()], pending=[big("pending", priority=1, wanted=1)]).action is None


def test_one_of_lower_priority_that_would_not_fit_even_then_does_not_block():
    candidates = [shrunk(wanted=3)]
    other = scene.workload("job-o", reserved_at=5, state=None, cpu="250m", count=1, flavor="ondemand", uid="uid-o")
    waiting = big("pending", priority=1, wanted=4)
    assert look(candidates, others=[other], pending=[waiting]).action is not None


def test_one_that_can_never_fit_does_not_keep_everybody_small():
    assert look([shrunk()], pending=[big("pending", wanted=40)]).action is not None


def test_a_job_that_is_out_of_its_queue_for_a_new_shape_waits_and_a_paused_one_does_not():
    away = big("pending")
    away["spec"]["active"] = False
    assert look([shrunk()], pending=[away]).action is not None
    away["metadata"].setdefault("annotations", {})[job_names.ANN_RESHAPE] = "2 -> 4 workers"
    assert look([shrunk()], pending=[away]).action is None


def test_two_small_jobs_do_not_count_the_same_quota_twice():
    first = shrunk(name="a", count=1, wanted=4, priority=10, created=5)
    second = shrunk(name="b", count=1, wanted=4, priority=100, created=9)
    result = look([first, second])
    assert result.candidate == second.candidate()  # the higher priority first, and only that one
    older = look([first, shrunk(name="b", count=1, wanted=4, priority=10, created=9)])
    assert older.candidate == first.candidate()


def test_quota_that_another_job_is_about_to_stop_for_is_left_to_it():
    """Both would stop for the same two workers otherwise, and one would come back as small as it was."""
    of = queue(flavors=(("ondemand", "1250m"),))
    small = shrunk(name="a", count=1, wanted=2, flavor="ondemand")

    def other(by: str = "policy/lending: spare", state: str = "running", attempt: int = 1, wanted: int = 4) -> Running:
        found = asking(shrunk(name="b", count=2, wanted=wanted, flavor="ondemand"), by=by, state=state, attempt=attempt)
        found.job["metadata"]["annotations"].update({job_names.ANN_WORKERS: str(wanted)})
        return found

    def grown(job: Running) -> Any:
        return look([small, job], of=of).candidate

    assert grown(other()) is None
    assert grown(other(state="")) is None  # not taken up yet
    assert grown(other(state="failed")) == small.candidate()
    assert grown(other(attempt=0)) == ("team", "b")  # it has come back with less: it waits like a user's wish
    assert grown(other(wanted=1)) == small.candidate()  # it gives
    freed = asking(shrunk(name="b", count=2, wanted=2, flavor="ondemand"), op="migrate", state="")
    assert grown(freed) == small.candidate()  # it may go everywhere at its next start: nothing stops for that
    ann = other(by="ann", wanted=8)
    assert grown(ann) == small.candidate()  # a user's wish beyond the quota trains on, for ever maybe


def moved(number):
    return scene.record(number, flavor="spot", pods=2, readmitted_for="regrow")


@pytest.mark.parametrize(("vain", "wait"), [(0, 10), (1, 60), (2, 120), (3, 240), (20, 3600)])
def test_moves_in_vain_make_the_next_one_wait_longer(vain, wait):
    """A node selector of the job, say, that quotas know nothing of: it comes back where it was, again and again."""
    candidate = shrunk(history=[moved(n + 1) for n in range(vain)])
    early = look([candidate], now=T0 + 20 + wait - 0.5)
    assert (early.action, early.wake_at) == (None, T0 + 20 + wait)
    assert look([candidate], now=T0 + 20 + wait).action is not None


def test_a_move_that_helped_is_not_held_against_the_next():
    grown = scene.record(2, flavor="ondemand", pods=4, ended_by="Preempted")
    candidate = shrunk(history=[moved(1), grown])
    assert look([candidate], now=T0 + 31).action is not None


def test_pods_that_are_done_for_good_hold_no_quota():
    """Kueue has given back what they had (reclaimablePods): it is free for who waits to grow."""
    other = big(cpu="1", wanted=4)
    assert look([shrunk()], others=[other]).action is None
    other["status"]["reclaimablePods"] = [{"name": "main", "count": 4}]
    assert look([shrunk()], others=[other]).action is not None


def test_quota_that_the_cohort_has_lent_out_is_not_free():
    here, there = queue(cohort="c"), queue("other", flavors=(("ondemand", "0"),), cohort="c")
    borrower = big(queue_name="other")
    assert look([shrunk()], others=[borrower], of=here, cohort=[here, there]).action is None
    assert look([shrunk()], of=here, cohort=[here, there]).action is not None


def test_several_resource_groups_all_have_to_fit():
    of = queue()
    of["spec"]["resourceGroups"].append(
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "h200", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 2}]}],
        }
    )
    candidate = shrunk()
    given = candidate.workload["status"]["admission"]["podSetAssignments"][0]
    given["flavors"]["nvidia.com/gpu"] = "h200"
    given["resourceUsage"]["nvidia.com/gpu"] = "2"
    assert look([candidate], of=of).action is None  # 4 workers want 4 GPUs, the quota is 2
    of["spec"]["resourceGroups"][1]["flavors"][0]["resources"][0]["nominalQuota"] = "4"
    assert look([candidate], of=of).action is not None


# --- what users ask for ---------------------------------------------------------------------------------------------
def asking(candidate, op="resize", by="", state="running", attempt=1, **notes):
    """`state` "": nobody has taken it up."""
    request = JobRequest("r", op, T0, by)
    own = {job_names.ANN_REQUEST: to_json(request)}
    if state:
        status = RequestStatus("r", op, state, "", T0 + 90, attempt)
        own[job_names.ANN_REQUEST_STATUS] = to_json(status)
    candidate.job["metadata"]["annotations"].update({**own, **notes})
    return candidate


@pytest.mark.parametrize(("limits", "why"), [
    (MoveLimits(moves_per_hour=2), "was moved 2 times within an hour, the limit"),
    (MoveLimits(tenant_moves_per_hour=2), "were moved 2 times within an hour, the budget"),
])  # fmt: skip
def test_regrowth_keeps_the_limits_of_an_hour_and_who_asks_waits_for_none(limits, why):
    past = tuple(plan.moved(n, 3000 - 1000 * n, by="Regrown") for n in (1, 2))
    job, asks = plan.job(history=past, count=1, wanted=2), planned.Request("resize", "ann", "running", 3)
    for one, allowed in ((job, False), (replace(job, change=asks), True)):
        seen = plan.snapshot(one)
        found = regrow.propose(seen, True, 10.0)
        (ruling,) = Arbiter(terms(PlannerSettings(limits=limits), {regrow.NAME: list})).rule(seen, found, 0.0)
        assert ruling.allowed is allowed and (allowed or why in ruling.why)


def ruled(job: planned.Job) -> tuple[bool, str]:
    """What the controller's arbiter says to the regrowth of `job`."""
    seen = plan.snapshot(job)
    (ruling,) = Arbiter(terms(PlannerSettings(), {regrow.NAME: list})).rule(seen, regrow.propose(seen, True, 10.0), 0.0)
    return ruling.allowed, ruling.why


def measured(save: float, restore: float, **changes: Any) -> planned.Job:
    """A job of two workers that wants four. It was preempted twice; its moves took so many seconds."""
    past = tuple(plan.moved(n, 9000 - 4000 * n, "Preempted", save, restore) for n in (1, 2))
    return plan.job(history=past, count=2, wanted=4, **changes)


@pytest.mark.parametrize(("left", "save", "allowed"), [
    (10, 600, False), (10, 1, True), (3, 1, False), (1000, 600, False), (100_000, 600, True), (1000, 1, True),
])  # fmt: skip
def test_a_job_is_moved_only_if_what_is_left_pays_for_the_move(left: int, save: float, allowed: bool) -> None:
    """Its owner gains half of what is left; nothing works while it is saved and restored. A step takes 1 s."""
    steps = {"steps_done": 981, "steps_seen_at": plan.NOW, "steps_total": 980 + left, "steps_printed": 980}
    job = measured(save, save, since=plan.NOW - 3000, **steps)
    job = replace(job, attempts=(*job.attempts[:-1], replace(job.attempts[-1], first_step_at=plan.NOW - 980)))
    assert ruled(job)[0] is allowed
    asks = planned.Request("resize", "ann", "running", job.attempt - 1)
    assert ruled(replace(job, change=asks))[0], "who has asked for it has weighed it"


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, 2000), st.floats(0, 2000), st.integers(1, 8), st.integers(1, 8), st.floats(20, 1e6), st.floats(1, 1e6)
)
def test_a_move_never_takes_longer_than_it_saves(
    save: float, restore: float, count: int, more: int, ran: float, left: float
) -> None:
    """Whatever was measured, and whether or not the job says how much is left."""
    for total in (None, 1000 + int(left)):
        job = measured(save, restore, since=plan.NOW - ran, steps_done=1001, steps_seen_at=plan.NOW)
        job = replace(job, steps_total=total, steps_printed=None if total is None else 1000, wanted=count + more)
        job = replace(job, given=replace(job.given, count=count, usage={plan.GPU: count}), ranks=count + more)
        seen = plan.snapshot(job, queues=(plan.queue(devices=32),))
        rulings = Arbiter(terms(PlannerSettings(), {regrow.NAME: list})).rule(seen, regrow.propose(seen, True, 10), 0.0)
        for ruling in rulings:
            saved = measure.left_s(job, plan.NOW) * (1 - count / (count + more))
            spent = (measure.save_s(job) or 0) + (measure.restore_s(job) or 0)
            assert not ruling.allowed or (saved > spent and ran >= spent - 1e-3)


def test_a_job_without_a_known_end_is_moved_when_it_has_run_long_enough() -> None:
    """It is expected to run on for as long as it has run."""
    young = replace(plan.job(since=plan.NOW - 100, count=2, wanted=4), created=plan.NOW - 200)
    assert ruled(young) == (False, "costs 240 device-seconds, and gains 120")
    assert ruled(replace(young, attempts=plan.job(since=plan.NOW - 900).attempts, runs_since=plan.NOW - 900))[0]


def test_a_job_trains_at_least_as_long_as_its_moves_take() -> None:
    job = measured(300, 200, since=plan.NOW - 400)
    (found,) = regrow.propose(plan.snapshot(job), True, 10.0)
    assert found.not_before == plan.NOW - 400 + measure.move_s(job) > plan.NOW


def test_who_asks_to_grow_does_not_wait_for_the_useful_minimum():
    assert look([shrunk()], now=T0 + 25).action is None
    assert look([asking(shrunk())], now=T0 + 25).action is not None
    again = asking(shrunk(history=[moved(1)]))
    assert look([again], now=T0 + 25).wake_at == T0 + 80  # but moves in vain make everybody wait


def test_regrowth_stays_within_new_bounds():
    smaller = shrunk(wanted=2, flavor="ondemand")  # resized from 4: the annotation is what counts
    assert look([smaller]).action is None


def test_regrowth_never_leaves_the_place_that_a_user_has_named():
    spot = Placement(["spot"], [], [[NodeRequirement("flavor", "In", ["spot"])]])
    pinned = shrunk(wanted=2)
    pinned.job["metadata"]["annotations"][job_names.ANN_PLACEMENT] = to_json(spot)
    assert look([pinned]).action is None  # though ondemand comes first in the queue and is free
    bigger = shrunk(wanted=4)
    bigger.job["metadata"]["annotations"][job_names.ANN_PLACEMENT] = to_json(spot)
    of = queue(flavors=(("ondemand", "1"), ("spot", "1")))
    result = look([bigger], of=of)
    assert result.action is not None
    assert result.action.message == "quota is free again: 2 -> 4 workers on spot"


# --- it never thrashes ------------------------------------------------------------------------------------------------
START_S = 8.0
"""What a readmission costs here: checkpoint, restart, first step."""


def simulate(flips, min_run, seconds=4000, step=2.0, blind=False):
    """A job of 4 workers while a bigger one takes and leaves `ondemand` as `flips` says (seconds between changes).

    Kueue's part is played by hand: the job gets 4 workers on ondemand when they are free, else 2 on spot. `blind`: it
    never gets them, for a reason that quotas do not show. Returns (start, end, ended by us) of each attempt.
    """
    now, taken, change, number = T0, False, iter([*flips, 1e9]), 1
    flips_at = T0 + next(change)
    history, began, spans = [], T0, []
    size, place = (2, "spot") if blind else (4, "ondemand")
    first = T0 + START_S

    def leave(cause=None, by="AdmissionCheck"):
        nonlocal number, began, size, place, first, history
        record = scene.record(
            number, pods=size, flavor=place, first_step=0, first_step_at=first, ended_by=by, readmitted_for=cause
        )  # fmt: skip
        history = [*history, record][-50:]
        spans.append((first, now, cause is not None))
        size, place = (2, "spot") if taken or blind else (4, "ondemand")
        number, began, first = number + 1, now, now + START_S

    while now < T0 + seconds:
        now += step
        while now >= flips_at:
            taken, flips_at = not taken, flips_at + next(change)
            if taken and place == "ondemand":
                leave(by="Preempted")
        if now < first:
            continue
        candidate = shrunk(count=size, flavor=place, history=history)
        current = replace(scene.record(number, pods=size, flavor=place), first_step=0, first_step_at=first)
        pods = [scene.pod(i, attempt=number) for i in range(size)]
        candidate = replace(candidate, history=[*history, current], pods=pods)
        found = look([candidate], others=[big()] if taken else (), now=now, min_run=min_run)
        if found.action is not None:
            leave(cause=found.action.cause)
    return spans


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(min_value=0.5, max_value=120.0, allow_nan=False), max_size=30),
    st.sampled_from([5.0, 10.0, 60.0, 300.0]),
)
def test_quota_that_flips_never_costs_more_than_every_second_moment(flips, min_run):
    """Every move of ours ends an attempt that has trained for the useful minimum: at least min_run of each
    min_run + START_S seconds that we are responsible for are training, however fast the quota comes and goes."""
    spans = simulate(flips, min_run, seconds=600)
    assert all(end - first >= min_run for first, end, ours in spans if ours)


def test_moves_that_never_help_die_out():
    ours = [span for span in simulate([], 10.0, seconds=4 * 3600, step=20.0, blind=True) if span[2]]
    assert 1 <= len(ours) <= 10  # 60 s, 2, 4, ... minutes, at most once an hour: not one a minute


def test_free_quota_is_used_once_and_for_good():
    spans = simulate([50.0, 100.0], 10.0)
    assert [ours for _, _, ours in spans] == [False, True]
