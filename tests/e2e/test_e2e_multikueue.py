"""MultiKueue, all real: one manager and two worker clusters; a job moves between them and loses no step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import JOB, POD, WORKLOAD, Object, annotation
from kueue_integration.spec.platform_config import load
from localcluster import multikueue
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.evidence import collect, show
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for
from localcluster.multikueue import QUEUE, WORKER_QUEUE, Federation
from localcluster.registry import find
from singularity_proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "default"
NAME = os.environ.get("SINGULARITY_TEST_CLUSTER", "test") + "-mk"
EVIDENCE = CHECKOUT / "build" / "e2e"


@dataclass
class World:
    federation: Federation
    manager: Kube
    workers: dict[str, Kube]
    rows: Rows

    def running(self) -> dict[str, list[Object]]:
        """The job's pods that can write, by worker cluster; clusters without one are left out."""
        query = f"{job_names.LABEL_MANAGED}=true"
        found = {name: kube.list(POD, NAMESPACE, query) for name, kube in self.workers.items()}
        alive = {
            name: [p for p in pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
            for name, pods in found.items()
        }
        return {name: pods for name, pods in alive.items() if pods}

    def command(self, *words: str) -> str:
        """What `singularityctl` says at the manager."""
        ctl = Path(sys.executable).with_name("singularityctl")
        env = {**os.environ, "KUBECONFIG": str(self.federation.manager.kubeconfig)}
        done = subprocess.run([str(ctl), *words], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def world(say: Callable[[str], None]) -> Iterator[World]:
    multikueue.down(NAME, say)
    try:
        made = multikueue.up(NAME, say)
        manager = connect(str(made.manager.kubeconfig))
        place = SimpleNamespace(kube=manager, cluster=SimpleNamespace(shared=made.shared), platform=load(manager))
        workers = {name: connect(str(cluster.kubeconfig)) for name, cluster in made.workers.items()}
        yield World(made, manager, workers, Rows(place, NAMESPACE, say))  # type: ignore[arg-type]
    finally:
        multikueue.down(NAME, say)


@pytest.fixture(autouse=True)
def _evidence_of_all(request: pytest.FixtureRequest, world: World, say: Callable[[str], None]) -> Iterator[None]:
    yield
    call = getattr(request.node, "report_call", None)
    if call is not None and call.failed:
        for name, kube in {NAME: world.manager, **world.workers}.items():
            known = find(name)
            target = EVIDENCE / request.node.name / name
            collect(kube, None, NAMESPACE, known.logs if known else None, target)
            show(target, say)


def cluster_of(training: Training) -> str:
    return training.look().cluster


def submit(world: World, name: str) -> Training:
    return world.rows.train(name, QUEUE, workers=2, pace=0.2, cpu="100m")


def fill(kube: Kube) -> None:
    """Jobs of high priority that want the whole quota of the worker's queue."""
    image = load(kube).train_image
    for flavor, pods in (("spot", 1), ("ondemand", 2)):
        urgent = intruder(f"urgent-{flavor}", NAMESPACE, WORKER_QUEUE, image, pods, "500m", "high")
        urgent["spec"]["template"]["spec"]["nodeSelector"] = {"flavor": flavor}
        kube.create(urgent)


def watch_pods(world: World, status: JobStatus | None = None) -> None:
    """Two clusters never have a pod of the job at once."""
    assert len(world.running()) <= 1, {name: len(pods) for name, pods in world.running().items()}


def test_a_job_moves_to_the_other_cluster_with_its_checkpoint(world: World) -> None:
    training = submit(world, "mover")
    training.until_steps(5)
    first = cluster_of(training)
    assert first in world.workers and set(world.running()) == {first}
    shown = json.loads(world.command("status", "mover", "-o", "json"))
    # The step is that of the copy's JobProgress in the worker, brought up.
    assert shown["cluster"] == first and shown["step"] >= 5, shown
    # The whole cluster is taken by somebody more important.
    fill(world.workers[first])

    def moved() -> JobStatus | None:
        watch_pods(world)
        status = training.look()
        assert not status.final, status.message
        return status if status.attempt == 2 and status.attempts[-1].first_step_at else None

    status = wait_for(moved, "the second attempt has made a step", TIMEOUT_S)
    second = status.cluster
    assert second in world.workers and second != first
    assert [record.cluster for record in status.attempts] == [first, second]
    ended = status.attempts[0]
    assert ended.ended_by == "Preempted" and ended.checkpoint and ended.preempted_by
    training.until_attempt(2, steps=5)
    training.assert_exact(training.finish())
    wait_for(lambda: not leftovers(world, "mover"), "nothing of the job is left in the workers", TIMEOUT_S)


def leftovers(world: World, name: str) -> list[str]:
    found = []
    for cluster, kube in world.workers.items():
        if kube.find(JOB, NAMESPACE, name) is not None:
            found.append(f"Job in {cluster}")
        copies = kube.list(WORKLOAD, NAMESPACE, job_names.MULTIKUEUE_ORIGIN_LABEL)
        found += [f"Workload {w['metadata']['name']} in {cluster}" for w in copies if name in w["metadata"]["name"]]
    return found


def test_a_checkpoint_asked_for_at_the_manager_is_taken_in_the_worker(world: World) -> None:
    for kube in world.workers.values():
        for job in kube.list(JOB, NAMESPACE):
            if job["metadata"]["name"].startswith("urgent-"):
                kube.delete(JOB, NAMESPACE, job["metadata"]["name"])
    training = submit(world, "saver")
    training.until_steps(3)
    world.command("checkpoint", "saver", "--wait")
    job = world.manager.get(JOB, NAMESPACE, "saver")
    assert annotation(job, names.ANN_CHECKPOINT)
    training.assert_exact(training.finish())
