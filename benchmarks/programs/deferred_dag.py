"""Dag file of the triggerer's figures: mapped tasks of our operator, of Airflow's own, and of nobody. Read by Airflow.

`deferred.json` beside it says how many, and where. The tasks are put into the state `deferred` by
`benchmarks.deferred`; what resumes them is Airflow itself.
"""

from __future__ import annotations

import json
from pathlib import Path

from airflow.providers.cncf.kubernetes.operators.kueue import KubernetesStartKueueJobOperator
from airflow.sdk import DAG

from airflow_provider.operators import SingularityTrainOperator

TOLD = json.loads((Path(__file__).parent / "deferred.json").read_text())

for dag_id in ("ours", "nobody"):
    with DAG(dag_id, schedule=None, catchup=False) as dag:
        SingularityTrainOperator.partial(task_id="train", queue_name=TOLD["queue"], command=["true"]).expand(
            name=TOLD["names"]
        )
    globals()[dag_id] = dag

with DAG("theirs", schedule=None, catchup=False):
    KubernetesStartKueueJobOperator.partial(
        task_id="train",
        queue_name=TOLD["queue"],
        image="none",
        get_logs=False,
        deferrable=True,
        wait_until_job_complete=True,
    ).expand(name=TOLD["names"])
