"""The guard of pods on the local cluster, with the platform's own images and volumes, and its sentences for tenants.

That ordinary, adopted, JobSet and TrainJob jobs run under it is what all other tests show: their namespaces have it.
"""

from __future__ import annotations

import pytest
from pod_variants import BAD, GOOD, Make

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import NAMESPACE, Object, label
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


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_good_pods_are_let_in(stage: Stage, make: Make) -> None:
    for manifest in manifests(make(stage.platform)):
        stage.kube.create(manifest, dry_run=True)


@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_pods_and_their_jobs_are_refused_with_a_sentence(stage: Stage, make: Make, sentence: str) -> None:
    for manifest in manifests(make(stage.platform)):
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
