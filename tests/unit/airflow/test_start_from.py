"""`start_from`: which checkpoint a task's new Job begins with, and what is refused before there is one."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow_fakes import make_attempt
from airflow_versions import NEEDS_STORE
from kueue_samples import namespace
from test_train_operator import NAMESPACE, Airflow, _task_runs, airflow, decorated, kube, operator, submit

from airflow_provider import cluster, start_point, taskflow
from airflow_provider.compat import AirflowRescheduleException
from airflow_provider.exceptions import (
    ClusterUnreachableError,
    InvalidTrainingError,
    SingularityProviderError,
    TrainingFailedError,
    TrainingTimeoutError,
)
from airflow_provider.identity import ANN_TASK, Claim
from airflow_provider.verbs import JobVerbs
from kueue_integration.contract import branches, job_names
from kueue_integration.errors import Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, LOCAL_QUEUE, POD
from kueue_integration.requests import user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, Origin, to_json

__all__ = ["_task_runs", "airflow", "kube"]
STORE = "file:///shared/checkpoints"


def ref(number: int, job: str = "other", **fields: Any) -> CheckpointRef:
    given = {"world_size": 1, "url": STORE, "bytes": 1, "bytes_stored": 1, "created_at": 1.0, "sha256": "0" * 64}
    return CheckpointRef(f"{job}-a1-g{number}", 1_000_000 + number, 1, 100 * number, **{**given, **fields})


@pytest.fixture(autouse=True)
def asked(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """What the pods ask the store, which has everything but checkpoints with `lost` in their id."""
    questions: list[list[str]] = []
    create = kube.create

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        if obj["kind"] == "Pod" and not dry_run:
            question = obj["spec"]["containers"][0]["command"][4:]
            questions.append(question)
            said = {"error": "no such checkpoint"} if "lost" in question[3] else {"result": {}}
            place = obj["metadata"]["namespace"], obj["metadata"]["name"]
            kube.logs[(*place, "store")] = [json.dumps(said)]
            kube.set_status(POD, *place, {"phase": "Succeeded"})
        return made

    monkeypatch.setattr(kube, "create", and_run)
    yield questions
    assert kube.list(POD, NAMESPACE) == []


def saved(kube: FakeKube, name: str, *refs: CheckpointRef) -> None:
    """The Job has committed these."""
    notes = {
        job_names.ANN_CHECKPOINTS: to_json(list(refs)),
        names.ANN_CHECKPOINT: to_json(refs[-1]),
        job_names.ANN_HISTORY: to_json([make_attempt(1)]),
    }
    kube.patch(JOB, NAMESPACE, name, {"metadata": {"annotations": notes}})


def other(kube: FakeKube, *refs: CheckpointRef) -> None:
    labels = {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "training"}
    meta = {"name": "other", "namespace": NAMESPACE, "uid": "u-other", "labels": labels, "annotations": {}}
    kube.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": 1}})
    saved(kube, "other", *refs)


def started(kube: FakeKube, airflow: Airflow, **parameters: Any) -> Origin | None:
    before = {job["metadata"]["name"] for job in kube.list(JOB, NAMESPACE)}
    submit(airflow, operator(**parameters))
    (job,) = [job for job in kube.list(JOB, NAMESPACE) if job["metadata"]["name"] not in before]
    found = branches.start_from(job)
    assert found is None or isinstance(found, Origin)
    return found


@pytest.mark.parametrize("wanted", ["other", "other/other-a1-g2", "other-a1-g2"])
def test_a_job_one_of_its_checkpoints_and_an_id(kube: FakeKube, asked: list[list[str]], wanted: str) -> None:
    other(kube, ref(1), ref(2))
    assert started(kube, Airflow(), start_from=wanted) == Origin("other", "other-a1-g2")
    holder = asked[0][4]
    assert asked == [["hold", NAMESPACE, "other", "other-a1-g2", holder, "0" * 64]]
    assert kube.find(JOB, NAMESPACE, holder) is not None, "held for the job that begins with it"


def test_an_older_checkpoint_of_another_job(kube: FakeKube) -> None:
    other(kube, ref(1), ref(2))
    assert started(kube, Airflow(), start_from="other/other-a1-g1") == Origin("other", "other-a1-g1")


@pytest.mark.parametrize("wanted", [None, "", "None"])
def test_nothing_is_step_0(kube: FakeKube, wanted: str | None, asked: list[list[str]]) -> None:
    other(kube, ref(1))
    assert started(kube, Airflow(), start_from=wanted) is None and asked == []


def test_an_earlier_run_of_this_task(kube: FakeKube) -> None:
    """The first run begins at step 0, the next where it came to; another task's runs do not count."""
    first = Airflow()
    assert started(kube, first, start_from="earlier run") is None
    name = first.xcoms["job"]["name"]
    saved(kube, name, ref(1, name), ref(2, name))
    claim = json.loads(kube.get_job(NAMESPACE, name)["metadata"]["annotations"][ANN_TASK])
    for index, key in enumerate(({"task_id": "other"}, {"dag_id": "other"})):
        twin = {**kube.get_job(NAMESPACE, name)}
        changed = {**claim, "key": {**claim["key"], **key, "run_id": "later"}}
        labels = {job_names.LABEL_MANAGED: "true"}
        meta = {**twin["metadata"], "name": f"x{index}", "uid": f"x{index}", "labels": labels}
        meta["annotations"] = {**meta["annotations"], ANN_TASK: json.dumps(changed)}
        meta["creationTimestamp"] = "2099-01-01T00:00:00Z"
        kube.put({**twin, "metadata": meta})
        assert Claim.of_job(kube.get_job(NAMESPACE, f"x{index}")) is not None
    kube.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Complete", "status": "True"}]})

    class Later(Airflow):
        def context(self) -> dict[str, Any]:
            found = super().context()
            found["ti"].run_id = "later"
            return found

    assert started(kube, Later(), start_from="earlier run") == Origin(name, f"{name}-a1-g2")


