"""Why am I waiting, who preempted me: Kueue's real sentences, positions, preemptors, statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kueue_samples import attempt, cluster, job, workload

from kueue_integration.contract import attempt_records
from kueue_integration.contract.record_types import Preemptor
from kueue_integration.controller import preemptor
from kueue_integration.controller.attempt_history import stored
from kueue_integration.controller.snapshot import Preemption, Snapshot, Surroundings
from kueue_integration.errors import Forbidden, NotFound, Unreachable
from kueue_integration.jobs import queue_position, shortage
from kueue_integration.jobs.phase import Phase, classify, evictions
from kueue_integration.jobs.queue_position import Position
from kueue_integration.jobs.shortage import Shortage
from kueue_integration.jobs.status import describe, summarise

UNUSED = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor ondemand, 500m more needed, "
    "insufficient unused quota for cpu in flavor spot, 4 more needed"
)
MAXIMUM = (
    "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor a100, previously "
    "considered podsets requests (0) + current podset request (16) > maximum capacity (8)"
)
OLD_MAXIMUM = (  # Kueue 0.15
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor spot, request > maximum capacity (2)"
)
MIXED = (
    "couldn't assign flavors to pod set main: flavor arm doesn't match node affinity, insufficient unused quota for "
    "cpu in flavor spot, 250m more needed, "
    "untolerated taint &Taint{Key:gpu,Value:true,Effect:NoSchedule,TimeAdded:<nil>,} in flavor a100. "
    "Pending the preemption of 2 workload(s)"
)
TOPOLOGY = (
    "couldn't assign flavors to pod set main: Flavor \"flat\" does not support TopologyAwareScheduling, "
    "Flavor \"low\" does not contain the requested level, Flavor \"racks\" supports only TopologyAwareScheduling"
)
SENTENCES = [
    (UNUSED, [Shortage("ondemand", "cpu", "500m"), Shortage("spot", "cpu", "4")],
     "needs 500m cpu more in flavor ondemand; needs 4 cpu more in flavor spot"),
    (MAXIMUM, [Shortage("a100", "nvidia.com/gpu", "8", "maximum")],
     "asks for 8 nvidia.com/gpu more than the queue can ever give in flavor a100"),
    (OLD_MAXIMUM, [Shortage("spot", "cpu", "", "maximum")],
     "asks for more cpu than the queue can ever give in flavor spot"),
    (MIXED, [Shortage("arm", cause="affinity"), Shortage("spot", "cpu", "250m"), Shortage("a100", cause="taint")],
     "flavor arm does not match the pods' node affinity; needs 250m cpu more in flavor spot; "
     "flavor a100 has a taint that the pods do not tolerate"),
    ("insufficient unused quota in cohort for cpu in flavor spot, 1500m more needed",
     [Shortage("spot", "cpu", "1500m")], "needs 1500m cpu more in flavor spot"),
    (TOPOLOGY, [Shortage("flat", cause="topology"), Shortage("low", cause="topology"),
                Shortage("racks", cause="no-topology")],
     "flavor flat does not have the topology that the job asks for; flavor low does not have the topology that the job "
     "asks for; flavor racks takes only jobs that ask for a topology"),
    ("ClusterQueue training is inactive", [], ""),
    ("Workload no longer fits after processing another workload", [], ""),
    ("waiting for all admitted workloads to be in PodsReady condition", [], ""),
    ("", [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("message", "missing", "words"), SENTENCES)
def test_what_is_missing(message: str, missing: list[Shortage], words: str) -> None:
    assert shortage.parse(message) == missing
    assert shortage.sentence(missing) == words


@pytest.mark.parametrize("reason", ["Pending", "WaitingForQuota", "ExceedsMaxQuota", "Inadmissible", "OnlyInKueue9"])
@pytest.mark.parametrize("message", [item[0] for item in SENTENCES])
def test_the_original_message_is_always_kept(reason: str, message: str) -> None:
    found = classify(workload(("QuotaReserved", "False", reason, message)), job(suspend=True))
    assert (found.phase, found.reason) == (Phase.QUEUED, reason)
    assert message in found.message and shortage.sentence(shortage.parse(message)) in found.message


def test_a_position_and_a_preemptor_are_said_while_waiting() -> None:
    who = Preemptor("job-urgent-09669", "team", "Job", "urgent", "training", 1000)
    past = [attempt(first_step=0, ended_by="Preempted", preempted_by=who.workload, preemptor=who)]
    waits = workload(("QuotaReserved", "False", "Pending", UNUSED))
    found = classify(waits, job(suspend=True, history=past), (), Position("training", 2, 7, 3))
    assert found.phase is Phase.PREEMPTED
    for words in (
        "needs 500m cpu more in flavor ondemand",
        "place 2 of 7 in queue training, 3 in its cluster queue",
        "was preempted by job-urgent-09669 (Job urgent, queue training, priority 1000)",
        UNUSED,
    ):
        assert words in found.message
    still_evicted = workload(("QuotaReserved", "False", "Pending", UNUSED), ("Evicted", "True", "Preempted", "m"))
    found = classify(still_evicted, job(suspend=True, history=past), (), Position("training", 2, 7, 3))
    assert found.phase is Phase.PREEMPTED and UNUSED in found.message
    assert "place 2 of 7" in found.message and "needs 4 cpu more in flavor spot" in found.message
    evicted = workload(("QuotaReserved", "True"), ("Evicted", "True", "Preempted", "Preempted to ..."))
    assert "(Job urgent, queue training, priority 1000)" in classify(evicted, job(history=past, active=4)).message


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"requeueState": {"count": 2, "requeueAt": "2026-11-21T01:00:00Z"}}, "looks at it again at 2026-11-21T01:00"),
        ({}, "waits for quota"),
    ],
)
def test_a_back_off_is_said(status: dict[str, Any], words: str) -> None:
    assert words in classify(workload(("QuotaReserved", "False", "Pending", "m"), **status), job(suspend=True)).message


def test_a_closed_preemption_gate_is_said() -> None:
    gated = workload(
        ("QuotaReserved", "False", "Pending", "m"), ("BlockedOnPreemptionGates", "True", "PreemptionGated")
    )
    assert "a gate is closed" in classify(gated, job(suspend=True)).message


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("WaitForStart", "did not start in time"),
        ("WaitForRecovery", "did not recover in time"),
        ("", "not ready in time"),
    ],
)
def test_which_pods_ready_timeout_it_was_stands_in_the_statistics(cause: str, words: str) -> None:
    stats = {"evictions": [{"reason": "PodsReadyTimeout", "underlyingCause": cause, "count": 2}]}
    timed_out = workload(
        ("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout"), schedulingStats=stats
    )
    assert words in classify(timed_out, job(suspend=True)).message
    assert evictions(timed_out) == [("PodsReadyTimeout", cause, 2)]


def test_a_workload_that_kueue_gave_up_is_failed_but_a_late_finish_is_not() -> None:
    given_up = workload(("Finished", "True", "FailedToStart", "in conflict with node selector"))
    found = classify(given_up, job(suspend=True))
    assert (found.phase, found.reason) == (Phase.FAILED, "FailedToStart") and "in conflict" in found.message
    # Kueue sets Finished when the Job is complete; our copy of the Job may be a moment behind.
    finished = workload(("QuotaReserved", "True"), ("Admitted", "True"), ("Finished", "True", "Succeeded", "done"))
    running = [attempt(first_step=0, first_step_at=101.0)]
    assert classify(finished, job(history=running)).phase is Phase.RUNNING
    assert classify(finished, job(suspend=True, history=running)).phase is not Phase.FAILED


def pending(*waiting: str) -> dict[str, Any]:
    return {
        "items": [
            {"metadata": {"name": name}, "positionInLocalQueue": number, "positionInClusterQueue": number + 3}
            for number, name in enumerate(waiting)
        ]
    }


PATH = "/apis/visibility.kueue.x-k8s.io/{}/namespaces/default/localqueues/training/pendingworkloads?limit=1000"
WAITS = workload(("QuotaReserved", "False", "Pending", UNUSED))
WAITS["spec"]["queueName"] = "training"


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_the_position_comes_from_whichever_version_is_served(version: str) -> None:
    kube = cluster()
    kube.paths[PATH.format(version)] = pending("other", "job-digits-1a2b3")
    assert queue_position.position(kube, WAITS) == Position("training", 2, 2, 5)
    kube.put(WAITS)
    kube.put(job(suspend=True))
    shown = describe(kube, "default", "digits")
    assert shown.queue_position == Position("training", 2, 2, 5) and "place 2 of 2" in shown.message
    assert shown.shortages == [Shortage("ondemand", "cpu", "500m"), Shortage("spot", "cpu", "4")]


def test_no_position_where_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = cluster()
    assert queue_position.position(kube, WAITS) is None  # not served
    kube.paths[PATH.format("v1beta2")] = pending("other")
    assert queue_position.position(kube, WAITS) is None  # not in the list
    for error in (Forbidden("no", 403), Unreachable("no answer"), NotFound("no", 404)):

        def refuse(path: str, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(kube, "get_path", refuse)
        assert queue_position.position(kube, WAITS) is None
    assert queue_position.position(kube, None) is None
    admitted = workload(("QuotaReserved", "True"))
    admitted["spec"]["queueName"] = "training"
    monkeypatch.setattr(kube, "get_path", lambda path: pytest.fail("asked for a job that does not wait"))
    assert queue_position.position(kube, admitted) is None


def test_statistics_are_in_the_status() -> None:
    stats = {"evictions": [{"reason": "Preempted", "count": 2}, {"reason": "PodsReadyTimeout", "underlyingCause": "a",
             "count": 1}, {"reason": "PodsReadyTimeout", "underlyingCause": "b", "count": 4}]}  # fmt: skip
    shown = summarise(job(suspend=True), workload(schedulingStats=stats), [])
    assert shown.kueue_evictions == {"Preempted": 2, "PodsReadyTimeout": 5} and shown.evictions == {}
    past = [attempt(1, ended_by="Migrated"), attempt(2, ended_by="Migrated"), attempt(3, ended_by="Finished")]
    counts = summarise(job(suspend=True, history=past), workload(schedulingStats=stats), [])
    assert counts.evictions == {"Migrated": 2}, "a move is one eviction, whatever Kueue does for it"


PREEMPTED = "Preempted to accommodate a workload (UID: w-9, JobUID: j-9) due to prioritization in the ClusterQueue"


def test_the_controller_records_the_preemptors_names() -> None:
    victim = workload(("Evicted", "True", "Preempted", PREEMPTED))
    urgent = workload()
    urgent["metadata"] |= {"name": "job-urgent-1", "uid": "w-9", "ownerReferences": [{"kind": "Job", "name": "urgent"}]}
    urgent["spec"] |= {"queueName": "training", "priority": 1000}
    who = preemptor.of(urgent)
    assert who == Preemptor("job-urgent-1", "default", "Job", "urgent", "training", 1000)
    history = [attempt(1, ended_by="Preempted", preempted_by="job-old"), attempt(2, preempted_by="job-urgent-1")]
    found = {"w-9": who}.get
    by = Snapshot.parse({"metadata": {}}, victim, (), around=Surroundings(found)).preemption
    assert by == Preemption("job-urgent-1", who)
    changed = attempt_records.history({"metadata": {"annotations": stored(history, by)}})
    assert [record.preemptor for record in changed] == [None, who]
    other = replace(who, namespace="elsewhere")
    assert stored(changed, replace(by, who=other)) == stored(changed)  # once is enough
    gone = Snapshot.parse({"metadata": {}}, victim, ()).preemption  # before anybody looked
    assert gone == Preemption("w-9") and stored(history, gone) == stored(history)
