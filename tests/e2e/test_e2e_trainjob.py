"""A TrainJob under the real Kubeflow Trainer and Kueue's TrainJob integration: what it can and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Faults
from other_kinds import QUOTA, adopt, ctl, goes_through_everything, rows_of
from plain_jobs import plain_training
from rows import SCRIPT, Rows

from kueue_integration.adoption.trainjob import RUNTIME
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import JOBSET, TRAINING_RUNTIME, TRAINJOB, Object
from kueue_integration.spec.platform_config import AUTO, NODE, USER_NAMESPACE
from localcluster.addons import trainer
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    with rows_of(TRAINJOB, trainer.start, stage, say) as made:
        yield made


def as_trainjob(job: Object) -> Object:
    """The Job's program as a TrainJob: its volumes come by a runtime patch of the user's own."""
    pod = job["spec"]["template"]["spec"]
    (user,) = pod["containers"]
    patched = {"volumes": pod["volumes"], "containers": [{"name": "node", "volumeMounts": user["volumeMounts"]}]}
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": patched}}}}
    spec: dict[str, Any] = {"template": {"spec": {"replicatedJobs": [replicated]}}}
    return {
        "apiVersion": TRAINJOB.api_version,
        "kind": TRAINJOB.name,
        "metadata": job["metadata"],
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "runtimePatches": [{"manager": "example.com/me", "trainingRuntimeSpec": spec}],
            "trainer": {
                "image": user["image"],
                "command": ["python3", f"/src/{SCRIPT.name}"],
                "args": user["args"],
                "env": user["env"],
                "numNodes": job["spec"]["parallelism"],
                "resourcesPerNode": user["resources"],
            },
        },
    }


def test_a_trainjob_is_preempted_moved_paused_and_loses_no_step(rows: Rows, tmp_path: Path) -> None:
    assert rows.kube.find(TRAINING_RUNTIME, None, RUNTIME) is not None  # the chart's
    training, job = plain_training(rows, "kubeflow", label=False)
    adopt(rows, as_trainjob(job), tmp_path)
    training.until_steps(1)
    child = rows.kube.get(JOBSET, rows.namespace, "kubeflow")  # made by Trainer's own controller
    assert child["metadata"]["ownerReferences"][0]["kind"] == "TrainJob"
    goes_through_everything(rows, training, TRAINJOB)


def test_an_upgrade_that_changes_the_pods_leaves_a_running_trainjob_as_it_is(rows: Rows, tmp_path: Path) -> None:
    """Trainer makes the JobSet anew from the runtime for each attempt, and JobSet refuses another pod template."""
    faults = Faults(rows.stage, rows.namespace)
    faults.upgrade(pods__privileges=NODE)
    training, job = plain_training(rows, "before", label=False)
    adopt(rows, as_trainjob(job), tmp_path)
    training.until_steps(5)
    faults.upgrade(pods__privileges=AUTO, pods__env__ADDED="by the upgrade")
    assert "user namespaces" in ctl(rows, "doctor")
    ctl(rows, "migrate", "before", "--flavor", "spot", "--wait")
    last = training.finish()
    training.assert_exact(last)
    assert (last.privileges, len(last.attempts), last.steps_lost) == (NODE, 2, 0)
    ctl(rows, "delete", "before", "--wait")
    faults.upgrade(pods__privileges=USER_NAMESPACE)


def test_what_trainer_lets_nobody_change_while_it_is_suspended(rows: Rows, tmp_path: Path) -> None:
    """Why there is no resize: docs/workload-kinds.md names these fields."""
    rows.queue("closed", QUOTA, stopPolicy="Hold")
    _, job = plain_training(rows, "fixed", label=False)
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "closed"
    adopt(rows, as_trainjob(job), tmp_path)
    made = wait_for(lambda: rows.kube.find(TRAINJOB, rows.namespace, "fixed"), "the TrainJob", 60)
    patches = made["spec"]["runtimePatches"]
    note = {"template": {"metadata": {"annotations": {"example.com/a": "b"}}}}
    added = {"template": {"spec": {"initContainers": [{"name": "added", "image": "added"}]}}}
    for change, allowed in (
        ({"trainer": {"numNodes": 1}}, False),
        ({"trainer": {"image": "other"}}, False),
        ({"runtimeRef": {"name": RUNTIME}}, False),
        ({"runtimePatches": [*patches, patch("other", note)]}, False),
        ({"runtimePatches": [*patches, patch("node", note)]}, True),
        ({"runtimePatches": [*patches, patch("node", added)]}, True),
    ):
        assert changes(rows, change) is allowed, change
    made = rows.kube.get(TRAINJOB, rows.namespace, "fixed")
    assert made["spec"]["suspend"] is True
    (job,) = made["spec"]["runtimePatches"][-1]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    kept = job["template"]["spec"]["template"]["spec"]["initContainers"]
    assert kept == [{"name": "added"}]  # a container without an image: no JobSet can be made of it


def patch(job: str, spec: Object) -> Object:
    """A runtime patch of the replicated job's spec."""
    jobs = [{"name": job, "template": {"spec": spec}}]
    return {"manager": "example.com/more", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def changes(rows: Rows, spec: dict[str, Any]) -> bool:
    """Whether the API server lets the suspended TrainJob's spec be changed so."""
    try:
        rows.kube.patch(TRAINJOB, rows.namespace, "fixed", {"spec": spec})
    except KubeError as error:
        assert error.status in (403, 422), error
        return False
    return True
