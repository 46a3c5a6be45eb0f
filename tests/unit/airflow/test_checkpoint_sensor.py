"""The sensor takes the newest checkpoint of the task's current Job, and knows when none can come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow_fakes import NAMESPACE

from airflow_provider.exceptions import SingularityProviderError
from airflow_provider.identity import ANN_TASK, LABEL_OWNER, Claim, TaskKey, Try
from airflow_provider.sensors import look, moment
from kueue_integration.fake import FakeKube
from kueue_integration.resources import JOB
from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, to_json

KEY = TaskKey("dag", "run", "train")


def add(kube: FakeKube, generation: int, *steps: int, done: str = "") -> None:
    """A Job whose attempts each ended with a checkpoint after so many steps, committed at that Unix second."""
    claim = Claim(KEY, generation, Try(1, 0, 0), NAMESPACE, f"train-{generation}")
    history = [
        AttemptRecord(
            number, "r", "spot", 1, 1, admitted_at=0.0, last_step=step - 1, committed_at=float(step),
            checkpoint=f"c{generation}-{number}",
        )
        for number, step in enumerate(steps, 1)
    ]  # fmt: skip
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": claim.name,
            "namespace": NAMESPACE,
            "labels": {names.LABEL_MANAGED: "true", LABEL_OWNER: KEY.owner},
            "annotations": {ANN_TASK: json.dumps(claim.to_dict()), names.ANN_HISTORY: to_json(history)},
        },
        "spec": {"parallelism": 1, "template": {"spec": {"containers": []}}},
    }
    kube.create(job)
    if done:
        kube.set_status(JOB, NAMESPACE, claim.name, {"conditions": [{"type": done, "status": "True"}]})


def test_takes_the_newest_checkpoint_of_the_current_generation() -> None:
    kube = FakeKube()
    assert look(kube, NAMESPACE, KEY, 0, 0.0) == (None, False)
    add(kube, 0, 500, done="Failed")
    add(kube, 1, 10, 20)
    found, over = look(kube, NAMESPACE, KEY, 0, 0.0)
    assert found is not None
    assert (found["id"], found["step"], over) == ("c1-2", 20, False)


def test_asks_for_steps_and_for_age() -> None:
    kube = FakeKube()
    add(kube, 0, 10, 20)
    assert look(kube, NAMESPACE, KEY, 21, 0.0) == (None, False)
    assert look(kube, NAMESPACE, KEY, 20, 19.5)[0] is not None
    assert look(kube, NAMESPACE, KEY, 0, 20.0) == (None, False)


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_job_that_has_ended_brings_no_more(end: str) -> None:
    kube = FakeKube()
    add(kube, 0, 10, done=end)
    assert look(kube, NAMESPACE, KEY, 99, 0.0) == (None, True)
    assert look(kube, NAMESPACE, KEY, 10, 0.0)[0] is not None


def test_moments() -> None:
    assert moment(None) == moment("") == 0.0
    assert moment("1700000000.5") == 1700000000.5
    assert moment("2026-01-01T00:00:00") == moment("2026-01-01T01:00:00+01:00") == 1767225600.0
    with pytest.raises(SingularityProviderError, match="newer_than = 'yesterday'"):
        moment("yesterday")
