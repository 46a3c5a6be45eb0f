"""A thousand deferred training tasks in one triggerer of a real Airflow, their Jobs on fake nodes.

API server, Kueue, controller, scheduler, triggerer and workers are real; see `benchmarks.deferred` for how the tasks
come to be deferred. Then the trigger of Airflow's own operator waits for the same Jobs, and then nobody does. What
Airflow itself takes for a thousand triggers is in every figure.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import JOB, POD, Object, is_true
from localcluster.config import APISERVER_PORT
from localcluster.demo.airflow import Airflow
from localcluster.demo.errors import StoryTimeoutError
from localcluster.demo.stage import CHECKOUT, NAMESPACE
from localcluster.demo.wait import wait_for

from . import programs
from .fleet import Fleet, fleet, queue, until
from .model import Group, Measured, Options, Say, Spec
from .scale import job
from .session import Session
from .stats import median

TASKS = 1_000
PEERS = 50
RESUMED = 40
NODES = 50
QUEUE = "many"
WINDOW_S = 20.0
LIMIT_S = 900.0
DAG_TIMEOUT_S = 600.0
CONNECTION = "kubernetes_default"
OURS = "airflow_provider.triggers.SingularityJobTrigger"
THEIRS = "airflow.providers.cncf.kubernetes.triggers.job.KubernetesJobTrigger"
NOBODY = "benchmarks.deferred.NothingTrigger"

Trigger = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Usage:
    """Of the triggerer's processes: cores in each window, proportional memory, connections to the API server."""

    cores: list[float]
    memory_kb: float
    connections: int

    @property
    def percent(self) -> float:
        return 100 * median(self.cores)


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    count = TASKS // 10 if options.quick else TASKS
    with tempfile.TemporaryDirectory(prefix="bench-") as made:
        dags = Path(made)
        told = {"queue": QUEUE, "names": [f"task-{n}" for n in range(count)]}
        (dags / "deferred.json").write_text(json.dumps(told))
        (dags / "deferred_dag.py").write_text(programs.deferred_dag_source())
        with fleet(NODES, say, dags, {"PYTHONPATH": str(CHECKOUT)}) as on:
            return Run(on, count, dags, say).figures()


