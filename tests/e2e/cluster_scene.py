"""A made-up cluster of two teams for the page of the cluster: what Kueue, our controller and Airflow would leave there.

Run inside an Airflow's environment, `python cluster_scene.py DAG_ID...` writes a run of each Dag into its database and
prints the id of that Airflow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))  # it is run as a script, too

from overview_scene import cluster_queue, cohort, local_queue, planner_event, record, training, workload

from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord, Preemptor
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, Object
from kueue_integration.spec.platform_config import PlatformConfig, to_json
from singularity_proxy.protocol.messages import Gpus

TEAM_A = ("segmentation", "speech", "ranking", "translation", "search", "ocr")
TEAM_B = ("robot_arm", "grasping")
RUN = "scheduled__2026-11-20"
GPU, CPU = "nvidia.com/gpu", "cpu"
MIN, HOUR = 60.0, 3600.0
QUEUE_OF = {
    "segmentation": "vision", "speech": "language", "ranking": "language", "translation": "language",
    "search": "vision", "ocr": "vision", "robot_arm": "robotics", "grasping": "robotics",
}  # fmt: skip
CONN_ID = "kubernetes_default"
PRICES = {"a100": 3.0, "l4-spot": 0.7}
"""Of a pod, which has one GPU."""


def claim(dag_id: str, deployment: str) -> Claim:
    name = f"{dag_id.replace('_', '-')}-train"
    return Claim(TaskKey(dag_id, RUN, "train"), 0, Try(1, 0, 0), namespace(dag_id), name, f"uid-{name}", deployment)


def namespace(dag_id: str) -> str:
    return "team-b" if dag_id in TEAM_B else "team-a"


def quota(gpus: Mapping[str, int]) -> dict[tuple[str, str], str]:
    amounts = {(flavor, GPU): str(many) for flavor, many in gpus.items()}
    return amounts | {(flavor, CPU): str(12 * many) for flavor, many in gpus.items()}


def cluster(now: float, deployment: str) -> FakeKube:
    """The cluster as of `now`; jobs say that they are of tasks of the Airflow with this id."""
    kube = FakeKube(
        cohort("research"),
        cluster_queue("vision", quota({"a100": 16, "l4-spot": 8}), "research"),
        cluster_queue("language", quota({"a100": 8, "l4-spot": 8}), "research"),
        cluster_queue("robotics", quota({"a100": 8}), "research"),
        *(local_queue(name, name, space) for name in ("vision", "language") for space in ("team-a",)),
        local_queue("robotics", "robotics", "team-b"),
    )
    kube.paths[CONFIG_MAP.path(job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP)] = _platform()
    for obj in (*_running(now, deployment), *_waiting(now, deployment)):
        kube.put(obj)
    for queue, order in {"language": ["translation"], "vision": ["sweep", "search"], "robotics": ["grasping"]}.items():
        items = [
            {"metadata": {"name": f"job-{name}-train", "namespace": namespace(name)}, "localQueueName": queue,
             "positionInLocalQueue": place, "positionInClusterQueue": place}
            for place, name in enumerate(order)
        ]  # fmt: skip
        path = f"/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/{queue}/pendingworkloads?limit=1000"
        kube.paths[path] = {"items": items}
    return kube


def _attempt(number: int, start: float, hours: float | None, pods: int, flavor: str, **more: Any) -> AttemptRecord:
    """An attempt that was preempted after so many hours, or with None runs still."""
    first = 4000 * (number - 1)
    values: dict[str, Any] = {
        "pods": pods, "ranks": pods, "flavor": flavor, "price": PRICES[flavor],
        "queued_at": start - 9 * MIN, "admitted_at": start, "running_at": start + MIN, "first_step_at": start + 2 * MIN,
        "first_step": first, "restored_from": f"c{number - 1}" if number > 1 else None,
    }  # fmt: skip
    if hours is None:
        return record(number, **{**values, "gpus": Gpus(pods, 91.0 - 6 * number), **more})
    end = start + hours * HOUR
    values |= {
        "evicted_at": end, "barrier_at": end + 2, "committed_at": end + 40, "released_at": end + 55,
        "last_step": first + 3999, "checkpoint": f"c{number}", "ended_by": "Preempted",
    }  # fmt: skip
    return record(number, **{**values, **more})


def _platform() -> Object:
    """What the chart publishes for everybody, here with a tier."""
    found = PlatformConfig("agent", "https://controller", "ca", tiers={"production": 0.9})
    meta = {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"platform.json": to_json(found)}}


def _of(dag_id: str, deployment: str, history: list[AttemptRecord], step: int = 0, **more: Any) -> Object:
    own = claim(dag_id, deployment)
    notes = {ANN_TASK: json.dumps(own.to_dict()), job_names.ANN_WORLD_SIZE: "8"}
    if history:
        last = history[-1].attempt
        notes |= {job_names.ANN_ATTEMPT: str(last)}
        notes |= {job_names.ANN_PROGRESS: json.dumps({"attempt": last, "step": step, "at": 1.0})}
    made = training(own.name, history, queue=QUEUE_OF[dag_id], namespace=own.namespace, annotations=notes, **more)
    made["metadata"]["labels"][job_names.KUEUE_PRIORITY_LABEL] = "production"
    pods = history[-1].pods if history else 1
    return {**made, "spec": {**made["spec"], "parallelism": pods}, "status": {**made["status"], "ready": pods}}


def _holds(dag_id: str, gpus: int, flavor: str, since: float, priority: int = 100, **more: Any) -> Object:
    queue = QUEUE_OF[dag_id]
    held = {(flavor, GPU): str(gpus), (flavor, CPU): str(12 * gpus)}
    return workload(
        f"{dag_id.replace('_', '-')}-train", queue=queue, holds=(queue, held), pods=gpus, since=since,
        namespace=namespace(dag_id), priority=priority, **more,
    )  # fmt: skip


def _running(now: float, deployment: str) -> list[Object]:
    urgent = Preemptor("job-speech-train", "team-a", "Job", "speech-train", "language", 1000)
    foreign = Preemptor("job-robot-arm-train", "team-b", "Job", "robot-arm-train", "robotics", 1000)
    regrown = {"ended_by": "Regrown", "readmitted_for": "regrow", "note": "quota is free again: 4 -> 8 workers on a100"}
    segmentation = [
        _attempt(1, now - 9.2 * HOUR, 3.1, 8, "a100", preempted_by="job-robot-arm-train", preemptor=foreign),
        _attempt(2, now - 2.6 * HOUR, 1.9, 4, "a100", **regrown),
        _attempt(3, now - 0.6 * HOUR, None, 8, "a100"),
    ]
    ranking = [
        _attempt(1, now - 7 * HOUR, 4.4, 4, "a100", preempted_by="job-speech-train", preemptor=urgent, last_step=5100),
        _attempt(2, now - 2.2 * HOUR, None, 4, "l4-spot", evicted_at=now - 14, ended_by="Preempted",
                 preempted_by="job-speech-train", preemptor=urgent),
    ]  # fmt: skip
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "Preempted",
               "lastTransitionTime": server_time.to_whole(now - 14)}  # fmt: skip
    leaves = _holds("ranking", 4, "l4-spot", now - 2.2 * HOUR, 50)
    leaves["status"]["conditions"].append(evicted)
    fenced = _holds("ocr", 2, "l4-spot", now - 9)
    words = "waiting for the pods of the attempt before to end: ocr-train-0"
    check = {"name": job_names.ADMISSION_CHECK_NAME, "state": "Pending", "message": words}
    fenced["status"] |= {"conditions": fenced["status"]["conditions"][:1], "admissionChecks": [check]}
    ray = {("a100", GPU): "6", ("a100", CPU): "72"}
    return [
        _of("segmentation", deployment, segmentation, 11_240), _holds("segmentation", 8, "a100", now - 0.6 * HOUR),
        planner_event("segmentation-train", now - 0.7 * HOUR, "quota is free again: 4 -> 8 workers on a100",
                      action="readmit", policy="regrow", namespace="team-a"),
        planner_event("speech-train", now - 4 * MIN, "node a100-7 is cordoned", action="migrate", policy="cordon",
                      reason=job_names.EVENT_PLANNER_PROPOSAL, namespace="team-a"),
        _of("speech", deployment, [_attempt(1, now - 2.5 * HOUR, None, 12, "a100")], 3120),
        _holds("speech", 12, "a100", now - 2.5 * HOUR, 1000),
        _of("ranking", deployment, ranking, 6020), leaves,
        _of("ocr", deployment, [_attempt(1, now - 3 * HOUR, 2.9, 4, "a100", preempted_by="job-robot-arm-train",
                                         preemptor=foreign, last_step=3999)]), fenced,
        _of("robot_arm", deployment, [_attempt(1, now - 5 * HOUR, None, 4, "a100")], 900),
        _holds("robot_arm", 4, "a100", now - 5 * HOUR, 1000),
        workload("tune", queue="vision", holds=("vision", ray), pods=6, namespace="team-a", kind="RayCluster",
                 since=now - 26 * HOUR),
    ]  # fmt: skip


def _waiting(now: float, deployment: str) -> list[Object]:
    def pending(dag_id: str, gpus: int, since: float, reason: str, message: str, priority: int) -> Object:
        made = workload(
            f"{dag_id.replace('_', '-')}-train", queue=QUEUE_OF[dag_id], pods=gpus, since=since, priority=priority,
            namespace=namespace(dag_id), why=(reason, message),
        )  # fmt: skip
        requests = {CPU: "12", GPU: "1"}
        made["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = {"requests": requests}
        return made

    def lacks(flavor: str, more: int) -> str:
        return f"insufficient unused quota for {GPU} in flavor {flavor}, {more} more needed"

    message = f"couldn't assign flavors to pod set main: {lacks('a100', 14)}, {lacks('l4-spot', 4)}"
    preempts = "couldn't assign flavors to pod set main: Pending the preemption of 1 workload(s)"
    sweep = pending("grasping", 2, now - 31 * MIN, "Pending", lacks("a100", 2), 200)
    return [
        _of("translation", deployment, [], suspend=True),
        pending("translation", 16, now - 42 * MIN, "WaitingForQuota", message, 300),
        _of("search", deployment, [], suspend=True),
        pending("search", 4, now - 20, "WaitingForPreemptedWorkloads", preempts, 80),
        _of("grasping", deployment, [], suspend=True), sweep,
    ]  # fmt: skip


def write_runs(dag_ids: list[str]) -> str:
    """A run of each Dag whose task has submitted its job; the id of this Airflow."""
    from datetime import datetime, timezone

    import db_rows
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_provider.compat import variable_of_server
    from airflow_provider.identity import DEPLOYMENT
    from airflow_provider.memory import STORE_KEY
    from airflow_provider.plugin import deployment

    deployment.ensure()
    own = variable_of_server(DEPLOYMENT) or ""
    at = datetime(2026, 11, 20, tzinfo=timezone.utc)
    with create_session() as session:
        for number, dag_id in enumerate(dag_ids, 1):
            version = session.scalar(select(DagVersion.id).where(DagVersion.dag_id == dag_id))
            task = {"dag_id": dag_id, "run_id": RUN, "task_id": "train", "map_index": -1}
            session.execute(
                DagRun.__table__.insert().values(
                    id=number, dag_id=dag_id, run_id=RUN, run_type="manual", logical_date=at, queued_at=at,
                    start_date=at, state="running", run_after=at, clear_number=0, created_dag_version_id=version,
                )
            )  # fmt: skip
            db_rows.task_instance(
                session, **task, start_date=at, state="deferred", try_number=1, max_tries=0, dag_version_id=version,
                operator="SingularityTrainOperator", task_display_name="train",
            )  # fmt: skip
            kept = json.dumps({**claim(dag_id, own).to_dict(), "conn_id": CONN_ID})
            db_rows.stored(session, **task, dag_run_id=number, key=STORE_KEY, value=kept, updated_at=at)
    return own


if __name__ == "__main__":
    print(write_runs(sys.argv[1:]))
