"""Every Dag in dags/ parses, can be serialised for the scheduler, and its queues are what the Dags name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from module_files import loaded

DAGS = Path(__file__).parents[3] / "dags"


def found() -> dict[str, DAG]:
    dags = {}
    for path in sorted(DAGS.glob("*.py")):
        module = loaded(path)
        dags |= {each.dag_id: each for each in vars(module).values() if isinstance(each, DAG)}
    return dags


EXAMPLES = found()
EXPECTED = {
    "quickstart", "sweep", "digits_train", "digits_register", "digits_evaluate", "nightly_finetune", "day_owner",
    "team_a_training", "team_b_training",
}  # fmt: skip


def test_these_are_the_examples() -> None:
    assert set(EXAMPLES) == EXPECTED


@pytest.mark.parametrize("dag_id", sorted(EXPECTED))
def test_an_example_is_a_valid_dag(dag_id: str) -> None:
    from airflow_versions import DagSerialization

    dag = EXAMPLES[dag_id]
    dag.validate()
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(again.task_dict) == set(dag.task_dict)
    assert dag.doc_md and not dag.catchup


def queues() -> set[str]:
    documents: list[Any] = []
    for path in (DAGS / "queues").glob("*.yaml"):
        documents += [each for each in yaml.safe_load_all(path.read_text()) if each]
    clusters = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ClusterQueue"}
    for each in clusters.values():
        assert each["spec"]["admissionChecksStrategy"]["admissionChecks"] == [{"name": "singularity-fence"}]
    locals_ = [each for each in documents if each["kind"] == "LocalQueue"]
    assert {each["spec"]["clusterQueue"] for each in locals_} == set(clusters)
    return {each["metadata"]["name"] for each in locals_}


def test_the_queues_of_the_examples_are_there() -> None:
    named = {
        task.queue_name
        for dag in EXAMPLES.values()
        for task in dag.tasks
        if getattr(task, "queue_name", None) and "{{" not in task.queue_name
    }
    assert named == queues() | {"training"}
