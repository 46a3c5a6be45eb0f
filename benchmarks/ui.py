"""How long a click on the tab `Training` takes, in a real Chromium on a real api-server that knows 1,000 runs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from localcluster.demo.airflow import Airflow
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol.messages import to_json

from .model import Group, Measured, Options, Say, Spec
from .stats import median, spread

TESTS = Path(__file__).resolve().parents[1] / "tests" / "e2e"
DAG_ID, RUNS, OPENS = "many", 1000, 15
NAMESPACE, CONN_ID = "default", "kubernetes_default"
DAG = f"""
from airflow.sdk import DAG
from airflow_provider.operators import SingularityTrainOperator
with DAG({DAG_ID!r}, schedule=None):
    SingularityTrainOperator(task_id="train", queue_name="training", command=["true"])
"""
CLOCK = """shown => {
    addEventListener("click", (event) => { window.benchClicked = event.timeStamp; }, { capture: true, once: true });
    const look = () => {
        if (!document.querySelector(`[data-testid="${shown}"]`)) requestAnimationFrame(look);
        else requestAnimationFrame(() => setTimeout(() => { window.benchShown = performance.now(); }));
    };
    look();
}"""
"""In the page itself, from the click to the frame after the one that has the content: who asks from outside asks now
and then."""


@contextmanager
def airflow(say: Say) -> Iterator[Airflow]:
    """What the UI needs: the api-server, and the dag-processor that puts the Dag into the database."""
    with tempfile.TemporaryDirectory(prefix="bench-ui-") as folder:
        root = Path(folder)
        (root / "dags").mkdir()
        (root / "dags" / "many.py").write_text(DAG)
        made = Airflow(root / "home", root / "dags", root / "none", parts=("api-server", "dag-processor"))
        try:
            say("Airflow: starting api-server and dag-processor")
            made.start()
            wait_for(lambda: made.api.dag_exists(DAG_ID), f"{DAG_ID} in the database", 300)
            yield made
        finally:
            made.stop()


def fill(home: Path, runs: int) -> None:
    """`runs` finished Dag runs with all that a training task leaves behind: three attempts, a curve, its Job's name."""
    os.environ["AIRFLOW_HOME"] = str(home)  # read once, when Airflow is imported
    import airflow.models as airflow_models
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import create_engine, select

    from airflow_provider.identity import Claim, TaskKey, Try
    from airflow_provider.memory import STORE_KEY

    airflow_models.import_all_models()
    with create_engine(f"sqlite:///{home / 'airflow.db'}").begin() as database:
        version = database.scalar(select(DagVersion.id).where(DagVersion.dag_id == DAG_ID))
        for number in range(1, runs + 1):
            at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(hours=number)
            run_id, job, uid = f"run-{number}", f"train-{number}", str(uuid4())
            claim = Claim(TaskKey(DAG_ID, run_id, "train"), 0, Try(1, 0, 0), NAMESPACE, job, uid)
            task = {"dag_id": DAG_ID, "run_id": run_id, "task_id": "train", "map_index": -1}
            times = {"start_date": at, "end_date": at + timedelta(hours=1), "state": "success"}
            run = {"dag_id": DAG_ID, "run_id": run_id, "run_type": "manual", "logical_date": at, "queued_at": at}
            database.execute(
                DagRun.__table__.insert().values(
                    id=number, **run, **times, run_after=at, clear_number=0, created_dag_version_id=version
                )
            )
            database.execute(
                TaskInstance.__table__.insert().values(
                    id=uuid4(), **task, **times, try_number=1, max_tries=0, dag_version_id=version,
                    pool="default_pool", pool_slots=1, operator="SingularityTrainOperator", task_display_name="train",
                )
            )  # fmt: skip
            lineage = XComModel.serialize_value(document(job, uid, at.timestamp()))
            database.execute(
                XComModel.__table__.insert().values(
                    **task, dag_run_id=number, key="lineage", value=lineage, timestamp=at
                )
            )
            database.execute(
                TaskStateStoreModel.__table__.insert().values(
                    **task, dag_run_id=number, key=STORE_KEY, updated_at=at,
                    value=json.dumps({**claim.to_dict(), "conn_id": CONN_ID}),
                )
            )  # fmt: skip


