"""The state engine on a cluster: pods without any privilege, another flavor, another number of workers, the same bits.

The namespace enforces Pod Security `restricted`, so that a pod which asks for more is never made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from other_kinds import ctl
from rows import Rows, Training

from kueue_integration.jobs.preflight import POD_SECURITY
from kueue_integration.kube.resources import LOCAL_QUEUE, NAMESPACE, Object
from localcluster.demo.stage import Stage
from localcluster.shell import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).parent / "scripts" / "train_state.py"
STEPS = 400


def claimed(stage: Stage, namespace: str, volume: dict[str, Any]) -> dict[str, Any]:
    """A platform's volume of this machine as a claim: `restricted` allows no hostPath in a pod."""
    name = f"{namespace}-{volume['name']}"
    shape = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    objects: list[Object] = [
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                **shape, "capacity": size, "hostPath": volume["hostPath"], "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {**shape, "resources": {"requests": size}, "volumeName": name},
        },
    ]  # fmt: skip
    words = [str(stage.cluster.kubectl), f"--kubeconfig={stage.cluster.kubeconfig}", "apply", "-f", "-"]
    run(words, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), timeout=60)
    return {"name": volume["name"], "persistentVolumeClaim": {"claimName": name}}


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "restricted", say)
    stage.kube.patch(NAMESPACE, None, made.namespace, {"metadata": {"labels": {POD_SECURITY: "restricted"}}})
    made.queue("q", {"ondemand": "200m", "spot": "100m"})
    store = stage.cluster.shared / "restricted-store"
    store.mkdir(exist_ok=True)
    store.chmod(0o777)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def others(stage: Stage, rows: Rows, say: Callable[[str], None]) -> Iterator[Rows]:
    """Jobs of anybody, in the same queue."""
    made = Rows(stage, "restricted-others", say)
    made.make({
        "apiVersion": LOCAL_QUEUE.api_version, "kind": LOCAL_QUEUE.name,
        "metadata": {"name": "q", "namespace": made.namespace}, "spec": {"clusterQueue": rows.cluster_queue("q")},
    })  # fmt: skip
    try:
        yield made
    finally:
        made.close()


def train(rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str, **spec: Any) -> Training:
    volumes = [claimed(rows.stage, rows.namespace, dict(volume)) for volume in rows.stage.platform.volumes]
    monkeypatch.setattr(rows.stage, "_platform", replace(rows.stage.platform, volumes=volumes))
    return rows.train(
        name, "q", script=SCRIPT.name, args=["--steps", str(STEPS)], files={SCRIPT.name: SCRIPT.read_text()},
        engine="state", store="file:///shared/restricted-store", **spec,
    )  # fmt: skip


def test_four_workers_two_four_three_without_a_privilege(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = train(rows, monkeypatch, "elastic", workers=4, min_workers=2, pace=0.3)
    monkeypatch.undo()
    job.until_steps(5)
    others.other("urgent", "q", pods=4)
    job.until_attempt(2)
    (pod,) = [pod for pod in job.pods() if pod["metadata"]["name"].startswith("elastic-0-")][-1:]
    assert pod["spec"]["securityContext"]["runAsNonRoot"], "admitted by `restricted`"

    # The quota is free again: it goes back. Three workers do not divide four virtual ranks evenly.
    others.remove("urgent")
    job.until_attempt(3)
    ctl(rows, "resize", job.name, "--workers", "3", "--wait")
    job.until_attempt(4)
    last = job.finish()
    seen = [(a.flavor, a.pods, a.ranks) for a in last.attempts]
    assert seen == [("ondemand", 4, 4), ("spot", 2, 2), ("ondemand", 4, 4), ("ondemand", 3, 3)]
    assert last.steps_lost == 0
    assert [a.first_step for a in last.attempts[1:]] == [(a.last_step or 0) + 1 for a in last.attempts[:-1]]
    assert all(a.restored_from == b.checkpoint for b, a in zip(last.attempts, last.attempts[1:], strict=False))

    alone = train(rows, monkeypatch, "alone", workers=1, pace=0)
    alone.finish()
    assert len(alone.lines()) == STEPS
    assert job.lines() == alone.lines(), "every loss has the bits of one worker's"
