"""Run inside an Airflow's environment: `python drawn_run.py DAG_ID RUN_ID`. Writes what a training task leaves in the
database when it was cleared once and its second job was preempted and runs: no cluster is needed to draw that."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

import db_rows
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider.identity import Claim, TaskKey, Try
from airflow_provider.lineage import document
from airflow_provider.memory import PAST_KEY, STORE_KEY
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs.status import summarise
from singularity_proxy.protocol.messages import to_json

NAMESPACE = "default"


def preempted(number: int, start: float) -> AttemptRecord:
    return AttemptRecord(
        attempt=number, reservation=f"r{number}", flavor="spot", pods=2, ranks=4, queued_at=start,
        admitted_at=start + 10, first_step=100 * number, first_step_at=start + 40, last_step=100 * number + 99,
        ended_by="Preempted", preempted_by="Job team-b/urgent", evicted_at=start + 100, barrier_at=start + 101,
        committed_at=start + 120, released_at=start + 121, checkpoint=f"c{number}", held=True,
    )  # fmt: skip


def running(number: int, start: float) -> AttemptRecord:
    fields = ("ended_by", "preempted_by", "evicted_at", "barrier_at", "committed_at", "released_at", "checkpoint")
    alive = dict.fromkeys(fields) | {"last_step": None, "flavor": "ondemand"}
    return dataclasses.replace(preempted(number, start), **alive)


def told(name: str, uid: str, attempts: list[AttemptRecord]) -> dict[str, Any]:
    """The document of such a job, with a loss curve, and more preemptions than its task wanted to hear of."""
    job = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "labels": {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "training"},
            "annotations": {job_names.ANN_HISTORY: to_json(attempts), job_names.ANN_WORLD_SIZE: "4"},
        },
        "spec": {"parallelism": 2, "suspend": False},
        "status": {},
    }
    found = document(summarise(job, None, ()), preemption_alert=0)
    return {**found, "curve": [[step, 3.0 / (1 + step / 50)] for step in range(0, 200, 10)]}


def main(dag_id: str, run_id: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    start = at.timestamp()
    first = told("train-1", "u1", [preempted(0, start)])
    second = told("train-2", "u2", [preempted(1, start + 300), running(2, start + 600)])
    claim = Claim(TaskKey(dag_id, run_id, "train"), 1, Try(2, 1, 1), NAMESPACE, "train-2", "u2")
    stored = {STORE_KEY: {**claim.to_dict(), "conn_id": "no_such_connection"}, PAST_KEY: [first]}
    task = {"dag_id": dag_id, "run_id": run_id, "task_id": "train", "map_index": -1}
    with create_session() as session:
        version = session.scalar(select(DagVersion.id).where(DagVersion.dag_id == dag_id))
        session.execute(
            DagRun.__table__.insert().values(
                id=1, dag_id=dag_id, run_id=run_id, run_type="manual", logical_date=at, queued_at=at, start_date=at,
                state="running", run_after=at, clear_number=1, created_dag_version_id=version,
            )
        )  # fmt: skip
        instance = db_rows.task_instance(
            session, **task, start_date=at, state="deferred", try_number=2, max_tries=1, dag_version_id=version,
            operator="SingularityTrainOperator", task_display_name="train",
        )  # fmt: skip
        db_rows.xcom_of(session, instance, **task, dag_run_id=1, key="lineage", value=second, timestamp=at)
        for key, kept in stored.items():
            db_rows.stored(session, **task, key=key, value=json.dumps(kept), updated_at=at)


main(*sys.argv[1:])