def document(name: str, uid: str, start: float) -> dict[str, Any]:
    """The lineage of a job that was preempted twice."""
    from airflow_provider import lineage
    from kueue_integration.jobs.status import summarise

    attempts = []
    for number in range(3):
        queued = start + 1000 * number
        last = number == 2
        attempts.append(
            AttemptRecord(
                attempt=number + 1, reservation=f"{uid}/{number}", flavor=("ondemand", "spot")[number % 2], pods=4,
                ranks=4, queued_at=queued, admitted_at=queued + 10, first_step=300 * number,
                first_step_at=queued + 40, last_step=300 * number + 299,
                ended_by="Finished" if last else "Preempted", evicted_at=None if last else queued + 900,
                barrier_at=None if last else queued + 901, committed_at=None if last else queued + 920,
                released_at=None if last else queued + 921, finished_at=queued + 950 if last else None,
                checkpoint=None if last else f"{name}-a{number + 1}",
                restored_from=f"{name}-a{number}" if number else None, held=True,
            )
        )  # fmt: skip
    annotations = {job_names.ANN_HISTORY: to_json(attempts), job_names.ANN_ATTEMPT: "3", job_names.ANN_WORLD_SIZE: "4"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "labels": {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "training"},
            "annotations": annotations,
        },
        "spec": {"parallelism": 4, "suspend": False},
        "status": {"conditions": [{"type": "Complete", "status": "True", "reason": "Done", "message": "finished"}]},
    }
    found = lineage.document(summarise(job, None, ()))
    return {**found, "curve": [[step, 3.0 / (1 + step / 50)] for step in range(0, 900, 9)]}


def clicks(airflow: Airflow, opens: int, say: Say) -> dict[str, list[float]]:
    """Seconds from the click on the tab to its content, by place; and of a first visit by address, nothing cached."""
    sys.path.insert(0, str(TESTS))
    from browser import SLOW_MS, open_page  # type: ignore[import-not-found]

    places = {
        "task": (f"/dags/{DAG_ID}/runs/run-{RUNS // 2}/tasks/train", "training", "training-timeline"),
        "dag": (f"/dags/{DAG_ID}", "training_runs", "training-runs-table"),
    }
    found: dict[str, list[float]] = {}
    with open_page(say) as (page, errors):
        start = time.perf_counter()
        page.goto(f"{airflow.url}/plugin/training_all")
        page.get_by_test_id("training-runs-table").wait_for(timeout=SLOW_MS)
        found["first visit"] = [time.perf_counter() - start]
        for place, (path, route, shown) in places.items():
            found[place] = []
            for _ in range(opens + 1):
                page.goto(airflow.url + path)
                tab = page.locator(f'a[href$="/plugin/{route}"]').first
                tab.wait_for(timeout=SLOW_MS)
                page.wait_for_load_state("networkidle", timeout=SLOW_MS)
                page.evaluate(CLOCK, shown)
                tab.click()
                page.wait_for_function("window.benchShown !== undefined", timeout=SLOW_MS)
                found[place].append(page.evaluate("window.benchShown - window.benchClicked") / 1000)
            found[place].pop(0)  # the bundle itself comes with the first one, and is cached from then on
        if errors:
            raise RuntimeError(f"the page has thrown: {errors[:3]}")
    return found


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    with airflow(say) as running:
        fill(running.home, RUNS)
        say(f"{RUNS} runs in the database")
        found = clicks(running, 5 if options.quick else OPENS, say)
    each = "; ".join(f"{place} {median(s):.2f} s (+- {spread(s):.2f}, n {len(s)})" for place, s in found.items())
    worst = max(median(seconds) for place, seconds in found.items() if place != "first visit")
    text = f"click to content, {RUNS} runs with 3 attempts each: {each}; the slower tab counts"
    return {"ui_tab_open_s": Measured(worst, [found], text)}


GROUP = Group(
    "ui",
    "Airflow, Chromium (Debian's, installed on first use)",
    [Spec("ui_tab_open_s", "s", "<= 1", "click on the tab Training to its content, with 1,000 runs")],
    measure,
)
