"""A platform by `helm template | kubectl apply --server-side`, with prune: three syncs over jobs that train, and more.

Prune is what Argo CD does with label tracking: what has the instance's label, no owner, and is not in the render, goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from rows import TIMEOUT_S, Rows

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import CLUSTER_QUEUE, CONFIG_MAP, JOB, SECRET, Object
from localcluster import registry
from localcluster.addons.chart import CHART, NAMESPACE, RELEASE, Chart
from localcluster.config import cache_dir
from localcluster.control_plane.kubectl import Kubectl, for_cluster
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from localcluster.images import gobuild, rootfs

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
QUEUE, NAME = "own", "gitops"
BOARD = "singularity-dashboard"
INSTANCE = f"app.kubernetes.io/instance={RELEASE}"


class Repository:
    """Renders the chart with the values of the release that is installed, and syncs as a GitOps tool does."""

    def __init__(self, stage: Stage) -> None:
        config = registry.find(stage.name)
        assert config is not None
        binaries = gobuild.build_all(cache_dir(), lambda text: None)
        self.kubectl: Kubectl = for_cluster(config, binaries)
        self.chart = Chart(config, binaries, self.kubectl, rootfs.torch(cache_dir(), lambda text: None))
        self._values = config.root / "values-gitops.json"
        self._values.write_text(self.chart.helm("get", "values", RELEASE, "-o", "json"))

    def render(self, *sets: str) -> str:
        version = json.loads(self.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
        options = [f"--values={self._values}", f"--kube-version={version}", "--no-hooks"]
        return self.chart.helm("template", RELEASE, str(CHART), *options, *(f"--set={item}" for item in sets))

    def sync(self, *sets: str) -> set[tuple[str, str]]:
        """Apply, prune, wait for the controller; (kind, name) of what was pruned."""
        text = self.render(*sets)
        assert text == self.render(*sets), "two renders differ"
        documents: list[dict[str, Any]] = [d for d in yaml.safe_load_all(text) if d]
        self.kubectl.apply(documents)
        wanted = {(d["kind"], d["metadata"]["name"]) for d in documents}
        pruned = set()
        for kind in sorted({d["kind"] for d in documents}):
            found = self.kubectl.json("get", kind, "-n", NAMESPACE, "-l", INSTANCE)["items"]
            for one in found:
                key = (str(one["kind"]), str(one["metadata"]["name"]))
                if key not in wanted and not one["metadata"].get("ownerReferences"):
                    self.kubectl("delete", kind, key[1], "-n", NAMESPACE)
                    pruned.add(key)
        self.chart.await_controller()
        return pruned


@pytest.fixture
def repository(stage: Stage) -> Iterator[Repository]:
    """The release's own objects are as its values say, afterwards."""
    made = Repository(stage)
    yield made
    made.sync()


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, NAME, say)
    made.queue(QUEUE, {"ondemand": "250m"})
    yield made
    made.close()


def test_three_syncs_over_running_jobs_lose_no_step_and_touch_nothing_of_others(
    rows: Rows, repository: Repository, say: Callable[[str], None]
) -> None:
    kube = rows.kube
    job = rows.train("trains", QUEUE, workers=2)
    rows.other("foreign", QUEUE)
    job.until_steps()
    rows.until_admitted("foreign")
    meta = {"name": "of-somebody-else", "namespace": NAMESPACE}
    rows.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}})
    keys, told = secret_data(rows), platform(rows)
    before = others(rows)

    repository.sync("metrics.dashboard.enabled=true")
    say("--> first sync")
    assert kube.find(CONFIG_MAP, NAMESPACE, BOARD) is not None
    assert repository.sync("controller.logLevel=DEBUG") == {("ConfigMap", BOARD)}
    say("--> second sync: the controllers are new")
    asked = job.look().step
    wait_for(lambda: job.look().step > asked + 5, "it trains on", TIMEOUT_S)
    rows.activate(job.name, False)
    ended = job.until_ended(1)
    assert ended.checkpoint is not None, ended.note
    rows.activate(job.name, True)
    job.until_attempt(2)
    assert repository.sync() == set()
    say("--> third sync")

    assert (secret_data(rows), platform(rows)) == (keys, told)
    assert others(rows) == before
    late = rows.train("late", QUEUE)
    late.until_steps(2)
    for each in (job, late):
        each.assert_exact(each.finish())
    assert others(rows) == before


def secret_data(rows: Rows) -> Mapping[str, str]:
    found: Mapping[str, str] = rows.kube.get(SECRET, NAMESPACE, job_names.KEYS_SECRET)["data"]
    return found


def platform(rows: Rows) -> str:
    return str(rows.kube.get(CONFIG_MAP, NAMESPACE, job_names.PLATFORM_CONFIGMAP)["data"]["platform.json"])


def others(rows: Rows) -> list[object]:
    """What a sync must not have written: a Job that is none of ours, its queue, an object beside the chart's."""
    foreign = rows.kube.get(JOB, rows.namespace, "foreign")
    queue: Object = rows.kube.get(CLUSTER_QUEUE, None, rows.cluster_queue(QUEUE))
    beside = rows.kube.get(CONFIG_MAP, NAMESPACE, "of-somebody-else")
    return [
        (foreign["metadata"]["uid"], foreign["spec"]["suspend"], foreign["status"].get("active")),
        queue["spec"],
        beside["metadata"]["resourceVersion"],
    ]
