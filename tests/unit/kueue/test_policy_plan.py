"""When the next periodic checkpoint is due: words, interval, plan, request. Nothing here has a clock."""

from __future__ import annotations

import dataclasses
import json
import math

import controller_scene as scene
import pytest
from controller_scene import T0
from hypothesis import assume, given
from hypothesis import strategies as st

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import CheckpointMemory, JobRequest, RequestStatus
from kueue_integration.controller.actions import AskCheckpoint, RecordHistory
from kueue_integration.kube.resources import merge_patch
from kueue_integration.requests import periodic_checkpoints, user_requests
from kueue_integration.requests.periodic_checkpoints import LONGEST_S, SHORTEST_S
from kueue_integration.spec import save_interval
from kueue_integration.spec.save_interval import SaveInterval
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

FIRST = T0 + 20


# --- words ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("300s", SaveInterval(seconds=300.0)), ("10m", SaveInterval(seconds=600.0)),
        ("1.5h", SaveInterval(seconds=5400.0)),
        (300, SaveInterval(seconds=300.0)), (90.5, SaveInterval(seconds=90.5)), ("45", SaveInterval(seconds=45.0)),
        ("500 steps", SaveInterval(steps=500)), ("1 step", SaveInterval(steps=1)),
        ("500steps", SaveInterval(steps=500)),
        (" AUTO ", SaveInterval()), ("off", None), ("", None), ("None", None), (None, None),
    ],
)  # fmt: skip
def test_an_interval_is_read_and_written(text, meaning):
    assert save_interval.parse(text) == meaning
    assert meaning is None or save_interval.parse(str(meaning)) == meaning


@given(st.text(max_size=12))
def test_any_text_is_an_interval_or_a_clear_error(text):
    try:
        found = save_interval.parse(text)
    except ValueError as error:
        assert "interval" in str(error) or "must be from" in str(error)
    else:
        assert found is None or save_interval.parse(str(found)) == found


# --- the interval of auto -------------------------------------------------------------------------------------------
def test_the_optimum_is_youngs_with_dalys_correction():
    assert periodic_checkpoints.optimum(1, 1e8) == pytest.approx((2 * 1e8) ** 0.5, rel=1e-3)  # small costs: Young alone
    cost, mtbf = 120.0, 3600.0
    x = cost / (2 * mtbf)
    daly = (2 * cost * mtbf) ** 0.5 * (1 + x**0.5 / 3 + x / 9) - cost
    assert periodic_checkpoints.optimum(cost, mtbf) == pytest.approx(daly)


def wasted(interval, cost, mtbf):
    """Share of time lost to checkpoints and repeated steps: failures come as a Poisson process, restarts are free."""
    return mtbf * math.expm1((interval + cost) / mtbf) / interval


@given(st.floats(0.1, 3600), st.floats(600, 1e7))
def test_no_other_interval_wastes_much_less(cost, mtbf):
    assume(cost < mtbf / 4)
    best = periodic_checkpoints.optimum(cost, mtbf)
    ours = wasted(best, cost, mtbf)
    assert all(ours <= wasted(best * factor, cost, mtbf) * 1.001 for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0))


def lives(failures, others=0, pods=2):
    """History: `failures` attempts that were lost after 100 s, `others` that were held and saved, one that trains."""
    end = {"first_step_at": T0, "evicted_at": T0 + 100, "pods": pods}
    past = [scene.record(n + 1, ended_by="Deleted", **end) for n in range(failures)]
    past += [
        scene.record(n + 1, ended_by="Preempted", checkpoint="c", **end) for n in range(failures, failures + others)
    ]
    return [*past, scene.record(failures + others + 1, pods=pods, first_step_at=T0 + 100)]


@given(
    st.floats(0, 5000), st.floats(0, 5000), st.integers(0, 40), st.integers(0, 40), st.integers(0, 5),
    st.integers(1, 64),
)  # fmt: skip
def test_the_interval_grows_with_cost_shrinks_with_failures_and_keeps_its_bounds(cost, more, few, many, others, pods):
    cheap, dear = sorted((cost, more))
    few, many = sorted((few, many))
    until = T0 + 200
    calm, rough = lives(few, many - few + others, pods), lives(many, others, pods)  # the same time, other ends
    assert periodic_checkpoints.interval(calm, cheap, until) <= periodic_checkpoints.interval(calm, dear, until) + 1e-6
    assert (
        periodic_checkpoints.interval(rough, cheap, until) <= periodic_checkpoints.interval(calm, cheap, until) + 1e-6
    )
    assert SHORTEST_S <= periodic_checkpoints.interval(rough, cheap, until) <= LONGEST_S


