"""The Dag of the page "Your first Dag" as it stands there: it imports, and its results are where the next one looks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from module_files import loaded

from kueue_integration.kube import quantities

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/start/first-dag.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By id. The Dag is written into an empty folder, with the script beside it that the page says to copy."""
    folder = tmp_path_factory.mktemp("dags")
    (folder / "first.py").write_text(blocks("python")[0])
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "dags/scripts/train_digits.py", folder / "scripts")
    dag = loaded(folder / "first.py").dag_of_digits
    dag.validate()
    return dict(dag.task_dict)


def test_the_next_task_reads_where_the_training_writes(tasks: dict[str, Any]) -> None:
    train, look = tasks["train"], tasks["look"]
    (claim,) = (each for each in map(yaml.safe_load, blocks("yaml")) if each["kind"] == "PersistentVolumeClaim")
    (mount,) = train.volume_mounts
    written = Path(train.script_args[train.script_args.index("--output") + 1])
    assert written.is_relative_to(mount["mountPath"]) and f"'{written}/weights.npz'" in look.cmds[-1]
    assert train.volumes == [{"name": mount["name"], "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}]
    pod = look.pod_template_dict["spec"]
    assert (pod["volumes"], pod["containers"][0]["volumeMounts"]) == (train.volumes, train.volume_mounts)
    assert {train.namespace, look.namespace, claim["metadata"]["namespace"]} == {"trains"}
    assert train.task_id in look.upstream_task_ids


def test_the_sample_queue_of_the_chart_admits_it(tasks: dict[str, Any]) -> None:
    """All workers on its first flavor, the fewest on its second, as the page says."""
    train = tasks["train"]
    sample = yaml.safe_load((ROOT / "charts/singularity/values.yaml").read_text())["sampleQueues"]
    pod = quantities.parse(train.pod_resources["cpu"])
    quotas = [quantities.parse(flavor["quota"]["cpu"]) for flavor in sample["flavors"]]
    assert train.queue_name == sample["name"] and set(train.pod_resources) <= set(sample["coveredResources"])
    assert quotas[0] >= pod * train.workers and quotas[1] >= pod * train.min_workers
