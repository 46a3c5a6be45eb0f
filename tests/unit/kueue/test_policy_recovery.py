"""Kueue's FailureRecoveryPolicy and training pods, as a real API server enforces it: none of them can be forgotten."""

from __future__ import annotations

import pytest
from api_server import ADMIN, TEAM, TENANT, Policies

from kueue_integration.contract import job_names
from kueue_integration.errors import Forbidden, Invalid
from kueue_integration.kube.resources import POD, Object

NOTE = {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}
OURS = {job_names.LABEL_MANAGED: "true"}
SENTENCE = "must not be on a training pod"
SPEC = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/any:1"}]}


def pod(name: str, labels: dict[str, str], notes: dict[str, str]) -> Object:
    meta = {"name": name, "namespace": TEAM, "labels": labels, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": SPEC}


def job(labels: dict[str, str], notes: dict[str, str]) -> Object:
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": SPEC}
    meta = {"name": "forgettable", "namespace": TEAM, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}}


@pytest.mark.parametrize("user", [ADMIN, TENANT])
def test_neither_a_pod_of_ours_nor_its_job_may_have_it(policies: Policies, user: str) -> None:
    kube = policies.server.kube(user)
    for made in (pod("forgettable", OURS, NOTE), job(OURS, NOTE)):
        with pytest.raises((Forbidden, Invalid), match=SENTENCE):
            kube.create(made, dry_run=True)
    for made in (pod("forgettable", OURS, {"a": "b"}), job(OURS, {})):
        kube.create(made, dry_run=True)


def test_others_may(policies: Policies) -> None:
    kube = policies.server.kube()
    for made in (pod("of-others", {}, NOTE), job({}, NOTE)):
        kube.create(made, dry_run=True)


def test_it_cannot_be_added_later_and_a_pod_that_has_it_can_still_change(policies: Policies) -> None:
    kube = policies.server.kube()
    kube.create(pod("grown", OURS, {}))
    with pytest.raises((Forbidden, Invalid), match=SENTENCE):
        kube.patch(POD, TEAM, "grown", {"metadata": {"annotations": NOTE}})
    with pytest.raises((Forbidden, Invalid), match=SENTENCE):  # nor on the way out of our hands
        kube.patch(POD, TEAM, "grown", {"metadata": {"annotations": NOTE, "labels": {job_names.LABEL_MANAGED: None}}})
    kube.create(pod("of-before", {}, NOTE))
    kube.patch(POD, TEAM, "of-before", {"metadata": {"labels": OURS}})
    kube.patch(POD, TEAM, "of-before", {"metadata": {"labels": {"x": "y"}}})
