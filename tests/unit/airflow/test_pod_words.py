"""Parameters of KubernetesPodOperator on our operator: the same pod comes of them, or a sentence."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.sdk import DAG
from kubernetes import client as k8s
from test_train_operator import NAMESPACE, Airflow, airflow, job_of, kube, operator, submit  # noqa: F401 (fixtures)

from airflow_provider import pod_words
from airflow_provider.exceptions import InvalidTrainingError
from airflow_provider.operators import SingularityTrainOperator
from kueue_integration.kube.fake import FakeKube

PAGE = Path(__file__).parents[3] / "docs/start/moving.md"
QUEUE = "kueue.x-k8s.io/queue-name"
LISTS = ("env", "envFrom", "volumeMounts", "ports")
MODELS: dict[str, Any] = {
    "image": "team/train:1",
    "cmds": ["python3"],
    "arguments": ["train.py", "--lr", "0.1"],
    "env_vars": [
        k8s.V1EnvVar(name="A", value="1"),
        k8s.V1EnvVar(name="P", value_from=k8s.V1EnvVarSource(
            field_ref=k8s.V1ObjectFieldSelector(field_path="status.podIP"))),
    ],
    "env_from": [k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name="wandb"))],
    "configmaps": ["settings"],
    "secrets": [Secret("env", "TOKEN", "hub", "token"), Secret("env", None, "all"), Secret("volume", "/keys", "keys")],
    "volumes": [k8s.V1Volume(name="data", persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource("data"))],
    "volume_mounts": [k8s.V1VolumeMount(name="data", mount_path="/data", read_only=True)],
    "service_account_name": "trainer",
    "image_pull_secrets": [k8s.V1LocalObjectReference("registry")],
    "image_pull_policy": "Always",
    "container_resources": k8s.V1ResourceRequirements(requests={"cpu": "1"}, limits={"memory": "2Gi"}),
    "affinity": k8s.V1Affinity(node_affinity=k8s.V1NodeAffinity()),
    "node_selector": {"disk": "fast"},
    "tolerations": [k8s.V1Toleration(key="spot", operator="Exists")],
    "security_context": k8s.V1PodSecurityContext(run_as_user=1000),
    "host_aliases": [k8s.V1HostAlias(ip="10.0.0.1", hostnames=["db"])],
    "dnspolicy": "ClusterFirst",
    "schedulername": "default-scheduler",
    "runtime_class_name": "nvidia",
    "priority_class_name": "high",
    "ports": [k8s.V1ContainerPort(container_port=8080)],
    "init_containers": [k8s.V1Container(name="warm", image="busybox:1", command=["true"])],
    "termination_message_policy": "FallbackToLogsOnError",
    "termination_grace_period": 45,
    "labels": {"team": "vision"},
    "annotations": {"note": "x"},
}  # fmt: skip
"""What people give to KubernetesPodOperator."""


def pod_of(kube: FakeKube, airflow: Airflow, **words: Any) -> dict[str, Any]:  # noqa: F811
    submit(airflow, operator(command=None, **words))
    template: dict[str, Any] = job_of(kube)["spec"]["template"]
    return template


def needs_dry_run() -> None:
    """What is compared is asked of the pod operator without a cluster."""
    if "dry_run" not in inspect.signature(KubernetesPodOperator.build_pod_request_obj).parameters:
        pytest.skip("the pod operator of this provider asks a cluster")


def theirs(**words: Any) -> dict[str, Any]:
    needs_dry_run()
    made = KubernetesPodOperator(task_id="train", **words).build_pod_request_obj(dry_run=True)
    plain: dict[str, Any] = k8s.ApiClient().sanitize_for_serialization(made)
    return plain


def train(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] in ("train", "base"))


def unnamed(part: object) -> str:
    """Without the names that are made, and without an order of keys."""
    return re.sub(r"secretvol[-0-9a-f]+", "secretvol", json.dumps(part, sort_keys=True))


def same(ours: dict[str, Any], kpo: dict[str, Any]) -> None:
    """Whatever KubernetesPodOperator's pod has is in ours."""
    for field, value in kpo["spec"].items():
        if field in ("containers", "restartPolicy") or not value:
            continue
        if field in ("volumes", "initContainers"):
            assert all(unnamed(item) in unnamed(ours["spec"][field]) for item in value), field
        elif field == "securityContext":
            assert "1000" in str(ours["spec"])
        else:
            assert ours["spec"][field] == value, field
    mine, their = train(ours), train(kpo)
    for field in LISTS:
        last = {str(item.get("name")): item for item in their.get(field, ())} if field == "env" else {}
        for item in last.values() or their.get(field, ()):
            assert unnamed(item) in unnamed(mine[field]), field
    for field in ("image", "imagePullPolicy", "resources", "terminationMessagePolicy"):
        if their.get(field, "File") != "File":
            assert mine[field] == their[field], field
    assert ours["metadata"]["labels"].items() >= {
        k: v for k, v in kpo["metadata"]["labels"].items() if k not in ("airflow_version", QUEUE)  # of the Job here
    }.items()


