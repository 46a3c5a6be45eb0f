"""The operator's worker side: what it refuses, submits, adopts and replaces; what it makes of the trigger's event."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import make_attempt
from airflow_versions import NEEDS_STORE
from kueue_samples import namespace
from rank_variables import ALL, told

from airflow_provider import cluster, compat, placing, submission
from airflow_provider.compat import NEVER_EXPIRE, AirflowFailException, AirflowRescheduleException, TaskDeferred
from airflow_provider.exceptions import (
    ClusterUnreachableError,
    InvalidTrainingError,
    KilledError,
    SingularityProviderError,
    TrainingDeletedError,
    TrainingFailedError,
    TrainingTimeoutError,
)
from airflow_provider.identity import DEPLOYMENT
from airflow_provider.memory import CLEARED_KEY, OUTAGE_KEY, STORE_KEY
from airflow_provider.operators import SingularityTrainOperator
from kueue_integration.contract import job_names
from kueue_integration.errors import Unreachable
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, PRIORITY_CLASS, SERVICE, Kind
from kueue_integration.spec.platform_config import PlatformConfig, to_json
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json as record_json

NAMESPACE = "team-a"


class Store(dict[str, Any]):
    """`context["task_state_store"]` as far as the operator uses it."""

    def __init__(self, found: dict[str, Any] | None = None) -> None:
        super().__init__(found or {})
        self.retentions: dict[str, datetime.timedelta | None] = {}

    def set(self, key: str, value: object, *, retention: datetime.timedelta | None = None) -> None:
        self[key], self.retentions[key] = value, retention

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Airflow:
    """One task instance: `context` makes what a worker process would be given."""

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}
        # An Airflow without a store keeps that in XComs.
        self.store: Any = Store() if compat.HAS_STORE else self.xcoms
        self.try_number, self.max_tries, self.clear_number = 1, 1, 0

    def retry(self) -> None:
        self.try_number += 1
        self.xcoms.clear()

    def clear(self) -> None:
        self.retry()
        self.max_tries += 1
        self.clear_number += 1

    def context(self) -> dict[str, Any]:
        ti = SimpleNamespace(
            dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=self.try_number,
            max_tries=self.max_tries, xcom_push=lambda key, value: self.xcoms.__setitem__(key, value),
            xcom_pull=lambda task_ids, key, map_indexes: self.xcoms.get(key),
        )  # fmt: skip
        kept = {"task_state_store": self.store} if compat.HAS_STORE else {}
        return {"ti": ti, "dag_run": SimpleNamespace(clear_number=self.clear_number), **kept}


@NEEDS_STORE
def test_what_a_task_remembers_lasts_as_long_as_its_run(kube: FakeKube, airflow: Airflow) -> None:
    """Airflow forgets after 30 days by default: the tab, the buttons, the orphan search and the next try of a training
    that takes longer had nothing to go by."""
    submit(airflow)
    end(kube, job_of(kube), "Failed")
    with pytest.raises(TrainingFailedError):
        operator().execute_complete(airflow.context(), event_for(kube, "failed"))
    airflow.retry()
    submit(airflow)
    kept = airflow.store.retentions
    assert {"singularity_job", "singularity_outcome", "singularity_result", "singularity_manifest"} <= set(kept)
    assert set(kept.values()) == {NEVER_EXPIRE}


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture(autouse=True)
def _task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Airflow says of the task while it is submitted, unless a test has something else to say."""
    monkeypatch.setattr(compat, "task_state", lambda ti: "running")


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """A cluster with the chart and one queue, behind every connection id."""
    config = PlatformConfig("agent:1", "https://c", "PEM", train_image="train:1", store="file:///shared/checkpoints")
    mounts = {
        "volumes": ({"name": "shared", "emptyDir": {}},),
        "volume_mounts": ({"name": "shared", "mountPath": "/shared"},),
    }
    import dataclasses

    text = to_json(dataclasses.replace(config, **mounts))
    fake = FakeKube(
        namespace(NAMESPACE),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE},
            "data": {"platform.json": text},
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": "training", "namespace": NAMESPACE},
            "spec": {"clusterQueue": "training"},
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": "training"},
            "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}},
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "AdmissionCheck",
            "metadata": {"name": job_names.ADMISSION_CHECK_NAME},
            "spec": {"controllerName": job_names.ADMISSION_CHECK_CONTROLLER},
            "status": {"conditions": [{"type": "Active", "status": "True"}]},
        },
    )
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (fake, "default"))
    return fake


