"""Bad input is refused by field name, by the API and by the command, and nothing is created."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kueue_integration.errors import SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import CONFIG_MAP, JOB, SERVICE, WORKLOAD
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.demo.stage import NAMESPACE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
GOOD = TrainSpec(name="refused", queue="training", command=("python3", "train.py"), workers=4, min_workers=2)

BAD: list[tuple[str, dict[str, Any]]] = [
    ("queue", {"queue": ""}),
    ("queue", {"queue": "no-such-queue"}),
    ("workers", {"workers": 0, "min_workers": None}),
    ("min_workers", {"min_workers": 5}),
    ("min_workers", {"min_workers": 0}),
    ("world_size", {"world_size": 6}),
    ("command", {"command": ()}),
    ("store", {"store": "ftp://somewhere/checkpoints"}),
    ("store", {"store": "file:///nowhere/checkpoints"}),
    ("name", {"name": "n" * 53}),
    ("name", {"name": "Upper_Case"}),
    ("priority_class", {"priority_class": "no-such-class"}),
    ("checkpoint_budget_s", {"checkpoint_budget_s": 0}),
    ("checkpoint_budget_s", {"checkpoint_budget_s": 10**6}),
    ("resources", {"resources": {"cpu": "much"}}),
    ("files", {"files": {"../escape.py": ""}}),
]


def everything(stage: Stage) -> set[tuple[str, str]]:
    kinds = (JOB, CONFIG_MAP, SERVICE, WORKLOAD)
    return {(kind.name, o["metadata"]["name"]) for kind in kinds for o in stage.kube.list(kind, NAMESPACE)}


@pytest.fixture
def nothing_created(stage: Stage) -> Iterator[None]:
    before = everything(stage)
    yield
    # Less may be there than before: what belonged to earlier Jobs is collected in the background.
    assert everything(stage) - before == set()


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{field}-{number}" for number, (field, _) in enumerate(BAD)])
def test_refused_by_field(stage: Stage, field: str, change: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        lifecycle.submit(stage.kube, replace(GOOD, **change), stage.platform)
    # `resources` and `files` name the entry as well: resources[cpu].
    assert {name.partition("[")[0].partition(".")[0] for name, _, _ in caught.value.problems} == {field}


@pytest.mark.usefixtures("nothing_created")
def test_no_image_anywhere_is_refused(stage: Stage) -> None:
    with pytest.raises(SpecError, match="image"):
        lifecycle.submit(stage.kube, GOOD, replace(stage.platform, train_image=""))


@pytest.mark.usefixtures("nothing_created")
def test_all_problems_are_told_at_once_by_the_command(stage: Stage) -> None:
    ctl = Path(sys.executable).with_name("singularityctl")
    options = ["--name", "n" * 53, "--queue", "training", "--workers", "2", "--min-workers", "3", "--world-size", "5"]
    done = subprocess.run(
        [str(ctl), "submit", *options, "--", "python3", "train.py"],
        env={**os.environ, "KUBECONFIG": str(stage.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    for field in ("name", "min_workers", "world_size"):
        assert field in done.stderr


def test_the_same_input_without_the_fault_is_accepted(stage: Stage) -> None:
    """Else the tests above would pass for any reason."""
    before = everything(stage)
    lifecycle.validate_only(stage.kube, GOOD, stage.platform)
    assert everything(stage) - before == set()
