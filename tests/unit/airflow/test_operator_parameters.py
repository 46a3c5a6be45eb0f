"""What the operator refuses when the Dag is parsed, its budgets, links and manifest."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from test_train_operator import (  # noqa: F401 (fixtures)
    NAMESPACE,
    Airflow,
    airflow,
    decorated,
    event_for,
    job_of,
    kube,
    operator,
    submit,
)

from airflow_provider import links
from airflow_provider.compat import AirflowFailException, AirflowSkipException
from airflow_provider.exceptions import (
    InvalidTrainingError,
    TrainingFailedError,
    TrainingFailedForGoodError,
    TrainingInfrastructureError,
    TrainingPreemptedError,
)
from kueue_integration.errors import SpecError
from kueue_integration.jobs.phase import OUT_OF_RETRIES
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB

POLICY = "Container train for pod team-a/train-0-x failed with exit code {} matching FailJob rule at index 2"


# --- parse time -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workers": 0}, "workers"),
        ({"queue_name": ""}, "queue_name"),
        ({"pod_override": {"spec": {"hostPID": True}}}, "pod_override.spec.hostPID"),
        ({"hold": "perhaps"}, "hold"),
        ({"engine": "magic"}, "engine"),
        ({"infrastructure_retries": -1}, "infrastructure_retries"),
        ({"env": "A=b"}, "env"),
        ({"labels": {"singularity.dev/x": "y"}}, "labels['singularity.dev/x']"),
        ({"image": "{{ var.value.image }}", "workers": 0}, "workers"),
        ({"topology": {"required": "a rack"}}, "topology['required']"),
        ({"topology": "{{ params.t }}", "tolerations": [{"effect": "No"}]}, "tolerations[0].effect"),
        ({"node_selector": {"a b": "c"}}, "node_selector['a b']"),
        ({"resource_claims": [{"name": "gpu"}]}, "resource_claims[0]"),
    ],
)
def test_what_is_known_is_checked_when_the_dag_is_parsed(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTrainingError) as caught:
        operator(**changes)
    assert f"\n  {field} = " in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": "{{ params.n }}", "min_workers": 4},
        {"volumes": "{{ params.volumes }}", "volume_mounts": [{"name": "data", "mountPath": "/data"}]},
        {"env": {"A": "{{ ds }}"}, "hold": "{{ params.hold }}", "infrastructure_retries": "{{ params.r }}"},
        {"store": "{{ params.store }}"},
        {"pod_override": "{{ params.pod }}", "tolerations": [{"key": "spot", "operator": "Exists"}]},
        {"topology": {"required": "{{ params.level }}"}, "resource_claims": "{{ params.claims }}"},
    ],
)
def test_what_is_a_template_is_left_to_the_submit(changes: dict[str, Any]) -> None:
    operator(**changes)


def test_another_tasks_value_is_left_to_the_submit() -> None:
    from airflow.sdk import DAG, task

    with DAG("dag", schedule=None):

        @task
        def size() -> int:
            return 0

        operator(workers=size(), min_workers=7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_preemptions": -1}, "max_preemptions = -1: must be a whole number, 0 or more, or None for no limit"),
        ({"skip_on_exit_code": 0}, "exit codes of failures are whole numbers from 1 to 255"),
        ({"fail_on_exit_codes": [3], "skip_on_exit_code": 3}, "exit code 3 is in skip_on_exit_code already"),
        ({"logging_interval": 0.1}, "logging_interval = 0.1: must be a number of seconds, 1 or more"),
        ({"log_max_lines": 0}, "get_logs=False for none"),
        ({"get_logs": "no"}, "get_logs = 'no': must be True or False"),
        ({"script_args": "--steps 3"}, r"must be a list of words, as in \['--steps', '3'\]"),
        ({"api_outage_tolerance": 3600}, "api_outage_tolerance = 3600: must be a datetime.timedelta"),
        ({"skip_on_exit_code": "{{ params.code }}"}, "cannot be a template; give the exit codes themselves"),
    ],
)
def test_what_is_the_operators_own_is_checked_too(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operator(**changes)


# --- templates --------------------------------------------------------------------------------------------------------
RENDERED: dict[str, tuple[Any, Any]] = {
    "queue_name": ("{{ queue }}", "training"),
    "command": (["python3", "{{ script }}"], ("python3", "fit.py")),
    "name": ("fit-{{ queue }}", "fit-training"),
    "namespace": ("{{ namespace }}", NAMESPACE),
    "workers": ("{{ four }}", 4),
    "min_workers": ("{{ two }}", 2),
    "world_size": ("{{ four }}", 4),
    "image": ("repo/{{ queue }}:1", "repo/training:1"),
    "priority_class": ("{{ low }}", "low"),
    "pod_resources": ({"cpu": "{{ two }}"}, {"cpu": "2"}),
    "env": ({"A": "{{ two }}"}, {"A": "2"}),
    "files": ({"a.txt": "{{ script }}"}, {"a.txt": "fit.py"}),
    "workdir": ("/{{ low }}", "/low"),
    "store": ("file:///shared/{{ low }}", "file:///shared/low"),
    "checkpoint_budget_s": ("{{ two }}0", 20),
    "grace_period_s": ("{{ four }}0", 40),
    "checkpoint_every": ("{{ two }}00 steps", "200 steps"),
    "volumes": ([{"name": "{{ low }}", "emptyDir": {}}], ({"name": "low", "emptyDir": {}},)),
    "volume_mounts": ('[{"name": "low", "mountPath": "/{{ two }}"}]', ({"name": "low", "mountPath": "/2"},)),
    "labels": ({"team": "{{ low }}"}, "low"),
    "annotations": ('{"note": "{{ low }}"}', "low"),
    "checkpoint_disk": ("{{ two }}0Gi", "20Gi"),
    "checkpoint_memory": ("{{ two }}Gi", "2Gi"),
    "inputs": (
        {"data": "file:///shared/checkpoints/outputs/team/data-{{ two }}"},
        {"data": "file:///shared/checkpoints/outputs/team/data-2"},
    ),
    "outputs": ("file:///shared/checkpoints/outputs/team/run-{{ two }}", "file:///shared/checkpoints/outputs/team/run-2"),
    "engine": ("{{ auto }}", "auto"),
    "privileges": ("{{ auto }}", "auto"),
    "reproducible_layout": ("{{ yes }}", True),
    "hold": ("{{ no }}", False),
    "pod_override": ({"spec": {"schedulerName": "{{ low }}"}}, {"spec": {"schedulerName": "low"}}),
    "infrastructure_retries": ("{{ two }}", 2),
    "resume_on_exit_codes": ("[{{ four }}]", (4,)),
    "topology": ({"required": "{{ low }}"}, {"required": "low"}),
    "node_selector": ('{"disk": "{{ low }}"}', {"disk": "low"}),
    "tolerations": ([{"key": "{{ low }}", "operator": "Exists"}], ({"key": "low", "operator": "Exists"},)),
    "resource_claims": ([{"name": "a", "template": "{{ low }}"}], ({"name": "a", "template": "low"},)),
}
"""Parameter -> its template, and what it has to be in the TrainSpec; for labels and annotations: their one value."""


def rendered(parameter: str, template: Any) -> Any:
    """The TrainSpec field that comes of it, after Airflow's own renderer."""
    from airflow_provider import submission
    from airflow_provider.identity import Claim, TaskKey, Try

    values = {
        "queue": "training", "script": "fit.py", "namespace": NAMESPACE, "four": 4, "two": "2", "low": "low",
        "auto": "auto", "no": "false", "yes": "true",
    }  # fmt: skip
    beside: dict[str, Any] = {"volumes": RENDERED["volumes"][0]} if parameter == "volume_mounts" else {}
    beside |= {"render_files": True} if parameter == "files" else {}
    op = operator(**beside, **{parameter: template})
    op.render_template_fields(values)
    claim = Claim(TaskKey("d", "r", "t"), 0, Try(1, 1, 0), op.namespace, op.name or op.task_id)
    spec = submission.build_spec(op, claim, None)
    field = {"queue_name": "queue", "pod_resources": "resources"}.get(parameter, parameter)
    return getattr(spec, field)


