"""A JobSet under the real JobSet controller and Kueue's JobSet integration: held, checkpointed, released, resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from plain_jobs import plain_training
from rows import Rows

from kueue_integration.resources import JOB, JOBSET, Object, annotation
from localcluster import jobset
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    jobset.start(stage.name, say)
    made = Rows(stage, "jobset", say)
    made.queue("own", {"ondemand": "100m"})
    yield made
    for found in made.kube.list(JOBSET, made.namespace):
        made.kube.delete(JOBSET, made.namespace, found["metadata"]["name"])
    made.close()


def as_jobset(job: Object) -> Object:
    replicated = {"name": "workers", "replicas": 1, "template": {"spec": job["spec"]}}
    return {
        "apiVersion": JOBSET.api_version,
        "kind": JOBSET.name,
        "metadata": job["metadata"],
        "spec": {"replicatedJobs": [replicated]},
    }


def test_a_jobset_is_preempted_and_resumes_with_no_step_lost(rows: Rows, tmp_path: Path) -> None:
    training, job = plain_training(rows, "set", label=False)
    file = tmp_path / "jobset.yaml"
    file.write_text(yaml.safe_dump(as_jobset(job)))
    ctl = Path(sys.executable).with_name("singularityctl")
    done = subprocess.run(
        [str(ctl), "adopt", "-f", str(file)],
        env={**os.environ, "KUBECONFIG": str(rows.stage.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    training.until_steps(5)
    child = rows.kube.get(JOB, rows.namespace, "set-workers-0")  # made by JobSet's own controller
    assert child["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
    rows.other("urgent", "own", pods=2)
    ended = training.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint
    rows.until_admitted("urgent")
    made = rows.kube.get(JOBSET, rows.namespace, "set")
    assert made["spec"]["suspend"] is True and annotation(made, names.ANN_CHECKPOINT)
    rows.remove("urgent")
    training.until_attempt(2)
    training.assert_exact(training.finish())
    wait_for(
        lambda: any(
            c["type"] == "Completed" and c["status"] == "True"
            for c in rows.kube.get(JOBSET, rows.namespace, "set")["status"]["conditions"]
        ),
        "the JobSet completed",
        300,
    )
