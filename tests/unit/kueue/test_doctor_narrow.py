"""A controller that follows a few namespaces: what doctor and a submission say about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kueue_samples import PLATFORM

from kueue_integration.contract import job_names
from kueue_integration.doctor import FAIL, OK, Check, narrow
from kueue_integration.errors import PlatformError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, Object
from kueue_integration.spec.train_spec import TrainSpec


def cluster_queue(name: str, cohort: str, fenced: bool) -> Object:
    rules = [{"name": job_names.ADMISSION_CHECK_NAME}] if fenced else []
    spec = {"cohortName": cohort, "admissionChecksStrategy": {"admissionChecks": rules}}
    return {"apiVersion": CLUSTER_QUEUE.api_version, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def local_queue(namespace: str, target: str) -> Object:
    meta = {"name": f"to-{target}", "namespace": namespace}
    return {
        "apiVersion": LOCAL_QUEUE.api_version,
        "kind": "LocalQueue",
        "metadata": meta,
        "spec": {"clusterQueue": target},
    }


def found(namespace: str, namespaces: list[str], *local: Object) -> list[Check]:
    queues = [cluster_queue("fenced", "c", True), cluster_queue("beside", "c", False), cluster_queue("far", "d", False)]
    return list(narrow.followed(FakeKube(*queues, *local), namespace, namespaces))


def test_nothing_is_said_of_a_controller_that_follows_all() -> None:
    assert found("any", [], local_queue("other", "fenced")) == []


def test_a_namespace_that_is_not_followed() -> None:
    (check,) = found("three", ["one", "two"])
    assert check.status == FAIL and "follows no jobs of namespace three, only of one, two" in check.message
    assert "--set 'controller.namespaces={one,two,three}'" in check.fix


def test_namespaces_that_share_nothing_with_others() -> None:
    (check,) = found("one", ["one"], local_queue("one", "fenced"), local_queue("other", "far"))
    assert check.status == OK


@pytest.mark.parametrize("target", ["fenced", "beside"])
def test_somebody_else_waits_for_an_answer_or_has_quota_of_the_cohort(target: str) -> None:
    (check,) = found("one", ["one"], local_queue("one", "fenced"), local_queue("other", target))
    assert check.status == FAIL and f"answers no Workload of other/to-{target}" in check.message


def test_a_job_is_not_submitted_where_nobody_would_follow_it() -> None:
    spec = TrainSpec(name="train", queue="q", namespace="three", command=["true"], image="any:1", store="gs://b/c")
    with pytest.raises(PlatformError, match="namespace 'three' is not one of those whose jobs the controller follows"):
        lifecycle.submit(FakeKube(), spec, replace(PLATFORM, namespaces=("one", "two")))