def test_what_counts_as_a_failure():
    until = T0 + 100
    calm = periodic_checkpoints.mtbf(lives(0), until)
    assert calm == pytest.approx(periodic_checkpoints.PRIOR_POD_S / 2)
    assert periodic_checkpoints.mtbf(lives(1), until) < calm * 0.51
    assert periodic_checkpoints.mtbf(lives(0, 3), until) > calm  # held evictions: only time in which nothing failed
    never = [scene.record(1, ended_by="Deleted", evicted_at=T0 + 900), scene.record(2, first_step_at=T0 + 100)]
    assert (
        periodic_checkpoints.mtbf(never, until) == calm
    )  # lost before its first step: nothing to save, nothing to learn
    assert periodic_checkpoints.mtbf(lives(0, pods=8), until) == pytest.approx(calm / 4)


# --- the plan -------------------------------------------------------------------------------------------------------
def job(
    wish="60s", *, past=None, progress=(1, 500), saved=(), answer=None, cost=None, failures=0, suspend=False, **more
):
    """A Job that trains since FIRST. `answer`: (state, taken up at, finished at) of the last checkpoint request."""
    past = past or [scene.record(1, first_step=0, first_step_at=FIRST)]
    notes = {job_names.ANN_WORLD_SIZE: "2", job_names.ANN_HOLD: "armed", **scene.history(*past)}
    if wish is not None:
        notes[job_names.ANN_CHECKPOINT_EVERY] = wish
    if progress is not None:
        notes[job_names.ANN_PROGRESS] = json.dumps(
            {
                "attempt": progress[0],
                "step": progress[1],
                "at": FIRST,
                "phase": progress[2] if progress[2:] else "running",
            }
        )
    if saved:
        notes[job_names.ANN_CHECKPOINTS] = to_json(list(saved))
        notes[names.ANN_CHECKPOINT] = to_json(saved[-1])
    if cost is not None or failures:
        notes[job_names.ANN_CHECKPOINT_POLICY] = to_json(CheckpointMemory(cost, failures))
    if answer is not None:
        state, taken, finished = answer
        notes[job_names.ANN_CHECKPOINT_REQUEST] = to_json(JobRequest("p-1", "checkpoint", taken, "policy"))
        status = RequestStatus("p-1", "checkpoint", state, "", taken, past[-1].attempt, finished, deadline=taken + 300)
        notes[job_names.ANN_CHECKPOINT_STATUS] = to_json(status)
    notes.update(more.pop("annotations", {}))
    return scene.job(annotations=notes, suspend=suspend, **more)


def ref(step, at):
    return dataclasses.replace(scene.checkpoint(step=step), created_at=at)


@pytest.mark.parametrize(
    ("the_job", "at", "step"),
    [
        (job(), FIRST + 60, None),
        (job("10m"), FIRST + 600, None),
        (job(saved=[ref(300, FIRST + 70)]), FIRST + 130, None),
        (job(answer=("done", FIRST + 60, FIRST + 63)), FIRST + 123, None),
        (job(answer=("failed", FIRST + 60, FIRST + 90)), FIRST + 90 + 120, None),
        (job(answer=("failed", FIRST + 60, FIRST + 90), failures=2), FIRST + 90 + 480, None),
        (
            job(answer=("failed", FIRST + 60, FIRST + 90), failures=30),
            FIRST + 90 + periodic_checkpoints.MAX_PAUSE_S,
            None,
        ),
        (job("2h", answer=("failed", FIRST + 60, FIRST + 90), failures=30), FIRST + 90 + 7200, None),
        (job(answer=("done", FIRST + 60, FIRST + 90), failures=5), FIRST + 150, None),
        (job(answer=("done", FIRST + 60, FIRST + 63), saved=[ref(300, FIRST + 9000)]), FIRST + 123, None),
        (job("500 steps"), FIRST, 500),
        (job("500 steps", saved=[ref(620, FIRST + 70)]), FIRST + 70 + save_interval.LEAST_S, 1120),
        (job("500 steps", answer=("failed", FIRST + 60, FIRST + 90)), FIRST + 90 + 120, 500),
        (job("auto"), FIRST + periodic_checkpoints.FIRST_S, None),
        (
            job("auto", cost=1e-9),
            FIRST + periodic_checkpoints.optimum(periodic_checkpoints.LEAST_COST_S, 12 * 3600),
            None,
        ),
        (job("auto", cost=10.0), FIRST + periodic_checkpoints.optimum(10, 12 * 3600), None),
        (job("auto", cost=1e7), FIRST + LONGEST_S, None),
    ],
)
def test_the_plan(the_job, at, step):
    planned = periodic_checkpoints.plan(the_job)
    assert planned is not None
    assert (planned.at, planned.step) == (pytest.approx(at), step)


