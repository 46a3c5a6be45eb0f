"""The reconciler between a manager and two worker clusters, all fakes: a job moves, is cut off, killed on the way."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import CHECK, NS, pod
from test_multikueue_plan import NAME, copy, local, ran, there
from waits import until

from kueue_integration.contract import attempt_records, job_names, progress_objects
from kueue_integration.controller.cache import World
from kueue_integration.controller.checkpoint_fit import ARCHITECTURE, CPUID
from kueue_integration.controller.metrics import Metrics
from kueue_integration.errors import Conflict, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    CONFIG_MAP,
    JOB,
    JOBSET,
    MULTIKUEUE_CLUSTER,
    POD,
    RESOURCE_FLAVOR,
    SERVICE,
    TRAINJOB,
    WORKLOAD,
    Kind,
    Object,
    annotation,
)
from kueue_integration.multikueue import companions
from kueue_integration.multikueue.access import Access
from kueue_integration.multikueue.plan import LEFT_S
from kueue_integration.multikueue.reconciler import MultiKueueReconciler
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Needs, to_json

CLUSTERS = ("a", "b")


def declared(name: str) -> Object:
    source = {"kubeConfig": {"locationType": "Secret", "location": name}}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "MultiKueueCluster", "metadata": {"name": name},
            "spec": {"clusterSource": source}}  # fmt: skip


def secret(name: str) -> Object:
    text = base64.b64encode(json.dumps({"server": name}).encode()).decode()
    meta = {"name": name, "namespace": "kueue-system"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"kubeconfig": text}}


class Land:
    """Manager and workers."""

    def __init__(self) -> None:
        self.manager = FakeKube(*map(declared, CLUSTERS), *map(secret, CLUSTERS))
        self.workers = {name: FakeKube() for name in CLUSTERS}
        self.noted: list[tuple[str, str]] = []
        """UID of the manager's job, and what was told of its progress."""
        self.world = World(self.manager)
        self.reconciler = self.new()

    def new(self) -> MultiKueueReconciler:
        def connector(access: Access) -> FakeKube:
            return self.workers[access.kubeconfig["server"]]

        def noted(job: Object, text: str) -> None:
            self.noted.append((job["metadata"]["uid"], text))

        return MultiKueueReconciler(
            self.manager, self.world, "kueue-system", CHECK, Metrics(), lambda: True, connector=connector, noted=noted
        )

    def start(self) -> None:
        self.world.start()
        self.reconciler.start()
        until(lambda: self.world.fresh, "the manager is listed")
        until(lambda: len(self.reconciler.fleet.workers()) == 2, "two clusters are connected to")
        until(lambda: all(w.fresh for w in self.reconciler.fleet.workers()), "the clusters are listed")

    def job(self) -> Object:
        return self.manager.get(JOB, NS, "train")

    def check(self, cluster: str) -> dict[str, Any]:
        return dict(scene.check(self.workers[cluster].get(WORKLOAD, NS, NAME)))

    def dispatch(self, cluster: str) -> None:
        """What Kueue does when the fence of `cluster` is open: the Job is copied, with the annotations of now."""
        made = copy(kept=True)
        made["metadata"]["annotations"] = dict(self.job()["metadata"]["annotations"])
        made["metadata"].pop("uid")
        made["metadata"].pop("resourceVersion")
        self.workers[cluster].put(made)

    def note(self, cluster: str, **annotations: str) -> None:
        body = {"metadata": {"annotations": annotations}}
        self.workers[cluster].patch(JOB, NS, "train", body)


@pytest.fixture
def land() -> Iterator[Land]:
    made = Land()
    yield made
    made.reconciler.stop()
    made.world.stop()


