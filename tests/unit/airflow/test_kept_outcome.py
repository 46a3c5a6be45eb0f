"""A worker that is lost after the end was told: the next try says the same again and trains nothing twice."""

# ruff: noqa: F811
from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from airflow_versions import NEEDS_STORE
from test_train_operator import (  # noqa: F401 (some are fixtures)
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
    returned,
    submit,
)

from airflow_provider import cluster
from airflow_provider.compat import AirflowFailException, AirflowSkipException
from airflow_provider.exceptions import TrainingFailedError
from airflow_provider.memory import OUTCOME_KEY
from kueue_integration.errors import Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB

VALUE = {"!": "tuple", "is": [1, {"!": "date", "is": "2026-01-02"}]}


@NEEDS_STORE
def test_a_success_whose_job_is_deleted_is_told_again(
    kube: FakeKube,
    airflow: Airflow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    airflow.max_tries = 3
    op = decorated(deletion_policy="on_success")
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")
    event = event_for(kube, "success")
    returned(kube, event["job"]["name"], {"value": {"a": VALUE}})
    assert op.execute_complete(airflow.context(), event) == {"a": (1, datetime.date(2026, 1, 2))}
    told = {key: airflow.xcoms[key] for key in ("job", "lineage")}
    assert kube.list(JOB, NAMESPACE) == []
    airflow.store = type(airflow.store)(json.loads(json.dumps(airflow.store)))
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (_ for _ in ()).throw(Unreachable("gone")))
    for _ in range(2):
        airflow.retry()
        assert decorated(deletion_policy="on_success").execute(airflow.context()) == {
            "a": (1, datetime.date(2026, 1, 2))
        }
        assert airflow.xcoms == told
    assert kube.list(JOB, NAMESPACE) == []


@NEEDS_STORE
def test_a_worker_that_is_lost_before_the_delete_leaves_it_to_the_next_try(
    kube: FakeKube,
    airflow: Airflow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        """SIGKILL."""

    op = operator(deletion_policy="always")
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")

    def killed(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(op, "_clean_up", killed)
        op.execute_complete(airflow.context(), event_for(kube, "success"))
    airflow.retry()
    operator(deletion_policy="always").execute(airflow.context())
    assert kube.list(JOB, NAMESPACE) == []


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        ("failed", "program failed with exit code 6", AirflowFailException),
        ("failed", "program failed with exit code 4", AirflowSkipException),
        ("preempted", "was preempted 2 times", AirflowFailException),
    ],
)
@NEEDS_STORE
def test_what_no_retry_can_change_is_told_again(
    kube: FakeKube,
    airflow: Airflow,
    status: str,
    message: str,
    error: type[Exception],
) -> None:
    budgets: dict[str, Any] = {"skip_on_exit_code": 4, "fail_on_exit_codes": [6], "deletion_policy": "always"}
    op = operator(**budgets)
    submit(airflow, op)
    with pytest.raises(error):
        op.execute_complete(airflow.context(), event_for(kube, status, message))
    airflow.retry()
    with pytest.raises(error, match=message):
        operator(**budgets).execute(airflow.context())
    assert kube.list(JOB, NAMESPACE) == []


@pytest.mark.parametrize("status", ["failed", "timeout", "deleted"])
@NEEDS_STORE
def test_a_retry_after_any_other_end_trains_again(kube: FakeKube, airflow: Airflow, status: str) -> None:
    op = operator(deletion_policy="always")
    first = submit(airflow, op).trigger
    with pytest.raises(Exception, match="exit code 3"):
        op.execute_complete(airflow.context(), event_for(kube, status))
    airflow.retry()
    if status == "deleted":
        kube.delete(JOB, NAMESPACE, first.name)
    assert submit(airflow).trigger.uid != first.uid


def test_a_clear_after_a_success_trains_again_and_may_fail(kube: FakeKube, airflow: Airflow) -> None:
    """The outcome of a former Job says nothing of this one."""
    op = operator(deletion_policy="on_success")
    first = submit(airflow, op).trigger
    op.execute_complete(airflow.context(), event_for(kube, "success"))
    airflow.clear()
    second = submit(airflow, operator()).trigger
    assert second.uid != first.uid
    airflow.retry()
    assert submit(airflow, operator()).trigger.uid == second.uid
    with pytest.raises(TrainingFailedError):
        operator().execute_complete(airflow.context(), event_for(kube, "failed"))
    airflow.retry()
    assert submit(airflow, operator()).trigger.uid not in (first.uid, second.uid)


@NEEDS_STORE
def test_a_job_stays_when_its_outcome_cannot_be_stored(
    kube: FakeKube,
    airflow: Airflow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is then the only one that knows."""
    op = operator(deletion_policy="always")
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")
    store = type(airflow.store)

    def refuse(self: Any, key: str, value: object) -> None:
        raise RuntimeError("no channel to Airflow")

    with monkeypatch.context() as patch:
        patch.setattr(store, "set", refuse)
        op.execute_complete(airflow.context(), event_for(kube, "success"))
    uid = job_of(kube)["metadata"]["uid"]
    airflow.retry()
    operator().execute(airflow.context())
    assert airflow.xcoms["job"]["uid"] == uid


@pytest.mark.parametrize("spoiled", ["text", {}, {"job": {"uid": 1}}, {"job": {}, "status": "success"}, [1], 5])
def test_a_spoiled_outcome_is_none(kube: FakeKube, airflow: Airflow, spoiled: object) -> None:
    first = submit(airflow).trigger
    airflow.store[OUTCOME_KEY] = spoiled
    airflow.retry()
    assert submit(airflow).trigger.uid == first.uid
