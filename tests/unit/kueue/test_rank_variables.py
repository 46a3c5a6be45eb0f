"""A plain command of one rank gets what a plain shell gives; torchrun, or several ranks, torchrun's variables: however
the job comes to be, and in however few pods it runs."""

from __future__ import annotations

from typing import Any

import pytest
from adoption_cases import bare, changed, jobset, plain, trainjob
from click.testing import CliRunner
from kueue_samples import PLATFORM, cluster
from rank_variables import ALL, told

from kueue_integration import cli
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.patch import adopted
from kueue_integration.adoption.trainjob import adopted_trainjob
from kueue_integration.cli import common, submit
from kueue_integration.contract import job_names
from kueue_integration.spec import platform_config

WORLD = f"metadata.annotations.{job_names.ANN_WORLD_SIZE.replace('.', '~')}"
PLAIN, TORCHRUN = ("python3", "train.py"), ("torchrun", "train.py")
CHART = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["template"]["spec"])


@pytest.mark.parametrize(
    ("options", "command", "admitted", "wanted"),
    [
        (("--workers", "1"), PLAIN, 1, set()),
        (("--workers", "1"), TORCHRUN, 1, ALL),
        (("--workers", "1"), ("python3", "-m", "torch.distributed.run", "train.py"), 1, ALL),
        (("--workers", "2"), PLAIN, 2, ALL),
        (("--workers", "2", "--min-workers", "1"), PLAIN, 2, ALL),
        (("--workers", "2", "--min-workers", "1"), PLAIN, 1, ALL),
        (("--workers", "1", "--world-size", "2"), PLAIN, 1, ALL),
    ],
)
def test_submitted(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], command: tuple[str, ...], admitted: int, wanted: set[str]
) -> None:
    kube = cluster(CHART)
    for module in (common, submit):
        monkeypatch.setattr(module, "open_cluster", lambda kubeconfig, context: kube)
    done = CliRunner().invoke(cli.main, ["submit", "--name", "digits", "--queue", "training", *options, "--", *command])
    assert done.exit_code == 0, done.output
    assert told(pod_of(kube.get_job("default", "digits")), admitted) == wanted


@pytest.mark.parametrize(
    ("job", "admitted", "wanted"),
    [
        (bare(), 1, set()),
        (plain(), 2, ALL),
        (plain(), 1, ALL),
        (changed(WORLD, "2", changed("metadata.annotations.a", "b", bare())), 1, ALL),
    ],
    ids=["one rank", "two", "two in one pod", "two, of one pod"],
)
def test_adopted_jobs(job: dict[str, Any], admitted: int, wanted: set[str]) -> None:
    assert told(pod_of(adopted(job, PLATFORM)), admitted) == wanted


def one(job: dict[str, Any], path: str) -> dict[str, Any]:
    """`job` of one pod."""
    for field in ("parallelism", "completions"):
        job = changed(f"{path}.{field}", 1, job)
    return job


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        (one(jobset(), "spec.replicatedJobs.0.template.spec"), set()),
        (changed(WORLD, "2", one(jobset(), "spec.replicatedJobs.0.template.spec")), ALL),
        (jobset(), ALL),
    ],
    ids=["one rank", "two in one pod", "two"],
)
def test_jobsets(job: dict[str, Any], wanted: set[str]) -> None:
    (replicated,) = adopted_jobset(job, PLATFORM)["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert told(pod_of({"spec": spec}), spec["parallelism"]) == wanted


@pytest.mark.parametrize(
    ("nodes", "each", "wanted"), [(1, 1, set()), (1, 2, ALL), (2, 1, ALL)], ids=["one rank", "two in one pod", "two"]
)
def test_trainjobs(nodes: int, each: int, wanted: set[str]) -> None:
    job = changed("spec.trainer.numProcPerNode", each, changed("spec.trainer.numNodes", nodes, trainjob()))
    made = adopted_trainjob(job, PLATFORM)
    ours = made["spec"]["runtimePatches"][-1]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    pod = ours["template"]["spec"]["template"]["spec"]
    assert told(pod, nodes, made["spec"]["trainer"]) == wanted
