"""A job goes back to an older checkpoint: what is written, who is refused from then on, what the lineage shows."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import CHECK, NS, T0

from kueue_integration.contract import attempt_records, branches, job_names
from kueue_integration.contract.branches import Rewind
from kueue_integration.contract.record_types import JobRequest, RequestStatus
from kueue_integration.controller import attempt_history, rewind
from kueue_integration.controller.actions import (
    AnswerReady,
    AnswerRequest,
    RecordHistory,
    ReleaseHold,
    RequestReadmission,
    StartCheckpoint,
)
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Job, Workload
from kueue_integration.kube.resources import merge_patch
from kueue_integration.requests import periodic_checkpoints, user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    CommitRequest,
    Damage,
    DamageReport,
    Hello,
    Progress,
    from_json,
    to_json,
)

NOW = T0 + 100
C1, C2, C3 = (scene.checkpoint(1, n, step=100 * n) for n in (1, 2, 3))
D1 = scene.checkpoint(2, 1, step=150)


def job(*refs, past=None, asked=None, state=None, suspend=False, tip=None, annotations=None):
    """A Job with committed checkpoints, the last one current, and attempt 1 at step 350."""
    notes = {job_names.ANN_HOLD: "armed", job_names.ANN_WORLD_SIZE: "2", job_names.ANN_STORE: C1.url}
    notes.update(scene.history(*(past or [scene.record(first_step=0, first_step_at=T0 + 20, last_step=349)])))
    notes[job_names.ANN_CHECKPOINTS] = to_json(list(refs))
    notes[names.ANN_CHECKPOINT] = to_json(tip or refs[-1])
    if asked is not None:
        notes.update(user_requests.written(asked))
        if state is not None:
            status = RequestStatus(asked.id, asked.op, state, "", T0 + 90, 1, checkpoint=asked.checkpoint)
            notes.update(user_requests.stored(status))
    made = scene.job(annotations={**notes, **(annotations or {})}, suspend=suspend)
    made["spec"]["template"] = {"spec": {"containers": [{"name": "train"}]}}
    return made


def back(to=C1, who="ann"):
    return JobRequest("r-1", "rewind", T0 + 80, who, checkpoint=to.id)


def after(the_job, action):
    return merge_patch(the_job, {"metadata": {"annotations": dict(action.job_annotations)}})


def act(the_job, workload, pods=()):
    """What is decided once the bookkeeping is done."""
    for _ in range(3):
        found = scene.decide(the_job, workload, pods, NOW).action
        if not isinstance(found, RecordHistory):
            return found
        the_job = after(the_job, found)
    raise AssertionError("the bookkeeping does not settle")


def running(**fields):
    return scene.workload(state="Ready", admitted=True, **fields)


PODS = [scene.pod(0, ip="10.0.0.1"), scene.pod(1)]


def rewound(the_job=None, workload=None):
    """The Job once its rewind to C1 was taken up."""
    the_job = the_job or job(C1, C2, C3, asked=back())
    taken = act(the_job, workload or running(), PODS)
    assert isinstance(taken, AnswerRequest) and taken.status is not None and taken.status.state == "running"
    return after(the_job, taken)


def test_a_running_attempt_is_given_up_at_once_and_its_end_is_asked_for():
    current = rewound()
    assert attempt_records.checkpoint(current) == C1
    assert current["metadata"]["annotations"][job_names.ANN_CHECKPOINT_COPY] == to_json(C1)
    assert current["metadata"]["annotations"][job_names.ANN_HOLD] == "released"
    (record,) = attempt_records.history(current)
    assert (record.ended_by, record.last_step, record.checkpoint) == ("Rewound", 349, None)
    assert branches.rewinds(current) == [Rewind(1, C1.id, 100, 250, "ann", NOW)]
    said = user_requests.answer(current, user_requests.CHANGE)
    assert said is not None
    assert said.message == f"rewound by ann to checkpoint {C1.id} (step 100); 250 steps are given up"
    # Kueue is asked to end it, without a save, once; after that there is nothing left to decide until Kueue does it.
    leaves = act(current, running(), PODS)
    assert isinstance(leaves, RequestReadmission) and leaves.cause == "request"
    assert attempt_records.history(after(current, leaves))[0].readmitted_for == "request"
    evicted = scene.workload(state="Pending", admitted=True, evicted=("AdmissionCheck", "", 101))
    left = act(after(current, leaves), evicted, PODS)
    assert not isinstance(left, (StartCheckpoint, ReleaseHold, RequestReadmission))


def test_pods_of_the_attempt_that_was_given_up_can_write_nothing_more():
    current = rewound()
    late = scene.checkpoint(1, 4, step=400)
    for call in (
        lambda: reports.commit(current, CommitRequest(NS, "train", 1, late, 0.0, 399, True), NOW),
        lambda: reports.progress(current, Progress(NS, "train", 1, "running", 400), NOW),
        lambda: reports.command(current, NOW),
        lambda: reports.failure(current, CheckpointFailure(NS, "train", 1, "no step boundary"), NOW),
    ):
        with pytest.raises(RefusedError, match="attempt 1 was given up: rewound by ann") as refused:
            call()
        assert refused.value.status == 409


def test_a_pod_that_is_made_in_place_of_one_that_was_told_so_waits_for_its_end():
    """One that is refused ends with a code that fails the whole Job."""
    current = rewound()
    hello = Hello(NS, "train", 1, 0, "train-0", "10.0.0.1")
    assert reports.hello(current, PODS, hello, b"secret") is None
    assert reports.ended(current, 1), "and a sidecar that is restarted beside its ranks ends them"
    reports.require_current(current, 1)


def test_a_hold_is_lifted_because_what_it_would_save_is_not_wanted():
    workload = scene.workload(state="Pending", admitted=True, evicted=("Preempted", scene.PREEMPTED, 95))
    past = [scene.record(first_step=0, last_step=349, evicted_at=T0 + 95, ended_by="Preempted")]
    current = rewound(job(C1, C2, C3, past=past, asked=back()), workload)
    assert current["metadata"]["annotations"][job_names.ANN_HOLD] == "released"
    (record,) = attempt_records.history(current)
    assert record.ended_by == "Preempted", "that it has to leave was not the rewind's doing"
    assert branches.given_up(branches.rewinds(current), 1) is not None
    assert not isinstance(act(current, workload, PODS), (StartCheckpoint, RequestReadmission))


def test_a_waiting_job_keeps_its_place_and_starts_from_the_older_checkpoint():
    past = [scene.record(first_step=0, last_step=299, ended_by="Preempted", checkpoint=C3.id, evicted_at=T0 + 20,
                         committed_at=T0 + 25, released_at=T0 + 30)]  # fmt: skip
    waiting = scene.workload(reserved_at=None, state="Pending")
    current = rewound(job(C1, C2, C3, past=past, asked=back(), suspend=True), waiting)
    assert branches.rewinds(current)[0].steps == 200
    assert attempt_records.history(current)[0].ended_by == "Preempted"
    admitted = scene.workload(reserved_at=99, state="Pending")
    answer = act(current, admitted)
    assert isinstance(answer, AnswerReady)
    assert (answer.attempt, answer.pod_annotations[names.ANN_CHECKPOINT]) == (2, C1.id)
    assert attempt_records.history(after(current, answer))[-1].restored_from == C1.id


def test_an_attempt_that_was_given_up_before_it_started_gives_its_number_to_no_other():
    """Its pods know this number, and are refused for it."""
    workload = scene.workload(state="Pending")
    the_job = job(C1, C2, past=[scene.record(1)], asked=back(), suspend=True)
    current = rewound(the_job, workload)
    answer = act(current, workload)
    assert isinstance(answer, AnswerReady) and answer.attempt == 2


def test_done_when_the_next_attempt_trains_and_not_before():
    request = back()
    past = [scene.record(first_step=0, last_step=349, ended_by="Rewound", released_at=T0 + 92)]
    given_up = {job_names.ANN_REWINDS: to_json([Rewind(1, C1.id, 100, 250, "ann", T0 + 90)])}
    one = job(C1, C2, tip=C1, past=past, asked=request, state="running", annotations=given_up)
    assert not isinstance(act(one, running(), PODS), AnswerRequest)
    second = scene.record(2, restored_from=C1.id, running_at=T0 + 95, first_step=100, first_step_at=T0 + 96)
    two = job(C1, C2, tip=C1, past=[*past, second], asked=request, state="running", annotations=given_up)
    done = act(two, running(), [scene.pod(0, attempt=2), scene.pod(1, attempt=2)])
    assert isinstance(done, AnswerRequest)
    assert done.status is not None and done.status.state == "done"
    assert done.status.message == f"attempt 2 goes on from checkpoint {C1.id} with step 100"


@pytest.mark.parametrize(
    ("wanted", "refs", "words"),
    [
        ("train-a9-g9", (C1, C2), "is no committed checkpoint that job train knows; it has train-a1-g1 (step 100)"),
        (C1.id, (replace(C1, unusable="pack 00 is missing"), C2), "pack 00 is missing; it has train"),
    ],
)  # fmt: skip
def test_what_cannot_be_gone_back_to_is_refused_and_nothing_changes(wanted, refs, words):
    the_job = job(*refs, asked=JobRequest("r-1", "rewind", 1.0, checkpoint=wanted))
    refused = act(the_job, running(), PODS)
    assert isinstance(refused, AnswerRequest) and refused.status is not None
    assert refused.status.state == "failed" and f"checkpoint = {wanted!r}: " in refused.status.message
    assert words in refused.status.message
    assert set(refused.job_annotations) == {job_names.ANN_REQUEST_STATUS}


def test_a_job_that_has_ended_cannot_go_back():
    for end, word in (("Complete", "finished"), ("Failed", "failed")):
        the_job = job(C1)
        the_job["status"]["conditions"] = [scene.condition(end, True, 50)]
        problem = user_requests.problem(the_job, back(), None)
        assert problem is not None and problem[2] == (
            f"the job has {word}; `fork` goes on from one of its checkpoints in a new job"
        )


def test_two_rewinds_in_one_attempt_give_its_steps_up_once():
    first = rewound(job(C1, C2, C3, asked=back(C2)))
    again = JobRequest("r-2", "rewind", T0 + 81, "bob", checkpoint=C1.id)
    second = rewound(merge_patch(first, {"metadata": {"annotations": user_requests.written(again)}}))
    assert branches.rewinds(second) == [Rewind(1, C1.id, 100, 250, "bob", NOW)]


# --- branches ---------------------------------------------------------------------------------------------------------
def branched(tip=D1, refs=(C1, C2, C3, D1)):
    """Attempt 1 made C1, C2, C3; the job was rewound to C1, and attempt 2 made D1."""
    past = [scene.record(1, ended_by="Rewound"), scene.record(2, restored_from=C1.id, first_step=100)]
    notes = {job_names.ANN_REWINDS: to_json([Rewind(1, C1.id, 100, 250, "ann", NOW)])}
    return job(*refs, tip=tip, past=past, annotations=notes)


def test_the_branch_of_a_job_leads_over_the_checkpoint_that_it_went_back_to():
    assert branches.line(branched()) == [C1, D1]
    assert branches.line(branched(tip=C1)) == [C1]
    assert branches.line(branched(tip=C3)) == [C1, C2, C3], "somebody has gone back to the other branch"
    assert branches.line(job(C1, C2, C3)) == [C1, C2, C3]


def test_damage_never_leads_to_the_branch_that_was_given_up():
    """The newest checkpoint but one by number, C3, has the loss spike that the job was taken back from."""
    the_job = branched()
    told = merge_patch(the_job, {"metadata": {"annotations": {
        **scene.history(*attempt_records.history(the_job), scene.record(3, restored_from=D1.id)),
    }}})  # fmt: skip
    change = reports.damage(told, DamageReport(NS, "train", 3, [Damage(D1.id, "a pack is missing")]))
    assert change is not None
    assert from_json(type(C1), change[names.ANN_CHECKPOINT] or "") == C1
    listed = attempt_records.checkpoints(merge_patch(told, {"metadata": {"annotations": dict(change)}}))
    assert [ref.id for ref in listed] == [C1.id, C2.id, C3.id, D1.id], "nothing is forgotten"


def test_pods_are_told_of_the_checkpoints_on_their_branch_only():
    pods = [scene.pod(0, attempt=2, ip="10.0.0.1"), scene.pod(1, attempt=2)]
    reply = reports.hello(branched(), pods, Hello(NS, "train", 2, 0, "train-0", "10.0.0.1"), b"secret")
    assert reply is not None and reply.origin is None
    assert (reply.checkpoint, reply.committed) == (C1, [D1, C1])


def test_without_records_all_older_checkpoints_are_ancestors():
    assert branches.branch_of(D1, [C1, C2, C3, D1], []) == [C1, C2, C3, D1]


def test_a_rewind_is_no_failure_that_more_checkpoints_would_have_helped_against():
    lost = scene.record(1, ended_by="Rewound", first_step=0, running_at=T0 + 12)
    assert not periodic_checkpoints.lost(lost)
    assert periodic_checkpoints.lost(replace(lost, ended_by="Deleted"))


def leave(the_job, workload):
    return rewind.leave(Job.parse(the_job), Workload.parse(workload), CHECK)


def test_the_end_is_asked_for_only_while_the_attempt_that_was_given_up_runs():
    current = rewound()
    assert leave(current, scene.workload(state="Pending")) is None
    later = merge_patch(current, {"metadata": {"annotations": attempt_history.stored(
        [*attempt_records.history(current), scene.record(2, restored_from=C1.id)])}})  # fmt: skip
    assert leave(later, running()) is None