@pytest.mark.parametrize("parameter", sorted(RENDERED))
def test_every_field_of_the_spec_is_rendered(parameter: str) -> None:
    template, wanted = RENDERED[parameter]
    found = rendered(parameter, template)
    if parameter in ("labels", "annotations"):
        assert wanted in found.values()
    else:
        assert found == wanted


def test_no_field_of_the_spec_is_left_out_of_the_table() -> None:
    import dataclasses

    from kueue_integration.spec.train_spec import TrainSpec

    operators = {"queue": "queue_name", "resources": "pod_resources"}
    fields = {operators.get(f.name, f.name) for f in dataclasses.fields(TrainSpec)}
    assert fields - {"identity", "ttl_s"} == set(RENDERED)  # `identity` is the provider's own, `ttl` is no text


def test_script_and_its_arguments_are_rendered(tmp_path: Any) -> None:
    from airflow_provider import submission
    from airflow_provider.identity import Claim, TaskKey, Try

    (tmp_path / "fit.py").write_text("print('{{ untouched }}')")
    claim = Claim(TaskKey("d", "r", "t"), 0, Try(1, 1, 0), NAMESPACE, "t")
    for given in (["--steps", "{{ n }}"], '["--steps", "{{ n }}"]'):
        op = operator(command=None, script=str(tmp_path / "{{ name }}.py"), script_args=given)
        op.render_template_fields({"name": "fit", "n": 3})
        spec = submission.build_spec(op, claim, None)
        assert spec.command == ("python3", "fit.py", "--steps", "3")
        assert spec.files == {"fit.py": "print('{{ untouched }}')"}
    op.script_args = "--steps 3"
    with pytest.raises(SpecError, match="script_args = '--steps 3': must be a list of words"):
        submission.build_spec(op, claim, None)