def test_a_job_moves_with_its_checkpoint_and_never_runs_twice(land: Land):
    land.manager.put(local())
    land.manager.put(scene.workload(NAME, state=None))
    land.start()
    land.workers["a"].put(there(20))
    until(lambda: land.check("a").get("state") == "Ready", "cluster a is let in")
    assert annotation(land.job(), job_names.ANN_ATTEMPT) == "1"
    land.workers["b"].put(there(21, uid="b-uid"))
    until(lambda: "a has been let in" in land.check("b")["message"], "cluster b is told to wait")
    land.dispatch("a")
    land.workers["a"].put(pod(0))
    # It trains there, is preempted and saved; the worker's controller writes that on the copy.
    record = ran(1, "a", checkpoint=scene.checkpoint().id)
    land.note("a", **scene.history(record), **{names.ANN_CHECKPOINT: to_json(scene.checkpoint())})
    until(lambda: attempt_records.checkpoint(land.job()) == scene.checkpoint(), "the checkpoint is known here")
    # Kueue deletes the Workload and the Job there; a pod is slow to end.
    land.workers["a"].delete(WORKLOAD, NS, NAME)
    going = land.workers["a"].get(JOB, NS, "train")
    going["metadata"]["deletionTimestamp"] = scene.at(60)
    land.workers["a"].put({**going, "spec": {**going["spec"], "suspend": True}})
    until(lambda: land.workers["a"].find(POD, NS, "train-0-a1") is None, "its pods are ended")
    until(lambda: land.check("b").get("state") == "Ready" or not land.workers["a"].get(JOB, NS, "train")["metadata"]
          .get("finalizers"), "the copy may go")  # fmt: skip
    assert land.check("b")["state"] == "Pending"
    land.workers["a"].delete(JOB, NS, "train")
    until(lambda: land.check("b").get("state") == "Ready", "cluster b is let in")
    updates = land.check("b")["podSetUpdates"][0]["annotations"]
    assert updates[job_names.ANN_ATTEMPT] == "2" and updates[names.ANN_CHECKPOINT] == scene.checkpoint().id
    first, second = attempt_records.history(land.job())
    assert (first.cluster, second.cluster, second.restored_from) == ("a", "b", scene.checkpoint().id)


def test_a_copy_that_kueue_has_left_behind_is_removed_and_the_next_attempt_starts(land: Land):
    land.manager.put(local(ran(1, "a"), annotations={names.ANN_CHECKPOINT: to_json(scene.checkpoint())}))
    land.manager.put(scene.workload(NAME, state=None, reserved_at=time.time() - scene.T0 - 2 * LEFT_S))
    land.workers["a"].put(copy(ran(1, "a"), suspend=True))
    land.workers["a"].put(there(30))
    land.workers["b"].put(there(20))
    land.start()
    until(lambda: land.workers["a"].find(JOB, NS, "train") is None, "the copy is removed, its records are here")
    until(lambda: land.check("b").get("state") == "Ready", "cluster b is let in")
    assert land.workers["a"].find(WORKLOAD, NS, NAME) is None


def test_progress_of_a_copy_comes_up_to_the_managers_job_and_that_of_no_other(land: Land):
    """Each note is an object of the worker cluster, named by the UID of the copy there."""
    land.manager.put(local(scene.record(1, cluster="a")))
    land.manager.put(scene.workload(NAME, state=None))
    land.workers["a"].put(copy(scene.record(1, cluster="a")))
    land.start()
    here, there_now = land.job(), land.workers["a"].get(JOB, NS, "train")
    there_now["metadata"]["uid"] = "of-the-copy"
    land.workers["a"].put(there_now)
    known = land.reconciler.fleet.worker("a").jobs
    until(lambda: (known.get(NS, "train") or here)["metadata"]["uid"] == "of-the-copy", "the copy is known")
    other = {**there_now, "metadata": {**there_now["metadata"], "uid": "of-an-earlier-copy"}}
    for made, step in ((other, 99), (there_now, 7), (there_now, 8)):
        land.workers["a"].put(progress_objects.made_for(made, to_json({"attempt": 1, "step": step, "at": 5.0})))
        if made is there_now:
            until(lambda step=step: [t for _, t in land.noted if f'"step":{step},' in t], f"step {step} is told")
    assert {uid for uid, _ in land.noted} == {here["metadata"]["uid"]}
    assert not [text for _, text in land.noted if '"step":99' in text]
    shown = progress_objects.laid_over(here, land.noted[-1][1])
    assert attempt_records.progress(shown).step == 8


