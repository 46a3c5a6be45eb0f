"""A user's own Job: adopted by the command and by the API server to the same object, refused for the same reasons, and
preempted without losing a step.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pod_processes
import pytest
import yaml
from adoption_cases import BAD, GOOD, changed, labelled
from plain_jobs import plain_training
from rows import SCRIPT, Rows

from kueue_integration.adoption.patch import adopted
from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import CONFIG_MAP, JOB, Object, annotation
from kueue_integration.spec import mount_paths
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
_HOST = "must not be set: pods here stay out of the node's namespaces"
GUARDED = {
    "metadata.annotations": ("/checkpoint is the platform's: ",),
    "spec.template.spec.hostPID": (f"hostPID {_HOST}",),
    "spec.template.spec.hostIPC": (f"hostIPC {_HOST}",),
    "spec.template.spec.hostNetwork": (f"hostNetwork {_HOST}",),
    "spec.template.spec.initContainers": ("init container install-agent: the name is the platform's",),
    "spec.template.spec.containers[0].env": ("variables that start with SINGULARITY_ are the platform's",),
    "spec.template.spec.containers[0].volumeMounts": (
        f"each mountPath {mount_paths.FIX}",
        "nothing but the platform's volumes may be mounted at",
        "a mountPath must not look like NVIDIA's driver",
        f"a mountPath {mount_paths.APART}",
    ),
}
"""Field -> what another policy of the chart may say of it. Which of the two the API server asks first, nobody says."""
_SERVERS = ("uid", "creationTimestamp", "managedFields", "resourceVersion", "generation")


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "adopt", say)
    made.queue("own", {"ondemand": "100m"})
    yield made
    made.close()


def stripped(job: Object) -> Object:
    """What the API server would have stored, without what differs between two calls."""
    text = yaml.safe_dump(job).replace(job["metadata"]["uid"], "UID")
    result: Object = yaml.safe_load(text)
    for name in _SERVERS:
        result["metadata"].pop(name, None)
    return result


@pytest.fixture(scope="module", autouse=True)
def policies(stage: Stage) -> None:
    """The API server takes up webhook and policy some seconds after they were installed, each at a time of its own."""

    def in_force() -> bool:
        try:
            by_server = stage.kube.create(labelled(GOOD[0]), dry_run=True)
        except KubeError:
            return False
        by_command = stage.kube.create(adopted(GOOD[0], stage.platform), dry_run=True)
        answers = [refusal(stage, labelled(changed(path, value))) for _, path, value in BAD]
        return stripped(by_server) == stripped(by_command) and all(answers)

    wait_for(in_force, "the API server knows the policies of the chart", 60)


def refusal(stage: Stage, job: Object) -> str:
    """What the API server answers to `job`; "" if it takes it."""
    try:
        stage.kube.create(job, dry_run=True)
    except KubeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("job", GOOD, ids=range(len(GOOD)))
def test_command_and_api_server_make_the_same_object(stage: Stage, job: Object) -> None:
    by_command = stage.kube.create(adopted(job, stage.platform), dry_run=True)
    by_server = stage.kube.create(labelled(job), dry_run=True)
    assert stripped(by_server) == stripped(by_command)


def test_the_api_server_names_the_field_of_every_bad_job(stage: Stage) -> None:
    for field, path, value in BAD:
        said = refusal(stage, labelled(changed(path, value)))
        by_guard = "'singularity-guard-" in said and any(sentence in said for sentence in GUARDED.get(field, ()))
        # The last is the API server's own: a path is there twice.
        answers = ("denied request", "denied the request", "is invalid")
        by_adoption = any(f"{how}: {field}".lower() in said.lower() for how in answers)  # HostPID is hostPID
        assert by_guard or by_adoption, (field, value, said)


def test_a_labelled_job_is_preempted_and_resumes_with_no_step_lost(rows: Rows) -> None:
    """As the user that its owner asks for, before and after."""
    training, job = plain_training(rows, "labelled", label=True)
    whom = {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 4242, "runAsNonRoot": True}
    job["spec"]["template"]["spec"]["securityContext"] = whom
    rows.kube.create(job)
    training.until_steps(5)
    files = [training.output / f"rank-{rank}.log" for rank in (0, 1)]
    assert {(file.stat().st_uid, file.stat().st_gid) for file in files} == {(1000, 1001)}
    assert rank_ids(rows, "labelled") == {("1000 1000 1000 1000", "1001 1001 1001 1001", "4242")}
    rows.other("urgent", "own", pods=2)
    ended = training.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint
    rows.until_admitted("urgent")
    rows.remove("urgent")
    training.until_attempt(2)
    assert rank_ids(rows, "labelled") == {("1000 1000 1000 1000", "1001 1001 1001 1001", "4242")}
    training.assert_exact(training.finish())


def rank_ids(rows: Rows, job: str) -> set[tuple[str, ...]]:
    """Uid, Gid, Groups of all processes of the job's script, as they see them."""
    found = set()
    for entry, words in pod_processes.of_pods(rows.kube.list_pods(rows.namespace, f"{job_names.LABEL_JOB}={job}")):
        if SCRIPT.name not in words or pod_processes.LAUNCHER in words:
            continue
        with contextlib.suppress(OSError):  # it has just ended
            lines = (entry / "status").read_text().splitlines()
            status = {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}
            found.add(tuple(_inside(entry, status[kind], ids) for kind, ids in _KINDS.items()))
    return found


_KINDS = {"Uid": "uid_map", "Gid": "gid_map", "Groups": "gid_map"}


def _inside(process: Path, ids: str, file: str) -> str:
    """Ids of the node as they are called in the user namespace of a process."""
    first, outside, _ = map(int, (process / file).read_text().split())
    return " ".join(str(int(word) - outside + first) for word in ids.split())


@pytest.mark.full
def test_a_job_that_waits_is_recreated_by_the_command_and_trains(rows: Rows) -> None:
    rows.other("first", "own", pods=2)
    rows.until_admitted("first")
    training, job = plain_training(rows, "late", label=False)
    before = rows.kube.create(job)["metadata"]["uid"]
    ctl = Path(sys.executable).with_name("singularityctl")
    done = subprocess.run(
        [str(ctl), "adopt", "late", "--recreate", "-n", rows.namespace],
        env={**os.environ, "KUBECONFIG": str(rows.stage.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = rows.kube.get(JOB, rows.namespace, "late")
    assert made["metadata"]["uid"] != before and annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED
    assert rows.kube.find(CONFIG_MAP, rows.namespace, "late-before-adoption") is None
    rows.remove("first")
    training.until_steps(3)
    training.assert_exact(training.finish())


def test_a_running_job_is_refused_with_the_reason(rows: Rows) -> None:
    rows.other("busy", "own")
    wait_for(lambda: not rows.kube.get(JOB, rows.namespace, "busy")["spec"]["suspend"], "busy started", 300)
    ctl = Path(sys.executable).with_name("singularityctl")
    done = subprocess.run(
        [str(ctl), "adopt", "busy", "--recreate", "-n", rows.namespace],
        env={**os.environ, "KUBECONFIG": str(rows.stage.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    rows.remove("busy")
    assert done.returncode == 2 and "is running" in done.stderr, done.stdout + done.stderr