def program(pod: dict[str, Any]) -> Any:
    return json.loads(next(e["value"] for e in train(pod)["env"] if e["name"] == "SINGULARITY_COMMAND"))


def test_the_pod_is_that_of_the_pod_operator(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    ours = pod_of(kube, airflow, **MODELS)
    same(ours, theirs(**MODELS))
    assert program(ours) == ["python3", "train.py", "--lr", "0.1"]
    assert ours["metadata"]["annotations"]["note"] == "x"


TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"from": "template", "team": "base"}},
    "spec": {
        "restartPolicy": "Never",
        "serviceAccountName": "templated",
        "nodeSelector": {"zone": "a"},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [
            {
                "name": "main", "image": "template:1", "command": ["python3"], "args": ["old.py"],
                "env": [{"name": "FROM", "value": "template"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "envFrom": [{"configMapRef": {"name": "base"}}],
            }
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("how", ["dict", "full", "file"])
def test_a_template_is_below_what_the_parameters_say(
    kube: FakeKube, airflow: Airflow, tmp_path: Path, how: str  # noqa: F811
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(str(TEMPLATE))  # of Python's, which is YAML too
    full = k8s.ApiClient()._ApiClient__deserialize(TEMPLATE, "V1Pod") if how == "full" else None
    given = {"dict": {"pod_template_dict": TEMPLATE}, "full": {"full_pod_spec": full}, "file": {
        "pod_template_file": str(path)}}[how]  # fmt: skip
    over = {
        "image": "mine:1", "labels": {"team": "vision"}, "service_account_name": "trainer",
        "env_from": [k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name="wandb"))],
        "env_vars": {"FROM": "parameter"}, "node_selector": {"zone": "b"},
    }  # fmt: skip
    ours = pod_of(kube, airflow, **given, **over)
    kpo = theirs(**given, **over)
    same(ours, kpo)
    assert program(ours) == ["python3", "old.py"] and ours["spec"]["serviceAccountName"] == "trainer"
    assert train(ours)["envFrom"] == train(kpo)["envFrom"]


def test_numbers_and_booleans_become_text(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    submit(airflow, operator(command=["x", 3, 0.5], env={"A": 1, "B": True, "C": 0.1}, labels={"n": 12}))
    template = job_of(kube)["spec"]["template"]
    env = {e["name"]: e.get("value") for e in train(template)["env"]}
    assert (env["A"], env["B"], env["C"], template["metadata"]["labels"]["n"]) == ("1", "true", "0.1", "12")
    assert program(template) == ["x", "3", "0.5"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"arguments": ["train.py"]}, "arguments = .* name the program in cmds"),
        ({"cmds": "python3 train.py"}, "cmds = 'python3 train.py': must be a list of words"),
        ({"cmds": ["x"], "script": "train.py"}, "cmds = .* give either command, script, or cmds"),
        ({"cmds": ["x"], "image_pull_secrets": 3}, "image_pull_secrets = 3: must be a list"),
        ({"cmds": ["x"], "hostnetwork": True}, "hostnetwork = True: ranks of different pods find each other"),
        ({"cmds": ["x"], "in_cluster": True}, "in_cluster = True: set it in the connection"),
        ({"cmds": ["x"], "cluster_context": "b"}, "cluster_context = 'b': set it in the connection"),
        ({"cmds": ["x"], "active_deadline_seconds": 9}, "active_deadline_seconds = 9: .*execution_timeout"),
        ({"cmds": ["x"], "backoff_limit": 3}, "backoff_limit = 3: set infrastructure_retries instead"),
        ({"cmds": ["x"], "on_finish_action": "keep"}, "on_finish_action = 'keep': must be one of delete_pod"),
        ({"cmds": ["x"], "parallelism": 2, "completions": 4}, "completions = 4: all pods of a training run together"),
        ({"cmds": ["x"], "pod_template_dict": "no"}, "pod_template_dict = 'no': must be a Pod"),
        ({"cmds": ["x"], "pod_template_dict": {"spec": 3}}, "pod_template_dict: is not a Pod that can be merged"),
        ({"cmds": ["x"], "service_account_name": "a", "pod_override": "{{ p }}"}, "pod_override = '{{ p }}'"),
    ],
)
def test_what_cannot_be_is_refused_when_the_dag_is_parsed(words: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        operator(command=None, **words)


def test_what_the_pod_may_not_have_is_refused_by_its_field() -> None:
    context = k8s.V1SecurityContext(privileged=True)
    with pytest.raises(InvalidTrainingError, match=r"securityContext\.privileged = True: cannot be set: CRIU needs"):
        operator(container_security_context=context)


def test_words_of_other_operators_that_change_nothing_are_told(
    kube: FakeKube, airflow: Airflow, said: list[str]  # noqa: F811
) -> None:
    op = operator(startup_timeout_seconds=600, poll_interval=5, on_finish_action="delete_succeeded_pod", parallelism=2)
    submit(airflow, op)
    assert said[1] == "Without effect here: poll_interval, startup_timeout_seconds"
    assert (op.deletion_policy, op.workers) == ("on_success", 2)


def test_default_args_and_mapped_tasks_know_the_words() -> None:
    with DAG("dag", schedule=None, default_args={"service_account_name": "trainer"}) as dag:
        SingularityTrainOperator(task_id="one", queue_name="q", command=["x"])
        SingularityTrainOperator.partial(task_id="many", queue_name="q", command=["x"]).expand(
            env_vars=[{"A": "1"}, {"A": "2"}]
        )
    assert dag.get_task("one").pod_override == {"spec": {"serviceAccountName": "trainer"}}


def test_every_word_of_the_other_operators_is_known() -> None:
    import inspect

    def names(cls: type) -> set[str]:
        return {name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "args", "kwargs")}

    ours = set(inspect.signature(SingularityTrainOperator.__init__).parameters) | set(pod_words.WORDS)
    later = {
        "is_delete_operator_pod", "do_xcom_push",  # long deprecated; every operator of Airflow's has it
    }  # fmt: skip
    assert names(KubernetesPodOperator) | names(KubernetesJobOperator) <= ours | later


# --- the page ---------------------------------------------------------------------------------------------------------
def test_the_page_names_every_word() -> None:
    text = PAGE.read_text()
    assert [name for name in pod_words.WORDS if f"`{name}`" not in text] == []


def dags() -> list[tuple[str, str]]:
    """Pairs of blocks of the page: before, and after."""
    blocks = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    return list(zip(blocks[::2], blocks[1::2], strict=True))


@pytest.mark.parametrize("pair", dags(), ids=["pod", "kueue", "job"])
def test_the_dags_of_the_page_run(
    kube: FakeKube, airflow: Airflow, pair: tuple[str, str]  # noqa: F811
) -> None:
    """Before as after: the same program, image and pod, by Airflow's own operator and by ours."""
    scopes = []
    for code in pair:
        scope: dict[str, Any] = {}
        with DAG("dag", schedule=None):
            exec(compile(code, str(PAGE), "exec"), scope)
        scopes.append(scope)
    before, after = (scope["train"] for scope in scopes)
    assert isinstance(before, KubernetesPodOperator) and isinstance(after, SingularityTrainOperator)
    after.namespace = NAMESPACE
    submit(airflow, after)
    ours = job_of(kube)["spec"]["template"]
    needs_dry_run()
    kpo = k8s.ApiClient().sanitize_for_serialization(before.build_pod_request_obj(dry_run=True))
    same(ours, kpo)
    first = train(kpo)
    assert program(ours) == [*(first.get("command") or ()), *(first.get("args") or ())]
