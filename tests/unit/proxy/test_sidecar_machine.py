"""The checkpoint state machine as a table: what the pods say, and what the leader makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from singularity_proxy.protocol import manifest, page
from singularity_proxy.sidecar import state_machine, wording
from singularity_proxy.sidecar.peers import PodReport, RankWords, Stop
from singularity_proxy.sidecar.state_machine import Failure, Heard, State, Trigger

G = page.generation(3, 1)
RUN, ABSENT, ENDED = page.STATE_RUNNING, page.STATE_ABSENT, page.STATE_FINISHED
NEW = State(job="train", attempt=3, workers=2, world_size=2)
COMMAND = Trigger("preempted", started_at=100.0, deadline=130.0)


def _pod(index: int, count: int, blocked: int = 0, state: int = RUN, **more: object) -> PodReport:
    words = [RankWords(index, count, blocked, state)]
    return PodReport(index=index, ranks=words, **{"started": True, **more})  # type: ignore[arg-type]


def _heard(*reports: PodReport, at: float = 101.0) -> dict[int, Heard]:
    return {r.index: Heard(r, at) for r in reports}


@pytest.mark.parametrize("job", ["train", "train.jobset", "train.trainjob", "a" * 52, f"{'a' * 39}.jobset"])
def test_every_job_has_checkpoints_that_a_manifest_can_name(job: str) -> None:
    barrier = state_machine.request(replace(NEW, job=job), COMMAND)
    assert manifest.is_id(state_machine.directive(barrier).checkpoint_id)


def _at_barrier() -> State:
    state, failure = state_machine.observe(state_machine.request(NEW, COMMAND), _heard(_pod(0, 7), _pod(1, 6)), 101.0)
    assert failure is None
    return state


def _saving() -> State:
    state, failure = state_machine.observe(_at_barrier(), _heard(_pod(0, 8, G), _pod(1, 8, G)), 102.0)
    assert failure is None
    return state


def _committing() -> State:
    done = {"dumped": G, "uploaded": G}
    state, failure = state_machine.observe(_saving(), _heard(_pod(0, 8, G, **done), _pod(1, 8, G, **done)), 103.0)
    assert failure is None
    return state


def test_the_straight_way() -> None:
    barrier = _at_barrier()
    assert (barrier.phase, barrier.stop_at, barrier.generation) == ("barrier", 8, G)
    first = state_machine.directive(barrier)
    assert (first.op, first.generation, first.stop_at, first.acquired) == ("barrier", G, 8, False)
    saving = _saving()
    assert (saving.phase, saving.barrier_at, state_machine.directive(saving).op) == ("save", 102.0, "save")
    assert state_machine.directive(saving).checkpoint_id == "train-a3-g1"
    committing = _committing()
    assert (committing.phase, state_machine.directive(committing).op) == ("commit", "save"), "pods go on waiting"
    assert state_machine.directive(state_machine.committed(committing)).op == "stop"


def test_continue_runs_on_and_says_that_ranks_are_frozen() -> None:
    assert _committing().trigger is not None
    state = state_machine.committed(replace(_committing(), trigger=replace(COMMAND, then="continue")))
    directive = state_machine.directive(state)
    assert (state.phase, directive.op, directive.acquired, directive.generation) == ("run", "run", True, G)
    again = state_machine.request(state, COMMAND)
    assert again.generation == G + 1 and not again.acquired and again.stop_at == 0


def test_a_pod_that_does_not_hear_of_the_end_of_a_stop_hears_it_with_the_next_one() -> None:
    state = state_machine.committed(replace(_committing(), trigger=replace(COMMAND, then="continue")))
    over = state_machine.directive(state).over
    assert over == Stop(G, 8, False, "train-a3-g1")
    second = state_machine.request(state, COMMAND)
    assert (state_machine.directive(second).op, state_machine.directive(second).over) == ("barrier", over)
    given_up, _ = state_machine.cancelled(second, "no step boundary", "time")
    assert state_machine.directive(given_up).over == over, "the second one was not reached"
    third = state_machine.request(given_up, COMMAND)
    assert (third.generation, state_machine.directive(third).over) == (G + 2, over)
    assert state_machine.directive(_saving()).over is None, "under way"


def test_a_second_trigger_joins() -> None:
    state = state_machine.request(NEW, replace(COMMAND, then="continue"))
    joined = state_machine.request(state, replace(COMMAND, deadline=110.0, then="stop"))
    assert joined.generation == state.generation and joined.trigger is not None
    assert (joined.trigger.deadline, joined.trigger.then) == (110.0, "stop")
    later = state_machine.request(joined, replace(COMMAND, deadline=500.0, then="continue", terminating=True))
    assert later.trigger is not None
    assert (later.trigger.deadline, later.trigger.then, later.trigger.terminating) == (110.0, "stop", True)


def test_terminating_pod_triggers_and_ends_all_after_the_commit() -> None:
    state, _ = state_machine.observe(NEW, _heard(_pod(0, 7), _pod(1, 6, terminating_in_s=50.0)), 101.0)
    assert state.phase == "barrier" and state.trigger is not None
    assert (state.trigger.deadline, state.trigger.terminating) == (151.0, True), "counted from when it was heard"
    ended = state_machine.committed(replace(state, phase="commit"))
    assert state_machine.directive(ended).op == "exit"


def test_terminating_after_the_commit_is_the_pods_own_business() -> None:
    stopped = state_machine.committed(_committing())
    state, failure = state_machine.observe(stopped, _heard(_pod(0, 8), _pod(1, 8, terminating_in_s=50.0)), 140.0)
    assert state == stopped and failure is None


def test_a_terminating_pod_triggers_once() -> None:
    reports = _heard(_pod(0, 7), _pod(1, 6, terminating_in_s=50.0))
    state, _ = state_machine.observe(NEW, reports, 101.0)
    state, failure = state_machine.observe(state, reports, 152.0)
    assert state.phase == "run" and failure is not None and state_machine.directive(state).unsaved == [1]
    assert state_machine.observe(state, reports, 153.0) == (state, None)
    reports = _heard(_pod(0, 7, terminating_in_s=90.0), _pod(1, 6, terminating_in_s=50.0))
    other, _ = state_machine.observe(state, reports, 154.0)
    assert other.phase == "barrier" and other.asked == {0}


@pytest.mark.parametrize(
    ("engine", "agents", "broken", "phase"),
    [
        (True, True, "", "save"),
        (False, True, "", "run"),  # of an engine whose ranks save their state together
        (True, False, "", "run"),  # an agent of an earlier version, in an old checkpoint, would wait for it
        (True, True, "rank 0 ended with code 3", "run"),
    ],
)
def test_who_has_ended_is_left_out_where_the_others_can_go_on_without_it(
    engine: bool, agents: bool, broken: str, phase: str
) -> None:
    ended = _pod(0, 5, state=page.STATE_ENDED, apart=True, broken=broken)
    state = state_machine.request(replace(NEW, apart=engine), COMMAND)
    state, failure = state_machine.observe(state, _heard(ended, _pod(1, 7, apart=agents)), 101.0)
    if not failure:
        assert state_machine.directive(state).ended == [0], "the ranks of other pods look for it no more"
        state, failure = state_machine.observe(state, _heard(ended, _pod(1, 8, G, apart=agents)), 102.0)
    assert (state.phase, failure is None) == (phase, phase == "save")
    if isinstance(failure, Failure):
        assert ("Only the process engine" in failure.message) is not engine
    if phase == "save":
        resumed = state_machine.committed(
            replace(state, phase="commit", trigger=replace(COMMAND, then="continue")), 103.0
        )
        assert state_machine.directive(resumed).over == Stop(G, 8, False, "train-a3-g1", [0])


def test_ended_rank_cancels_but_lets_terminating_pods_end_by_themselves() -> None:
    reports = _heard(_pod(0, 7, state=ENDED), _pod(1, 7, terminating_in_s=50.0))
    state, failure = state_machine.observe(NEW, reports, 101.0)
    assert failure is not None and failure.message == (
        "a rank has ended already: rank 0 ended at step 7, rank 1 at step 7. Only the process engine saves the others "
        "without it"
    )
    assert state_machine.directive(state).unsaved == [], "the others may be about to end in order"
    assert state_machine.observe(state, reports, 102.0) == (state, None)


@pytest.mark.parametrize(
    ("reports", "now", "message"),
    [
        ((_pod(0, 17), _pod(1, 17)), 130.0, "no step boundary within 30 s: ranks 0-1 at step 17"),
        (
            (_pod(0, 18, G), _pod(1, 17)),
            130.0,
            "no step boundary within 30 s: rank 0 waiting at step 18, rank 1 at step 17",
        ),
        (
            (_pod(0, 0, state=ABSENT), _pod(1, 2)),
            130.0,
            "no step boundary within 30 s: rank 0 not at a first step boundary yet, rank 1 at step 2",
        ),
        ((_pod(0, 0, started=False),), 101.0, "no rank runs yet in this attempt: nothing new to save"),
    ],
)
def test_barrier_gives_up_with_a_sentence(reports: tuple[PodReport, ...], now: float, message: str) -> None:
    state, failure = state_machine.observe(state_machine.request(NEW, COMMAND), _heard(*reports, at=now), now)
    assert failure is not None and failure.message == message
    directive = state_machine.directive(state)
    assert (directive.op, directive.acquired, state.trigger) == ("run", False, None)


def test_silent_pod_is_named() -> None:
    heard = {0: Heard(_pod(0, 7), 120.0), 1: Heard(_pod(1, 7), 101.0)}
    assert state_machine.observe(_at_barrier(), heard, 101.0 + state_machine.SILENCE_S)[1] is None
    _, failure = state_machine.observe(_at_barrier(), heard, 102.0 + state_machine.SILENCE_S)
    assert failure is not None and failure.message.startswith("pod 1 has not been heard for 16 s")


def test_a_pod_that_was_silent_before_the_request_gets_its_time() -> None:
    heard = {0: Heard(_pod(0, 7), 101.0), 1: Heard(_pod(1, 7), 20.0)}
    assert state_machine.observe(state_machine.request(NEW, COMMAND), heard, 101.0)[1] is None


@pytest.mark.parametrize(
    ("reports", "now", "message"),
    [
        (
            (_pod(0, 8, G, dumped=G), _pod(1, 8, G, failed=G, message="disk full")),
            103.0,
            "the barrier was reached at step 8, but saving failed: pod 1: disk full",
        ),
        (
            (_pod(0, 8, G, dumped=G), _pod(1, 8, G)),
            130.0,
            "the barrier was reached at step 8, but not saved within 28 s: pod 1 still dumping, pod 0 still uploading",
        ),
    ],
)
def test_saving_gives_up_with_a_sentence_and_frozen_ranks_go_on(
    reports: tuple[PodReport, ...], now: float, message: str
) -> None:
    state, failure = state_machine.observe(_saving(), _heard(*reports, at=now), now)
    assert failure is not None and failure.message == message
    directive = state_machine.directive(state)
    assert (directive.op, directive.acquired, directive.generation) == ("run", True, G)


def test_a_rank_that_cannot_be_saved_ends_the_barrier_at_once() -> None:
    heard = _heard(_pod(0, 8, G), _pod(1, 7, failed=G, message="rank 1 cannot be saved: no memory"))
    state, failure = state_machine.observe(_at_barrier(), heard, 102.0)
    assert failure is not None and failure.message.startswith("pod 1: rank 1 cannot be saved: no memory: ")
    assert (state.phase, state_machine.directive(state).acquired) == ("run", False)


def test_failure_of_an_older_generation_does_not_count() -> None:
    state, failure = state_machine.observe(_saving(), _heard(_pod(0, 8, failed=G - 1), _pod(1, 8)), 103.0)
    assert failure is None and state.phase == "save"


def test_stale_attempt_ends_everything() -> None:
    assert state_machine.directive(state_machine.stale(_committing())).op == "exit"


def test_checkpoint_ids_are_valid_for_the_longest_job_names() -> None:
    state = replace(NEW, job="a" * 31 + "-" + "b" * 12, sequence=999_999, attempt=9999, nonce="01234567")
    assert state.checkpoint_id == "a" * 31 + "-a9999-g999999-01234567" and len(state.checkpoint_id) <= 63


def test_words_for_ranks() -> None:
    assert wording.numbers([3, 0, 1, 2, 7]) == "0-3,7"
    assert wording.ranks([4]) == "rank 4" and wording.ranks([4, 5]) == "ranks 4-5"


def test_an_eviction_that_joins_a_checkpoint_on_the_side_has_its_own_deadline() -> None:
    aside = state_machine.request(NEW, replace(COMMAND, deadline=105.0, then="continue"))
    joined = state_machine.request(aside, replace(COMMAND, deadline=200.0))
    assert joined.trigger is not None
    assert (joined.trigger.deadline, joined.trigger.then, joined.goes_on) == (200.0, "stop", False)
    late = state_machine.request(
        state_machine.request(NEW, replace(COMMAND, deadline=200.0)), replace(COMMAND, then="continue")
    )
    assert late.trigger is not None
    assert (late.trigger.deadline, late.goes_on) == (200.0, False)


def test_a_checkpoint_on_the_side_leaves_no_trace_of_its_barrier() -> None:
    trigger = replace(COMMAND, then="continue")
    assert state_machine.committed(replace(_committing(), trigger=trigger)).barrier_at == 0.0
    state, failure = state_machine.cancelled(replace(_saving(), trigger=trigger), "no", "store")
    assert (state.barrier_at, failure.goes_on) == (0.0, True)
    state, failure = state_machine.cancelled(_saving(), "no", "store")
    assert (state.barrier_at, failure.goes_on) == (102.0, False)


def test_the_world_has_finished_when_every_pod_is_done() -> None:
    done = [_pod(i, 9, state=ENDED, done=True) for i in (0, 1)]
    assert state_machine.observe(NEW, _heard(done[0]), 101.0) == (NEW, None), "a pod not heard of may still run"
    assert state_machine.observe(NEW, _heard(done[0], _pod(1, 9, state=ENDED)), 101.0) == (NEW, None), (
        "its code is not known"
    )
    state, failure = state_machine.observe(NEW, _heard(*done), 101.0)
    assert failure is None and state_machine.directive(state).op == "finish"
    assert state_machine.observe(state, _heard(done[0], _pod(1, 9, terminating_in_s=50.0)), 102.0) == (state, None)
    assert state_machine.request(state, COMMAND) == state, "nothing is left to save"
    assert state_machine.observe(state, _heard(*done), 9000.0) == (state, None), "pods end one after the other"


def test_those_who_wait_learn_why_the_world_cannot_end_well() -> None:
    failed = _heard(_pod(0, 9, done=True), _pod(1, 9, broken="rank 1 ended with code 3"))
    state, _ = state_machine.observe(NEW, failed, 101.0)
    assert state_machine.directive(state).op == "run"
    assert state_machine.directive(state).broken == "pod 1: rank 1 ended with code 3"
    state, _ = state_machine.observe(NEW, _heard(_pod(0, 9), _pod(1, 9)), 101.0 + state_machine.GONE_S)
    assert state_machine.directive(state).broken == ""
    old = {0: Heard(_pod(0, 9, done=True), 200.0), 1: Heard(_pod(1, 9), 101.0)}
    state, _ = state_machine.observe(NEW, old, 200.0)
    assert state_machine.directive(state).broken == "pod 1 not heard for 60 s"
    state, _ = state_machine.observe(state, _heard(_pod(0, 9), _pod(1, 9), at=201.0), 201.0)
    assert state_machine.directive(state).broken == "", "it was only cut off"


def test_ranks_that_nobody_waits_for_are_stopped_where_they_are() -> None:
    asked = state_machine.request(NEW, COMMAND)
    absent, alone = _pod(0, 0, state=ABSENT), _pod(1, 5, state=page.STATE_ALONE)
    before, _ = state_machine.observe(asked, _heard(absent, alone, at=99.0), 101.0)
    assert before.phase == "barrier", "what was said before the request may be old"
    starting, _ = state_machine.observe(asked, _heard(absent, _pod(1, 0, state=ABSENT, started=False)), 101.0)
    assert starting.phase == "barrier"
    meets, _ = state_machine.observe(asked, _heard(absent, _pod(1, 0)), 101.0)
    assert (meets.phase, meets.anywhere) == ("barrier", False), "rank 1 waits for rank 0"
    state, failure = state_machine.observe(asked, _heard(absent, alone), 101.0)
    assert failure is None
    first = state_machine.directive(state)
    assert (first.op, first.anywhere, first.acquired, first.stop_at) == ("save", True, True, 5)
    done = {"dumped": G, "uploaded": G}
    later = _heard(_pod(0, 0, state=ABSENT, **done), _pod(1, 7, state=page.STATE_ALONE, **done))
    state, _ = state_machine.observe(state, later, 102.0)
    assert (state.phase, state.stop_at) == ("commit", 7), "it took two steps more until it stood"
    again = state_machine.request(
        state_machine.committed(replace(state, trigger=replace(COMMAND, then="continue"))), COMMAND
    )
    assert not again.anywhere


# --- ranks that go on while they are saved ----------------------------------------------------------------------------
ASIDE = replace(COMMAND, reason="periodic", deadline=160.0, then="continue")


def _in_background(trigger: Trigger = ASIDE) -> State:
    state = state_machine.request(replace(NEW, overlaps=True), trigger)
    for views, at in (([7, 6], 101.0), ([8, 8], 102.0)):
        blocked = G if views == [8, 8] else 0
        state, failure = state_machine.observe(
            state, _heard(*(_pod(i, n, blocked) for i, n in enumerate(views)), at=at), at
        )
        assert failure is None
    assert state.phase == "save"
    return state


def test_only_a_checkpoint_that_the_job_goes_on_from_is_saved_in_the_background() -> None:
    assert state_machine.directive(_in_background()).background
    assert not state_machine.directive(_in_background(COMMAND)).background, "a leave"
    assert not state_machine.directive(_in_background(replace(ASIDE, terminating=True))).background
    assert not state_machine.directive(_saving()).background, "the process engine"
    joined = state_machine.request(state_machine.request(replace(NEW, overlaps=True), ASIDE), COMMAND)
    assert joined.waiting is None and not joined.goes_on, "before the barrier it joins"


def test_a_leave_waits_for_the_save_in_the_background_and_then_has_a_barrier_of_its_own() -> None:
    state = state_machine.request(_in_background(), COMMAND)
    assert (state.phase, state.waiting, state.goes_on) == ("save", COMMAND, True)
    earlier = state_machine.request(state, replace(COMMAND, deadline=120.0, terminating=True))
    assert earlier.waiting is not None and (earlier.waiting.deadline, earlier.waiting.terminating) == (120.0, True)
    done = {"dumped": G, "uploaded": G}
    state, _ = state_machine.observe(state, _heard(_pod(0, 12, **done), _pod(1, 12, **done), at=103.0), 103.0)
    assert (state.phase, state.stop_at) == ("commit", 8)
    leave = state_machine.committed(state)
    said = state_machine.directive(leave)
    assert (leave.phase, leave.trigger, leave.waiting, leave.background) == ("barrier", COMMAND, None, False)
    assert (said.op, said.generation, said.over) == ("barrier", G + 1, Stop(G, 8, False, "train-a3-g1"))


def test_a_leave_goes_on_where_the_save_in_the_background_fails() -> None:
    state = state_machine.request(_in_background(), COMMAND)
    heard = _heard(_pod(0, 12), _pod(1, 12, failed=G, message="no space"), at=103.0)
    state, failure = state_machine.observe(state, heard, 103.0)
    assert failure is not None and failure.goes_on and "no space" in failure.message
    assert (state.phase, state.trigger, state.generation) == ("barrier", COMMAND, G + 1)


def test_a_pod_that_is_asked_to_end_during_a_save_in_the_background_is_part_of_the_leave() -> None:
    reports = [_pod(0, 12), _pod(1, 12, terminating_in_s=20.0)]
    state, _ = state_machine.observe(_in_background(), _heard(*reports, at=103.0), 103.0)
    assert state.waiting is not None and state.waiting.terminating and state.asked == {1}
    late, failure = state_machine.observe(state, _heard(*reports, at=123.5), 123.5)
    assert failure is not None and "not saved within" in failure.message, "the leave's deadline ends it"
    assert (late.phase, late.asked, late.answered, late.unsaved) == ("barrier", {1}, set(), set())
    ended, failure = state_machine.observe(late, _heard(*reports, at=123.6), 123.6)
    assert failure is not None and (ended.phase, ended.unsaved) == ("run", {1}), "it has nothing to wait for"


# --- ranks that stay stopped -----------------------------------------------------------------------------------------
STAY = Trigger("pause", started_at=100.0, deadline=130.0, then="stay", stay_s=60.0)


def _standing() -> State:
    """Committed, and the ranks stay stopped until 164."""
    state = state_machine.committed(replace(_committing(), trigger=STAY), 104.0)
    assert (state.phase, state.until) == ("stay", 164.0)
    return state


def _moves(state: State, now: float) -> State:
    after, failure = state_machine.observe(state, _heard(_pod(0, 8, G), _pod(1, 8, G)), now)
    assert failure is None
    return after


def test_ranks_stay_stopped_after_their_commit_and_go_on_by_themselves() -> None:
    standing = _standing()
    directive = state_machine.directive(standing)
    assert (directive.op, directive.over, directive.ahead) == ("save", None, True), "no pod lets its ranks go on"
    assert _moves(standing, 163.9) == standing
    running = _moves(standing, 164.0)
    directive = state_machine.directive(running)
    assert (directive.op, directive.over) == ("run", Stop(G, 8, False, "train-a3-g1"))
    assert state_machine.request(running, STAY).generation == G + 1, "then they are saved again"


@pytest.mark.parametrize("terminating", [False, True])
def test_an_end_of_ranks_that_stay_stopped_commits_the_same_checkpoint(terminating: bool) -> None:
    then = "continue" if terminating else "stop"
    asked = Trigger("preempted", 110.0, 200.0, then=then, terminating=terminating)
    state = state_machine.request(_standing(), asked)
    assert (state.phase, state.generation, state.goes_on) == ("commit", G, False)
    assert state.trigger is not None and (state.trigger.started_at, state.trigger.deadline) == (100.0, 200.0)
    ended = state_machine.committed(state, 111.0)
    assert (ended.phase, state_machine.directive(ended).op) == ("stopped", "exit" if terminating else "stop")


def test_a_pod_that_is_asked_to_end_ends_ranks_that_stay_stopped() -> None:
    state, failure = state_machine.observe(
        _standing(), _heard(_pod(0, 8, G), _pod(1, 8, G, terminating_in_s=9.0)), 105.0
    )
    assert failure is None and (state.phase, state.goes_on, state.asked) == ("commit", False, {1})
    assert state_machine.directive(state_machine.committed(state, 106.0)).op == "exit"


def test_other_requests_to_ranks_that_stay_stopped_get_the_same_checkpoint() -> None:
    other = state_machine.request(_standing(), Trigger("ann", 120.0, 150.0, then="continue"))
    assert (other.phase, other.generation, other.stays) == ("commit", G, True)
    assert state_machine.committed(other, 121.0).until == 164.0, "they do not stay for longer because of it"
    again = state_machine.request(_standing(), replace(STAY, started_at=120.0, deadline=150.0))
    assert (again.phase, again.generation, again.stays) == ("commit", G, True)
    assert state_machine.committed(again, 121.0).until == 181.0


def test_nobody_ends_them_any_more() -> None:
    assert state_machine.directive(state_machine.resume(_standing())).op == "run"
    saving = state_machine.resume(replace(_saving(), trigger=STAY))
    assert saving.phase == "save" and saving.runs_on, "what is nearly saved is not thrown away"
    assert state_machine.committed(replace(saving, phase="commit"), 104.0).phase == "run"
    for state in (NEW, _at_barrier(), state_machine.committed(_committing()), replace(NEW, phase="finished")):
        assert state_machine.resume(state) == state, "an eviction is not called off"


def test_stay_joins_between_continue_and_stop() -> None:
    asked = state_machine.request(NEW, Trigger("auto", 90.0, 110.0, then="continue"))
    stay = state_machine.request(asked, STAY)
    assert stay.trigger is not None
    assert (stay.trigger.then, stay.trigger.deadline, stay.trigger.stay_s) == ("stay", 130.0, 60.0)
    assert (stay.goes_on, stay.stays, stay.runs_on) == (True, True, False)
    assert state_machine.request(stay, Trigger("ann", 101.0, 102.0, then="continue")).trigger == stay.trigger
    stop = state_machine.request(stay, replace(COMMAND, deadline=300.0))
    assert stop.trigger is not None and (stop.trigger.then, stop.trigger.deadline) == ("stop", 300.0)
    assert not stop.goes_on and not stop.stays


def test_a_failed_save_of_ranks_that_were_to_stay_lets_them_go_on() -> None:
    state = replace(_saving(), trigger=STAY)
    broken = _heard(_pod(0, 8, G, failed=G, message="rank 0 holds a lock"), _pod(1, 8, G))
    after, failure = state_machine.observe(state, broken, 103.0)
    assert failure is not None and failure.goes_on and "holds a lock" in failure.message
    assert (after.phase, after.barrier_at, state_machine.directive(after).op) == ("run", 0.0, "run")
    after, failure = state_machine.observe(state, _heard(_pod(0, 8, G), _pod(1, 8, G), at=130.0), 130.0)
    assert failure is not None and failure.goes_on and "not saved within 28 s" in failure.message


def test_stay_waits_for_a_save_in_the_background() -> None:
    begun = replace(_saving(), trigger=Trigger("auto", 100.0, 130.0, then="continue"), background=True)
    state = state_machine.request(begun, STAY)
    assert state.waiting == STAY and state.background
    assert state_machine.resume(state).waiting is None
    after = state_machine.committed(replace(state, phase="commit"), 104.0)
    assert (after.phase, after.trigger, after.generation) == ("barrier", STAY, G + 1)