def test_auto_measures_what_a_checkpoint_of_this_job_costs():
    planned = periodic_checkpoints.plan(job("auto", answer=("done", FIRST + 300, FIRST + 320)))
    assert planned.interval_s == pytest.approx(
        periodic_checkpoints.optimum(20, (periodic_checkpoints.PRIOR_POD_S + 2 * 300 + 2 * 20) / 2)
    )
    preempted = scene.record(first_step=0, first_step_at=FIRST, evicted_at=FIRST + 9, barrier_at=FIRST + 10,
                             committed_at=FIRST + 49, checkpoint="c", ended_by="Preempted")  # fmt: skip
    again = scene.record(2, first_step=9, first_step_at=FIRST + 90)
    assert periodic_checkpoints.memory(job("auto", past=[preempted, again], progress=(2, 90))).cost_s == 40.0


def test_a_request_that_an_eviction_overtook_is_no_failure():
    over = [
        scene.record(1, first_step_at=FIRST, ended_by="Preempted", checkpoint="c"),
        scene.record(2, first_step_at=T0 + 90),
    ]
    moved = job(past=over, progress=(2, 90))
    moved["metadata"]["annotations"] |= {
        job_names.ANN_CHECKPOINT_REQUEST: to_json(JobRequest("p-1", "checkpoint", T0 + 60, "policy")),
        job_names.ANN_CHECKPOINT_STATUS: to_json(RequestStatus("p-1", "checkpoint", "failed", "", T0 + 60, 1, T0 + 70)),
    }
    assert periodic_checkpoints.memory(moved).failures == 0
    assert periodic_checkpoints.plan(moved).at == T0 + 150  # an interval after the new attempt's own first step


@pytest.mark.parametrize(
    "the_job",
    [
        job(None), job("off"), job("sometimes"), job(""),
        job(past=[scene.record(1)]),
        job(past=[scene.record(1, first_step_at=FIRST, ended_by="Preempted", evicted_at=FIRST + 50)]),
        job(past=[scene.record(1, first_step_at=FIRST, checkpoint="c")]),
    ],
    ids=["none", "off", "unreadable", "empty", "no step yet", "evicted", "stopped"],
)  # fmt: skip
def test_no_plan(the_job):
    assert periodic_checkpoints.plan(the_job) is None
    assert periodic_checkpoints.due(the_job, FIRST + 1e6) == (None, None)


def free(wish="60s", ranks=2, **more):
    """A Job without steps, that runs since FIRST."""
    past = [scene.record(1, first_step=0, running_at=FIRST, ranks=ranks)]
    made = job(wish, past=past, progress=None, **more)
    note = {"attempt": 1, "step": 0, "at": FIRST, "phase": "running", "free": True}
    made["metadata"]["annotations"][job_names.ANN_PROGRESS] = json.dumps(note)
    return made


def test_a_program_without_steps_is_saved_at_the_interval_that_was_asked_for():
    assert periodic_checkpoints.plan(free(ranks=1)).at == FIRST + 60, (
        "one rank: nobody can be in the midst of a meeting"
    )
    assert periodic_checkpoints.plan(free()).at == FIRST + attempt_records.STEPLESS_S + 60
    assert periodic_checkpoints.due(free("10s", ranks=1), FIRST + 10)[0] is not None
    again = free("10s", ranks=1, answer=("done", FIRST + 10, FIRST + 12), saved=[ref(0, FIRST + 12)])
    assert periodic_checkpoints.due(again, FIRST + 21) == (None, FIRST + 22)
    assert periodic_checkpoints.due(again, FIRST + 22)[0] is not None, "its state changes without a step"


def test_what_has_ranks_that_wait_for_each_other_is_not_saved_before_its_first_step():
    starting = job(past=[scene.record(1, first_step=0, running_at=FIRST)], progress=(1, 0))
    assert periodic_checkpoints.plan(starting) is None
    assert user_requests.problem(starting, JobRequest("r", "checkpoint", T0), None) is not None
    assert user_requests.problem(free(), JobRequest("r", "checkpoint", T0), None) is None


# --- asking ---------------------------------------------------------------------------------------------------------
def test_a_request_when_it_is_due_and_a_time_to_wake_up_before():
    assert periodic_checkpoints.due(job(), FIRST + 59) == (None, FIRST + 60)
    request, wake = periodic_checkpoints.due(job(), FIRST + 60)
    assert wake is None
    assert (request.op, request.by, request.timeout_s) == ("checkpoint", "policy", user_requests.DEFAULT_CHECKPOINT_S)
    assert periodic_checkpoints.due(job(), FIRST + 61)[0].id != request.id
    wanted = job("500 steps", progress=(1, 499))
    assert periodic_checkpoints.due(wanted, FIRST + 9999) == (None, FIRST + 9999 + periodic_checkpoints.LOOK_S)
    assert periodic_checkpoints.due(job("500 steps"), FIRST + 1)[0] is not None