def operator(**changes: Any) -> SingularityTrainOperator:
    values = {"task_id": "train", "queue_name": "training", "namespace": NAMESPACE, "command": ["python3", "train.py"]}
    return SingularityTrainOperator(**{**values, **changes})


def submit(airflow: Airflow, op: SingularityTrainOperator | None = None) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        (op or operator()).execute(airflow.context())
    return caught.value


def job_of(kube: FakeKube) -> dict[str, Any]:
    (job,) = kube.list(JOB, NAMESPACE)
    return job


def end(kube: FakeKube, job: dict[str, Any], how: str) -> None:
    status = {"conditions": [{"type": how, "status": "True", "reason": how, "message": "exit code 3"}]}
    kube.set_status(JOB, NAMESPACE, job["metadata"]["name"], status)


# --- submit -----------------------------------------------------------------------------------------------------------
def test_submits_one_job_and_defers_to_it(kube: FakeKube, airflow: Airflow) -> None:
    deferred = submit(
        airflow,
        operator(workers=4, min_workers="2", pod_resources={"cpu": "250m"}, env={"A": "b"}, preemption_alert=3),
    )
    job = job_of(kube)
    _, kwargs = deferred.trigger.serialize()
    assert kwargs == {
        "conn_id": "kubernetes_default", "namespace": NAMESPACE, "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"], "deadline": None, "preemption_alert": 3,
        "max_preemptions": None, "get_logs": True, "logging_interval": 10.0, "log_max_lines": 10_000,
        "queue_deadline": None,
    }  # fmt: skip
    assert deferred.method_name == "execute_complete"
    assert job["metadata"]["labels"][job_names.KUEUE_QUEUE_LABEL] == "training"
    assert job["metadata"]["annotations"][job_names.ANN_MIN_WORKERS] == "2"
    assert airflow.store[STORE_KEY]["uid"] == job["metadata"]["uid"]