def test_a_retry_after_a_failure_goes_on_from_where_the_failed_job_came_to(kube: FakeKube) -> None:
    airflow = Airflow()
    airflow.max_tries = 3
    assert started(kube, airflow, start_from="earlier run") is None
    name = airflow.xcoms["job"]["name"]
    saved(kube, name, ref(1, name))
    kube.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Failed", "status": "True"}]})
    airflow.retry()
    assert started(kube, airflow, start_from="earlier run") == Origin(name, f"{name}-a1-g1")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("nobody", "is neither a training job of namespace 'team-a' nor a checkpoint that one of them knows; give"),
        ("other/other-a9-g9", "is no committed checkpoint that job other knows; it has other-a1-g1 (step 100)"),
        ("other", "has 8 ranks, the job has 1"),
        ("lost", "no such checkpoint. See what the store has: singularityctl checkpoints ls lost"),
    ],
)
def test_what_cannot_be_begun_with_fails_the_task_before_anything_is_created(
    kube: FakeKube, wanted: str, words: str
) -> None:
    other(kube, ref(1, world_size=8 if wanted == "other" else 1))
    if wanted == "lost":
        twin = kube.get_job(NAMESPACE, "other")
        kube.put({**twin, "metadata": {**twin["metadata"], "name": "lost", "uid": "u-lost"}})
        saved(kube, "lost", ref(1, "lost"))
    before = len(kube.list(JOB, NAMESPACE))
    with pytest.raises(InvalidTrainingError, match="start_from = ") as refused:
        operator(start_from=wanted).execute(Airflow().context())
    assert words in str(refused.value)
    assert len(kube.list(JOB, NAMESPACE)) == before


def test_a_parameter_that_is_no_text_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(ValueError, match="start_from = 7: must be a text"):
        operator(start_from=7)


def test_the_verbs_of_a_dag(kube: FakeKube, asked: list[list[str]]) -> None:
    other(kube, ref(1), ref(2))
    verbs = JobVerbs(namespace=NAMESPACE, by="dag")
    result = verbs.rewind("other", "other-a1-g1")
    assert (result.op, result.state) == ("rewind", "asked")
    request = user_requests.asked(kube.get_job(NAMESPACE, "other"), user_requests.CHANGE)
    assert request is not None and (request.by, request.checkpoint) == ("dag", "other-a1-g1")
    assert asked[0][:5] == ["hold", NAMESPACE, "other", "other-a1-g1", names.HOLD_REWIND]


# --- what is given up, and what is taken ------------------------------------------------------------------------------
class Run(Airflow):
    """A task instance of the Dag run that was due on that day of January."""

    def __init__(self, day: int) -> None:
        super().__init__()
        self.day, self.max_tries = day, 3

    def context(self) -> dict[str, Any]:
        found = super().context()
        found["ti"].run_id = f"run-{self.day}"
        found["dag_run"].logical_date = datetime.datetime(2026, 1, self.day, tzinfo=datetime.UTC)
        return found


