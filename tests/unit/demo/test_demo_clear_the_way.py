"""What an earlier, killed demo left on a cluster that stayed up."""

from __future__ import annotations

from typing import Any

import pytest

from kueue_integration.contract import job_names
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from localcluster.demo.errors import StoryError
from localcluster.demo.quickstart import INTRUDER, clear_the_way
from localcluster.demo.stage import NAMESPACE


def job(name: str, managed: bool) -> dict[str, Any]:
    labels = {job_names.LABEL_MANAGED: "true"} if managed else {}
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}


def test_a_leftover_intruder_is_removed() -> None:
    kube = FakeKube()
    kube.create(job(INTRUDER, managed=False))
    clear_the_way(kube)
    assert kube.find(JOB, NAMESPACE, INTRUDER) is None


def test_a_running_training_job_is_named_and_left_alone() -> None:
    kube = FakeKube()
    kube.create(job("mine", managed=True))
    with pytest.raises(StoryError, match=r"Job mine .*singularityctl delete mine"):
        clear_the_way(kube)
    assert kube.find(JOB, NAMESPACE, "mine") is not None


def test_a_finished_one_is_no_obstacle() -> None:
    kube = FakeKube()
    made = kube.create(job("old", managed=True))
    kube.set_status(JOB, NAMESPACE, made["metadata"]["name"], {"conditions": [{"type": "Complete", "status": "True"}]})
    clear_the_way(kube)
