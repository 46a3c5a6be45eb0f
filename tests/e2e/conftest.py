"""One real cluster (named `test`, nobody's own is touched) and one real Airflow for all end-to-end tests."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import node_racks
import numpy as np
import pytest
import releases
from dag_run import Run
from faults import PRIVILEGES, Faults
from releases import Release
from rows import Rows

from localcluster import cluster
from localcluster.demo.follow import managed_jobs
from localcluster.demo.stage import CHECKOUT, DAGS, NAMESPACE, Stage
from localcluster.demo.story import remove

CLUSTER = os.environ.get("SINGULARITY_TEST_CLUSTER", "test")
"""Several checkouts on one machine may test at a time, each with a name of its own."""
QUICK = {
    "AIRFLOW__CORE__PARALLELISM": "8",
    # A worker that is lost is missed after that long (300 s by default).
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}
EVIDENCE = CHECKOUT / "build" / "e2e"


@pytest.fixture(scope="session", autouse=True)
def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the end-to-end tests start a cluster on this machine and need root")


@pytest.fixture(scope="session")
def openlineage_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Airflow's OpenLineage provider writes what it sends: one JSON document per line."""
    return tmp_path_factory.mktemp("openlineage") / "events.jsonl"


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest,
    say: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
    openlineage_events: Path,
) -> Iterator[Stage]:
    """Cluster and, if a test of the session is marked `airflow`, an Airflow with the DAGs of examples and tests."""
    with_airflow = any(item.get_closest_marker("airflow") for item in request.session.items)
    dags = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(__file__).parent / "dags", dags, dirs_exist_ok=True)
    shutil.copytree(Path(__file__).parent / "scripts", dags / "scripts", dirs_exist_ok=True)
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    transport = {"type": "file", "log_file_path": str(openlineage_events), "append": True}
    airflow = {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), **QUICK}
    made = Stage(CLUSTER, say, dags, airflow, PRIVILEGES)
    cluster.down(CLUSTER, progress=say)  # of a run that was killed: its jobs hold quota, and nobody would take it down
    try:
        made.up(with_airflow)
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _evidence(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Iterator[None]:
    """Save every part's log when a test fails; leave no Job of the test behind."""
    yield
    if "stage" not in request.fixturenames:
        return
    stage: Stage = request.getfixturevalue("stage")
    call = getattr(request.node, "report_call", None)
    if call is not None and call.failed:
        stage.save_evidence(EVIDENCE / request.node.name)
    for name in managed_jobs(stage.kube, NAMESPACE).values():
        remove(stage.kube, NAMESPACE, name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    setattr(item, f"report_{report.when}", report)


@pytest.fixture(scope="session")
def digits(stage: Stage) -> str:
    """Path, as the pods see it, of the handwritten digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    folder = stage.cluster.shared / "e2e"
    folder.mkdir(exist_ok=True)
    images = (data.images / 16.0).astype(np.float32)
    np.savez(folder / "digits.npz", x_train=images, y_train=data.target.astype(np.int64))
    return "/shared/e2e/digits.npz"


@pytest.fixture
def rows(request: pytest.FixtureRequest, stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    """Jobs in the namespace `NAMESPACE` of the test's module, with the queues that its `QUEUES` has, if any."""
    made = Rows(stage, request.module.NAMESPACE, say)
    try:
        for name, quota in getattr(request.module, "QUEUES", {}).items():
            made.queue(name, quota)
        yield made
    finally:
        made.close()


@pytest.fixture
def faults(request: pytest.FixtureRequest, rows: Rows) -> Iterator[Faults]:
    """Afterwards the chart has the values of the module's `USUAL`, if any, and no node is cordoned any more."""
    made = Faults(rows.stage, rows.namespace)
    yield made
    if usual := getattr(request.module, "USUAL", {}):
        made.upgrade(**usual)
    made.uncordon_all()


@pytest.fixture
def racked(rows: Rows) -> Iterator[str]:
    """Name of a flavor of all nodes, and of its topology: racks by the labels of `node_racks`."""
    with node_racks.labelled(rows):
        yield node_racks.flavor(rows, "e2e-racks")


@pytest.fixture
def start_run(stage: Stage, say: Callable[[str], None]) -> Callable[[str], Run]:
    return lambda dag_id: Run(stage, dag_id, say)


@pytest.fixture
def now(stage: Stage) -> Iterator[Release]:
    """This release, which is installed; the cluster has it with its usual values afterwards."""
    made = releases.of_checkout(stage)
    yield made
    made.install()
    stage.look_again()