@pytest.fixture
def ending(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """Kubernetes fails a running Job whose deadline is over."""
    patch = kube.patch

    def and_fail(kind: Any, namespace: Any, name: str, body: Any, *more: Any, **named: Any) -> Any:
        made = patch(kind, namespace, name, body, *more, **named)
        if (body.get("spec") or {}).get("activeDeadlineSeconds") == 1 and not made["spec"].get("suspend"):
            kube.set_status(JOB, namespace, name, {"conditions": [{"type": "Failed", "status": "True"}]})
        return made

    monkeypatch.setattr(kube, "patch", and_fail)
    return kube


def begun(kube: FakeKube, run: Airflow, *numbers: int, how: str | None = None) -> str:
    """Its Job runs, and has saved these; and has ended so."""
    started(kube, run, start_from="earlier run")
    name = str(run.xcoms["job"]["name"])
    kube.patch(JOB, NAMESPACE, name, {"spec": {"suspend": False}})
    saved(kube, name, *(ref(number, name) for number in numbers))
    if how:
        kube.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": how, "status": "True"}]})
    return name


def test_a_clear_of_a_running_job_goes_on_from_its_newest_checkpoint(
    ending: FakeKube, asked: list[list[str]]
) -> None:
    run = Run(5)
    name = begun(ending, run, 1, 2)
    run.clear()
    assert started(ending, run, start_from="earlier run") == Origin(name, f"{name}-a1-g2")
    assert [question[0] for question in asked] == ["hold"]
    record = ending.get_job(NAMESPACE, name)
    assert record["status"]["conditions"][0]["type"] == "Failed", "it stays as a record, and trains no more"
    assert run.store["singularity_start"]["checkpoint"] == f"{name}-a1-g2"


def test_a_clear_without_start_from_deletes_the_job(ending: FakeKube) -> None:
    run = Run(5)
    submit(run, operator())
    (job,) = ending.list(JOB, NAMESPACE)
    saved(ending, job["metadata"]["name"], ref(1, job["metadata"]["name"]))
    run.clear()
    submit(run, operator())
    assert [each["metadata"]["uid"] for each in ending.list(JOB, NAMESPACE)] != [job["metadata"]["uid"]]
    assert len(ending.list(JOB, NAMESPACE)) == 1


def test_after_a_timeout_the_retry_goes_on_from_the_checkpoint(ending: FakeKube) -> None:
    run = Run(5)
    name = begun(ending, run, 3)
    job = ending.get_job(NAMESPACE, name)
    reference = {key: job["metadata"][key] for key in ("namespace", "name", "uid")}
    event = {"status": "timeout", "message": "over", "output_shown": True, "lineage": None, "job": reference}
    with pytest.raises(TrainingTimeoutError):
        operator(start_from="earlier run").execute_complete(run.context(), event)
    run.retry()
    assert started(ending, run, start_from="earlier run") == Origin(name, f"{name}-a1-g3")


# --- a retry goes on --------------------------------------------------------------------------------------------------
def failed_with(kube: FakeKube, run: Run, *checkpoints: int, **parameters: Any) -> str:
    """A first try with periodic checkpoints that has failed; the name of its Job."""
    submit(run, operator(checkpoint_every="10m", **parameters))
    name = str(run.xcoms["job"]["name"])
    saved(kube, name, *(ref(number, name) for number in checkpoints))
    kube.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Failed", "status": "True"}]})
    return name


@NEEDS_STORE
def test_with_periodic_checkpoints_a_retry_goes_on_and_a_clear_does_not(ending: FakeKube) -> None:
    run = Run(5)
    name = failed_with(ending, run, 1, 7)
    run.retry()
    assert started(ending, run, checkpoint_every="10m") == Origin(name, f"{name}-a1-g7")
    second = str(run.xcoms["job"]["name"])
    saved(ending, second, ref(9, second))
    run.clear()
    assert started(ending, run, checkpoint_every="10m") is None, "a clear begins anew"
    assert ending.find(JOB, NAMESPACE, second) is None, "and leaves no Job behind"
    third = str(run.xcoms["job"]["name"])
    ending.set_status(JOB, NAMESPACE, third, {"conditions": [{"type": "Failed", "status": "True"}]})
    run.retry()
    assert started(ending, run, checkpoint_every="10m") is None, "also the retry of a try that a clear has made"


@pytest.mark.parametrize(
    ("parameters", "goes_on"),
    [
        ({}, False), ({"checkpoint_every": "off"}, False), ({"start_from": "last try"}, True),
        ({"checkpoint_every": "10m", "start_from": "step 0"}, False),
    ],
)  # fmt: skip
def test_who_does_not_want_it_says_so(ending: FakeKube, parameters: dict[str, Any], goes_on: bool) -> None:
    run = Run(5)
    name = failed_with(ending, run, 1)
    run.retry()
    assert started(ending, run, **parameters) == (Origin(name, f"{name}-a1-g1") if goes_on else None)


def test_what_nobody_asked_for_refuses_no_job(ending: FakeKube, said: list[str]) -> None:
    """Saved processes go on with their own arguments: asked for, another command is refused."""
    run = Run(5)
    failed_with(ending, run, 1, command=["python3", "a.py"])
    run.retry()
    assert started(ending, run, checkpoint_every="10m", command=["python3", "b.py"]) is None
    assert any("Begins at step 0, and not with the newest checkpoint of the try before" in line for line in said)
    run.retry()
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    for job in ending.list(JOB, NAMESPACE):
        ending.set_status(JOB, NAMESPACE, job["metadata"]["name"], failed)
    with pytest.raises(InvalidTrainingError, match="start_from"):
        operator(start_from="last try", command=["python3", "b.py"]).execute(run.context())


@pytest.mark.parametrize("status", ["timeout", "timeout while it waits", "failed"])
@NEEDS_STORE
def test_the_record_stays_for_the_retry_and_goes_after_the_success(ending: FakeKube, status: str) -> None:
    run = Run(5)
    given: dict[str, Any] = {"checkpoint_every": "10m", "deletion_policy": "always"}
    submit(run, operator(**given))
    name = str(run.xcoms["job"]["name"])
    ending.patch(JOB, NAMESPACE, name, {"spec": {"suspend": status.endswith("waits")}})
    saved(ending, name, ref(3, name))
    if status == "failed":
        ending.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Failed", "status": "True"}]})

    def over(status: str, name: str) -> dict[str, Any]:
        job = {key: ending.get_job(NAMESPACE, name)["metadata"][key] for key in ("namespace", "name", "uid")}
        return {"status": status, "message": "over", "output_shown": True, "lineage": None, "job": job}

    with pytest.raises((TrainingTimeoutError, TrainingFailedError)):
        operator(**given).execute_complete(run.context(), over(status.split()[0], name))
    run.retry()
    assert started(ending, run, **given) == Origin(name, f"{name}-a1-g3")
    second = str(run.xcoms["job"]["name"])
    ending.set_status(JOB, NAMESPACE, second, {"conditions": [{"type": "Complete", "status": "True"}]})
    operator(**given).execute_complete(run.context(), over("success", second))
    assert ending.list(JOB, NAMESPACE) == []


@pytest.mark.parametrize(("how", "taken"), [("Complete", True), ("Failed", True), (None, False)])
def test_only_a_run_that_is_earlier_and_has_ended_is_taken(
    ending: FakeKube, said: list[str], how: str | None, taken: bool
) -> None:
    later = begun(ending, Run(30), 9, how="Complete")
    before = begun(ending, Run(3), 1, how=how)
    del said[:]
    assert started(ending, Run(5), start_from="earlier run") == (
        Origin(before, f"{before}-a1-g1") if taken else None
    )
    assert any((f"of job {before} of run run-3" if taken else "of run run-3 has not ended") in line for line in said)
    assert not any(later in line for line in said)


def test_runs_are_taken_by_their_date_and_not_by_when_their_jobs_were_made(ending: FakeKube) -> None:
    newest = begun(ending, Run(4), 1, how="Complete")
    begun(ending, Run(2), 7, how="Complete")  # a backfill, made later
    assert started(ending, Run(5), start_from="earlier run") == Origin(newest, f"{newest}-a1-g1")


@pytest.mark.parametrize("cleared", [False, True])
@NEEDS_STORE
def test_with_another_connection_there_is_one_live_job(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    other = FakeKube(*copy.deepcopy(kube.objects()))
    monkeypatch.setattr(cluster, "connect", lambda conn_id: ({"a": kube, "b": other}[conn_id], "default"))
    airflow = Airflow()
    submit(airflow, operator(kubernetes_conn_id="a"))
    airflow.clear() if cleared else airflow.retry()
    deferred = submit(airflow, operator(kubernetes_conn_id="b"))
    assert (len(kube.list(JOB, NAMESPACE)), len(other.list(JOB, NAMESPACE))) == ((0, 1) if cleared else (1, 0))
    assert deferred.trigger.conn_id == airflow.store["singularity_job"]["conn_id"] == ("b" if cleared else "a")


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("ended", [False, True])
@NEEDS_STORE
def test_a_connection_that_leads_to_another_cluster_makes_no_second_job(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, cleared: bool, ended: bool
) -> None:
    """Its id is the same: the Job was said to be gone, and two trained."""
    other = FakeKube(*copy.deepcopy(kube.objects()))
    kube.server, other.server = "https://a", "https://b"
    airflow = Airflow()
    submit(airflow, operator())
    where = {key: airflow.xcoms["job"][key] for key in ("namespace", "name", "uid")}
    if ended:
        event = {"status": "failed", "message": "exit code 3", "output_shown": True, "lineage": None, "job": where}
        with pytest.raises(TrainingFailedError):
            operator().execute_complete(airflow.context(), event)
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (other, "default"))
    airflow.clear() if cleared else airflow.retry()
    if ended:
        submit(airflow, operator())
    else:
        with pytest.raises(SingularityProviderError, match="was made at another API server than the one to which conn"):
            operator().execute(airflow.context())
    assert len(other.list(JOB, NAMESPACE)) == ended
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (kube, "default"))
    if not ended:
        submit(airflow, operator())
        assert len(kube.list(JOB, NAMESPACE)) == 1
    assert "https" not in json.dumps(airflow.store["singularity_job"])


