"""The phase of a job, out of its Job, Workload and pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kueue_samples import attempt, job, saved, workload

from kueue_integration.contract import job_names
from kueue_integration.jobs.phase import Phase, classify
from singularity_proxy.protocol import names

RESERVED = ("QuotaReserved", "True", "QuotaReserved", "")
ADMITTED = ("Admitted", "True", "Admitted", "")
RUNS = attempt(first_step=0, first_step_at=101.0)
MOVED = attempt(first_step=0, ended_by="Migrated", note="as asked for by ann: ondemand -> spot")


def waiting(reason: str) -> tuple[str, str, str, str]:
    return ("QuotaReserved", "False", reason, "couldn't assign flavors")


def evicted(reason: str = "Preempted") -> tuple[str, str, str, str]:
    return ("Evicted", "True", reason, "Kueue's words")


def progress(number: int, step: int, **more: Any) -> dict[str, str]:
    return {job_names.ANN_PROGRESS: json.dumps({"attempt": number, "step": step, "at": 1.0, **more})}


CASES = [
    ("no job", None, None, Phase.DELETED, "does not exist"),
    ("no workload", None, job(suspend=True), Phase.SUBMITTED, "not made a Workload"),
    ("complete", workload(RESERVED), job(("Complete", "True")), Phase.SUCCEEDED, "finished"),
    ("failed", workload(RESERVED), job(("Failed", "True", "PodFailurePolicy", "exit 1")), Phase.FAILED, "exit 1"),
    ("complete counts over a late eviction", workload(evicted()), job(("Complete", "True")), Phase.SUCCEEDED, ""),
    ("condition False is no condition", workload(waiting("Pending")), job(("Failed", "False")), Phase.QUEUED, "quota"),
    ("fence", workload(RESERVED, ("Admitted", "False"), admissionChecks=[
        {"name": "singularity-fence", "state": "Pending", "message": "2 pods of attempt 1 are still there"}]),
        job(suspend=True, history=[RUNS]), Phase.ADMITTED, "2 pods of attempt 1"),
    ("starting", workload(RESERVED, ADMITTED), job(history=[attempt()], ready=1), Phase.STARTING, "1 of 4"),
    ("up, ranks not yet", workload(RESERVED, ADMITTED), job(history=[attempt()], ready=4), Phase.STARTING,
     "have not started yet"),
    ("ranks run, no step yet", workload(RESERVED, ADMITTED),
     job(history=[attempt()], ready=4, annotations=progress(1, 0, phase="running")), Phase.RUNNING, "no step seen"),
    ("a program without steps", workload(RESERVED, ADMITTED),
     job(history=[attempt(first_step=0, running_at=101.0)], ready=4, annotations=progress(1, 0, phase="running")),
     Phase.RUNNING, "on ondemand, no step seen yet"),
    ("progress of the former attempt counts for nothing", workload(RESERVED, ADMITTED),
     job(history=[RUNS, attempt(2)], ready=4, annotations=progress(1, 9, phase="running")), Phase.STARTING, "4 of 4"),
    ("running", workload(RESERVED, ADMITTED), job(history=[RUNS], annotations=progress(1, 17)), Phase.RUNNING,
     "on ondemand, 17 steps"),
    ("restoring", workload(RESERVED, ADMITTED),
     job(history=[RUNS, attempt(2, restored_from="digits-a1-g1")], ready=4, annotations=progress(1, 61)),
     Phase.RESTORING, "digits-a1-g1"),
    ("checkpointing", workload(RESERVED, evicted()), job(history=[RUNS], active=4), Phase.CHECKPOINTING, "preempted"),
    ("at the barrier", workload(RESERVED, evicted()),
     job(history=[RUNS], annotations=progress(1, 17, phase="barrier")), Phase.CHECKPOINTING, "at one step"),
    ("how much is saved", workload(RESERVED, evicted()),
     job(history=[RUNS], annotations=progress(1, 17, phase="uploading", bytes_done=312 << 20, bytes_total=1600 << 20)),
     Phase.CHECKPOINTING, "stores the checkpoint, 312 of 1600 MiB are saved"),
    ("how much is saved while it goes on", workload(RESERVED, ADMITTED),
     job(history=[RUNS], annotations=progress(1, 17, phase="uploading", bytes_done=5 << 20, bytes_total=9 << 20)),
     Phase.RUNNING, "17 steps done; stores the checkpoint, 5 of 9 MiB are saved"),
    ("committed", workload(RESERVED, evicted()),
     job(history=[RUNS], checkpoint=saved(), annotations={job_names.ANN_HOLD: "released"}), Phase.PREEMPTED, "step 61"),
    ("an old checkpoint is not this attempt's", workload(RESERVED, evicted()),
     job(history=[RUNS, attempt(2)], checkpoint=saved(1)), Phase.CHECKPOINTING, "writes a checkpoint"),
    ("hold off: pods still end", workload(evicted(), waiting("Pending")),
     job(suspend=True, history=[RUNS], terminating=2), Phase.CHECKPOINTING, ""),
    ("hold off: pods have gone", workload(evicted(), waiting("Pending")),
     job(suspend=True, history=[RUNS]), Phase.PREEMPTED, "no checkpoint of this attempt"),
    ("given up", workload(RESERVED, evicted()),
     job(history=[attempt(note="no checkpoint within 30 s; restarts from the beginning")],
         annotations={job_names.ANN_HOLD: "released"}), Phase.PREEMPTED, "no checkpoint within 30 s"),
    ("who did it", workload(RESERVED, evicted()), job(history=[attempt(preempted_by="job-big-1")], active=4),
     Phase.CHECKPOINTING, "was preempted by job-big-1"),
    ("and for what", workload(RESERVED, ("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: w) "
     "due to reclamation within the cohort; preemptor path: /a")), job(history=[attempt(preempted_by="w")], active=4),
     Phase.CHECKPOINTING, "was preempted by w: reclamation within the cohort; "),
    ("regrowth says why", workload(RESERVED, evicted("AdmissionCheck")), job(history=[RUNS], active=2),
     Phase.CHECKPOINTING, "Kueue's words"),
    ("deactivated", workload(evicted("Deactivated")) | {"spec": {"active": False}}, job(suspend=True),
     Phase.SUSPENDED, "deactivated"),
    ("moves", workload(evicted("Deactivated"), annotations={job_names.ANN_RESHAPE: "ondemand -> spot"})
     | {"spec": {"active": False}}, job(suspend=True, history=[MOVED]), Phase.PREEMPTED,
     "moves; as asked for by ann: ondemand -> spot; is queued again in its new shape"),
    ("moves, still saved", workload(evicted("Deactivated")) | {"spec": {"active": False}},
     job(history=[MOVED], active=2), Phase.CHECKPOINTING, "moves; writes a checkpoint"),
    ("paused", workload(evicted("Deactivated"), annotations={job_names.ANN_PAUSED: "r"}) | {"spec": {"active": False}},
     job(suspend=True, history=[attempt(ended_by="Paused")]), Phase.SUSPENDED, "was paused; no checkpoint"),
    ("deactivated in the queue", workload(waiting("Pending")) | {"spec": {"active": False}}, job(suspend=True),
     Phase.SUSPENDED, "deactivated"),
    ("deactivated: how to go on", workload(evicted("DeactivatedDueToMaximumExecutionTimeExceeded"))
     | {"spec": {"active": False}}, job(suspend=True), Phase.SUSPENDED, "singularityctl resume"),
    ("rejected says which check", workload(evicted("DeactivatedDueToAdmissionCheck")) | {"spec": {"active": False}},
     job(suspend=True), Phase.SUSPENDED, "Kueue's words"),
    ("its queue is stopped", workload(waiting("Pending"), evicted("LocalQueueStopped"), ("Requeued", "False")),
     job(suspend=True, history=[RUNS]), Phase.PREEMPTED, "goes on when the LocalQueue's stopPolicy is None"),
    ("its queue was started again", workload(waiting("Pending"), evicted("LocalQueueStopped"), ("Requeued", "True")),
     job(suspend=True, history=[RUNS]), Phase.PREEMPTED, "waits for quota"),
    ("back-off", workload(waiting("Pending"), evicted("PodsReadyTimeout"), ("Requeued", "False")),
     job(suspend=True, history=[RUNS]), Phase.PREEMPTED, "Kueue tries again in a moment"),
    ("waits again after the eviction was forgotten", workload(waiting("Pending"), ("Evicted", "False")),
     job(suspend=True, history=[RUNS]), Phase.PREEMPTED, "quota"),
]  # fmt: skip


@pytest.mark.parametrize(("work", "its_job", "phase", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_phase(work: Any, its_job: Any, phase: Phase, words: str) -> None:
    found = classify(work, its_job)
    assert (found.phase, words in found.message) == (phase, True), found
    assert found.reason and found.message


@pytest.mark.parametrize(
    "reason",
    ["Pending", "Inadmissible", "Waiting", "WaitingForQuota", "ExceedsMaxQuota", "NoMatchingFlavor",
     "TopologyPlacementFailed", "WaitingForPreemptedWorkloads", "Misconfigured", "Suspended", "PendingEvaluation",
     "WaitingForPodsReady", "AdmissionGated", "OnHold", "SomethingOfKueue1.0"],
)  # fmt: skip
def test_every_reason_to_wait_is_queued_and_keeps_kueues_message(reason: str) -> None:
    found = classify(workload(waiting(reason)), job(suspend=True))
    assert (found.phase, found.reason) == (Phase.QUEUED, reason)
    assert "couldn't assign flavors" in found.message


@pytest.mark.parametrize(
    "reason", ["Preempted", "PodsReadyTimeout", "ClusterQueueStopped", "NodeFailures", "NewInKueue2"]
)
def test_every_reason_to_evict_ends_in_preempted(reason: str) -> None:
    found = classify(workload(waiting("Pending"), evicted(reason)), job(suspend=True, history=[RUNS]))
    assert (found.phase, found.reason) == (Phase.PREEMPTED, reason)


def test_no_conditions_at_all_is_queued() -> None:
    assert classify(workload(), job(suspend=True)).phase is Phase.QUEUED


def test_spoiled_annotations_do_not_hide_the_phase() -> None:
    spoiled = dict.fromkeys(
        (job_names.ANN_HISTORY, job_names.ANN_PROGRESS, names.ANN_CHECKPOINT, job_names.ANN_ATTEMPT), "{not json"
    )
    assert classify(workload(RESERVED, ADMITTED), job(annotations=spoiled, ready=4)).phase is Phase.STARTING


def test_why_a_pod_does_not_start() -> None:
    pod = {
        "metadata": {"name": "digits-0-abcde"},
        "status": {
            "containerStatuses": [
                {"name": "train", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
            ]
        },
    }
    found = classify(workload(RESERVED, ADMITTED), job(history=[attempt()]), [pod])
    assert (found.phase, found.reason) == (Phase.STARTING, "ImagePullBackOff")
    assert "digits-0-abcde" in found.message


def test_why_a_container_cannot_be_started_is_said_while_the_kubelet_waits_to_try_again() -> None:
    """As a kubelet 1.36 with runc 1.5.2 tells it of a volume that is /proc of the node."""
    said = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        "unable to start container process: error during container init: failed to fulfil mount request: failed to set "
        "MOUNT_ATTR_IDMAP on /proc: invalid argument (maybe the filesystem used doesn't support idmap mounts on this "
        "kernel?)"
    )
    waits = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=device-proxy"}
    sidecar: dict[str, Any] = {"name": "device-proxy", "state": {"waiting": waits}}
    pod = {"metadata": {"name": "digits-0-abcde"}, "status": {"initContainerStatuses": [sidecar]}}
    for ended, told in (
        ({"reason": "StartError", "exitCode": 128, "message": said}, "MOUNT_ATTR_IDMAP on /proc"),
        ({"reason": "Error", "exitCode": 1, "message": "the program's last words"}, "back-off 10s"),
    ):
        sidecar["lastState"] = {"terminated": ended}
        found = classify(workload(RESERVED, ADMITTED), job(history=[attempt()]), [pod])
        assert (found.phase, found.reason) == (Phase.STARTING, "CrashLoopBackOff") and told in found.message
        assert ("privileges 'node'" in found.message) is (told != "back-off 10s")


def test_only_three_phases_are_final() -> None:
    assert [p for p in Phase if p.final] == [Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED]
    assert str(Phase.RUNNING) == "Running"
