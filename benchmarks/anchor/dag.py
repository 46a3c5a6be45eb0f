"""Dag file of the comparison: one Dag for each scenario that a contender plays, whose name is the file's.

Read by Airflow, not imported; every task process reads it again, so each file imports its own operator only.
`ground.json` beside it says where the training runs: image, volumes, mounts, environment, command, as plain data.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import urllib3
from airflow.sdk import DAG

from benchmarks.anchor.scenarios import CONTENDERS, SCENARIOS, SLOTS, TASK, Scenario, contenders, dag_id, operator_args

GROUND = json.loads((Path(__file__).parent / "ground.json").read_text())


def killed_after_submission(context: Any) -> None:
    """As `pre_execute`: kills the worker of the first try when the API server has answered that the Job is made."""
    if context["ti"].try_number > 1:
        return
    request = urllib3.PoolManager.request  # both operators talk to the API server through it

    def killing(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        response = request(self, method, url, *args, **kwargs)
        if method == "POST" and url.partition("?")[0].endswith("/jobs") and response.status < 300:
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    urllib3.PoolManager.request = killing  # type: ignore[method-assign]


def theirs(where: dict[str, Any], blind: bool, **args: Any) -> Any:
    """The training as their operator takes it: it knows nothing of the platform, so it gets all."""
    from airflow.providers.cncf.kubernetes.operators.kueue import KubernetesStartKueueJobOperator
    from kubernetes.client import models as k8s

    class Blind(KubernetesStartKueueJobOperator):  # type: ignore[misc]
        def get_pods(self, *_: Any, **__: Any) -> list[Any]:
            return [k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="unknown", namespace=where["namespace"]))]

    return (Blind if blind else KubernetesStartKueueJobOperator)(
        name=TASK,
        image=GROUND["image"],
        image_pull_policy="IfNotPresent",
        cmds=where["command"][:1],
        arguments=where["command"][1:],
        labels={"kueue.x-k8s.io/priority-class": where["priority"]},
        container_resources=k8s.V1ResourceRequirements(requests={"cpu": where["cpu"]}),
        env_vars=GROUND["env"],
        volumes=[
            k8s.V1Volume(name=v["name"], host_path=k8s.V1HostPathVolumeSource(**v["hostPath"]))
            for v in GROUND["volumes"]
        ],
        volume_mounts=[
            k8s.V1VolumeMount(name=m["name"], mount_path=m["mountPath"], read_only=m.get("readOnly"))
            for m in GROUND["volume_mounts"]
        ],
        termination_grace_period=5,
        queue_name=where["queue"],
        namespace=where["namespace"],
        **args,
    )


def ours(where: dict[str, Any], blind: bool, **args: Any) -> Any:
    from airflow_provider.operators import SingularityTrainOperator

    return SingularityTrainOperator(
        command=where["command"],
        priority_class=where["priority"],
        pod_resources={"cpu": where["cpu"]},
        queue_name=where["queue"],
        namespace=where["namespace"],
        **args,
    )


contender = next(each for each in CONTENDERS if each.name == Path(__file__).stem)


def task(scenario: Scenario, task_id: str) -> Any:
    output = f"{GROUND['output']}/{dag_id(scenario, contender)}/{{{{ run_id }}}}"
    where = {
        "queue": GROUND["queue"],
        "namespace": contender.name,
        "priority": "low",
        "cpu": scenario.pod_cpu,
        "command": [
            *(*GROUND["command"], "--steps", str(scenario.steps)),
            *("--output", output, "--made-by", "try {{ ti.try_number }}"),
        ],
    }
    return (ours if contender.ours else theirs)(
        where,
        scenario.blind,
        task_id=task_id,
        kubernetes_conn_id=contender.connection,
        retry_delay=timedelta(seconds=1),
        trigger_rule="all_done",
        pre_execute=killed_after_submission if scenario.event == "kill" else None,
        **operator_args(scenario, contender),
    )


for each in SCENARIOS:
    if contender in contenders(each):
        with DAG(dag_id(each, contender), schedule=None, catchup=False, max_active_tasks=SLOTS) as dag:
            made = [task(each, task_id) for task_id in each.task_ids]
            for before, after in zip(made, made[each.chains :], strict=False) if each.chains else ():
                before >> after
        globals()[dag.dag_id] = dag
