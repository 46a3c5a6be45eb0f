"""Every way in which Kueue itself ends an attempt: what the hold does, where the next one starts, what users read.

The rows of docs/evictions.md, one function each. They are played side by side, each in queues of its own, because most
of a row is waiting for pods; the tests then report one row each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from rows import CPU, TIMEOUT_S, Rows, Training

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.kube.resources import ADMISSION_CHECK, CLUSTER_QUEUE, LOCAL_QUEUE, NODE, POD, condition, is_true
from kueue_integration.spec.validation import MAX_EXECUTION_LABEL
from localcluster import cluster
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

SIDE_BY_SIDE = 4
"""Rows that are played at a time: two cores start and save the ranks of all of them."""
CHECK = "rows-second-check"
DRAINED = {"stopPolicy": "HoldAndDrain"}


def saved(job: Training, number: int, reason: str, preempted_by: str | None = None) -> AttemptRecord:
    """What the hold does in every row: Kueue waits, the checkpoint is committed, only then is the quota released."""
    ended = job.until_ended(number)
    assert (ended.ended_by, ended.preempted_by) == (reason, preempted_by), ended
    assert ended.checkpoint is not None and ended.note is None, ended
    assert ended.evicted_at is not None and ended.committed_at is not None and ended.released_at is not None
    # Kueue stamps the release in whole seconds.
    assert ended.evicted_at <= ended.committed_at <= ended.released_at + 1, ended
    return ended


def reads(job: Training, phase: str, reason: str, *words: str) -> None:
    """What `describe` says between the attempts, once the pods have gone."""
    job.until(
        lambda s: (s.phase, s.reason) == (phase, reason) and all(word in s.message for word in words),
        f"{phase} {reason} {words}",
    )


def goes_on(job: Training, number: int = 2) -> None:
    """The next attempt starts at the very next step; the job ends with every step run once, bit for bit."""
    job.until_attempt(number)
    last = job.finish()
    assert len(last.attempts) == number, [(a.attempt, a.ended_by, a.first_step, a.note) for a in last.attempts]
    job.assert_exact(last)


def preempted(rows: Rows, job: Training, other: str, reason: str, words: str) -> None:
    workload = rows.workload(other)["metadata"]["name"]
    saved(job, 1, "Preempted", preempted_by=workload)
    given = rows.until_admitted(other)
    # What is not ours was answered while it waited: it takes no quota for the time of our answer.
    (answer,) = given["status"]["admissionChecks"]
    assert answer["lastTransitionTime"] < (condition(given, "QuotaReserved") or {})["lastTransitionTime"], answer
    assert (condition(rows.workload(job.name), "Preempted") or {}).get("reason") == reason
    reads(job, "Preempted", "Preempted", f"by {workload}", f": {words}; ", "is committed", "waits for quota")
    rows.remove(other)
    goes_on(job)


# --- the rows, with Kueue's default configuration -----------------------------------------------------------------
def cohort_reclaim(rows: Rows) -> None:
    rows.queue("owner", {"ondemand": CPU}, cohort="reclaim", preemption={"reclaimWithinCohort": "Any"})
    rows.queue("borrower", {"ondemand": "0"}, cohort="reclaim")
    job = rows.train("reclaimed", "borrower")
    job.until_steps()
    rows.other("owner-job", "owner", priority="low")
    preempted(rows, job, "owner-job", "InCohortReclamation", "reclamation within the cohort")


def reclaim_while_borrowing(rows: Rows) -> None:
    policy = {"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": {"policy": "LowerPriority"}}
    rows.queue("lender", {"ondemand": CPU}, cohort="borrow")
    rows.queue("low-borrower", {"ondemand": "0"}, cohort="borrow")
    rows.queue("high-borrower", {"ondemand": "0"}, cohort="borrow", preemption=policy)
    job = rows.train("outbid", "low-borrower")
    job.until_steps()
    rows.other("outbidder", "high-borrower")
    words = "reclamation within the cohort while borrowing"
    preempted(rows, job, "outbidder", "InCohortReclaimWhileBorrowing", words)


def cluster_queue_hold_and_drain(rows: Rows) -> None:
    rows.queue("cq-drain", {"ondemand": CPU})
    job = rows.train("cq-drained", "cq-drain")
    job.until_steps()
    rows.patch(CLUSTER_QUEUE, rows.cluster_queue("cq-drain"), DRAINED)
    saved(job, 1, "ClusterQueueStopped")
    reads(job, "Preempted", "ClusterQueueStopped", "is committed", "ClusterQueue's stopPolicy")
    rows.patch(CLUSTER_QUEUE, rows.cluster_queue("cq-drain"), {"stopPolicy": "None"})
    goes_on(job)


def local_queue_hold_and_drain(rows: Rows) -> None:
    """With two pods and two ranks that talk: the rows end attempts of real distributed jobs."""
    rows.queue("lq-drain", {"ondemand": "100m"})
    job = rows.train("lq-drained", "lq-drain", workers=2, cpu="50m")
    job.until_steps()
    rows.patch(LOCAL_QUEUE, "lq-drain", DRAINED)
    saved(job, 1, "LocalQueueStopped")
    reads(job, "Preempted", "LocalQueueStopped", "is committed", "LocalQueue's stopPolicy")
    rows.patch(LOCAL_QUEUE, "lq-drain", {"stopPolicy": "None"})
    goes_on(job)


def admission_check_retry(rows: Rows) -> None:
    second_check(rows)
    rows.queue("retry", {"ondemand": CPU}, checks=[CHECK])
    job = rows.train("retried", "retry")
    rows.answer(job.name, CHECK, "Ready", "fine")
    job.until_steps()
    rows.answer(job.name, CHECK, "Retry", "the licence server is down")
    saved(job, 1, "AdmissionCheck")
    # Kueue tries again by itself; this attempt waits for the check alone.
    reads(job, "Admitted", "WaitingForChecks", CHECK)
    rows.answer(job.name, CHECK, "Ready", "fine again")
    goes_on(job)


def admission_check_rejected(rows: Rows) -> None:
    second_check(rows)
    rows.queue("reject", {"ondemand": CPU}, checks=[CHECK])
    job = rows.train("rejected", "reject")
    rows.answer(job.name, CHECK, "Ready", "fine")
    job.until_steps()
    rows.answer(job.name, CHECK, "Rejected", "out of budget")
    deactivated(rows, job, "DeactivatedDueToAdmissionCheck", "out of budget")
    rows.answer(job.name, CHECK, "Ready", "paid")
    goes_on(job)


def deactivation(rows: Rows) -> None:
    rows.queue("pause", {"ondemand": CPU})
    job = rows.train("paused", "pause")
    job.until_steps()
    rows.activate(job.name, False)
    deactivated(rows, job, "Deactivated")
    goes_on(job)


def maximum_execution_time(rows: Rows) -> None:
    rows.queue("limited", {"ondemand": CPU})
    job = rows.train("overdue", "limited", labels={MAX_EXECUTION_LABEL: "7200"})
    job.until_steps()
    # Two hours in one patch: Kueue adds what earlier attempts took to the time since the admission.
    workload = rows.workload(job.name)
    assert workload["spec"]["maximumExecutionTimeSeconds"] == 7200
    past = {"status": {"accumulatedPastExecutionTimeSeconds": 7200}}
    rows.kube.patch_workload_status(rows.namespace, workload["metadata"]["name"], past)
    deactivated(rows, job, "DeactivatedDueToMaximumExecutionTimeExceeded", "execution time is over")
    goes_on(job)


def deactivated(rows: Rows, job: Training, reason: str, *words: str, number: int = 1) -> None:
    """Checkpoint first, then Suspended with the reason and how to go on; activated again the job may go on."""
    saved(job, number, reason)
    resume = "has to set it to true again" if reason == "Deactivated" else "singularityctl resume"
    reads(job, "Suspended", reason, "is committed", resume, *words)
    assert rows.workload(job.name)["spec"]["active"] is False
    # Until our controller has taken it back, Kueue would deactivate again at once.
    wait_for(lambda: not is_true(rows.workload(job.name), "DeactivationTarget"), "no DeactivationTarget", TIMEOUT_S)
    rows.activate(job.name, True)


def second_check(rows: Rows) -> None:
    """An AdmissionCheck that this file answers, active."""
    meta = {"name": CHECK}
    spec = {"controllerName": "tests.singularity.dev/rows"}
    kind = ADMISSION_CHECK
    made = rows.make({"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": spec})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "answered by hand",
        "lastTransitionTime": made["metadata"]["creationTimestamp"],
        "observedGeneration": 1,
    }
    rows.kube.patch(kind, None, CHECK, {"status": {"conditions": [active]}}, subresource="status")


# --- the rows that need another configuration of Kueue --------------------------------------------------------------
def fair_sharing(rows: Rows) -> None:
    policy = {"reclaimWithinCohort": "Any"}
    rows.queue("pool", {"ondemand": "100m"}, cohort="fair")
    rows.queue("greedy", {"ondemand": "0"}, cohort="fair", preemption=policy)
    rows.queue("modest", {"ondemand": "0"}, cohort="fair", preemption=policy)
    job = rows.train("too-much", "greedy", cpu="100m")
    job.until_steps()
    rows.other("fair-share", "modest", cpu="50m", priority="low")
    preempted(rows, job, "fair-share", "InCohortFairSharing", "Fair Sharing within the cohort")


def pods_ready_recovery_and_requeuing_limit(rows: Rows) -> None:
    """A pod that is not ready any more though it runs; the second time the limit of one requeuing is reached."""
    rows.queue("unready", {"ondemand": CPU})
    job = rows.train("unready", "unready")
    for number in (1, 2):
        job.until_attempt(number)
        lose_readiness(job)
        if number == 1:
            saved(job, 1, "PodsReadyTimeout")
    deactivated(rows, job, "DeactivatedDueToRequeuingLimitExceeded", "evicted too often", number=2)
    goes_on(job, 3)


def lose_readiness(job: Training) -> None:
    """Say of the job's pods that they are not ready, as the node controller does, until Kueue has evicted for it."""
    kube = job.rows.kube

    def evicted() -> bool:
        if is_true(job.rows.workload(job.name), "Evicted"):
            return True
        for pod in job.pods():
            told = pod["status"].get("conditions") or []
            lost = [{**c, "status": "False", "reason": "NodeNotReady"} if c["type"] == "Ready" else c for c in told]
            if pod["status"].get("phase") == "Running" and lost != told:
                meta, body = pod["metadata"], {"status": {"conditions": lost}}
                kube.patch(POD, meta["namespace"], meta["name"], body, subresource="status")
        return False

    wait_for(evicted, f"{job.name} evicted because a pod is not ready", TIMEOUT_S)