def test_records_that_were_written_while_nobody_listened_are_taken_before_the_copy_goes(land: Land):
    land.manager.put(local(scene.record(1, cluster="a")))
    land.manager.put(scene.workload(NAME, state=None))
    saved = {names.ANN_CHECKPOINT: to_json(scene.checkpoint())}
    land.workers["a"].put(copy(ran(1, "a"), deleted=True, suspend=True, annotations=saved))
    land.start()
    until(lambda: not land.workers["a"].get(JOB, NS, "train")["metadata"].get("finalizers"), "the copy may go")
    assert attempt_records.checkpoint(land.job()) == scene.checkpoint()


def test_a_cluster_that_is_cut_off_stops_the_next_attempt_until_somebody_gives_it_up(land: Land):
    land.manager.put(local(ran(1, "a")))
    land.manager.put(scene.workload(NAME, state=None))
    land.start()
    for _ in range(3):  # the decision that counts is made on fresh reads, and those fail
        land.workers["a"].fail_next("list", POD, Unreachable("cut"))
    land.workers["b"].put(there(70, uid="b-uid"))
    until(lambda: "does not answer" in land.check("b").get("message", ""), "cluster b is told why it waits")
    assert len(attempt_records.history(land.job())) == 1
    land.workers["a"]._failures.clear()
    land.workers["a"].fail_next("list", POD, Unreachable("cut"))
    land.manager.delete(MULTIKUEUE_CLUSTER, None, "a")
    until(lambda: land.check("b").get("state") == "Ready", "cluster b is let in")
    assert [r.cluster for r in attempt_records.history(land.job())] == ["a", "b"]


def test_a_checkpoint_is_not_sent_to_machines_that_cannot_run_it(land: Land):
    checkpoint = replace(scene.checkpoint(), needs=Needs("amd64", ["AVX2"]))
    land.manager.put(local(ran(1, "b"), annotations={names.ANN_CHECKPOINT: to_json(checkpoint)}))
    land.manager.put(scene.workload(NAME, state=None))
    flavor = {"apiVersion": RESOURCE_FLAVOR.api_version, "kind": RESOURCE_FLAVOR.name,
              "metadata": {"name": "ondemand"}, "spec": {"nodeLabels": {"flavor": "ondemand"}}}  # fmt: skip
    for cluster, feature in (("a", "SSE42"), ("b", "AVX2")):
        labels = {"flavor": "ondemand", ARCHITECTURE: "amd64", CPUID + feature: "true"}
        land.workers[cluster].put(flavor)
        land.workers[cluster].put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}})
    land.start()
    land.workers["a"].put(there(70))
    until(lambda: land.check("a").get("state") == "Retry", "the quota is given back")
    assert "its nodes lack AVX2" in land.check("a")["message"]
    until(lambda: "cluster a" in (attempt_records.history(land.job())[-1].note or ""), "the user can read why")
    land.workers["b"].put(there(80, uid="b-uid"))
    until(lambda: land.check("b").get("state") == "Ready", "the cluster that can is let in")
    assert [r.cluster for r in attempt_records.history(land.job())] == ["b", "b"]


def test_a_reconciler_that_dies_after_the_record_finishes_the_same_attempt(land: Land):
    land.manager.put(local())
    land.manager.put(scene.workload(NAME, state=None))
    land.workers["a"].put(there(20))
    land.workers["a"].fail_next("patch", WORKLOAD, Unreachable("cut"))
    land.start()
    until(lambda: land.check("a").get("state") == "Ready", "cluster a is let in")
    assert [r.attempt for r in attempt_records.history(land.job())] == [1]
    assert land.check("a")["podSetUpdates"][0]["annotations"][job_names.ANN_ATTEMPT] == "1"