@NEEDS_STORE
def test_the_record_stands_before_the_job_does(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies at any point leaves either no Job, or one that the next try finds."""

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, "submit", die)
    with pytest.raises(KeyboardInterrupt):
        operator().execute(airflow.context())
    assert airflow.store[STORE_KEY]["uid"] is None
    monkeypatch.undo()
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (kube, "default"))
    name = airflow.store[STORE_KEY]["name"]
    airflow.retry()
    submit(airflow)
    assert job_of(kube)["metadata"]["name"] == name


def test_the_script_is_shipped(kube: FakeKube, airflow: Airflow, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('{{ not a template }}')\n")
    op = operator(command=None, script="train.py", script_args=["--steps", 5])
    op._dag_file = lambda: str(tmp_path / "dag.py")
    submit(airflow, op)
    (files,) = [c for c in kube.list(CONFIG_MAP, NAMESPACE) if c.get("immutable")]
    assert list(files["data"].values()) == ["print('{{ not a template }}')\n"]
    env = {
        e["name"]: e.get("value")
        for c in job_of(kube)["spec"]["template"]["spec"]["containers"]
        if c["name"] == job_names.CONTAINER_TRAIN
        for e in c["env"]
    }
    assert env[names.ENV_COMMAND] == '["python3", "train.py", "--steps", "5"]'


def test_execution_timeout_becomes_the_triggers_deadline(kube: FakeKube, airflow: Airflow) -> None:
    before = time.time()
    deferred = submit(airflow, operator(execution_timeout=datetime.timedelta(hours=2)))
    assert before + 7200 <= deferred.trigger.deadline <= time.time() + 7200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"queue_name": ""}, "queue_name"),
        ({"queue_name": "nope"}, "queue_name"),
        ({"workers": 0}, "workers"),
        ({"workers": "many"}, "workers"),
        ({"workers": 2, "min_workers": 3}, "min_workers"),
        ({"workers": 2, "world_size": 3}, "world_size"),
        ({"command": []}, "command"),
        ({"command": None, "script": "absent.py"}, "script"),
        ({"pod_resources": {"cpu": "lots"}}, "pod_resources['cpu']"),
        ({"store": "ftp://x"}, "store"),
        ({"store": "file:///tmp/x"}, "store"),
        ({"priority_class": "nope"}, "priority_class"),
        ({"env": {"RANK": "1"}}, "env['RANK']"),
        ({"checkpoint_every": "now and then"}, "checkpoint_every"),
    ],
)
def test_bad_input_is_refused_by_parameter_before_anything_exists(
    kube: FakeKube, airflow: Airflow, changes: dict[str, Any], field: str
) -> None:
    kube.put({"apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name, "metadata": {"name": "low"}})
    with pytest.raises(InvalidTrainingError) as caught:
        operator(**changes).execute(airflow.context())
    assert isinstance(caught.value, AirflowFailException)  # a retry would fail the same way
    assert f"\n  {field} = " in str(caught.value)
    assert not kube.list(JOB, NAMESPACE) and not kube.list(SERVICE, NAMESPACE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": None}, "give command or script"),
        ({"script": "x.py"}, "either command or script"),
        ({"preemption_alert": -1}, "preemption_alert = -1: must be a whole number"),
        ({"preemption_alert": "3"}, "must be a whole number, 0 or more, or None"),
        ({"deletion_policy": "sometimes"}, "deletion_policy = 'sometimes': must be one of never, on_success, always"),
    ],
)
def test_what_cannot_be_meant_fails_when_the_dag_is_parsed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operator(**changes)


def test_a_missing_chart_is_an_error_that_a_retry_may_cure(kube: FakeKube, airflow: Airflow) -> None:
    kube.delete(CONFIG_MAP, job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP)
    with pytest.raises(SingularityProviderError, match="chart is not installed") as caught:
        operator().execute(airflow.context())
    assert not isinstance(caught.value, AirflowFailException)


# --- outages ----------------------------------------------------------------------------------------------------------
@NEEDS_STORE
def test_an_outage_uses_no_retry(kube: FakeKube, airflow: Airflow) -> None:
    kube.fail_next("list", JOB, Unreachable("no answer"))
    with pytest.raises(AirflowRescheduleException):
        operator().execute(airflow.context())
    assert OUTAGE_KEY in airflow.store
    submit(airflow)
    assert OUTAGE_KEY not in airflow.store


@NEEDS_STORE
def test_an_outage_that_does_not_end_is_an_error(kube: FakeKube, airflow: Airflow) -> None:
    airflow.store[OUTAGE_KEY] = time.time() - 7200
    kube.fail_next("list", JOB, Unreachable("no answer"))
    with pytest.raises(ClusterUnreachableError, match="has not answered for 1:00:00"):
        operator().execute(airflow.context())


# --- one Job, whatever happens ----------------------------------------------------------------------------------------
def test_a_lost_worker_adopts(kube: FakeKube, airflow: Airflow) -> None:
    first = submit(airflow).trigger
    airflow.retry()
    second = submit(airflow).trigger
    assert second.serialize() == first.serialize()
    job_of(kube)


@pytest.mark.parametrize("kind", [CONFIG_MAP, SERVICE])
def test_a_worker_lost_between_the_job_and_its_parts_is_made_up_for(
    kube: FakeKube, airflow: Airflow, tmp_path: Path, kind: Kind
) -> None:
    """Without its Service or its files the adopted Job's pods would wait for ever."""

    class Killed(BaseException):
        """SIGKILL: no handler of the submitter runs."""

    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    create = kube.create

    def create_until_killed(obj: Any, dry_run: bool = False) -> Any:
        if obj["kind"] == kind.name:
            raise Killed
        return create(obj, dry_run=dry_run)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(kube, "create", create_until_killed)
        patch.setattr(lifecycle, "_drop", lambda kube, job: None)
        operator(command=None, script=str(script)).execute(airflow.context())
    job = job_of(kube)
    airflow.retry()
    deferred = submit(airflow, operator(command=None, script=str(script)))
    assert deferred.trigger.uid == job["metadata"]["uid"] == job_of(kube)["metadata"]["uid"]
    for part in (CONFIG_MAP, SERVICE):
        (made,) = kube.list(part, NAMESPACE)
        assert made["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert airflow.store[STORE_KEY]["uid"] == job["metadata"]["uid"]


@pytest.mark.parametrize("ended", [False, True])
def test_a_clear_of_another_task_leaves_the_job_of_a_lost_worker_alone(
    kube: FakeKube, airflow: Airflow, ended: bool
) -> None:
    first = submit(airflow).trigger
    if ended:
        end(kube, job_of(kube), "Complete")
    airflow.clear_number += 1
    airflow.retry()
    if ended:
        operator().execute(airflow.context())
    else:
        assert submit(airflow).trigger.uid == first.uid
    assert job_of(kube)["metadata"]["uid"] == first.uid


def test_a_task_that_was_cleared_while_it_ran_trains_again(kube: FakeKube, airflow: Airflow) -> None:
    """Its worker was lost; that it was this task is what the scheduler has written down."""
    airflow.max_tries = 3
    first = submit(airflow).trigger
    airflow.clear_number += 1
    if compat.HAS_STORE:
        airflow.store[CLEARED_KEY] = airflow.try_number
    else:  # what the scheduler does there (`compat.note_clear`)
        airflow.max_tries += 1
    airflow.retry()
    second = submit(airflow).trigger
    assert second.uid != first.uid
    assert job_of(kube)["metadata"]["uid"] == second.uid
    airflow.retry()
    assert submit(airflow).trigger.uid == second.uid


def test_a_lost_worker_and_a_lost_store_adopt(kube: FakeKube, airflow: Airflow) -> None:
    first = submit(airflow).trigger
    airflow.retry()
    airflow.store.clear()
    assert submit(airflow).trigger.uid == first.uid


@NEEDS_STORE
def test_a_dag_run_that_was_deleted_and_made_again_trains_again(kube: FakeKube, airflow: Airflow) -> None:
    """Its name is that of the former one, and so are the labels of the Jobs that are still there."""
    submit(airflow)
    end(kube, job_of(kube), "Complete")
    again = Airflow()
    second = submit(again).trigger
    assert len(kube.list(JOB, NAMESPACE)) == 2
    again.retry()
    assert submit(again).trigger.uid == second.uid


def test_two_airflows_in_one_namespace_leave_each_others_jobs_alone(
    kube: FakeKube, airflow: Airflow, deployment: dict[str, str]
) -> None:
    def play(who: Airflow, where: str) -> Any:
        deployment[DEPLOYMENT] = where
        return submit(who).trigger

    other = Airflow()
    mine, theirs = play(airflow, "here"), play(other, "there")
    assert mine.name != theirs.name and len(kube.list(JOB, NAMESPACE)) == 2
    for who, where, uid in ((airflow, "here", mine.uid), (other, "there", theirs.uid)):
        who.retry()
        who.store.clear()  # the cluster alone knows
        assert play(who, where).uid == uid
    airflow.clear()
    third = play(airflow, "here")
    assert {job["metadata"]["uid"] for job in kube.list(JOB, NAMESPACE)} == {third.uid, theirs.uid}


@NEEDS_STORE
def test_a_task_keeps_the_airflow_that_it_was_first_submitted_by(
    kube: FakeKube, airflow: Airflow, deployment: dict[str, str]
) -> None:
    first = submit(airflow).trigger
    deployment.clear()  # somebody deleted the Variable
    airflow.retry()
    assert submit(airflow).trigger.uid == first.uid
    airflow.clear()
    submit(airflow)
    assert job_of(kube)["metadata"]["uid"] != first.uid


@NEEDS_STORE
def test_jobs_of_the_time_before_airflows_had_ids_are_adopted(
    kube: FakeKube, airflow: Airflow, deployment: dict[str, str]
) -> None:
    del deployment[DEPLOYMENT]
    first = submit(airflow).trigger
    del airflow.store[STORE_KEY]["deployment"]
    deployment[DEPLOYMENT] = "here"
    airflow.retry()
    assert submit(airflow).trigger.uid == first.uid


def test_a_job_that_finished_unwatched_is_the_result(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow)
    end(kube, job_of(kube), "Complete")
    airflow.retry()
    operator().execute(airflow.context())  # does not defer
    assert airflow.xcoms["job"]["uid"] == job_of(kube)["metadata"]["uid"]
    assert airflow.xcoms["lineage"]["phase"] == "Succeeded"


def test_a_retry_after_a_failure_starts_anew(kube: FakeKube, airflow: Airflow) -> None:
    first = submit(airflow).trigger
    end(kube, job_of(kube), "Failed")
    airflow.retry()
    second = submit(airflow).trigger
    assert second.name != first.name
    assert len(kube.list(JOB, NAMESPACE)) == 2  # the failed one stays to be looked at


def test_a_clear_replaces_the_running_job(kube: FakeKube, airflow: Airflow) -> None:
    first = submit(airflow).trigger
    airflow.clear()
    second = submit(airflow).trigger
    assert second.uid != first.uid
    assert job_of(kube)["metadata"]["uid"] == second.uid


def test_a_clear_after_success_runs_again(kube: FakeKube, airflow: Airflow) -> None:
    first = submit(airflow).trigger
    end(kube, job_of(kube), "Complete")
    airflow.clear()
    assert submit(airflow).trigger.uid != first.uid


def test_a_clear_waits_for_the_old_pods_and_comes_back(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(airflow)
    monkeypatch.setattr(placing, "REMOVE_WAIT_S", 0.0)
    monkeypatch.setattr(kube, "delete", lambda *args, **kwargs: None)  # pods that take their time
    airflow.clear()
    with pytest.raises(AirflowRescheduleException):
        operator().execute(airflow.context())
    assert len(kube.list(JOB, NAMESPACE)) == 1


@NEEDS_STORE
def test_a_changed_namespace_does_not_leave_the_old_job_behind(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow)
    kube.put(namespace("team-b"))
    queue = {"name": "training", "namespace": "team-b"}
    kube.put(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": queue,
            "spec": {"clusterQueue": "training"},
        }
    )
    airflow.clear()
    submit(airflow, operator(namespace="team-b"))
    assert not kube.list(JOB, NAMESPACE)
    assert len(kube.list(JOB, "team-b")) == 1


# --- ended by a user, or lost, while submitting -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "told", "deleted"),
    [
        ("failed", True, True),
        ("success", True, True),
        ("restarting", True, True),
        (None, True, True),
        ("running", True, False),  # the worker is drained; the task has to go on
        ("failed", False, True),  # no heartbeat has told the worker yet
        ("restarting", False, True),
        (None, False, False),  # `dag.test()` keeps no state
    ],
)
def test_ended_while_submitting(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, state: str | None, told: bool, deleted: bool
) -> None:
    monkeypatch.setattr(compat, "task_state", lambda ti: state)
    op = operator()
    if told:
        op.on_kill()
    if deleted:
        with pytest.raises(KilledError, match="ended by a user"):
            op.execute(airflow.context())
    else:
        submit(airflow, op)
    assert (not kube.list(JOB, NAMESPACE)) is deleted


def test_an_airflow_that_does_not_answer_ends_nothing(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(ti: object) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr(compat, "task_state", silent)
    submit(airflow)
    assert job_of(kube)


# --- the end ----------------------------------------------------------------------------------------------------------
def event_for(kube: FakeKube, status: str, message: str = "exit code 3") -> dict[str, Any]:
    from airflow_provider.lineage import document
    from kueue_integration.jobs.status import summarise

    job = job_of(kube)
    history = record_json([make_attempt(1, last_step=9, ended_by="Finished", finished_at=1009.0)])
    job["metadata"]["annotations"][job_names.ANN_HISTORY] = history
    reference = {key: job["metadata"][key] for key in ("namespace", "name", "uid")}
    lineage = document(summarise(job, None, ()))
    return {"status": status, "message": message, "job": reference, "lineage": lineage}


@pytest.mark.parametrize(
    ("status", "policy", "error", "left"),
    [
        ("success", "never", None, 1),
        ("success", "on_success", None, 0),
        ("success", "always", None, 0),
        ("failed", "never", TrainingFailedError, 1),
        ("failed", "on_success", TrainingFailedError, 1),
        ("failed", "always", TrainingFailedError, 0),
        ("timeout", "never", TrainingTimeoutError, 0),
        ("deleted", "never", TrainingDeletedError, 1),
    ],
)
def test_the_end(
    kube: FakeKube, airflow: Airflow, status: str, policy: Any, error: type[Exception] | None, left: int
) -> None:
    op = operator(deletion_policy=policy)
    submit(airflow, op)
    event = event_for(kube, status)
    if error is None:
        op.execute_complete(airflow.context(), event)
    else:
        with pytest.raises(error, match="exit code 3"):
            op.execute_complete(airflow.context(), event)
    assert airflow.xcoms["lineage"]["attempts"][0]["last_step"] == 9
    assert airflow.xcoms["job"] == event["job"]
    # Without a store the Job is the only record of its end.
    assert len(kube.list(JOB, NAMESPACE)) == (left if compat.HAS_STORE or status not in ("success", "failed") else 1)


def test_a_success_stays_one_when_the_cluster_cannot_be_reached(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(airflow)
    event = event_for(kube, "success")

    def down(conn_id: str) -> None:
        raise Unreachable("no answer")

    monkeypatch.setattr(cluster, "connect", down)
    operator(deletion_policy="always").execute_complete(airflow.context(), event)
    assert airflow.xcoms["job"] == event["job"]


def test_the_output_of_the_failed_pod_is_in_the_task_log(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow)
    event = event_for(kube, "failed")
    for index, code in ((0, 143), (1, 3)):
        name = f"pod-{index}"
        labels = {job_names.LABEL_JOB: event["job"]["name"], "batch.kubernetes.io/job-completion-index": str(index)}
        terminated = {"name": job_names.CONTAINER_TRAIN, "state": {"terminated": {"exitCode": code}}}
        kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
                "status": {"containerStatuses": [terminated]},
            }
        )
        kube.logs[(NAMESPACE, name, job_names.CONTAINER_TRAIN)] = [f"output of {name}"]
    found = list(submission.log_tails(kube, NAMESPACE, event["job"]["name"], failed=True))
    assert found == ["--- last lines of pod-1, exit code 3", "output of pod-1"]


def test_airflows_own_queue_is_left_alone() -> None:
    assert operator().queue != "training"
    assert operator(queue="gpu-workers").queue == "gpu-workers"


# --- torchrun's variables ---------------------------------------------------------------------------------------------
ONE, RESIZABLE = {"workers": 1}, {"workers": 2, "min_workers": 1}


def told_rank_0(kube: FakeKube, admitted: int) -> set[str]:
    return told(job_of(kube)["spec"]["template"]["spec"], admitted)


@pytest.mark.parametrize(
    ("changes", "admitted", "wanted"),
    [
        (ONE, 1, set()),
        (ONE | {"command": ["torchrun", "train.py"]}, 1, ALL),
        (ONE | {"world_size": 2}, 1, ALL),
        (RESIZABLE, 2, ALL),
        (RESIZABLE, 1, ALL),
    ],
)
def test_a_plain_command_of_one_rank_gets_none_of_torchruns_variables(
    kube: FakeKube, airflow: Airflow, changes: dict[str, Any], admitted: int, wanted: set[str]
) -> None:
    submit(airflow, operator(**changes))
    assert told_rank_0(kube, admitted) == wanted


@pytest.mark.parametrize(
    ("changes", "admitted", "wanted"), [(ONE, 1, set()), (RESIZABLE, 1, ALL), (ONE | {"world_size": 2}, 1, ALL)]
)
def test_a_decorated_function_is_a_plain_command(
    kube: FakeKube, airflow: Airflow, changes: dict[str, Any], admitted: int, wanted: set[str]
) -> None:
    submit(airflow, decorated(**changes))
    assert told_rank_0(kube, admitted) == wanted


# --- @task.singularity_train ------------------------------------------------------------------------------------------
def decorated(**kwargs: Any) -> Any:
    from airflow.sdk import DAG, task

    with DAG("dag", schedule=None):

        @task.singularity_train(queue_name="training", namespace=NAMESPACE, **kwargs)
        def fit(rate: float, steps: int = 3) -> dict[str, float]:
            return {"rate": rate, "steps": steps}

        return fit(0.5).operator.prepare_for_execution()


def test_a_decorated_function_is_shipped_with_its_arguments(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow, decorated())
    (files,) = (c["data"] for c in kube.list(CONFIG_MAP, NAMESPACE))
    (script,) = (text for text in files.values() if "def fit(rate" in text)
    assert "@task" not in script
    (arguments,) = (text for text in files.values() if text.startswith("{"))
    assert json.loads(arguments) == {"args": [0.5], "kwargs": {}}


def returned(kube: FakeKube, name: str, found: object) -> None:
    """What the controller has written on the Job."""
    text = found if isinstance(found, str) else json.dumps(found)
    kube.patch(JOB, NAMESPACE, name, {"metadata": {"annotations": {job_names.ANN_RESULT: text}}})


def test_what_rank_0_returned_is_the_value_of_the_task(kube: FakeKube, airflow: Airflow) -> None:
    op = decorated()
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")
    returned(kube, job_of(kube)["metadata"]["name"], {"value": {"a": [1, {"!": "float", "is": "nan"}]}})
    assert op.execute_complete(airflow.context(), event_for(kube, "success")) == {"a": [1, "nan"]}


STORED = {"url": "gs://results/team/run-7", "files": 2, "bytes": 17, "sha256": "0" * 64, "attempt": 2, "step": 40}


@pytest.mark.parametrize("decorates", [True, False])
@pytest.mark.parametrize("found", [None, {"value": None}, {"value": 7}, {"value": 0}])
def test_the_url_of_outputs_is_the_value_of_a_task_that_has_no_other(
    kube: FakeKube, airflow: Airflow, decorates: bool, found: object
) -> None:
    op = decorated() if decorates else operator()
    submit(airflow, op)
    name = job_of(kube)["metadata"]["name"]
    end(kube, job_of(kube), "Complete")
    stored = {"metadata": {"annotations": {job_names.ANN_OUTPUTS_STORED: json.dumps(STORED)}}}
    kube.patch(JOB, NAMESPACE, name, stored)
    if found is not None:
        returned(kube, name, found)
    value = found["value"] if decorates and isinstance(found, dict) else None
    wanted = STORED["url"] if value is None else value
    assert op.execute_complete(airflow.context(), event_for(kube, "success")) == wanted
    airflow.retry()  # the worker was lost afterwards
    again = decorated() if decorates else operator()
    assert again.execute(airflow.context()) == wanted


@pytest.mark.parametrize(
    ("found", "value", "told"),
    [
        (None, None, "is lost: it did not arrive on the Job"),
        ("{", None, "is lost: it is not valid JSON"),
        ([1], None, "is lost: rank 0 left no JSON object"),
        ({"value": {"!": "date", "is": "yesterday"}}, "yesterday", "it cannot be understood (ValueError): it is text"),
        ({"value": {"!": "date"}}, None, "is lost: rank 0 left a value that cannot be understood"),
        ({"notes": ["it has more than 48000 bytes"]}, None, "is lost: it has more than 48000 bytes"),
        ({"value": "<Net>", "notes": ["it is of type Net"]}, "<Net>", "is not quite here: it is of type Net"),
        ({"value": {"__classname__": 1}}, "{'__classname__': 1}", "Airflow cannot write it down"),
    ],
)
def test_a_training_that_has_succeeded_is_never_made_again_for_its_value(
    kube: FakeKube, airflow: Airflow, said: list[str], found: object, value: object, told: str
) -> None:
    op = decorated()
    submit(airflow, op)
    job = job_of(kube)
    end(kube, job, "Complete")
    if found is not None:
        returned(kube, job["metadata"]["name"], found)
    assert op.execute_complete(airflow.context(), event_for(kube, "success")) == value
    assert any(told in line for line in said), said
    airflow.retry()
    assert decorated().execute(airflow.context()) == value
    assert [each["metadata"]["uid"] for each in kube.list(JOB, NAMESPACE)] == [job["metadata"]["uid"]]


@pytest.mark.parametrize(("value", "several"), [([1, 2], False), ("text", False), ({"a": 1}, True), (None, True)])
def test_what_is_no_dict_is_one_xcom_and_fails_no_task(
    kube: FakeKube, airflow: Airflow, said: list[str], value: Any, several: bool
) -> None:
    """Airflow raises TypeError then, in every try, though the training has succeeded."""
    op = decorated()
    assert op.multiple_outputs is True, "by its annotation"
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")
    returned(kube, job_of(kube)["metadata"]["name"], {"value": value})
    assert op.execute_complete(airflow.context(), event_for(kube, "success")) == value
    assert (op.multiple_outputs, any("its value is one XCom" in line for line in said)) == (several, not several)
    airflow.retry()  # the outcome is kept
    again = decorated()
    assert (again.execute(airflow.context()), again.multiple_outputs) == (value, several)


@NEEDS_STORE
def test_a_value_that_cannot_be_read_now_is_read_later_without_a_retry(kube: FakeKube, airflow: Airflow) -> None:
    op = decorated()
    submit(airflow, op)
    end(kube, job_of(kube), "Complete")
    returned(kube, job_of(kube)["metadata"]["name"], {"value": 1})
    event = event_for(kube, "success")
    kube.fail_next("get", JOB, Unreachable("no answer"))
    with pytest.raises(AirflowRescheduleException):
        op.execute_complete(airflow.context(), event)
    assert decorated().execute(airflow.context()) == 1
    airflow.store[OUTAGE_KEY] = 1.0
    kube.fail_next("get", JOB, Unreachable("no answer"))
    with pytest.raises(ClusterUnreachableError):
        op.execute_complete(airflow.context(), event)


def test_arguments_that_are_not_json_are_refused_before_anything_is_created(kube: FakeKube, airflow: Airflow) -> None:
    op = decorated()
    op.op_kwargs = {"rate": object()}
    with pytest.raises(InvalidTrainingError, match="rate = "):
        op.execute(airflow.context())
    assert kube.list(JOB, NAMESPACE) == []


def test_the_function_takes_the_place_of_the_script() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        decorated(script="train.py")


@pytest.mark.parametrize(("given", "wish"), [("10m", "600s"), (300, "300s"), ("None", None), (None, None)])
def test_periodic_checkpoints_reach_the_job(
    kube: FakeKube, airflow: Airflow, given: str | int | None, wish: str | None
) -> None:
    submit(airflow, operator(checkpoint_every=given))
    assert job_of(kube)["metadata"]["annotations"].get(job_names.ANN_CHECKPOINT_EVERY) == wish