def test_more_patience_after_failures_and_with_a_known_cost():
    later = FIRST + 1e5
    assert periodic_checkpoints.due(job(cost=200.0), later)[0].timeout_s == 600
    assert periodic_checkpoints.due(job(failures=2), later)[0].timeout_s == 1200
    assert periodic_checkpoints.due(job(failures=40), later)[0].timeout_s == user_requests.MAX_CHECKPOINT_S


CHANGE = {
    op: {job_names.ANN_REQUEST: to_json(JobRequest("r-1", op, T0, "ann", workers=2))}
    for op in ("pause", "resize", "resume")
}


def answered(op, state):
    status = RequestStatus("r-1", op, state, "", T0, 1, None if state == "running" else T0 + 1)
    return {**CHANGE[op], job_names.ANN_REQUEST_STATUS: to_json(status)}


@pytest.mark.parametrize(
    ("the_job", "asks"),
    [
        (job(), True),
        (job(answer=("running", FIRST + 60, None)), False),
        (job(annotations=CHANGE["pause"]), False),
        (job(annotations=answered("pause", "running")), False),
        (job(annotations=answered("resume", "done")), True),
        (job(annotations=CHANGE["resize"]), False),
        (job(annotations=answered("resize", "running")), True),  # growth waits for quota, maybe for days
        (job(suspend=True), False),
        (job(conditions=[scene.condition("Complete", True, 99)]), False),
        (job(progress=None), False),
        (job(progress=(1, 900, "finished")), False),
        (job(saved=[ref(500, FIRST + 70)]), False),  # not a step since
        (job(saved=[ref(499, FIRST + 70)]), True),
    ],
)
def test_whether_it_asks(the_job, asks):
    assert (periodic_checkpoints.due(the_job, FIRST + 1000)[0] is not None) is asks


@given(st.sampled_from(["10s", "60s", "1h", "1 step", "auto"]), st.floats(0, 1e5), st.floats(0, 1e5), st.integers(0, 9))
def test_never_two_within_the_least_time(wish, ended, later, failures):
    current = job(
        wish, answer=("done", FIRST + ended, FIRST + ended), saved=[ref(100, FIRST + ended)], failures=failures
    )
    if periodic_checkpoints.due(current, FIRST + ended + later)[0] is not None:
        assert later >= save_interval.LEAST_S - 0.01
        assert wish != "auto" or later >= SHORTEST_S - 0.01


# --- in the controller ----------------------------------------------------------------------------------------------
def look(the_job, workload, now, pods=None):
    pods = [scene.pod(i) for i in range(2)] if pods is None else pods
    for _ in range(3):
        found = scene.decide(the_job, workload, pods, now)
        if not isinstance(found.action, RecordHistory):
            return found
        the_job = merge_patch(the_job, {"metadata": {"annotations": dict(found.action.job_annotations)}})
    raise AssertionError("the bookkeeping does not settle")


def ready(**fields):
    return scene.workload(state="Ready", admitted=True, **fields)


def test_the_controller_makes_the_request_that_a_user_could_have_made():
    waits = look(job(), ready(), FIRST + 10)
    assert (waits.action, waits.wake_at) == (None, FIRST + 60)
    asked = look(job(answer=("failed", FIRST, FIRST + 1), failures=1), ready(), FIRST + 1000).action
    assert isinstance(asked, AskCheckpoint)
    written = merge_patch(job(), {"metadata": {"annotations": dict(asked.job_annotations)}})
    assert user_requests.asked(written, user_requests.CHECKPOINT).by == "policy"
    assert periodic_checkpoints.memory(written).failures == 2
    assert look(written, ready(), FIRST + 1000).action.status.state == "running"  # taken up like any other


@pytest.mark.parametrize("case", ["evicted", "not admitted", "sent back", "paused", "a pod ends", "no workload"])
def test_never_while_kueue_or_a_pod_is_about_to_end_the_attempt(case):
    workload, pods = ready(), [scene.pod(i) for i in range(2)]
    if case == "evicted":
        workload = ready(evicted=("Preempted", scene.PREEMPTED, 99))
    elif case == "not admitted":
        workload = scene.workload(state="Ready")
    elif case == "sent back":
        workload["status"]["admissionChecks"][0]["state"] = "Retry"
    elif case == "paused":
        workload["spec"]["active"] = False
    elif case == "a pod ends":
        pods[1] = scene.pod(1, deleting=True, created=70)
    else:
        workload = None
    assert isinstance(look(job(), ready(), FIRST + 60).action, AskCheckpoint)
    assert not isinstance(look(job(), workload, FIRST + 60, pods).action, AskCheckpoint)
