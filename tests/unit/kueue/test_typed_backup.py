"""A backup and its way back, a removal and a second installation, two managers of a queue: typed on a real API server.

The policies of the guard are in force there. The end-to-end tests do the same over jobs that train.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendered import HELM, NO_HELM
from typed_cluster import Cluster, cluster_in

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import CLUSTER_QUEUE, CONFIG_MAP, JOB, SECRET, admission_checks, annotation
from singularity_proxy.protocol import names

pytestmark = [pytest.mark.long, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
SYSTEM, KEYS = job_names.SYSTEM_NAMESPACE, job_names.KEYS_SECRET
RELEASE = f"singularity charts/singularity -n {SYSTEM}"
PAGE = "../operations/backup.md"
FENCE = {"name": job_names.ADMISSION_CHECK_NAME}
STORED = {"keys.json": "eyJ4IjoxfQ=="}
REF = '{"url":"gs://old/store/default/digits/c1"}'


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The chart is there, a controller has filled its Secret, and there is a queue."""
    with cluster_in(tmp_path_factory.mktemp("backup")) as cluster:
        cluster.type(f"helm install {RELEASE} --create-namespace --set replicas=1")
        cluster.kube.patch(SECRET, SYSTEM, KEYS, {"data": STORED})
        spec = {"namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": [FENCE]}}
        cluster.kube.create(queue("own", spec))
        cluster.type("kubectl label namespace default singularity.dev/training=enabled")
        yield cluster


def queue(name: str, spec: object) -> dict[str, object]:
    return {"apiVersion": CLUSTER_QUEUE.api_version, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def job() -> dict[str, object]:
    notes = {
        job_names.ANN_ATTEMPT: "2", job_names.ANN_WORKERS: "2", job_names.ANN_STORE: "gs://old/store",
        names.ANN_CHECKPOINT: REF, job_names.ANN_HISTORY: "[]",
    }  # fmt: skip
    labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: "digits"}
    pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "x"}]}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "digits", "namespace": "default", "labels": labels, "annotations": notes},
        "spec": {"suspend": True, "parallelism": 1, "completions": 2, "completionMode": "Indexed",
                 "template": {"metadata": {"labels": labels}, "spec": pod}},
    }  # fmt: skip


def play(cluster: Cluster, heading: str) -> str:
    """As the page has it, but for hooks and a rollout, which need pods."""
    return cluster.play(
        PAGE, heading, edit={
            "helm upgrade ": "helm upgrade --no-hooks ", "rollout status": "get",
            "OLD=NEW": "gs://old/store=gs://replica",
        },
    )  # fmt: skip


def test_jobs_come_back_with_their_records_by_who_the_guard_lets(installed: Cluster) -> None:
    kube = installed.kube
    mine = "ME=$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')"
    installed.type(f'{mine}; helm upgrade --no-hooks {RELEASE} --reuse-values --set "guard.accounts={{$ME}}"')
    (installed.folder / "job.json").write_text(json.dumps(job()))
    installed.type("for i in $(seq 30); do kubectl create -f job.json && exit 0; sleep 1; done; exit 1")
    uid = kube.get(JOB, "default", "digits")["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "digits", "uid": uid, "controller": True}
    labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: "digits"}
    meta = {"name": "digits-files", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"train.py": "pass"}})
    installed.type(f"helm upgrade --no-hooks {RELEASE} --reset-values --set replicas=1")

    play(installed, "Back up")
    installed.type("kubectl delete job digits; kubectl delete configmap digits-files")
    installed.type("kubectl delete clusterqueue own")
    kube.patch(SECRET, SYSTEM, KEYS, {"data": None})
    refused = installed.type("singularityctl restore backup/jobs.json 2>&1", codes=(2,))
    assert "default/digits" in refused and "guard.accounts" in refused
    play(installed, "Restore the platform")
    assert kube.get(SECRET, SYSTEM, KEYS)["data"] == STORED
    assert admission_checks(kube.get(CLUSTER_QUEUE, None, "own")) == [FENCE]

    assert "default/digits: restored" in play(installed, "Restore the jobs")
    found = kube.get(JOB, "default", "digits")
    assert annotation(found, job_names.ANN_ATTEMPT) == "2" and annotation(found, names.ANN_CHECKPOINT) == REF
    assert found["spec"]["suspend"] is True and found["spec"]["parallelism"] == 2
    (owner,) = kube.get(CONFIG_MAP, "default", "digits-files")["metadata"]["ownerReferences"]
    assert owner["uid"] == found["metadata"]["uid"] != uid

    installed.type("kubectl delete job digits; kubectl delete configmap digits-files")
    assert "default/digits: restored" in play(installed, "A region is lost")
    moved = kube.get(JOB, "default", "digits")
    assert annotation(moved, job_names.ANN_STORE) == "gs://replica"
    assert annotation(moved, names.ANN_CHECKPOINT) == '{"url":"gs://replica/default/digits/c1"}'


