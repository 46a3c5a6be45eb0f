"""Dag file of the comparison: one Dag with one task for each scenario of one contender, whose name is the file's.

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

from benchmarks.anchor.scenarios import CONTENDERS, POD_CPU, SCENARIOS, TASK, dag_id, operator_args

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


def theirs(where: dict[str, Any], **args: Any) -> Any:
    """The training as their operator takes it: it knows nothing of the platform, so it is told all."""
    from airflow.providers.cncf.kubernetes.operators.kueue import KubernetesStartKueueJobOperator
    from kubernetes.client import models as k8s

    return KubernetesStartKueueJobOperator(
        name=TASK,
        image=GROUND["image"],
        image_pull_policy="IfNotPresent",
        cmds=where["command"][:1],
        arguments=where["command"][1:],
        labels={"kueue.x-k8s.io/priority-class": where["priority"]},
        container_resources=k8s.V1ResourceRequirements(requests={"cpu": POD_CPU}),
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


def ours(where: dict[str, Any], **args: Any) -> Any:
    from airflow_provider.operators import SingularityTrainOperator

    return SingularityTrainOperator(
        command=where["command"],
        priority_class=where["priority"],
        pod_resources={"cpu": POD_CPU},
        queue_name=where["queue"],
        namespace=where["namespace"],
        **args,
    )


contender = next(each for each in CONTENDERS if each.name == Path(__file__).stem)
for scenario in SCENARIOS:
    made_id = dag_id(scenario, contender)
    place = {
        "queue": GROUND["queue"],
        "namespace": contender.name,
        "priority": "low",
        "command": [*GROUND["command"], "--output", f"{GROUND['output']}/{made_id}/{{{{ run_id }}}}"],
    }
    with DAG(made_id, schedule=None, catchup=False) as dag:
        (ours if contender.ours else theirs)(
            place,
            task_id=TASK,
            kubernetes_conn_id=contender.connection,
            retry_delay=timedelta(seconds=1),
            pre_execute=killed_after_submission if scenario.event == "kill" else None,
            **operator_args(scenario, contender),
        )
    globals()[made_id] = dag
