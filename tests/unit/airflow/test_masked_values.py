"""What Airflow masks travels to the ranks in a Secret that the Job owns: it stands in nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from airflow_versions import mask_secret
from test_train_operator import (
    NAMESPACE,
    Airflow,
    _task_runs,
    airflow,
    decorated,
    end,
    event_for,
    job_of,
    kube,
    operator,
    submit,
)

from airflow_provider import taskflow
from airflow_provider.compat import TaskDeferred
from airflow_provider.exceptions import TrainingFailedError
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, SECRET

__all__ = ["_task_runs", "airflow", "kube"]
PASSWORD = "hunter2-of-wandb"


@pytest.fixture(autouse=True)
def _masked() -> None:
    mask_secret(PASSWORD)


def values(kube: FakeKube, job: dict[str, Any]) -> dict[str, str]:
    secret = kube.get(SECRET, NAMESPACE, f"{job['metadata']['name']}-secrets")
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def test_variables_and_words_that_airflow_masks_stand_in_the_secret_alone(
    kube: FakeKube, airflow: Airflow
) -> None:
    variables = [{"name": "WANDB_API_KEY", "value": PASSWORD}, {"name": "SEED", "value": "1"}]
    pod = {"spec": {"containers": [{"name": "base", "env": [{"name": "DSN", "value": f"pg://me:{PASSWORD}@db"}]}]}}
    op = operator(env_vars=variables, command=["x", "--token", PASSWORD, "--lr", "1"], pod_override=pod)
    submit(airflow, op)
    job = job_of(kube)
    assert PASSWORD not in json.dumps(job)
    assert values(kube, job) == {
        "train.WANDB_API_KEY": PASSWORD, "train.DSN": f"pg://me:{PASSWORD}@db", "train.SINGULARITY_SECRET_0": PASSWORD,
    }  # fmt: skip
    kept = f"{json.dumps(airflow.store)} {op.manifest} {airflow.xcoms}"
    assert PASSWORD not in kept and base64.b64encode(PASSWORD.encode()).decode() not in kept
    assert "WANDB_API_KEY" in kept


def test_a_task_without_such_values_makes_no_secret(kube: FakeKube, airflow: Airflow) -> None:
    """Its account needs no right to make one, whatever the names of its variables."""
    submit(airflow, operator(env={"TOKENIZERS_PARALLELISM": "false"}))
    assert kube.list(SECRET, NAMESPACE) == []


@pytest.mark.parametrize("value", [PASSWORD, [1, {"key": f'"{PASSWORD}"'}]])
def test_arguments_of_a_function_go_there_too(kube: FakeKube, airflow: Airflow, value: Any) -> None:
    op = decorated()
    op.op_kwargs = {**op.op_kwargs, "rate": value}
    submit(airflow, op)
    job = job_of(kube)
    assert PASSWORD not in json.dumps([each for each in kube.objects() if each["kind"] != "Secret"])
    (text,) = values(kube, job).values()
    assert PASSWORD in text and json.loads(text)["kwargs"]["rate"] == value
    (source,) = (v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "singularity-source")
    paths = [item["path"] for part in source["projected"]["sources"] for item in next(iter(part.values()))["items"]]
    assert sorted(paths) == sorted([taskflow.SCRIPT, taskflow.ARGUMENTS, taskflow.RETURN])


def test_a_retry_after_a_failure_has_one_of_its_own(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow, operator(env={"KEY": PASSWORD}))
    first = job_of(kube)
    end(kube, first, "Failed")
    with pytest.raises(TrainingFailedError):
        operator().execute_complete(airflow.context(), event_for(kube, "failed"))
    airflow.retry()
    mask_secret("hunter3-which-is-new")
    submit(airflow, operator(env={"KEY": "hunter3-which-is-new"}))
    (second,) = (job for job in kube.list(JOB, NAMESPACE) if job["metadata"]["uid"] != first["metadata"]["uid"])
    assert values(kube, first) == {"train.KEY": PASSWORD}
    assert values(kube, second) == {"train.KEY": "hunter3-which-is-new"}


def test_the_secret_of_a_worker_that_was_lost_is_made_by_the_next_try(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = kube.create

    def lost(obj: Any, dry_run: bool = False) -> Any:
        if obj["kind"] == "Secret":
            raise SystemExit("killed")
        return create(obj, dry_run)

    with monkeypatch.context() as killed, pytest.raises(SystemExit):
        killed.setattr(kube, "create", lost)
        killed.setattr(kube, "delete", lambda *args, **kwargs: None)  # a killed worker takes nothing back
        operator(env={"KEY": PASSWORD}).execute(airflow.context())
    airflow.retry()
    submit(airflow, operator(env={"KEY": PASSWORD}))
    assert values(kube, job_of(kube)) == {"train.KEY": PASSWORD}


def test_each_index_of_a_mapped_task_has_its_own(kube: FakeKube, airflow: Airflow) -> None:
    for index in (0, 1):
        context = airflow.context()
        context["ti"].map_index = index
        with pytest.raises(TaskDeferred):
            operator(env={"KEY": f"{PASSWORD}-{index}"}).execute(context)
    found = [values(kube, job) for job in kube.list(JOB, NAMESPACE)]
    assert sorted(each["train.KEY"] for each in found) == [f"{PASSWORD}-0", f"{PASSWORD}-1"]
