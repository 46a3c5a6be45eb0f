"""The way of the page "Your first Dag": the training is moved once, and the next task reads the weights it has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dag_run import Run
from shell import Shell
from shell_blocks import scripts
from volumes import claimed

from kueue_integration.jobs.status import describe
from localcluster.demo.stage import CHECKOUT, NAMESPACE, Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(1800)]
PAGE = CHECKOUT / "docs/start/first-dag.md"


def block(heading: str) -> str:
    return scripts(PAGE.read_text(), "sh")[heading]


@pytest.fixture
def shell(stage: Stage) -> Iterator[Shell]:
    """With the claim of the page, and a volume for it."""
    claim = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    with claimed(stage, claim.replace("namespace: trains", f"namespace: {NAMESPACE}")) as made:
        yield made


def test_the_first_dag_ends_with_weights_that_the_next_task_has_read(
    stage: Stage, shell: Shell, start_run: Callable[[str], Run]
) -> None:
    run = start_run("digits")
    job = run.job()
    wait_for(lambda: describe(stage.kube, NAMESPACE, job).step >= 20, "20 steps", 600)
    said = shell.type(block("See it move").replace("JOB", job).replace("-n trains", f"-n {NAMESPACE}"))
    assert "0 lost" in said
    assert run.until_run_ends() == "success", run.log()
    assert run.api.task(run.dag_id, run.run_id, "train")["try_number"] == 1
    assert "'conv1.weight'" in run.api.log(run.dag_id, run.run_id, "look", 1)
