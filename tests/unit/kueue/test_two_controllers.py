"""Two controllers as processes, with the chart's own rights, on a real API server: keys, and a leader that dies."""

from __future__ import annotations

import socket
from base64 import b64decode
from collections.abc import Iterator

import pytest
import two_controllers as two
from adoption_cases import changed
from two_controllers import SYSTEM, Cluster, two_controllers

from kueue_integration.adoption import review
from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import MUTATING_WEBHOOK, SECRET

NAME = job_names.KEYS_SECRET


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with two_controllers(tmp_path_factory.mktemp("two")) as found:
        yield found


def test_a_controller_that_no_pod_could_reach_ends(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken, (health,) = other.getsockname()[1], two.free_ports(1)
        monkeypatch.setattr(two, "free_ports", lambda count: [taken, health])
        cluster.start("a")
        process = cluster.running["a"]
        cluster.until(lambda: process.poll() is not None, "its process has ended")
        assert process.poll() == 1
    assert "address already in use" in (cluster.folder / "a.log").read_text()


def test_the_controllers_account_reads_no_other_secret(cluster: Cluster) -> None:
    kube = cluster.kube
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": SYSTEM}})
    account = connect(str(cluster.config))
    assert account.get(SECRET, SYSTEM, NAME)["metadata"]["name"] == NAME
    for act in (
        lambda: account.get(SECRET, SYSTEM, "other"),
        lambda: account.list(SECRET, SYSTEM),
        lambda: account.patch(SECRET, SYSTEM, "other", {"data": {}}),
        lambda: account.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "n", "namespace": SYSTEM}}),
    ):
        with pytest.raises(KubeError, match="403"):
            act()


def test_two_controllers_share_their_keys_over_deaths_rotations_and_deletions(cluster: Cluster) -> None:
    kube = cluster.kube
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(lambda: cluster.leader() and cluster.bundle(), "a leader has published keys and settings")
    old = cluster.bundle()
    for name in ("a", "b"):
        cluster.until(lambda name=name: cluster.reaches(old, name), f"{name} shows the same certificate")

    def trusted() -> str:
        (hook,) = kube.get(MUTATING_WEBHOOK, None, review.NAME)["webhooks"]
        return b64decode(hook["clientConfig"].get("caBundle") or "").decode()

    cluster.until(lambda: trusted() == old, "the API server trusts the same authorities")
    job = changed("metadata.annotations.singularity~dev/store", "gs://bucket/mine")
    for name in ("a", "b"):
        answer = cluster.adopts(old, name, job)
        assert answer["allowed"] and b"device-proxy" in b64decode(answer["patch"]), (name, answer)

    first = cluster.leader()
    cluster.kill(first)
    other = {"a": "b", "b": "a"}[first]
    cluster.until(lambda: cluster.leader() == other, "the other one leads")
    assert cluster.bundle() == old
    cluster.start(first)
    cluster.until(lambda: cluster.reaches(old, first), "the one that died has the same keys again")

    kube.patch(SECRET, SYSTEM, NAME, {"metadata": {"annotations": {job_names.KEYS_ROTATE: "now"}}})
    cluster.until(lambda: cluster.bundle() != old, "the rotation is published")
    new = cluster.bundle()
    assert new.startswith(old)
    for name in ("a", "b"):
        assert cluster.reaches(old, name) and cluster.reaches(new, name)

    data = kube.get(SECRET, SYSTEM, NAME)["data"]
    kube.delete(SECRET, SYSTEM, NAME)
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": SYSTEM}})
    cluster.until(lambda: kube.get(SECRET, SYSTEM, NAME).get("data") == data, "the keys are written from memory")
    assert cluster.bundle() == new and all(cluster.reaches(old, name) for name in ("a", "b"))