def test_keys_outlast_a_removal_and_serve_the_next_installation(installed: Cluster) -> None:
    kube = installed.kube
    kube.patch(SECRET, SYSTEM, KEYS, {"data": STORED})
    before = kube.get(CLUSTER_QUEUE, None, "own")
    installed.type(f"helm uninstall singularity -n {SYSTEM} --no-hooks")
    assert kube.find(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP) is None
    assert kube.get(SECRET, SYSTEM, KEYS)["data"] == STORED
    assert kube.get(CLUSTER_QUEUE, None, "own")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    installed.type(f"helm install {RELEASE} --set replicas=1")
    assert kube.get(SECRET, SYSTEM, KEYS)["data"] == STORED


def test_a_queue_is_edited_by_two_managers_at_once(installed: Cluster, tmp_path: Path) -> None:
    """A GitOps tool applies it again and again while it is fenced and unfenced: each keeps what is its own."""
    kube, file = installed.kube, tmp_path / "queue.json"
    apply = f"kubectl apply --server-side --field-manager=gitops -f {file}"
    checks = lambda: [dict(one) for one in admission_checks(kube.get(CLUSTER_QUEUE, None, "shared"))]  # noqa: E731

    def applied(number: int, **more: object) -> None:
        strategy = "StrictFIFO" if number % 2 else "BestEffortFIFO"
        file.write_text(json.dumps(queue("shared", {"namespaceSelector": {}, "queueingStrategy": strategy, **more})))

    applied(0)
    installed.type(apply)
    ended, done = threading.Event(), list[int]()

    def write() -> None:
        while not ended.is_set():
            applied(len(done) + 1)
            installed.type(apply)
            done.append(len(done) + 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            installed.type("singularityctl fence shared")
            assert checks() == [FENCE]
            installed.type("singularityctl unfence shared")
            assert checks() == []
        installed.type("singularityctl fence shared")
    finally:
        ended.set()
        writer.join(120)
    assert len(done) >= 2 and checks() == [FENCE]
    kept = kube.get(CLUSTER_QUEUE, None, "shared")["spec"]["queueingStrategy"]
    assert kept == ("StrictFIFO" if done[-1] % 2 else "BestEffortFIFO")

    theirs = {"name": "somebodys-check"}
    applied(0, admissionChecksStrategy={"admissionChecks": [theirs]})
    installed.type(apply)
    assert sorted(checks(), key=str) == sorted([theirs, FENCE], key=str), "each of them has its own check in the list"
    installed.type(f"kubectl replace -f {file}")
    assert checks() == [theirs]
    meta = {"name": "shared", "namespace": "default"}
    kube.create({**queue("shared", {"clusterQueue": "shared"}), "kind": "LocalQueue", "metadata": meta})
    told = json.loads(installed.type("singularityctl doctor -n default -o json", codes=(3,)))
    (found,) = [check for check in told if "lacks admission check" in check["message"]]
    assert found["name"] == "queue shared"
    installed.type("\n".join(found["fix"].splitlines()[1:]))
    assert checks() == [theirs, FENCE], "and theirs is kept"
