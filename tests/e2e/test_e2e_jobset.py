"""A JobSet under the real JobSet controller and Kueue's JobSet integration: what it can and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Faults
from other_kinds import QUOTA, adopt, ctl, goes_through_everything, rows_of
from plain_jobs import plain_training
from rows import TIMEOUT_S, Rows

from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import EVENT, JOB, JOBSET, Object, annotation
from kueue_integration.spec.platform_config import AUTO, NODE, USER_NAMESPACE
from localcluster.addons import jobset
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    with rows_of(JOBSET, jobset.start, stage, say) as made:
        yield made


def as_jobset(job: Object) -> Object:
    replicated = {"name": "workers", "replicas": 1, "template": {"spec": job["spec"]}}
    return {
        "apiVersion": JOBSET.api_version,
        "kind": JOBSET.name,
        "metadata": job["metadata"],
        "spec": {"replicatedJobs": [replicated]},
    }


def test_a_jobset_is_preempted_moved_paused_and_loses_no_step(rows: Rows, tmp_path: Path) -> None:
    training, job = plain_training(rows, "set", label=False)
    adopt(rows, as_jobset(job), tmp_path)
    training.until_steps(1)
    child = rows.kube.get(JOB, rows.namespace, "set-workers-0")  # made by JobSet's own controller
    assert child["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
    goes_through_everything(rows, training, JOBSET)


def test_a_jobset_of_before_the_switch_goes_on_until_its_job_is_made_anew(rows: Rows, tmp_path: Path) -> None:
    """A stop keeps the Job below, whose pods the guard admits. A restart makes a new one, which it refuses."""
    faults = Faults(rows.stage, rows.namespace)
    faults.upgrade(pods__privileges=NODE)
    training, job = plain_training(rows, "before", label=False)
    jobset = as_jobset(job)
    jobset["spec"]["failurePolicy"] = {"maxRestarts": 1}
    adopt(rows, jobset, tmp_path)
    training.until_steps(5)
    assert training.look().privileges == NODE
    first = rows.kube.get(JOB, rows.namespace, "before-workers-0")["metadata"]["uid"]
    faults.upgrade(pods__privileges=USER_NAMESPACE)
    assert "before.jobset" in ctl(rows, "doctor")
    ctl(rows, "migrate", "before", "--flavor", "spot", "--wait")
    training.until_attempt(2)
    assert rows.kube.get(JOB, rows.namespace, "before-workers-0")["metadata"]["uid"] == first
    training.assert_exact()
    (training.output / "fails").touch()

    def refused() -> bool:
        events = rows.kube.list(EVENT, rows.namespace)
        return any("--set pods.privileges=auto" in str(event.get("message")) for event in events)

    wait_for(refused, "an Event with the command", TIMEOUT_S)
    faults.upgrade(pods__privileges=AUTO)
    lost = training.until_attempt(3).steps_lost  # from the checkpoint, as after any error of the program
    training.until_attempt(3, steps=lost + 5)
    last = training.finish()
    # The step after which it failed may not have been heard of.
    assert last.steps_lost > 0 and 0 <= training.repeated() - last.steps_lost <= 1
    assert last.privileges == NODE
    ctl(rows, "delete", "before", "--wait")
    faults.upgrade(pods__privileges=USER_NAMESPACE)


def test_what_jobset_lets_nobody_change_while_it_is_suspended(rows: Rows, tmp_path: Path) -> None:
    """Why there is no resize and no affinity: docs/workload-kinds.md names these fields."""
    rows.queue("closed", QUOTA, stopPolicy="Hold")
    _, job = plain_training(rows, "fixed", label=False)
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "closed"
    adopt(rows, as_jobset(job), tmp_path)
    terms = [{"matchExpressions": [{"key": "flavor", "operator": "In", "values": ["spot"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    for path, value, allowed in (
        (("parallelism",), 1, False),
        (("completions",), 1, False),
        (("template", "spec", "affinity"), affinity, False),
        (("template", "spec", "terminationGracePeriodSeconds"), 7, False),
        (("template", "spec", "nodeSelector"), {"flavor": "spot"}, True),
        (("template", "metadata", "annotations"), {"example.com/a": "b"}, True),
    ):
        assert changes(rows, path, value) is allowed, path
    made = rows.kube.get(JOBSET, rows.namespace, "fixed")
    assert made["spec"]["suspend"] is True and annotation(made, "singularity.dev/attempt") is None


def changes(rows: Rows, path: tuple[str, ...], value: object) -> bool:
    """Whether JobSet's webhook lets the value in the template of the suspended JobSet be replaced."""
    found = wait_for(lambda: rows.kube.find(JOBSET, rows.namespace, "fixed"), "the JobSet", 60)
    replicated = found["spec"]["replicatedJobs"]
    target = replicated[0]["template"]["spec"]
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value
    try:
        rows.kube.patch(JOBSET, rows.namespace, "fixed", {"spec": {"replicatedJobs": replicated}})
    except KubeError as error:
        assert error.status in (403, 422), error
        return False
    return True