def pods_never_ready(rows: Rows) -> Callable[[], None]:
    """No node fits: nothing was ever trained, so nothing is held back. Returns what is played after the time-out."""
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "rows-nowhere"}}
    rows.make({**kind, "spec": {"nodeLabels": {"rows-nowhere": "here"}}})
    rows.queue("nowhere", {"rows-nowhere": CPU})
    job = rows.train("stranded", "nowhere")
    first = job.until_ended(1)
    assert (first.ended_by, first.checkpoint, first.first_step) == ("PodsReadyTimeout", None, None)
    assert first.note is not None and "0 of 1 pods were running" in first.note, first.note
    assert "restarts from the beginning" in first.note

    def afterwards() -> None:
        node = rows.kube.list(NODE)[0]["metadata"]["name"]
        rows.kube.patch(NODE, None, node, {"metadata": {"labels": {"rows-nowhere": "here"}}})
        try:
            job.until_steps()
            last = job.finish()
            assert {a.ended_by for a in last.attempts[:-1]} == {"PodsReadyTimeout"}
            assert job.repeated() == 0
        finally:
            rows.kube.patch(NODE, None, node, {"metadata": {"labels": {"rows-nowhere": None}}})

    return afterwards


# --- the plays ------------------------------------------------------------------------------------------------------
Row = Callable[[Rows], object]
DEFAULT: tuple[Row, ...] = (
    local_queue_hold_and_drain,
    cohort_reclaim,
    reclaim_while_borrowing,
    cluster_queue_hold_and_drain,
    admission_check_retry,
    deactivation,
    admission_check_rejected,
    maximum_execution_time,
)
CONFIGURED: tuple[Row, ...] = (fair_sharing, pods_ready_recovery_and_requeuing_limit)
TUNED = {
    "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
    "waitForPodsReady": {
        "timeout": "30m",
        "recoveryTimeout": "1s",
        "requeuingStrategy": {"backoffLimitCount": 1, "backoffBaseSeconds": 1},
    },
}
IMPATIENT = {"waitForPodsReady": {"timeout": "2s", "requeuingStrategy": {"backoffBaseSeconds": 1}}}


