"""What goes wrong around a training job: repaired or said; no checkpoint lost, no queue blocked (docs/faults.md).

Each fault is real, and each test asserts that it fired.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import controllers
import pytest
from faults import TIMEOUT_S, Faults
from rows import Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.errors import Conflict, NotFound
from kueue_integration.kube.resources import ADMISSION_POLICY_BINDING, JOB, LEASE, annotation
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600), pytest.mark.full]
LEASE_S = 10
"""How long the controller may be silent before every hold is void (lease.durationSeconds of the chart)."""


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-faults", say)
    made.queue("faults", {"ondemand": "50m"})
    yield made
    made.close()


@pytest.fixture
def job(rows: Rows, request: pytest.FixtureRequest) -> Iterator[Training]:
    """A job that takes a moment to be saved, at work."""
    made = rows.train(f"f{abs(hash(request.node.name)) % 10**8}", "faults", ballast=64, grace_period_s=600)
    made.until_steps()
    yield made
    rows.remove(made.name)


def stop(rows: Rows, job: Training) -> None:
    rows.activate(job.name, False)


def until_asked(job: Training) -> None:
    """The controller has seen the eviction and asked for a checkpoint."""
    wait_for(lambda: annotation(job.job(), job_names.ANN_HOLD_DEADLINE), "a deadline", TIMEOUT_S, tick_s=0.05)


def until_saving(job: Training) -> None:
    wait_for(lambda: '"dumping"' in _phase(job) or '"uploading"' in _phase(job), "images", TIMEOUT_S, tick_s=0.05)


def until_committed(job: Training) -> None:
    wait_for(lambda: annotation(job.job(), names.ANN_CHECKPOINT), "a commit", TIMEOUT_S, tick_s=0.05)


def _phase(job: Training) -> str:
    return annotation(job.job(), job_names.ANN_PROGRESS) or ""


def go_on(rows: Rows, job: Training) -> None:
    """After a stop: the checkpoint is there, and the next attempt continues from it, to the bit."""
    ended = job.until_ended(1)
    assert ended.checkpoint is not None, ended
    rows.activate(job.name, True)
    job.until_attempt(2)
    job.assert_exact()


def test_api_server_down_for_a_minute_then_hanging(rows: Rows, faults: Faults) -> None:
    """One outage, five jobs, each at another step of its way; what the records say afterwards proves where it was.

    etcd forgets its history meanwhile. Afterwards the next attempts are let in by an API server that hangs.
    """
    rows.queue("outage", {"ondemand": "250m"})
    steps = ("asked", "saving", "committed", "released", "admitted")
    # Ranks that have met cannot be saved in the middle of a step, and make no step while `slow`: the test chooses when.
    ranks = {step: 1 if step == "released" else 2 for step in steps}
    jobs = {
        step: rows.train(f"outage-{step}", "outage", world_size=count, ballast=64 // count, grace_period_s=600)
        for step, count in ranks.items()
    }
    asked, saving, committed, released, admitted = jobs.values()
    for job in jobs.values():
        job.until_steps(2)
    for job in (released, admitted):
        stop(rows, job)
        assert job.until_ended(1).checkpoint is not None
    for job in (asked, saving, committed):
        job.slow()
        stop(rows, job)
        until_asked(job)
    admitted.slow()  # it may start, but not do a step
    rows.activate(admitted.name, True)
    wait_for(lambda: not admitted.job()["spec"]["suspend"], "an admission", TIMEOUT_S, tick_s=0.05)
    with faults.suspend_refused(committed.name):
        committed.slow(False)
        until_committed(committed)
        saving.slow(False)
        until_saving(saving)
        with faults.api_server_down(60, forget=True):
            down_at = time.time()
            rows.say(f"--> the API server is killed for 60 s: {', '.join(steps)}; etcd forgets its history (410 Gone)")
            for job in (asked, admitted):
                job.slow(False)
    ended = {step: job.until_ended(1) for step, job in jobs.items()}
    rows.say(f"down at {down_at}: {ended}")
    _go_on_while_it_hangs(rows, faults, jobs, ended)
    again = {step: jobs[step].look().attempts[1] for step in ("released", "admitted")}
    _at(down_at, ended["asked"], "evicted_at", "barrier_at")
    _at(down_at, ended["saving"], "barrier_at", "committed_at")
    _at(down_at, ended["committed"], "committed_at", "released_at")
    assert _seconds(ended["released"], "released_at") <= down_at < _seconds(again["released"], "admitted_at")
    _at(down_at, again["admitted"], "admitted_at", "first_step_at")
    assert (faults.count["API server down"], faults.count["history forgotten"]) == (2, 1)
    assert faults.count["suspend refused"] == 1
    for job in jobs.values():
        rows.remove(job.name)


def _go_on_while_it_hangs(
    rows: Rows, faults: Faults, jobs: Mapping[str, Training], ended: Mapping[str, AttemptRecord]
) -> None:
    """All but the one that is admitted already are let in by an API server that hangs. Every job ends exactly."""
    for step in ("asked", "saving", "committed", "released"):
        assert ended[step].checkpoint is not None, ended[step]
        rows.activate(jobs[step].name, True)
    with faults.api_server_down(LEASE_S + 2, hang=True):
        rows.say("--> the API server hangs while the next attempts are being admitted")
    for job in jobs.values():
        job.until_attempt(2)
        job.assert_exact(job.finish())


def _at(moment: float, record: AttemptRecord, done: str, not_yet: str) -> None:
    """At `moment` the attempt had passed `done`, and not yet `not_yet`."""
    assert _seconds(record, done) <= moment < _seconds(record, not_yet), (moment, done, not_yet, record)


def _seconds(record: AttemptRecord, field: str) -> float:
    value = getattr(record, field)
    assert isinstance(value, float), (field, record)
    return value


def test_what_is_removed_by_hand_is_put_back(rows: Rows, faults: Faults, job: Training) -> None:
    repairs = faults.metric("singularity_repairs_total")

    def removed(name: str) -> None:
        before = annotation(job.job(), name)
        assert before
        rows.say(f"--> {name} is removed")
        rows.kube.patch_job(rows.namespace, job.name, {"metadata": {"annotations": {name: None}}})
        wait_for(lambda: annotation(job.job(), name) == before, f"{name} put back", TIMEOUT_S, tick_s=0.1)
        faults.count["annotation removed"] += 1

    with faults.unguarded():
        removed(job_names.ANN_ATTEMPT)
    removed(job_names.ANN_HOLD)
    rows.say("--> the Lease is deleted")
    uid = faults.kube.get(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)["metadata"]["uid"]
    faults.kube.delete(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE, uid=uid)
    faults.count["Lease deleted"] += 1

    def renewed() -> bool:
        lease = faults.kube.find(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE) or {"metadata": {"uid": uid}}
        return lease["metadata"]["uid"] != uid and bool((lease.get("spec") or {}).get("renewTime"))

    wait_for(renewed, "a new Lease, held", TIMEOUT_S)
    stop(rows, job)
    job.until_ended(1)
    with faults.unguarded():
        removed(names.ANN_CHECKPOINT)
    go_on(rows, job)
    assert faults.metric("singularity_repairs_total") - repairs >= 4
    assert faults.count == {"annotation removed": 3, "unguarded": 2, "Lease deleted": 1}
    assert job.look().attempt == 2  # none of it has cost an attempt

    rows.say("--> the policy's binding is deleted: nothing is held, pods are saved within their grace period")
    binding = faults.kube.get(ADMISSION_POLICY_BINDING, None, job_names.HOLD_LEASE)
    faults.kube.delete(ADMISSION_POLICY_BINDING, None, job_names.HOLD_LEASE)
    try:
        stop(rows, job)
        job.until(lambda s: s.attempts[1].checkpoint, "a checkpoint within the grace period")
        missing = "singularity_hold_policy_missing"
        wait_for(lambda: faults.metric(missing) >= 1, "the controller counts the missing binding", TIMEOUT_S)
    finally:
        meta = {k: v for k, v in binding["metadata"].items() if k in ("name", "labels", "annotations")}
        faults.kube.create({**binding, "metadata": meta})
    rows.activate(job.name, True)
    job.until_attempt(3)
    job.assert_exact(job.finish())


def test_two_controllers_of_one_name(rows: Rows, faults: Faults, job: Training, tmp_path: Path) -> None:
    """The worst case: both believe that they hold the Lease, and both act on every event."""
    identity = controllers.leader(rows.kube)
    with faults.second_controller(identity, tmp_path) as where:
        wait_for(lambda: faults.metric("singularity_leader", where) == 1, "both act", TIMEOUT_S)
        assert faults.metric("singularity_leader") == 1
        stop(rows, job)
        go_on(rows, job)
    assert faults.count["second controller"] == 1
    last = job.finish()
    job.assert_exact(last)
    assert [a.attempt for a in last.attempts] == [1, 2]


@pytest.mark.parametrize("skew_s", [-30, pytest.param(30, marks=pytest.mark.full)])
def test_clock_of_the_controller_is_wrong(
    rows: Rows, faults: Faults, job: Training, tmp_path: Path, skew_s: float
) -> None:
    """Uncorrected, 30 s behind voids every hold, and 30 s ahead keeps those of a dead controller alive."""
    with faults.second_controller("skewed", tmp_path, skew_s) as where:
        # The other one goes on serving the pods, as any replica does, but looks on.
        wait_for(lambda: _handed_over(faults, where), "the one with the wrong clock acts", TIMEOUT_S)
        lease = faults.kube.get_lease(job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)
        renewed = datetime.fromisoformat(lease["spec"]["renewTime"].replace("Z", "+00:00")).timestamp()
        assert abs(renewed - time.time()) < 20, "the Lease is renewed in the API server's time"
        stop(rows, job)
        until_saving(job)
        assert job.job()["spec"]["suspend"] is False, "Kueue is held back while images are saved"
        go_on(rows, job)
        assert "clock differs from the API server's" in (tmp_path / "second-controller.log").read_text()
    assert faults.count["second controller"] == 1
    job.assert_exact(job.finish())


def _handed_over(faults: Faults, where: str) -> bool:
    lease = faults.kube.get_lease(job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)
    if lease["spec"].get("holderIdentity") != "skewed":
        lease["spec"]["holderIdentity"] = "skewed"
        with contextlib.suppress(Conflict):
            faults.kube.update_lease(lease)
        return False
    # Twice in a row: once to learn the time, once to write it.
    return faults.metric("singularity_leader", where) == 1 and faults.metric("singularity_leader") == 0


def test_a_job_deleted_while_it_is_saved_blocks_nobody(rows: Rows, faults: Faults, job: Training) -> None:
    stop(rows, job)
    until_saving(job)
    rows.kube.delete(JOB, rows.namespace, job.name)
    after = rows.train("after", "faults")  # needs the very quota
    after.until_steps(2)
    with pytest.raises(NotFound):
        job.job()
    after.finish()
