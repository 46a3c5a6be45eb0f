"""The same cases for `FakeKube` and for a real API server: what the unit tests rely on is what Kubernetes does."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kueue_integration.errors import AlreadyExists, Conflict, Forbidden, Gone, Invalid, NotFound
from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, LEASE, NAMESPACE, POD, SERVICE, WORKLOAD

KUBECONFIG = "SINGULARITY_TEST_KUBECONFIG"
"""Kubeconfig of a cluster where the tests may make namespaces; set by the test command."""


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def kube(request: pytest.FixtureRequest) -> Kube:
    if request.param == "fake":
        return FakeKube()
    if KUBECONFIG not in os.environ:
        pytest.skip(f"{KUBECONFIG} is not set")
    return connect(os.environ[KUBECONFIG])


@pytest.fixture
def ns(kube: Kube) -> Iterator[str]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete(NAMESPACE, None, name)


def config(ns: str, name: str = "a", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": ns, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def job(ns: str, name: str = "j") -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example/none:1"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": ns, "annotations": {"keep": "me"}},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


def test_many_patches_each_by_itself(kube: Kube, ns: str) -> None:
    for name in ("a", "b"):
        kube.create(config(ns, name, k="v"))
    for _ in range(2):
        patches = [(ns, "a", {"data": {"k": "w"}}), (ns, "none", {}), (ns, "b", {"data": {"k": None, "l": "x"}})]
        assert [type(each) for each in kube.patch_all(CONFIG_MAP, patches)] == [type(None), NotFound, type(None)]
    assert [kube.get(CONFIG_MAP, ns, name)["data"] for name in ("a", "b")] == [{"k": "w"}, {"l": "x"}]
    assert kube.patch_all(CONFIG_MAP, []) == []


def test_create_get_and_names_that_are_taken(kube: Kube, ns: str) -> None:
    made = kube.create(config(ns, k="v"))
    assert made["metadata"]["uid"] and made["metadata"]["resourceVersion"] and made["metadata"]["creationTimestamp"]
    assert kube.get(CONFIG_MAP, ns, "a")["data"] == {"k": "v"}
    with pytest.raises(AlreadyExists):
        kube.create(config(ns))
    with pytest.raises(NotFound):
        kube.get(CONFIG_MAP, ns, "b")
    assert kube.find(CONFIG_MAP, ns, "b") is None


def test_dry_run_creates_nothing(kube: Kube, ns: str) -> None:
    assert kube.create(config(ns), dry_run=True)["metadata"]["name"] == "a"
    assert kube.find(CONFIG_MAP, ns, "a") is None


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (None, ["a", "b", "c"]),
        ("app=x", ["a", "b"]),
        ("app==x,tier=1", ["a"]),
        ("app!=x", ["c"]),
        ("tier", ["a", "c"]),
        ("!tier", ["b"]),
        ("app in (y,z)", ["c"]),
        ("app notin (y), tier", ["a"]),
    ],
)
def test_label_selectors(kube: Kube, ns: str, query: str | None, names: list[str]) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "x"}), ("c", {"app": "y", "tier": "2"})):
        kube.create(config(ns, name, labels))
    found = [o for o in kube.list(CONFIG_MAP, ns, query) if o["metadata"]["name"] != "kube-root-ca.crt"]
    assert sorted(o["metadata"]["name"] for o in found) == names
    assert {(o["apiVersion"], o["kind"]) for o in found} <= {("v1", "ConfigMap")}


def test_merge_patch_merges_objects_and_null_deletes(kube: Kube, ns: str) -> None:
    kube.create(config(ns, a="1", b="2"))
    assert kube.patch(CONFIG_MAP, ns, "a", {"data": {"a": None, "c": "3"}})["data"] == {"b": "2", "c": "3"}
    with pytest.raises(NotFound):
        kube.patch(CONFIG_MAP, ns, "nobody", {"data": {}})


def test_compare_and_set(kube: Kube, ns: str) -> None:
    version = kube.create(config(ns, keep="me"))["metadata"]["resourceVersion"]
    newer = kube.patch(CONFIG_MAP, ns, "a", {"data": {"n": "1"}, "metadata": {"labels": {"l": "1"}}}, version)
    assert newer["data"] == {"keep": "me", "n": "1"} and newer["metadata"]["labels"] == {"l": "1"}
    with pytest.raises(Conflict):
        kube.patch(CONFIG_MAP, ns, "a", {"data": {"n": "2"}}, version)
    assert kube.get(CONFIG_MAP, ns, "a")["data"]["n"] == "1"


def test_a_job_is_changed_only_at_the_version_that_was_read(kube: Kube, ns: str) -> None:
    kube.create(job(ns))
    with pytest.raises(Conflict):
        kube.patch_job(ns, "j", {"metadata": {"annotations": {"n": "1"}}}, resource_version="1")
    kube.patch_job(ns, "j", {"metadata": {"annotations": {"n": "2"}}})
    annotations = kube.get_job(ns, "j")["metadata"]["annotations"]
    assert (annotations["keep"], annotations["n"]) == ("me", "2")


def test_only_one_of_many_compare_and_sets_wins(kube: Kube, ns: str) -> None:
    version = kube.create(config(ns))["metadata"]["resourceVersion"]
    results: list[str] = []

    def attempt(number: int) -> None:
        try:
            kube.patch(CONFIG_MAP, ns, "a", {"data": {"winner": str(number)}}, version)
            results.append("won")
        except Conflict:
            results.append("lost")

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(results) == ["lost"] * 4 + ["won"]


def test_the_status_is_written_through_its_subresource_only(kube: Kube, ns: str) -> None:
    made = kube.create({**service(ns), "status": {"conditions": [condition("True")]}})
    assert not made.get("status", {}).get("conditions")
    kube.patch(SERVICE, ns, "s", {"status": {"conditions": [condition("True")]}})
    assert not kube.get(SERVICE, ns, "s").get("status", {}).get("conditions")
    kube.patch(SERVICE, ns, "s", {"status": {"conditions": [condition("True")]}}, subresource="status")
    assert kube.get(SERVICE, ns, "s")["status"]["conditions"][0]["status"] == "True"


def service(ns: str) -> dict[str, Any]:
    ports = [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": 80}]
    spec = {"clusterIP": "None", "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": ns}, "spec": spec}


def condition(value: str) -> dict[str, Any]:
    return {"type": "X", "status": value, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_replace_is_a_compare_and_set(kube: Kube, ns: str) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": ns}}
    made = kube.create_lease({**lease, "spec": {"holderIdentity": "a"}})
    made["spec"]["holderIdentity"] = "b"
    kube.update_lease(made)
    made["spec"]["holderIdentity"] = "c"
    with pytest.raises(Conflict):
        kube.update_lease(made)
    assert kube.get_lease(ns, "l")["spec"]["holderIdentity"] == "b"
    assert kube.get(LEASE, ns, "l")["metadata"]["uid"] == made["metadata"]["uid"]


def test_delete_with_a_uid_deletes_that_one_only(kube: Kube, ns: str) -> None:
    uid = kube.create(config(ns))["metadata"]["uid"]
    with pytest.raises(Conflict):
        kube.delete(CONFIG_MAP, ns, "a", uid=str(uuid.uuid4()))
    kube.delete(CONFIG_MAP, ns, "a", uid=uid)
    with pytest.raises(NotFound):
        kube.delete(CONFIG_MAP, ns, "a")


def test_what_a_job_owned_goes_with_it(kube: Kube, ns: str) -> None:
    owner = kube.create(job(ns))["metadata"]
    child = config(ns)
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": owner["uid"], "controller": True}
    ]
    _, version = kube.list_versioned(CONFIG_MAP, ns)
    kube.create(child)
    kube.delete(JOB, ns, "j", propagation="Foreground" if not isinstance(kube, FakeKube) else "Background")
    for event, obj in kube.watch(CONFIG_MAP, ns, resource_version=version, timeout_s=30):
        if event == "DELETED" and obj["metadata"]["name"] == "a":
            return
    pytest.fail("the ConfigMap outlived its owner")


def test_watch_tells_every_change_from_a_version_on(kube: Kube, ns: str) -> None:
    kube.create(config(ns, "old", {"w": "1"}))
    _, version = kube.list_versioned(CONFIG_MAP, ns, "w=1")
    kube.create(config(ns, "new", {"w": "1"}))
    kube.create(config(ns, "unseen", {"w": "2"}))
    kube.patch(CONFIG_MAP, ns, "new", {"data": {"x": "y"}})
    kube.delete(CONFIG_MAP, ns, "new")
    seen = []
    for event, obj in kube.watch(CONFIG_MAP, ns, "w=1", version, timeout_s=20):
        if event != "BOOKMARK":
            seen.append((event, obj["metadata"]["name"]))
        if event == "DELETED":
            break
    assert seen == [("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")]


def test_pages_are_the_list_and_a_watch_goes_on_from_them(kube: Kube, ns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kueue_integration.kube.client.PAGE", 2)
    for name in "abcde":
        kube.create(config(ns, name))
    pages = list(kube.pages(CONFIG_MAP, ns))
    found = [obj["metadata"]["name"] for items, _ in pages for obj in items]
    assert sorted(set(found) - {"kube-root-ca.crt"}) == list("abcde") and len(set(found)) == len(found)
    (version,) = {version for _, version in pages}
    kube.create(config(ns, "later"))
    for event, obj in kube.watch(CONFIG_MAP, ns, None, version, timeout_s=20):
        if event != "BOOKMARK" and obj["metadata"]["name"] != "kube-root-ca.crt":
            assert (event, obj["metadata"]["name"]) == ("ADDED", "later")
            return
    pytest.fail("the watch did not tell what came after the pages")


def test_watch_without_a_version_starts_with_what_is_there_and_ends_in_time(kube: Kube, ns: str) -> None:
    kube.create(config(ns, "old", {"w": "1"}))
    events = [
        (e, o["metadata"].get("name")) for e, o in kube.watch(CONFIG_MAP, ns, "w=1", timeout_s=1) if e != "BOOKMARK"
    ]
    assert events == [("ADDED", "old")]


def test_a_watch_from_the_distant_past_is_gone(kube: Kube, ns: str) -> None:
    if isinstance(kube, FakeKube):
        _, version = kube.list_versioned(CONFIG_MAP, ns)
        kube.create(config(ns))
        kube.compact()
        with pytest.raises(Gone):
            list(kube.watch(CONFIG_MAP, ns, resource_version=version, timeout_s=5))
        return
    try:  # a young API server still has all its history: then the watch is served, as it must be
        for event, _ in kube.watch(CONFIG_MAP, ns, resource_version="1", timeout_s=2):
            assert event in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
    except Gone as error:
        assert error.status == 410


def test_a_bad_token_is_not_authenticated(kube: Kube, ns: str) -> None:
    assert not kube.review_token("nonsense", ["singularity.dev"]).get("authenticated")


def test_paths_that_are_no_objects(kube: Kube, ns: str) -> None:
    if isinstance(kube, FakeKube):
        kube.paths = {"/version": {"major": "1", "minor": "36"}}
    version = kube.get_path("/version")
    assert version["major"] == "1" and version["minor"].rstrip("+").isdigit()
    with pytest.raises(NotFound):
        kube.get_path("/apis/nobody.example")


def test_what_the_caller_may_do(kube: Kube, ns: str) -> None:
    assert kube.allowed("create", JOB, ns) and kube.allowed("get", POD, ns, "log")
    if isinstance(kube, FakeKube):
        kube.denied = {("create", "jobs"), ("get", "pods/log")}
        assert not kube.allowed("create", JOB, ns) and not kube.allowed("get", POD, ns, "log")
        assert kube.allowed("list", JOB, ns) and kube.allowed("get", POD, ns)


def test_logs_of_a_pod_that_is_not_there(kube: Kube, ns: str) -> None:
    with pytest.raises(NotFound):
        list(kube.pod_logs(ns, "nobody", "train"))


def test_a_workload_is_found_by_the_uid_of_its_job(kube: Kube, ns: str) -> None:
    made = kube.create(job(ns))
    assert kube.get_workload_for_job(made) is None
    if isinstance(kube, FakeKube):
        meta = {"name": "w", "namespace": ns, "labels": {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}}
        kube.put({"apiVersion": WORKLOAD.api_version, "kind": "Workload", "metadata": meta})
        found = kube.get_workload_for_job(made)
        assert found is not None and found["metadata"]["name"] == "w"
        other = {"name": "x", "namespace": ns, "labels": {"kueue.x-k8s.io/job-uid": "of-somebody-else"}}
        kube.put({"apiVersion": WORKLOAD.api_version, "kind": "Workload", "metadata": other})
        assert kube.workloads_by_job(ns, [made]) == {made["metadata"]["uid"]: found}
    assert kube.workloads_by_job(ns, []) == {}


@pytest.mark.cluster
def test_a_real_server_refuses_an_invalid_object_by_name() -> None:
    if KUBECONFIG not in os.environ:
        pytest.skip(f"{KUBECONFIG} is not set")
    with pytest.raises(Invalid, match=r"metadata\.name"):
        connect(os.environ[KUBECONFIG]).create(config("default", "NOT A NAME"))


def test_fake_failures_fire_once_and_do_nothing() -> None:
    kube = FakeKube()
    kube.fail_next("create", CONFIG_MAP, Forbidden("no", 403))
    with pytest.raises(Forbidden):
        kube.create(config("x"))
    assert kube.list(CONFIG_MAP) == []
    kube.create(config("x"))
