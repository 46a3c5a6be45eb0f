"""What administrators do by hand, or in the middle of: `doctor` names it, and the commands that it prints mend it.

Keys rotated or deleted while a job is saved, policies deleted, `helm upgrade` killed, a queue edited by two managers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import controllers
import pytest
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.contract import job_names
from kueue_integration.guard import names as guards
from kueue_integration.kube.resources import (
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CLUSTER_QUEUE,
    LEASE,
    SECRET,
    admission_checks,
    annotation,
    selector,
)
from localcluster.addons.chart import NAMESPACE as SYSTEM
from localcluster.addons.chart import RELEASE
from localcluster.config import cache_dir
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for
from localcluster.images import gobuild

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "by-hand"
QUEUES = {"own": {"ondemand": "100m"}}
KEYS = job_names.KEYS_SECRET
PENDING = selector({"owner": "helm", "name": RELEASE, "status": "pending-upgrade"})


@pytest.fixture
def shell(rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """With Helm, in the checkout: the commands of doctor name the chart there. All is well afterwards."""
    monkeypatch.chdir(CHECKOUT)
    helm = gobuild.build_all(cache_dir(), lambda text: None)["helm"]
    monkeypatch.setenv("PATH", str(Path(helm).parent), prepend=":")
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HELM_{kind}_HOME", str(tmp_path / kind.lower()))
    made = Shell(rows.stage.cluster)
    yield made
    made.type(f"kubectl -n {SYSTEM} rollout status deployment/{job_names.CONTROLLER_NAME} --timeout=300s")


@pytest.fixture
def job(rows: Rows) -> Training:
    made = rows.train("trains", "own", workers=2)
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
        mended(rows, shell, "guard policies", f"no {kind.name} {guards.PODS}")
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


def test_a_queue_is_edited_by_two_managers_at_once(rows: Rows, shell: Shell, tmp_path: Path) -> None:
    """A GitOps tool applies the queue again and again while it is fenced and unfenced: each keeps what is its own."""
    name, theirs = "by-hand-shared", {"name": "somebodys-check"}
    stem = f"apiVersion: {CLUSTER_QUEUE.api_version}\nkind: ClusterQueue\nmetadata: {{name: {name}}}\nspec:\n"
    cpu = 'flavors: [{{name: ondemand, resources: [{{name: cpu, nominalQuota: "{}"}}]}}]'
    quota = "  resourceGroups: [{{coveredResources: [cpu], " + cpu + "}}]\n"
    checks = "  admissionChecksStrategy: {admissionChecks: [{name: somebodys-check}]}\n"
    file = tmp_path / "queue.yaml"
    apply = f"kubectl apply --server-side --field-manager=gitops -f {file}"

    def written(number: int, more: str = "") -> None:
        file.write_text(stem + "  namespaceSelector: {}\n" + quota.format(number) + more)

    try:
        written(1)
        shell.type(apply)
        ended, applied = threading.Event(), list[int]()
        writer = threading.Thread(target=lambda: _applies(shell, apply, written, ended, applied))
        writer.start()
        try:
            for _ in range(5):
                shell.run("fence", name)
                assert {"name": job_names.ADMISSION_CHECK_NAME} in _checks(rows, name)
                shell.run("unfence", name)
                assert _checks(rows, name) == []
            shell.run("fence", name)
        finally:
            ended.set()
            writer.join(60)
        queue = rows.kube.get(CLUSTER_QUEUE, None, name)["spec"]
        (flavor,) = queue["resourceGroups"][0]["flavors"]
        assert len(applied) >= 3 and flavor["resources"][0]["nominalQuota"] == str(applied[-1])
        assert _checks(rows, name) == [{"name": job_names.ADMISSION_CHECK_NAME}]

        rows.say("--> it wants a list of checks of its own: a conflict, and both stay")
        written(9, checks)
        said = shell.type(f"{apply} 2>&1", codes=(1,))
        assert "conflict" in said and "singularityctl" in said, said
        assert _checks(rows, name) == [{"name": job_names.ADMISSION_CHECK_NAME}]
        rows.say("--> by force the fence is lost: doctor names it, with the command")
        rows.local_queue("shared", name)
        shell.type(f"{apply} --force-conflicts")
        assert _checks(rows, name) == [theirs]
        told = json.loads(shell.type(f"singularityctl doctor -n {rows.namespace} -o json", codes=(0, 3)))
        (found,) = [check for check in told if "lacks admission check" in check["message"]]
        assert found["name"] == "queue shared"
        shell.follow(found["fix"])
        assert _checks(rows, name) == [theirs, {"name": job_names.ADMISSION_CHECK_NAME}], "and theirs is kept"
    finally:
        shell.type(f"kubectl delete clusterqueue {name} --ignore-not-found --timeout=120s")


def _applies(
    shell: Shell, apply: str, written: Callable[[int], None], ended: threading.Event, applied: list[int]
) -> None:
    number = 1
    while not ended.is_set():
        number += 1
        written(number)
        shell.type(apply)
        applied.append(number)


def _checks(rows: Rows, name: str) -> list[dict[str, str]]:
    return [dict(check) for check in admission_checks(rows.kube.get(CLUSTER_QUEUE, None, name))]