# --- pod_override -----------------------------------------------------------------------------------------------------
def test_a_v1pod_is_merged(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    from kubernetes.client import V1Container, V1ObjectMeta, V1Pod, V1PodSpec, V1Toleration

    pod = V1Pod(
        metadata=V1ObjectMeta(labels={"team": "vision"}),
        spec=V1PodSpec(
            service_account_name="trainer",
            containers=[V1Container(name="base")],
            tolerations=[V1Toleration(key="spot")],
        ),
    )
    op = operator(pod_override=pod)
    json.dumps(op.pod_override)  # a rendered field is stored as JSON
    submit(airflow, op)
    template = job_of(kube)["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "vision"
    assert template["spec"]["serviceAccountName"] == "trainer"
    assert template["spec"]["tolerations"] == [{"key": "spot"}]
    assert [c["name"] for c in template["spec"]["containers"]] == ["train"]


def test_structures_may_be_rendered_to_json_text(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    op = operator()
    op.labels, op.env, op.pod_override = '{"a": "b"}', '{"A": "1"}', '{"spec": {"nodeSelector": {"d": "f"}}}'
    submit(airflow, op)
    job = job_of(kube)
    assert job["metadata"]["labels"]["a"] == "b"
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"d": "f"}
    op.labels = "a=b"
    airflow.clear()
    with pytest.raises(InvalidTrainingError, match=r"labels = 'a=b': must be a mapping, or the JSON text of one"):
        op.execute(airflow.context())


# --- budgets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "reason", "error", "final"),
    [
        (3, "PodFailurePolicy", TrainingFailedError, False),
        (4, "PodFailurePolicy", AirflowSkipException, True),
        (5, "PodFailurePolicy", AirflowSkipException, True),
        (6, "PodFailurePolicy", TrainingFailedForGoodError, True),
        (None, OUT_OF_RETRIES, TrainingInfrastructureError, False),
        (None, "BackoffLimitExceeded", TrainingInfrastructureError, False),
    ],
)
def test_why_a_job_failed_decides_what_airflow_does(
    kube: FakeKube, airflow: Airflow, code: int | None, reason: str, error: type[Exception], final: bool  # noqa: F811
) -> None:
    op = operator(skip_on_exit_code=[4, 5], fail_on_exit_codes=(6,), infrastructure_retries=2)
    submit(airflow, op)
    event = event_for(kube, "failed", POLICY.format(code) if code else "its budget is used up")
    event["lineage"]["reason"] = reason
    with pytest.raises(error) as caught:
        op.execute_complete(airflow.context(), event)
    assert type(caught.value) is error
    assert isinstance(caught.value, AirflowFailException | AirflowSkipException) is final


def test_too_many_preemptions_delete_the_job_and_are_not_tried_again(
    kube: FakeKube, airflow: Airflow  # noqa: F811
) -> None:
    op = operator(max_preemptions=1)
    assert submit(airflow, op).trigger.max_preemptions == 1
    with pytest.raises(TrainingPreemptedError, match="was preempted 2 times") as caught:
        op.execute_complete(airflow.context(), event_for(kube, "preempted", "was preempted 2 times"))
    assert isinstance(caught.value, AirflowFailException)
    assert kube.list(JOB, NAMESPACE) == []


# --- what the UI shows ------------------------------------------------------------------------------------------------
def test_the_manifest_is_a_rendered_field_that_survives_the_deferral(
    kube: FakeKube, airflow: Airflow  # noqa: F811
) -> None:
    op = operator(files={"data.txt": "secret words"}, pod_resources={"cpu": "1"}, env={"A": "b"})
    submit(airflow, op)
    assert op.manifest is not None
    job, _service, config = yaml.safe_load_all(op.manifest)
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert config["data"] == {"file-0000": "<12 bytes>"}
    assert "secret words" not in op.manifest
    assert len(op.manifest) < 4096
    assert "podFailurePolicy" not in job["spec"], "the same for every job"


def test_the_manifest_has_no_secret_that_airflow_masks(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    """Every viewer of the task may read it, over Airflow's REST API too."""
    from airflow_versions import mask_secret

    mask_secret("hunter2-of-wandb")
    op = operator(env={"WANDB_API_KEY": "hunter2-of-wandb"}, command=["x", "--token", "hunter2-of-wandb"])
    submit(airflow, op)
    assert "hunter2-of-wandb" not in json.dumps(job_of(kube)), "it is in the Job's Secret (test_masked_values)"
    kept = json.dumps(airflow.store)
    assert "hunter2-of-wandb" not in kept and "hunter2-of-wandb" not in str(op.manifest)
    assert "WANDB_API_KEY" in kept


def test_files_are_shipped_as_they_are() -> None:
    """`{{` and `{#` stand in Python's own sources, too."""
    source = "print(f'{{x}}')\n# {# no comment of Jinja's\n"
    op = operator(files={"a.py": source})
    op.render_template_fields({"x": 1})
    assert op.files == {"a.py": source}
    op = operator(files={"a.txt": "{{ x }}"}, render_files=True)
    op.render_template_fields({"x": 1})
    assert op.files == {"a.txt": "1"}


@pytest.mark.parametrize("files", ["{{ params.files }}", "xcom"])
def test_files_that_are_rendered_have_to_say_so(files: Any) -> None:
    from airflow.sdk import DAG, task

    with DAG("dag", schedule=None):

        @task
        def text() -> str:
            return ""

        with pytest.raises(ValueError, match="give render_files=True"):
            operator(files={"a.txt": text()} if files == "xcom" else files)


def test_exit_codes_of_the_jobs_own_are_in_the_manifest(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    op = operator(resume_on_exit_codes=[75])
    submit(airflow, op)
    job = next(yaml.safe_load_all(str(op.manifest)))
    assert job["spec"]["podFailurePolicy"]["rules"][-1]["onExitCodes"]["values"] == [75, 137]
    later = operator()
    later.execute_complete(airflow.context(), event_for(kube, "success"))
    assert later.manifest == op.manifest
    assert "manifest" in later.template_fields and later.overwrite_rtif_after_execution


def test_links(kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    urls = {"job_url": "https://d/#/job/{namespace}/{name}", "workload_url": "https://d/{workload}", "logs_url": 3}
    extra = {"conn_type": "kubernetes", "extra": {links.EXTRA: urls}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(extra))
    op = operator()
    key = SimpleNamespace(dag_id="dag", run_id="manual__2026-01-01T00:00:00+00:00", task_id="group.train", map_index=3)
    shown = {link.name: link for link in op.operator_extra_links}
    training = shown["Training"].get_link(op, ti_key=key)
    run = "manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    assert training.endswith(f"/dags/dag/runs/{run}/tasks/group.train/mapped/3/plugin/training")
    assert shown["Kubernetes Job"].get_link(op, ti_key=key) == ""
    submit(airflow, op)
    name = job_of(kube)["metadata"]["name"]
    assert shown["Kubernetes Job"].get_link(op, ti_key=key) == f"https://d/#/job/{NAMESPACE}/{name}"
    assert shown["Kueue Workload"].get_link(op, ti_key=key) == ""  # Kueue has made none yet
    event = event_for(kube, "success")
    event["lineage"]["workload"] = "job-train"
    op.execute_complete(airflow.context(), event)
    assert shown["Kueue Workload"].get_link(op, ti_key=key) == "https://d/job-train"
    assert shown["All logs"].get_link(op, ti_key=key) == ""
    assert shown["Outputs"].get_link(op, ti_key=key) == ""
    event["lineage"]["outputs"] = {"url": "s3://results/team/run 7"}
    op.execute_complete(airflow.context(), event)
    page = "https://s3.console.aws.amazon.com/s3/buckets/results?prefix=team%2Frun%207/"
    assert shown["Outputs"].get_link(op, ti_key=key) == page
    monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT")
    monkeypatch.setattr(links.BaseHook, "get_connection", classmethod(_none))
    assert shown["Kubernetes Job"].get_link(op, ti_key=key) == ""


def _none(cls: type, conn_id: str) -> None:
    raise LookupError(conn_id)


def test_the_decorator_takes_them_all() -> None:
    op = decorated(pod_override={"spec": {"serviceAccountName": "s"}}, max_preemptions=2, get_logs=False)
    assert op.pod_override == {"spec": {"serviceAccountName": "s"}}
    assert {"pod_override", "manifest"} <= set(op.template_fields)
