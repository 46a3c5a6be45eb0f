"""Dags of the table of task faults: one per row, with the smallest training job there is."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider.operators import SingularityTrainOperator

HOME = Path(os.environ.get("AIRFLOW_HOME", "."))
PAUSE_S = 300
JANUARY = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
RETRY = {"retries": 1, "retry_delay": datetime.timedelta(seconds=1)}
FOR_EVER = ["--seconds", "3600"]
SHORT = ["--seconds", "5"]
FAILS_ONCE = """
import pathlib, sys
mark = pathlib.Path(sys.argv[1])
first = not mark.exists()
mark.touch()
print("first" if first else "second", "run of the program", flush=True)
sys.exit(3 if first else 0)
"""


class PausedOperator(SingularityTrainOperator):
    """Stands still at its first try: the Job is made, Airflow does not know yet that the task is going to be deferred.

    Goes on when the worker gets SIGTERM or when `<dag id>.go` lies in AIRFLOW_HOME; `<dag id>.paused` has its process
    and the supervisor's.
    """

    def _end_if_unwanted(self, kube: Any, ti: Any, claim: Any) -> None:
        paused, go = HOME / f"{ti.dag_id}.paused", HOME / f"{ti.dag_id}.go"
        if not paused.exists():
            written = paused.with_suffix(".new")
            written.write_text(f"{os.getpid()} {os.getppid()}")
            written.rename(paused)
            deadline = time.monotonic() + PAUSE_S
            while not self._kill_requested and not go.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nothing happened to {ti.dag_id}")
                time.sleep(0.1)
        super()._end_if_unwanted(kube, ti, claim)


def train(
    operator: type[SingularityTrainOperator] = SingularityTrainOperator, args: Any = None, **kwargs: Any
) -> SingularityTrainOperator:
    program = {"script": str(Path(__file__).parent / "scripts" / "no_boundary.py"), "script_args": args}
    if "command" in kwargs:
        program = {}
    return operator(
        task_id="train", queue_name="training", pod_resources={"cpu": "100m"}, logging_interval=2, **program, **kwargs
    )


def row(name: str, operator: type[SingularityTrainOperator] = SingularityTrainOperator, **kwargs: Any) -> None:
    """A Dag that only runs when the test triggers it."""
    with DAG(f"fault_{name}", schedule=None, catchup=False) as dag:
        train(operator, **kwargs)
    globals()[dag.dag_id] = dag


limit = datetime.timedelta(seconds=45)
row("worker_sigterm", PausedOperator, args=SHORT)
row("process_killed", PausedOperator, args=SHORT, **RETRY)
row("worker_lost", PausedOperator, args=SHORT, **RETRY)
row("worker_lost_no_retry", PausedOperator, args=FOR_EVER)
row("failed_submitting", PausedOperator, args=FOR_EVER)
row("succeeded_submitting", PausedOperator, args=FOR_EVER)
first_for_ever = ["--seconds", "{{ 3600 if ti.try_number == 1 else 5 }}"]
soon = {"retry_delay": datetime.timedelta(seconds=1)}
row("cleared_submitting", PausedOperator, args=first_for_ever, **soon)
row("timeout_submitting", PausedOperator, args=FOR_EVER, execution_timeout=limit)
row("timeout", args=FOR_EVER, execution_timeout=limit)
row("triggerer_lost", args=["--seconds", "30"])
row("scheduler_lost", args=["--seconds", "30"])
row("failed_without_triggerer", args=FOR_EVER)
row("cleared", args=first_for_ever)
row("cleared_after_end", args=SHORT)
row("dag_deleted", args=FOR_EVER)
row("api_outage", args=SHORT, kubernetes_conn_id="outage")
row("marked_failed", args=FOR_EVER)
row("marked_success", args=FOR_EVER)
row("run_marked_failed", args=FOR_EVER)
row("retried", command=["python3", "-c", FAILS_ONCE, "/shared/e2e-{{ run_id }}"], **RETRY)
row("resumed", command=["python3", "-c", FAILS_ONCE, "/shared/e2e-r-{{ run_id }}"], resume_on_exit_codes=[3])
row("skipped", command=["python3", "-c", "raise SystemExit(4)"], skip_on_exit_code=4, **RETRY)

day = datetime.timedelta(days=1)
with DAG("fault_backfill", schedule="@daily", start_date=JANUARY, end_date=JANUARY + 9 * day, catchup=False):
    train(args=SHORT)

with DAG("fault_catchup", schedule="@daily", start_date=JANUARY, end_date=JANUARY + day, catchup=True):
    train(args=SHORT)

with DAG("fault_pool", schedule=None, catchup=False):
    SingularityTrainOperator.partial(
        task_id="train",
        queue_name="training",
        pod_resources={"cpu": "100m"},
        script=str(Path(__file__).parent / "scripts" / "no_boundary.py"),
        pool="one_training",
    ).expand(script_args=[SHORT, SHORT])