class Run:
    def __init__(self, on: Fleet, count: int, scratch: Path, say: Say) -> None:
        self._on, self._count, self._scratch, self._say = on, count, scratch, say
        self._airflow: Airflow = on.stage.airflow
        self._triggerer = Session(self._airflow.pid("triggerer"))

    def figures(self) -> Mapping[str, Measured]:
        jobs = self._start_jobs()
        # Ours are first: memory that Python has once taken it does not give back.
        idle = self._usage("idle", 0)
        some = self._with("ours", self._count // 10, lambda n: we_wait(jobs[n]))
        ours = self._with("ours", self._count, lambda n: we_wait(jobs[n]), self._resume)
        # What the first triggers load (the provider, Kubernetes' client, Airflow's own API) is no cost of a task.
        per_task = (ours.memory_kb - some.memory_kb) / (self._count - self._count // 10)
        resumed = sorted(self._resumed)
        alive = jobs[len(resumed) :]
        nobody = self._with("nobody", self._count, nobody_waits)
        peers = self._with("theirs", min(PEERS, len(alive)), lambda n: they_wait(alive[n]))
        many_text = self._many_peers(alive)
        return {
            "triggerer_cpu_pct_1000": Measured(
                ours.percent,
                ours.cores,
                f"{self._count} running Jobs; no trigger {idle.percent:.3g} %, {self._count} triggers that wait for "
                f"nothing {nobody.percent:.3g} %; theirs: {many_text}",
            ),
            "triggerer_kb_per_task": Measured(
                per_task,
                [idle.memory_kb, some.memory_kb, ours.memory_kb],
                f"from {self._count // 10} to {self._count} tasks; from none to the first ones "
                f"{(some.memory_kb - idle.memory_kb) / 1000:.0f} MB",
            ),
            "triggerer_connections": Measured(
                float(ours.connections), [ours.connections], f"{self._count} tasks; theirs: {many_text}"
            ),
            "event_to_resume_p95_s": Measured(
                quantile(resumed, 0.95),
                resumed,
                f"median {median(resumed):.3g} s, of these to the event {median(self._fired):.3g} s; "
                f"{len(resumed)} Jobs, one after the other, {self._count} tasks deferred",
            ),
            "job_done_to_task_success_s": Measured(
                median(self._succeeded), self._succeeded, f"worst {max(self._succeeded):.3g} s"
            ),
            "peer_triggerer_cpu_pct_50": Measured(
                peers.percent, peers.cores, f"{PEERS} tasks, poll of 10 s; {many_text}"
            ),
        }

    def _many_peers(self, jobs: Sequence[Object]) -> str:
        """What the triggerer takes for as many of theirs as there are Jobs left, or that it does not get there."""
        try:
            used = self._with("theirs", len(jobs), lambda n: they_wait(jobs[n]))
        except StoryTimeoutError as error:
            return f"{len(jobs)} tasks: {error}"
        return f"{len(jobs)} tasks {used.percent:.3g} %, {used.connections} connections"

    # --- tasks --------------------------------------------------------------------------------------------------
    def _with(
        self,
        dag_id: str,
        count: int,
        trigger: Callable[[int], Trigger],
        then: Callable[[str], None] | None = None,
    ) -> Usage:
        """Defer `count` tasks of `dag_id`, look at the triggerer, call `then` with the run's id, and end the run."""
        api, run_id = self._airflow.api, f"{dag_id}-{count}"
        wait_for(lambda: api.dag_exists(dag_id), f"DAG {dag_id} known to Airflow", DAG_TIMEOUT_S)
        api.call("PATCH", f"dags/{dag_id}", {"is_paused": True})
        api.trigger(dag_id, run_id)
        file = self._scratch / "triggers"
        file.write_text(json.dumps([trigger(n) for n in range(count)]))
        deferred = int(self._airflow.python("-m", "benchmarks.deferred", dag_id, run_id, str(file)).split()[-1])
        if deferred != count:
            raise RuntimeError(f"{dag_id}: {deferred} tasks of {count} could be deferred")
        self._until_running(count)
        used = self._usage(dag_id, count)
        if then is not None:
            api.unpause(dag_id)
            wait_for(lambda: api.dag_run_state(dag_id, run_id) == "running", f"run {run_id} running", LIMIT_S)
            then(run_id)
            api.call("PATCH", f"dags/{dag_id}", {"is_paused": True})
        self._airflow.python("-m", "benchmarks.deferred", dag_id, run_id)
        self._until_running(0)
        return used

    def _until_running(self, count: int) -> None:
        """The triggerer says once a minute how many triggers it runs."""
        log, said = self._airflow.log_file("triggerer"), f" {count} triggers currently running"
        begin = log.stat().st_size

        def told() -> bool:
            with open(log, errors="replace") as text:
                text.seek(begin)
                return said in text.read()

        self._say(f"waiting for the triggerer to run {count} triggers")
        wait_for(told, f"the triggerer to say that it runs {count} triggers", LIMIT_S, tick_s=1)

    def _usage(self, what: str, count: int) -> Usage:
        cores = [round(self._triggerer.cores(WINDOW_S), 4) for _ in range(3)]
        found = Usage(cores, self._triggerer.memory_kb(), self._triggerer.connections(APISERVER_PORT))
        self._say(
            f"{what}, {count} tasks: {[round(100 * each, 2) for each in cores]} % of a core, "
            f"{found.memory_kb / 1000:.0f} MB in {len(self._triggerer.pids())} processes, {found.connections} "
            "connections to the API server"
        )
        return found

    # --- Jobs ---------------------------------------------------------------------------------------------------
    def _start_jobs(self) -> list[Object]:
        """As many as there are tasks, each running a pod on a fake node; in the order of their numbers."""
        on = self._on
        on.apply(queue(QUEUE, "", cpu=100_000, borrow=0, fenced=True, namespace=NAMESPACE))
        wanted = [f"many-{n}" for n in range(self._count)]
        on.create(job(on, name, QUEUE) for name in wanted)
        found: dict[str, Object] = {}

        def running() -> int:
            for each in on.kube.list(JOB, NAMESPACE, f"{job_names.LABEL_MANAGED}=true"):
                if (each.get("status") or {}).get("ready"):
                    found[each["metadata"]["name"]] = each
            time.sleep(2)  # a list of a thousand Jobs is no small thing
            return len(found)

        if not until(running, self._count, "Jobs with a running pod", LIMIT_S, self._say):
            raise RuntimeError(f"only {len(found)} of {self._count} Jobs have started")
        return [found[name] for name in wanted]

    def _resume(self, run_id: str) -> None:
        """End some Jobs, one after the other, and follow their tasks to success."""
        self._fired: list[float] = []
        self._resumed: list[float] = []
        self._succeeded: list[float] = []
        for number in range(min(RESUMED, self._count // 10)):
            fired, resumed, succeeded = self._resume_one(run_id, number)
            self._fired.append(round(fired, 3))
            self._resumed.append(round(resumed, 3))
            self._succeeded.append(round(succeeded, 3))
            self._say(f"task {number}: event after {fired:.2f} s, resumed {resumed:.2f} s, success {succeeded:.2f} s")

    def _resume_one(self, run_id: str, number: int) -> tuple[float, float, float]:
        """Seconds from the complete Job to: no longer deferred, running in a worker, success."""
        kube, name = self._on.kube, f"many-{number}"
        [pod] = kube.list(POD, NAMESPACE, f"{job_names.LABEL_JOB}={name}")
        kube.patch(POD, NAMESPACE, pod["metadata"]["name"], {"status": ended(pod)}, subresource="status")
        wait_for(lambda: is_true(kube.get_job(NAMESPACE, name), "Complete"), f"Job {name} complete", LIMIT_S, 0.05)
        began = time.time()
        path = f"dags/ours/dagRuns/{run_id}/taskInstances/train/{number}"
        states: dict[str, float] = {}

        def succeeded() -> dict[str, Any] | None:
            task: dict[str, Any] = self._airflow.api.call("GET", path)
            states.setdefault(task["state"] or "none", time.time())
            if task["state"] in ("failed", "up_for_retry"):
                raise RuntimeError(f"task {number} is {task['state']}: {self._log(run_id, number)}")
            return task if task["state"] == "success" else None

        task = wait_for(succeeded, f"task {number} success", LIMIT_S, 0.05, detail=lambda: str(states))
        done = datetime.fromisoformat(task["end_date"]).timestamp()
        fired = min((at for state, at in states.items() if state != "deferred"), default=done)
        return fired - began, min(states.get("running", done), done) - began, done - began

    def _log(self, run_id: str, number: int) -> str:
        path = f"dags/ours/dagRuns/{run_id}/taskInstances/train/logs/1?full_content=true&map_index={number}"
        return str(self._airflow.api.call("GET", path))[-3000:]


def nobody_waits(number: int) -> Trigger:
    return NOBODY, {"name": f"nobody-{number}"}


def we_wait(job: Object) -> Trigger:
    """As `SingularityTrainOperator` with its defaults defers. Pure."""
    meta = job["metadata"]
    return OURS, {
        "conn_id": CONNECTION,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "get_logs": True,
    }


def they_wait(job: Object) -> Trigger:
    """As `KubernetesStartKueueJobOperator(deferrable=True)` with its defaults defers. Pure."""
    meta = job["metadata"]
    return THEIRS, {
        "job_name": meta["name"],
        "job_namespace": meta["namespace"],
        "pod_names": [f"{meta['name']}-0"],
        "pod_namespace": meta["namespace"],
        "base_container_name": "base",
        "kubernetes_conn_id": CONNECTION,
        "poll_interval": 10.0,
        "get_logs": True,
    }


def ended(pod: Object) -> dict[str, Any]:
    """The status of `pod` as its kubelet would write it when all its containers have ended well. Pure."""
    over = {"terminated": {"exitCode": 0, "reason": "Completed"}}

    def all_over(kind: str) -> list[dict[str, Any]]:
        return [{**each, "ready": False, "state": over} for each in pod["status"].get(kind) or ()]

    return {
        "phase": "Succeeded",
        "containerStatuses": all_over("containerStatuses"),
        "initContainerStatuses": all_over("initContainerStatuses"),
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of them does not exceed. Raises ValueError for none."""
    if not ordered:
        raise ValueError("quantile of no values")
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


GROUP = Group(
    "triggerer",
    "root, local cluster with fake nodes, Airflow",
    [
        Spec("triggerer_cpu_pct_1000", "%", "<= 5", "of a core: triggerer with 1,000 deferred tasks of running Jobs"),
        Spec("triggerer_kb_per_task", "KB", "<= 50", "memory of the triggerer for each of them"),
        Spec("triggerer_connections", "", "<= 1", "its connections to the API server"),
        Spec("event_to_resume_p95_s", "s", "<= 3", "from the complete Job to the task in a worker again"),
        Spec("job_done_to_task_success_s", "s", "", "from the complete Job to the task's success, median"),
        Spec("peer_triggerer_cpu_pct_50", "%", "", "the triggerer with 50 of KubernetesStartKueueJobOperator"),
    ],
    measure,
)
