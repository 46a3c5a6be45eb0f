"""`singularityctl backup` and `restore`: jobs come back with their records, in a shape that Kueue takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import controller_scene as scene
import pytest
from click.testing import CliRunner, Result
from controller_scene import NS
from eviction_world import World

from kueue_integration import cli
from kueue_integration.cli import backup as command
from kueue_integration.contract import attempt_records, job_names
from kueue_integration.errors import Forbidden
from kueue_integration.jobs import backup
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, POD, SERVICE, WORKLOAD, Object
from singularity_proxy.protocol import names

OURS = {job_names.LABEL_MANAGED: "true"}
OLD, NEW = "gs://old/store", "gs://new"
REF = json.dumps({"id": "c1", "url": f"{OLD}/team/digits/c1", "other": f"{OLD}-beside/x"})


def job(name: str, **status: Any) -> Object:
    """One that runs: its template has a node label of its flavor, its size is less than wished."""
    notes = {
        job_names.ANN_WORKERS: "4", job_names.ANN_STORE: OLD, names.ANN_CHECKPOINT: REF, job_names.ANN_ATTEMPT: "2",
        job_names.ANN_HOLD: job_names.HOLD_RELEASED, job_names.ANN_HOLD_DEADLINE: "2026-01-01T00:00:00Z",
    }  # fmt: skip
    labels = {"controller-uid": f"u-{name}", "app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"nodeSelector": {"flavor": "spot"}, "containers": []}}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "uid": f"u-{name}", "labels": {**OURS}, "annotations": notes},
        "spec": {"suspend": False, "parallelism": 2, "completions": 2, "selector": {"a": "b"}, "template": template},
        "status": status,
    }  # fmt: skip


def workload(of: str) -> Object:
    template = {"metadata": {"labels": {"controller-uid": f"u-{of}", "app": "x"}}, "spec": {"containers": []}}
    meta = {"name": f"w-{of}", "namespace": "team", "labels": {"kueue.x-k8s.io/job-uid": f"u-{of}"}}
    spec = {"podSets": [{"name": "main", "count": 4, "template": template}]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta, "spec": spec}


def child(kind: str, of: str) -> Object:
    owner = [{"kind": "Job", "name": of, "uid": f"u-{of}", "controller": True}]
    meta = {"name": of, "namespace": "team", "labels": {**OURS, job_names.LABEL_JOB: of}, "ownerReferences": owner}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": {"clusterIP": "None"}}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": []}}
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    made = FakeKube(
        job("digits"), workload("digits"), child("Service", "digits"), child("ConfigMap", "digits"),
        job("ended", **ended), {**job("copied"), "metadata": {
            **job("copied")["metadata"], "labels": {**OURS, job_names.KUEUE_PREBUILT: "w"}}},
        {**jobset, "metadata": {"name": "set", "namespace": "team", "uid": "u-set", "labels": {**OURS}}},
    )  # fmt: skip
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: made)
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, [*words])


def test_what_waits_again_is_as_its_owner_has_written_it(kube: FakeKube) -> None:
    found, left = backup.taken(kube, None)
    (item,) = found["items"]
    made = item["job"]
    assert sorted(left) == ["team/copied", "team/set.jobset"]
    spec = made["spec"]
    assert (spec["suspend"], spec["parallelism"], spec["completions"]) == (True, 4, 4)
    assert "selector" not in spec
    assert "nodeSelector" not in spec["template"]["spec"], "Kueue would refuse to add it again"
    assert spec["template"]["metadata"]["labels"] == {"app": "x"}
    notes = made["metadata"]["annotations"]
    assert notes[job_names.ANN_ATTEMPT] == "2" and notes[names.ANN_CHECKPOINT] == REF
    assert notes[job_names.ANN_HOLD] == job_names.HOLD_ARMED and job_names.ANN_HOLD_DEADLINE not in notes
    assert {c["kind"] for c in item["children"]} == {"Service", "ConfigMap"}
    assert not any("ownerReferences" in c["metadata"] for c in item["children"])


def test_a_restored_job_owns_what_belongs_to_it_and_reads_the_copy_of_the_store(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = run("backup", "-A")
    assert saved.exit_code == 0, saved.output
    file = tmp_path / "jobs.json"
    file.write_text(saved.stdout)
    empty = FakeKube()
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: empty)
    assert "would be restored" in run("restore", str(file), "--dry-run").output and not empty.objects()
    done = run("restore", str(file), "--store", f"{OLD}={NEW}")
    assert done.exit_code == 0 and "team/digits: restored" in done.output, done.output
    made = empty.get(JOB, "team", "digits")
    assert made["metadata"]["annotations"][job_names.ANN_STORE] == NEW
    told = json.loads(made["metadata"]["annotations"][names.ANN_CHECKPOINT])
    assert told == {"id": "c1", "url": f"{NEW}/team/digits/c1", "other": f"{OLD}-beside/x"}
    for kind in (SERVICE, CONFIG_MAP):
        (owner,) = empty.get(kind, "team", "digits")["metadata"]["ownerReferences"]
        assert owner["uid"] == made["metadata"]["uid"]
    again = run("restore", str(file))
    assert again.exit_code == 0 and "exists already, left as it is" in again.output


def test_who_may_not_write_records_is_told_where_to_be_named(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(run("backup", "-n", "team").stdout)
    kube.delete(JOB, "team", "digits")
    refused = "ValidatingAdmissionPolicy 'singularity-guard-annotations' denied request: the controller's"
    kube.fail_next("create", JOB, Forbidden(refused, 403, "Forbidden"))
    monkeypatch.setattr(backup, "PATIENCE_S", 0.0)
    done = run("restore", str(file))
    assert done.exit_code == 2 and "guard.accounts" in done.output and "team/digits" in done.output


@pytest.mark.parametrize(
    ("text", "field"),
    [("nonsense", "FILE"), ("[]", "FILE"), ('{"kind": "List"}', "FILE"),
     ('{"apiVersion": "singularity.dev/v1", "kind": "JobBackup", "items": [{"job": {}}]}', "items")],
)  # fmt: skip
def test_what_is_no_backup_is_refused_by_name(kube: FakeKube, tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(text)
    done = run("restore", str(file))
    assert done.exit_code == 2 and f"error: {field} = " in done.output and "singularityctl backup" in done.output
    assert "--store" in run("restore", str(file), "--store", "x").output


def test_a_restore_waits_until_the_guard_knows_who_restores(kube: FakeKube, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(run("backup", "-n", "team").stdout)
    for child in (SERVICE, CONFIG_MAP):
        kube.delete(child, "team", "digits")
    kube.delete(JOB, "team", "digits")
    refused = "ValidatingAdmissionPolicy 'singularity-guard-annotations' denied request: the controller's"
    kube.fail_next("create", JOB, Forbidden(refused, 403, "Forbidden"))
    assert run("restore", str(file)).exit_code == 0
    assert kube.get(JOB, "team", "digits")["spec"]["suspend"] is True


def test_a_restored_job_goes_on_from_its_last_checkpoint_and_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller finds a Job whose last attempt has no end, whose pods are gone, and whose Workload is new."""
    world = World(monkeypatch)
    template: Object = {"spec": {"containers": []}}
    world.kube.patch(JOB, NS, "train", {"spec": {"template": template}})
    trains = lambda: world.training is not None and world.training.told and (world.training.step or 0) > 10  # noqa: E731
    world.run(trains)
    world.evict()
    world.run(lambda: len(world.started) == 2 and trains())
    world.kube.patch(WORKLOAD, NS, "job-train-1", {"spec": {"podSets": [{"name": "main", "template": template}]}})
    saved = backup.read(json.dumps(backup.taken(world.kube, None)[0]))

    for pod in world.pods():
        world.kube.delete(POD, NS, pod["metadata"]["name"])
    world.kube.delete(WORKLOAD, NS, "job-train-1")
    world.kube.delete(JOB, NS, "train")
    world.training = None
    assert backup.restore(world.kube, saved, {}).made == [f"{NS}/train"]
    made = world.job()
    assert made["spec"]["suspend"] is True
    # Pods of this scene name that one.
    world.kube.put({**made, "metadata": {**made["metadata"], "uid": scene.JOB_UID}})
    world.kube.put(scene.workload(uid="another", reserved_at=None, state="Pending"))

    world.run(lambda: len(world.started) == 3 and trains())
    (kept,) = world.committed
    assert world.started[-1] == (3, kept.step)
    first, second, third = attempt_records.history(world.job())
    assert second.ended_by is not None and second.checkpoint is None, "what it did since is lost, on record"
    assert third.restored_from == first.checkpoint == kept.id
