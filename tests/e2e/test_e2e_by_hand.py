"""What administrators do by hand, or in the middle of: `doctor` names it, and the commands that it prints mend it.

Keys rotated, deleted or at their end while a job is saved, policies and Leases deleted, `helm upgrade` killed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import controllers
import pytest
from faults import Faults
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.errors import PlatformError
from kueue_integration.guard import names as guards
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import (
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    LEASE,
    SECRET,
    annotation,
    selector,
)
from kueue_integration.spec.platform_config import load
from localcluster.addons.chart import NAMESPACE as SYSTEM
from localcluster.addons.chart import RELEASE
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "by-hand"
QUEUES = {"own": {"ondemand": "100m"}}
KEYS = job_names.KEYS_SECRET
SERVER = f"{job_names.CONTROLLER_NAME}.{SYSTEM}.svc"
BUDGET_S = 600
"""A job is saved for as long as an administrator needs to mend things."""
PENDING = selector({"owner": "helm", "name": RELEASE, "status": "pending-upgrade"})


@pytest.fixture
def shell(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """In the checkout: the commands of doctor name the chart there. All is well afterwards."""
    monkeypatch.chdir(CHECKOUT)
    made = Shell(rows.stage.cluster)
    yield made
    made.type(f"kubectl -n {SYSTEM} rollout status deployment/{job_names.CONTROLLER_NAME} --timeout=300s")


@pytest.fixture
def job(rows: Rows) -> Training:
    made = rows.train("trains", "own", workers=2, checkpoint_budget_s=BUDGET_S)
    made.until_steps()
    return made


def mended(rows: Rows, shell: Shell, name: str, words: str) -> None:
    """`doctor` says `words` in its check `name`; its commands are typed, and then all of that is well."""
    seen: dict[str, dict[str, str]] = {}

    def named() -> bool:
        seen.update(shell.doctor_whatever_it_exits_with("-n", rows.namespace))
        return words in seen.get(name, {}).get("message", "")

    wait_for(named, f"doctor's check {name} says: {words}", TIMEOUT_S, detail=lambda: str(seen.get(name)))
    rows.say(f"doctor, {name}: {seen[name]['message']}\n{seen[name]['fix']}")
    shell.follow(seen[name]["fix"])

    def well() -> bool:
        seen.clear()
        seen.update(shell.doctor_whatever_it_exits_with("-n", rows.namespace))
        return seen.get(name, {"status": "ok"})["status"] == "ok"

    wait_for(well, f"doctor's check {name} is content", TIMEOUT_S, detail=lambda: str(seen.get(name)))


def being_saved(rows: Rows, job: Training) -> None:
    """Kueue stops it, its hold stands, and it cannot be saved before `job.slow(False)`."""
    job.slow()
    rows.activate(job.name, False)
    asked = lambda: annotation(job.job(), job_names.ANN_HOLD_DEADLINE)  # noqa: E731
    wait_for(asked, "a checkpoint is asked for, and Kueue waits", TIMEOUT_S, tick_s=0.1)


def goes_on(rows: Rows, job: Training, attempt: int) -> None:
    """What was being saved is saved, and the next attempt goes on from it."""
    assert job.job()["spec"]["suspend"] is False, "Kueue is held back all the time"
    job.slow(False)
    ended = job.until_ended(attempt)
    assert ended.checkpoint is not None, ended.note
    rows.activate(job.name, True)
    job.until_attempt(attempt + 1)


def data(rows: Rows) -> dict[str, str]:
    found: dict[str, str] = (rows.kube.find(SECRET, SYSTEM, KEYS) or {}).get("data") or {}
    return found


def test_keys_are_rotated_and_then_deleted_while_a_job_is_saved(rows: Rows, shell: Shell, job: Training) -> None:
    being_saved(rows, job)
    before = data(rows)
    rows.say("--> the keys are rotated")
    shell.type(f"kubectl -n {SYSTEM} annotate secret {KEYS} --overwrite singularity.dev/rotate={time.time_ns()}")
    wait_for(lambda: data(rows) not in ({}, before), "other keys", TIMEOUT_S)
    goes_on(rows, job, 1)

    being_saved(rows, job)
    rotated = data(rows)
    rows.say("--> the Secret is deleted, and the controllers live")
    rows.kube.delete(SECRET, SYSTEM, KEYS)
    mended(rows, shell, "keys", "is gone")
    wait_for(lambda: data(rows) == rotated, "the keys that were in memory are in the new Secret", TIMEOUT_S)
    goes_on(rows, job, 2)
    rows.say("--> a controller that starts anew has them, too")
    controllers.restart(rows.kube)
    being_saved(rows, job)
    goes_on(rows, job, 3)
    job.assert_exact(job.finish())


def serves_until(faults: Faults) -> list[float]:
    """When the certificate ends that each replica shows to pods, less the present time."""
    addresses = [f"{pod['status']['podIP']}:8080" for pod in faults.controllers()]
    return [faults.metric("singularity_certificate_expires_seconds", at) - time.time() for at in addresses]


def test_a_certificate_ends_while_a_job_is_saved(
    rows: Rows, shell: Shell, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a platform's own authority, which nobody has renewed."""
    now, name, own = time.time(), "by-hand-certificate", load(rows.kube).controller_ca
    authority, key = certificates.authority(now, 30)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "charts").symlink_to(CHECKOUT / "charts")
    (tmp_path / "ca.crt").write_text(authority)

    def sign(at: float) -> None:
        certificate, private = certificates.leaf(authority, key, [SERVER], at)
        (tmp_path / "tls.crt").write_text(certificate)
        (tmp_path / "tls.key").write_text(private)

    def use(secret: str) -> None:
        upgrade = f"helm upgrade {RELEASE} charts/singularity -n {SYSTEM} --reuse-values"
        shell.type(f"{upgrade} --set tls.existingSecret={secret}")
        shell.type(f"kubectl -n {SYSTEM} rollout status deployment/{job_names.CONTROLLER_NAME} --timeout=300s")

    files = "--from-file=ca.crt --from-file=tls.crt --from-file=tls.key"
    write = f"kubectl -n {SYSTEM} create secret generic {name} {files} --dry-run=client -o yaml"
    write += " | kubectl apply --server-side --force-conflicts -f -"
    sign(now)
    shell.type(write)
    try:
        use(name)
        wait_for(lambda: authority.strip() in load(rows.kube).controller_ca, "our authority is published", TIMEOUT_S)
        rows.stage.look_again()
        job = rows.train("trusts-ours", "own", workers=2, checkpoint_budget_s=BUDGET_S)
        job.until_steps()
        being_saved(rows, job)
        sign(now - (certificates.LEAF_DAYS + 1) * 86400)
        shell.type(write)
        ended = lambda: [left < 0 for left in serves_until(faults)] == [True, True]  # noqa: E731
        wait_for(ended, "both controllers show a certificate that has ended", TIMEOUT_S)
        sign(now)
        job.slow(False)
        mended(rows, shell, "certificate", "has ended")
        assert job.until_ended(1).checkpoint is not None
        wait_for(lambda: min(serves_until(faults)) > 0, "both show the new one", TIMEOUT_S)
        rows.activate(job.name, True)
        job.until_attempt(2)
        job.assert_exact(job.finish())
    finally:
        use("")
        shell.type(f"kubectl -n {SYSTEM} delete secret {name}")
        # A job that is submitted before trusts ours only.
        wait_for(lambda: load(rows.kube).controller_ca == own, "the platform's own authority is published", TIMEOUT_S)
        rows.stage.look_again()