@NEEDS_STORE
def test_a_former_cluster_that_does_not_answer_keeps_the_task_from_a_second_job(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow()
    submit(airflow, operator(kubernetes_conn_id="a"))
    other = FakeKube()

    def connect(conn_id: str) -> Any:
        if conn_id == "a":
            raise Unreachable("no answer")
        return other, "default"

    monkeypatch.setattr(cluster, "connect", connect)
    airflow.clear()
    with pytest.raises(AirflowRescheduleException):
        operator(kubernetes_conn_id="b").execute(airflow.context())
    airflow.store["singularity_api_outage_since"] = 1.0
    with pytest.raises(ClusterUnreachableError, match="was made with connection 'a', the task has 'b' now"):
        operator(kubernetes_conn_id="b").execute(airflow.context())
    assert other.list(JOB, NAMESPACE) == []


DATED = ["python3", "train.py", "--date", "$YESTERDAY"]


@pytest.mark.parametrize(("change", "words"), [
    ({}, ""), ({"command": [*DATED[:-1], "2026-01-06"]}, "with the command that they were started"),
    ({"env": {"STAGE": "b"}}, "with the env STAGE that they were started"),
    ({"env": {"STAGE": "a$b", "MORE": "1"}}, "with the env MORE that they were started"),
])  # fmt: skip
def test_what_saved_processes_would_not_see_is_refused(kube: FakeKube, change: dict[str, Any], words: str) -> None:
    """Yesterday's `--date` went on under today's name, without a word."""
    other(kube, ref(1))
    env = {names.ENV_COMMAND: json.dumps(DATED).replace("$", "$$"), "STAGE": "a$$b"}
    trains = {"name": job_names.CONTAINER_TRAIN, "env": [{"name": n, "value": v} for n, v in env.items()]}
    kube.patch(JOB, NAMESPACE, "other", {"spec": {"template": {"spec": {"containers": [trains]}}}})
    given = {"start_from": "other", "command": DATED, "env": {"STAGE": "a$b"}, **change}
    if words:
        with pytest.raises(InvalidTrainingError, match=words):
            started(kube, Airflow(), **given)
        assert len(kube.list(JOB, NAMESPACE)) == 1
    else:
        assert started(kube, Airflow(), **given) == Origin("other", ref(1).id)


FILES = {"train.py": "print(1)", "more.py": "x = 1"}


@pytest.mark.parametrize(("change", "words"), [
    ({}, ""), ({"files": {**FILES, "more.py": "x = 2"}}, "with the file more.py that"),
    ({"files": {"train.py": "print(1)"}}, "with the file more.py that"),
    ({"files": {**FILES, "new.py": ""}}, "with the file new.py that"),
    ({"env": {"B": "2"}}, "with the env A that"), ({"env": {}}, "with the env A that"),
    ({"env": {"A": "1", "B": "2", "C": "3"}}, "with the env C that"),
    ({"workdir": "/x", "files": None}, "with the workdir that"),
    ({"files": {**FILES, "more.py": "x = 2"}, "engine": "state"}, "engine 'process', the job has 'state'"),
])  # fmt: skip
def test_files_and_dropped_variables_are_refused_too(
    kube: FakeKube, airflow: Airflow, change: dict[str, Any], words: str
) -> None:
    """The other job is one that was made as this one is."""
    given = {"files": FILES, "env": {"A": "1", "B": "2"}, "engine": "process"}
    submit(airflow, operator(**given))
    name = str(airflow.xcoms["job"]["name"])
    saved(kube, name, ref(1, name))
    platform = kube.get(CONFIG_MAP, job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP)
    config = {**json.loads(platform["data"]["platform.json"]), "env": {"NCCL_DEBUG": "INFO"}}
    kube.put({**platform, "data": {"platform.json": json.dumps(config)}})  # which is nobody's wish for the job
    if words:
        with pytest.raises(InvalidTrainingError, match=words):
            started(kube, Run(5), **{"start_from": name, **given, **change})
        assert len(kube.list(JOB, NAMESPACE)) == 1
    else:
        assert started(kube, Run(5), **{"start_from": name, **given}) == Origin(name, f"{name}-a1-g1")


def test_a_function_of_another_release_is_the_same_program(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the provider ships beside it, and calls it with, is not the user's."""
    submit(airflow, decorated())
    name = str(airflow.xcoms["job"]["name"])
    saved(kube, name, ref(1, name))
    files = taskflow.files

    def later(*given: Any) -> dict[str, str]:
        return {**files(*given), taskflow.RETURN: "# of a later release"}

    monkeypatch.setattr(taskflow, "files", later)
    op = decorated(start_from=name)
    run = Run(5)
    submit(run, op)
    assert branches.start_from(kube.get_job(NAMESPACE, str(run.xcoms["job"]["name"]))) == Origin(name, f"{name}-a1-g1")
    own = files("fit", "def fit(): ...", [], {})[taskflow.SCRIPT].partition("def fit(): ...")[2]
    assert own.strip().splitlines()[1:] == ["    __import__('training_return').run(fit, 'training_task.json')"]


def test_files_that_nobody_has_any_more_are_not_compared(kube: FakeKube, airflow: Airflow) -> None:
    submit(airflow, operator(files=FILES))
    name = str(airflow.xcoms["job"]["name"])
    saved(kube, name, ref(1, name))
    kube.delete(CONFIG_MAP, NAMESPACE, f"{name}-files")
    assert started(kube, Run(5), start_from=name, files={"train.py": ""}) == Origin(name, f"{name}-a1-g1")


@pytest.mark.parametrize("changed", ["kubernetes_conn_id", "namespace"])
@NEEDS_STORE
def test_what_the_task_came_to_elsewhere_is_not_given_up_in_silence(
    ending: FakeKube, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """A job begins with checkpoints of its own cluster and namespace only: the next try began at step 0."""
    there = FakeKube(*copy.deepcopy(ending.objects())) if changed == "kubernetes_conn_id" else ending
    ending.put(namespace("b"))
    queue = ending.get(LOCAL_QUEUE, NAMESPACE, "training")
    ending.put({**queue, "metadata": {"name": "training", "namespace": "b"}})
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (there if conn_id == "b" else ending, "default"))
    run = Run(5)
    name = begun(ending, run, 4)
    moved = operator(start_from="earlier run", **{changed: "b"})
    for _ in range(2):  # a refusal is no reason to forget it
        run.clear()
        with pytest.raises(InvalidTrainingError, match=rf"g4 \(step 400\) of job {name} in namespace {NAMESPACE}"):
            moved.execute(run.context())
        assert ending.get_job(NAMESPACE, name)["status"]["conditions"][0]["type"] == "Failed"
    run.clear()
    assert started(ending, run, start_from="earlier run") == Origin(name, f"{name}-a1-g4"), "back again"
    run.clear()
    submit(run, operator(**{changed: "b"}))
    assert run.store["singularity_job"]["conn_id" if changed == "kubernetes_conn_id" else "namespace"] == "b"


@NEEDS_STORE
def test_a_job_that_was_made_without_start_from_stays_for_a_try_that_has_it(
    ending: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """... also with another connection, where it was deleted with its checkpoints."""
    there = FakeKube(*copy.deepcopy(ending.objects()))
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (there if conn_id == "b" else ending, "default"))
    run = Run(5)
    submit(run, operator())
    name = str(run.xcoms["job"]["name"])
    ending.patch(JOB, NAMESPACE, name, {"spec": {"suspend": False}})
    saved(ending, name, ref(1, name))
    run.clear()
    with pytest.raises(InvalidTrainingError, match="former connection and namespace"):
        operator(start_from="earlier run", kubernetes_conn_id="b").execute(run.context())
    assert ending.get_job(NAMESPACE, name)["status"]["conditions"][0]["type"] == "Failed"


@NEEDS_STORE
def test_a_retry_in_another_namespace_takes_up_the_job_that_lives(ending: FakeKube) -> None:
    """It was deleted, with all that it had trained since its last checkpoint."""
    run = Run(5)
    name = begun(ending, run, 1)
    run.retry()
    deferred = submit(run, operator(start_from="earlier run", namespace="b"))
    assert (deferred.trigger.namespace, deferred.trigger.name) == (NAMESPACE, name)
    assert not (ending.get_job(NAMESPACE, name).get("status") or {}).get("conditions")


@pytest.mark.parametrize("policy", ["always", "on_success", "never"])
@pytest.mark.parametrize("start_from", ["earlier run", None])
@NEEDS_STORE
def test_deletion_keeps_what_a_retry_begins_with(ending: FakeKube, policy: Any, start_from: str | None) -> None:
    run = Run(5)
    op = operator(start_from=start_from, deletion_policy=policy)
    submit(run, op)
    name = str(run.xcoms["job"]["name"])
    saved(ending, name, ref(3, name))
    ending.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Failed", "status": "True"}]})
    reference = {key: ending.get_job(NAMESPACE, name)["metadata"][key] for key in ("namespace", "name", "uid")}
    event = {"status": "failed", "message": "exit code 3", "output_shown": True, "lineage": None, "job": reference}
    with pytest.raises(TrainingFailedError):
        op.execute_complete(run.context(), event)
    kept = start_from is not None or policy != "always"
    assert [job["metadata"]["name"] for job in ending.list(JOB, NAMESPACE)] == ([name] if kept else [])
    run.retry()
    begins = Origin(name, f"{name}-a1-g3") if start_from else None
    assert started(ending, run, start_from=start_from, deletion_policy=policy) == begins


class Mapped(Run):
    """One of the mapped task instances of that run."""

    def __init__(self, day: int, index: int) -> None:
        super().__init__(day)
        self.index = index

    def context(self) -> dict[str, Any]:
        found = super().context()
        found["ti"].map_index = self.index
        return found


def test_a_mapped_task_finds_its_own_in_a_list_that_has_changed(ending: FakeKube, said: list[str]) -> None:
    """It took whichever had its index in the run before: another rate's weights, in silence."""
    shared: dict[str, Any] = {"start_from": "earlier run", "engine": "state"}
    made = {}
    for index, rate in enumerate(("0.1", "0.2", "0.3")):
        run = Mapped(3, index)
        submit(run, operator(command=["python3", "train.py", rate], **shared))
        name = made[rate] = str(run.xcoms["job"]["name"])
        saved(ending, name, ref(1, name, engine="state"))
        ending.set_status(JOB, NAMESPACE, name, {"conditions": [{"type": "Complete", "status": "True"}]})
    for index, rate in enumerate(("0.1", "0.5", "0.2")):
        run = Mapped(4, index)
        began = started(ending, run, command=["python3", "train.py", rate], **shared)
        assert began == (Origin(made[rate], f"{made[rate]}-a1-g1") if rate in made else None)
    assert any("by which a mapped task knows its own" in line for line in said)
    new = ending.get_job(NAMESPACE, str(run.xcoms["job"]["name"]))
    claim = Claim.of_job(new)
    assert claim is not None
    assert [job["metadata"]["name"] for job in start_point.older(ending, claim, new)] == [made["0.2"]]
