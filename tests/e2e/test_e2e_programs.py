"""Programs that know nothing of torch move: a shell loop, XGBoost and JAX, each one eviction, and said when it runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rows import CPU, TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.jobs import lifecycle
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.config import cache_dir
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from localcluster.images import rootfs

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
SCRIPTS = Path(__file__).parent / "scripts"
PACKAGES = ("jax==0.12.0.1", "xgboost-cpu==3.4.1")
SAID_S = 2.0
"""Seconds that may pass between a program's first line and the record of its running."""


@pytest.fixture(scope="module")
def libraries(stage: Stage, say: Callable[[str], None]) -> str:
    """PYTHONPATH of XGBoost and JAX, as the pods see it: on the shared volume, as a cluster's file system would be."""
    made = rootfs.beside_torch(cache_dir(), PACKAGES, say)
    target = stage.cluster.shared / "e2e" / "programs"
    shutil.copytree(made, target, symlinks=True, dirs_exist_ok=True)
    return "/shared/e2e/programs"


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "programs", say)
    made.queue("q", {"ondemand": "100m", "spot": "100m"})
    yield made
    made.close()


def start(rows: Rows, name: str, script: str, libraries: str) -> Training:
    """The program as a plain command of one rank."""
    folder = Path(rows.namespace) / f"{name}-{time.time_ns()}"
    output = rows.stage.cluster.shared / folder
    output.mkdir(parents=True)
    output.chmod(0o777)
    spec = TrainSpec(
        name=name,
        namespace=rows.namespace,
        queue="q",
        command=["sh" if script.endswith(".sh") else "python3", script],
        files={script: (SCRIPTS / script).read_text()},
        env={"OUTPUT": f"/shared/{folder}", "PYTHONPATH": libraries},
        resources={"cpu": CPU},
        checkpoint_budget_s=600,
    )
    lifecycle.submit(rows.kube, spec, rows.stage.platform)
    return Training(rows, spec, output)


def lines(job: Training) -> list[tuple[int, str, float]]:
    """(number, value, Unix seconds), oldest first, without one that is being written."""
    try:
        text = (job.output / "lines").read_text()
    except FileNotFoundError:
        return []
    words = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
    return [(int(number), value, float(when)) for number, value, when in words]


@pytest.mark.parametrize("script", ["loop.sh", "boost.py", "descend.py"])
def test_a_program_without_torch_moves_in_one_eviction(rows: Rows, request: pytest.FixtureRequest, script: str) -> None:
    name, ending = script.split(".")
    libraries = request.getfixturevalue("libraries") if ending == "py" else ""
    job, still = (start(rows, which, script, libraries) for which in (name, f"{name}-still"))
    wait_for(lambda: len(lines(job)) >= 20 and bool(lines(still)), f"{name} at work", TIMEOUT_S)
    shell = Shell(rows.stage.cluster)
    said = shell.run("migrate", name, "--flavor", "spot", "--wait", "--timeout", "240", "-n", "programs")
    assert "done" in said, said
    second = job.until(lambda s: len(s.attempts) == 2 and s.attempts[1].running_at, "the second attempt").attempts[1]
    later = lambda: [when for _, _, when in lines(job) if when > second.admitted_at]  # noqa: E731
    behind = wait_for(lambda: later() or None, "more lines", TIMEOUT_S)
    assert second.running_at is not None
    rows.say(f"{script}: running was said {second.running_at - behind[0]:.2f} s after the first line")
    assert second.running_at - behind[0] <= SAID_S
    wait_for(lambda: len(lines(still)) >= len(lines(job)), f"{name}-still as far", TIMEOUT_S)

    last = job.finish()
    still.finish()
    assert [(a.flavor, a.ended_by) for a in last.attempts] == [("ondemand", "Migrated"), ("spot", "Finished")]
    assert (last.evictions, sum(last.kueue_evictions.values())) == ({"Migrated": 1}, 1)
    assert last.attempts[1].restored_from == last.attempts[0].checkpoint is not None
    moved, unmoved = ([(number, value) for number, value, _ in lines(which)] for which in (job, still))
    assert [number for number, _ in moved] == list(range(len(moved))), "a line is missing or came twice"
    common = min(len(moved), len(unmoved))
    assert common >= 20 and moved[:common] == unmoved[:common]