def _play(row: Row, rows: Rows) -> object:
    started = time.monotonic()
    try:
        result = row(rows)
    except BaseException as error:
        rows.say(f"{row.__name__}: {error!r}")
        raise
    rows.say(f"{row.__name__}: played in {time.monotonic() - started:.0f} s")
    return result


@dataclass
class Played:
    """The result of every row that was asked for."""

    results: dict[str, Future[Any]] = field(default_factory=dict)

    def play(self, rows: Rows, which: tuple[Row, ...]) -> None:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            self.results.update({row.__name__: pool.submit(_play, row, rows) for row in which})


@pytest.fixture(scope="module")
def played(stage: Stage, say: Callable[[str], None], request: pytest.FixtureRequest) -> Iterator[Played]:
    """Every row whose test was collected, at once where the same configuration of Kueue serves."""
    params = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    wanted = {spec.params["row"] for spec in params if spec is not None}
    chosen = [tuple(row for row in group if row in wanted) for group in (DEFAULT, CONFIGURED, (pods_never_ready,))]
    rows, result = Rows(stage, "rows-kueue", say), Played()
    try:
        say(f"{len(chosen[0])} rows with Kueue's default configuration")
        result.play(rows, chosen[0])
        if chosen[1]:
            reconfigure(stage, TUNED)
            result.play(rows, chosen[1])
        if chosen[2]:
            reconfigure(stage, IMPATIENT)
            result.play(rows, chosen[2])
        yield result
    finally:
        if chosen[1] or chosen[2]:
            reconfigure(stage, {})
        rows.close()


def reconfigure(stage: Stage, fields: Mapping[str, Any]) -> None:
    stage.say(f"Kueue restarts with {', '.join(fields) or 'its first configuration'}")
    cluster.reconfigure_kueue(stage.name, fields, progress=lambda text: None)


# Each restarts Kueue with another configuration, and leaves by the same hold as the rows above.
FULL = [pytest.param(row, marks=pytest.mark.full) for row in CONFIGURED]


@pytest.mark.parametrize("row", [*DEFAULT, *FULL], ids=lambda row: row.__name__)
def test_row(played: Played, row: Row) -> None:
    played.results[row.__name__].result()


@pytest.mark.full
@pytest.mark.parametrize("row", [pods_never_ready], ids=lambda row: row.__name__)
def test_row_that_ends_under_the_default_configuration(played: Played, stage: Stage, row: Row) -> None:
    afterwards = played.results[row.__name__].result()
    reconfigure(stage, {})
    afterwards()