@pytest.mark.parametrize("kind", [JOBSET, TRAINJOB], ids=lambda kind: kind.name)
def test_a_training_job_of_another_kind_is_told_that_it_cannot_train_here(land: Land, kind: Kind):
    meta = {"name": "train", "namespace": NS, "labels": {job_names.LABEL_MANAGED: "true"}}
    land.manager.put({"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta})
    workload = scene.workload(NAME, state=None)
    owner = {**workload["metadata"]["ownerReferences"][0], "apiVersion": kind.api_version, "kind": kind.name}
    workload["metadata"]["ownerReferences"] = [owner]
    land.manager.put(workload)
    land.start()
    land.workers["a"].put(there(20))
    until(lambda: f"a {kind.name} cannot train" in land.check("a").get("message", ""), "its fence says why")
    assert land.check("a")["state"] == "Pending"
    # The same of somebody else has nothing to do with us.
    land.manager.patch(kind, NS, "train", {"metadata": {"labels": {job_names.LABEL_MANAGED: None}}})
    land.reconciler.queue.add((NS, NAME))
    until(lambda: land.check("a")["state"] == "Ready", "it is let in")


def test_service_and_files_follow_the_job(land: Land):
    job = local(scene.record(1, cluster="a"))
    job["spec"]["template"] = {
        "spec": {"subdomain": "train", "volumes": [{"name": "s", "configMap": {"name": "train-files"}}]}
    }
    land.manager.put(job)
    land.manager.put(scene.workload(NAME, state=None))
    meta = {"namespace": NS, "labels": {job_names.LABEL_JOB: "train"}}
    spec = {"clusterIP": "None", "clusterIPs": ["None"], "selector": {"job-name": "train"}}
    land.manager.put({"apiVersion": "v1", "kind": "Service", "metadata": {**meta, "name": "train"}, "spec": spec})
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "train-files"}, "data": {"x": "y"}}
    land.manager.put(files)
    land.workers["a"].put(copy(scene.record(1, cluster="a")))
    land.start()
    until(lambda: land.workers["a"].find(SERVICE, NS, "train"), "the Service is there")
    until(lambda: land.workers["a"].find(CONFIG_MAP, NS, "train-files"), "the files are there")
    service = land.workers["a"].get(SERVICE, NS, "train")
    owner = service["metadata"]["ownerReferences"][0]
    assert owner["uid"] == land.workers["a"].get(JOB, NS, "train")["metadata"]["uid"]
    assert "clusterIPs" not in service["spec"] and service["spec"]["clusterIP"] == "None"


def test_files_of_an_earlier_copy_are_waited_for_until_they_are_gone():
    kube = FakeKube()
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "f", "namespace": NS}, "data": {}}
    old, new = copy(), copy()
    old["metadata"]["uid"], new["metadata"]["uid"] = "old", "new"
    companions.create(kube, companions.made_for(files, old))
    companions.create(kube, companions.made_for(files, old))  # made already
    with pytest.raises(Conflict, match="earlier copy"):
        companions.create(kube, companions.made_for(files, new))
    kube.delete(CONFIG_MAP, NS, "f")
    kube.put(files)  # a user's own, which nobody owns, stays as it is
    companions.create(kube, companions.made_for(files, new))


# --- the workers' own controllers ---------------------------------------------------------------------------------
def test_a_worker_keeps_the_records_of_a_copy_first_of_all_and_leaves_its_fence_to_the_manager():
    job = copy(scene.record(1), kept=False, suspend=True)
    seen = scene.decide(job, there(10), [], 0.0).action
    assert type(seen).__name__ == "KeepRecords"
    kept = copy(scene.record(1), suspend=True)
    assert scene.decide(kept, there(10), [], scene.T0 + 11).action is None


def test_a_manager_leaves_a_job_that_runs_elsewhere_alone():
    job = local(scene.record(1, cluster="a"), suspend=False)
    workload = scene.workload(NAME, evicted=("AdmissionCheck", "", 50), admitted=True)
    assert scene.decide(job, workload, [], scene.T0 + 60).action is None
