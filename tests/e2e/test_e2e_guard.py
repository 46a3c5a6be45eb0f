"""The guard of pods on the local cluster, with the platform's own images and volumes, and its sentences for tenants.

That ordinary, adopted, JobSet and TrainJob jobs run under it is what all other tests show: their namespaces have it.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from pod_variants import BAD, GOOD, Make

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import LOCAL_QUEUE, NAMESPACE, Object, label
from kueue_integration.spec import platform_config
from localcluster.demo.stage import NAMESPACE as DEFAULT
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def manifests(spec: Object) -> list[Object]:
    """The pod, and a Job of such pods."""
    meta = {"name": "guarded", "namespace": DEFAULT}
    job = {"template": {"spec": {**spec, "restartPolicy": "Never"}}}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job},
    ]


def test_the_local_clusters_namespace_trains(stage: Stage) -> None:
    assert label(stage.kube.get(NAMESPACE, None, DEFAULT), job_names.LABEL_TRAINING) == job_names.TRAINING_ENABLED


def test_a_namespace_with_a_way_to_a_fenced_queue_is_guarded_by_the_controller(stage: Stage) -> None:
    kube, name = stage.kube, "guarded-by-default"
    (theirs, *_) = kube.list(LOCAL_QUEUE, DEFAULT)
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        queue = {"clusterQueue": theirs["spec"]["clusterQueue"]}
        meta = {"name": "train", "namespace": name}
        kube.create({"apiVersion": LOCAL_QUEUE.api_version, "kind": LOCAL_QUEUE.name, "metadata": meta, "spec": queue})
        end = time.monotonic() + 60
        while label(kube.get(NAMESPACE, None, name), job_names.LABEL_TRAINING) != job_names.TRAINING_ENABLED:
            assert time.monotonic() < end, "the controller has not labelled it"
            time.sleep(0.2)
    finally:
        kube.delete(NAMESPACE, None, name)


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_good_pods_are_let_in(stage: Stage, make: Make) -> None:
    for manifest in manifests(make(stage.platform)):
        stage.kube.create(manifest, dry_run=True)


@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_pods_and_their_jobs_are_refused_with_a_sentence(stage: Stage, make: Make, sentence: str) -> None:
    """Variants of pods without a user namespace, unless they say so: the API server itself refuses some in one."""
    for manifest in manifests(make(replace(stage.platform, privileges=platform_config.NODE))):
        with pytest.raises(KubeError) as caught:
            stage.kube.create(manifest, dry_run=True)
        assert sentence in str(caught.value)


def test_a_write_of_the_controllers_annotations_is_refused_with_a_sentence(stage: Stage) -> None:
    container = {"name": "main", "image": "example/mine:1"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    meta = {"name": "guarded", "namespace": DEFAULT, "annotations": {job_names.ANN_HISTORY: "[]"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}
    with pytest.raises(KubeError) as caught:
        stage.kube.create(job, dry_run=True)
    sentence = f"annotation {job_names.ANN_HISTORY} is the platform's: read it with `singularityctl status`"
    assert sentence in str(caught.value)