def made_again(rows: Rows, lease: str, uid: str) -> None:
    def other() -> bool:
        found = rows.kube.find(LEASE, SYSTEM, lease)
        return found is not None and found["metadata"]["uid"] != uid

    wait_for(other, f"the controller has made Lease {lease} again", TIMEOUT_S)


def test_policies_and_leases_are_deleted(rows: Rows, shell: Shell, job: Training) -> None:
    hold = job_names.HOLD_LEASE
    for kind in (ADMISSION_POLICY, ADMISSION_POLICY_BINDING):
        rows.kube.delete(kind, None, hold)
        mended(rows, shell, "hold policy", f"no {kind.name} {hold}")
        rows.kube.delete(kind, None, guards.PODS)
        wait_for(lambda: guards.PODS in load(rows.kube).guard_problem, "the controller has noticed", TIMEOUT_S)
        with pytest.raises(PlatformError, match="the guard of pods is not in force"):
            lifecycle.submit(rows.kube, replace(job.spec, name="later"), load(rows.kube))
        mended(rows, shell, "guard policies", f"no {kind.name} {guards.PODS}")
        wait_for(lambda: not load(rows.kube).guard_problem, "jobs are taken again", TIMEOUT_S)
    for name in (hold, job_names.TRUSTED_IMAGES_LEASE):
        uid = rows.kube.get(LEASE, SYSTEM, name)["metadata"]["uid"]
        rows.kube.delete(LEASE, SYSTEM, name)
        made_again(rows, name, uid)
    wait_for(lambda: shell.doctor_whatever_it_exits_with()["lease"]["status"] == "ok", "it leads", TIMEOUT_S)
    being_saved(rows, job)
    goes_on(rows, job, 1)
    job.assert_exact(job.finish())


def test_helm_upgrade_is_killed_in_the_middle(rows: Rows, shell: Shell, job: Training, tmp_path: Path) -> None:
    command = f"exec helm upgrade {RELEASE} charts/singularity -n {SYSTEM} --reuse-values --set regrow.minRunSeconds=77"
    with (tmp_path / "helm.log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", command], env=shell.environment, stdout=log, stderr=log)
        begun = lambda: rows.kube.list(SECRET, SYSTEM, PENDING) or process.poll() is not None  # noqa: E731
        wait_for(begun, "Helm has begun", TIMEOUT_S, tick_s=0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL, (tmp_path / "helm.log").read_text()
    assert rows.kube.list(SECRET, SYSTEM, PENDING), "the fault did not fire"
    rows.say("--> helm upgrade is killed; the next one is refused")
    said = shell.type(f"helm upgrade {RELEASE} charts/singularity -n {SYSTEM} --reuse-values 2>&1", codes=(1,))
    assert "another operation" in said
    being_saved(rows, job)
    goes_on(rows, job, 1)
    mended(rows, shell, "release", "pending-upgrade")
    being_saved(rows, job)
    goes_on(rows, job, 2)
    job.assert_exact(job.finish())
