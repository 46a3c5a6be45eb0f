"""MultiKueue, all real: one manager and two worker clusters; a job moves between them and loses no step.

Clusters that are slow or cut off have an API server and Kueue alone: no queue of theirs takes the job, so nothing would
run there anyway. The one that dies and comes back is whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from faulty_proxy import FaultyProxy
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import WORKER_TIMEOUT_S, connect
from kueue_integration.kube.resources import (
    JOB,
    MULTIKUEUE_CLUSTER,
    POD,
    WORKLOAD,
    Object,
    annotation,
    condition,
    is_true,
)
from kueue_integration.spec.platform_config import load
from localcluster import cluster, multikueue
from localcluster.config import APISERVER_PORT, ClusterConfig
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.evidence import collect, show
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for
from localcluster.multikueue import QUEUE, WORKER_QUEUE, Federation
from localcluster.namespaces import processes, sandbox
from localcluster.registry import find
from localcluster.shell import run
from singularity_proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "default"
NAME = os.environ.get("SINGULARITY_TEST_CLUSTER", "test") + "-mk"
EVIDENCE = CHECKOUT / "build" / "e2e"
API_SERVER = "kube-apiserver"
LIVING, DEAD, SLOW, CUT_OFF = (f"{NAME}-{letter}" for letter in "abcd")
DELAY_S = 2.0
"""For which each piece of an answer of the slow cluster is held back: its TLS handshake alone takes longer."""


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


def clear(kube: Kube) -> None:
    """Whoever is more important has ended."""
    for job in kube.list(JOB, NAMESPACE):
        if job["metadata"]["name"].startswith("urgent-"):
            kube.delete(JOB, NAMESPACE, job["metadata"]["name"])


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
    for where, kube in world.workers.items():
        if kube.find(JOB, NAMESPACE, name) is not None:
            found.append(f"Job in {where}")
        copies = kube.list(WORKLOAD, NAMESPACE, job_names.MULTIKUEUE_ORIGIN_LABEL)
        found += [f"Workload {w['metadata']['name']} in {where}" for w in copies if name in w["metadata"]["name"]]
    return found


def test_a_checkpoint_asked_for_at_the_manager_is_taken_in_the_worker(world: World) -> None:
    for kube in world.workers.values():
        clear(kube)
    training = submit(world, "saver")
    training.until_steps(3)
    world.command("checkpoint", "saver", "--wait")
    job = world.manager.get(JOB, NAMESPACE, "saver")
    assert annotation(job, names.ANN_CHECKPOINT)
    training.assert_exact(training.finish())


# --- clusters that are dead, slow, or cut off ------------------------------------------------------------------------
class Ill:
    """What is wrong with each of the three, and how it is taken away again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.proxy = FaultyProxy(APISERVER_PORT, config(SLOW).address, listen=config(NAME).host_address)

    def kubeconfigs(self) -> dict[str, dict[str, object]]:
        """Of the slow cluster, by its proxy, and of the other one."""
        made = {name: json.loads(config(name).kubeconfig.read_text()) for name in (SLOW, CUT_OFF)}
        behind = {"server": self.proxy.url.replace("http:", "https:"), "tls-server-name": "kubernetes"}
        made[SLOW]["clusters"][0]["cluster"].update(behind)
        return made

    def fall(self) -> None:
        """One is killed with SIGKILL, one answers late, and the packets to one are dropped."""
        box = sandbox.find(config(DEAD))
        assert box is not None
        process = processes.running(box, API_SERVER)
        assert process is not None
        box.run(["kill", "-KILL", str(process.pid)])
        self.proxy.delay = DELAY_S
        run(["ip", "route", "add", "blackhole", f"{config(CUT_OFF).address}/32"])

    def join(self) -> None:
        """Packets pass again, and answers come at once."""
        self.proxy.delay = 0.0
        subprocess.run(["ip", "route", "del", "blackhole", f"{config(CUT_OFF).address}/32"], capture_output=True)

    def rise(self) -> None:
        """The dead one is started again, if it is dead."""
        box = sandbox.find(config(DEAD))
        if box is None or processes.running(box, API_SERVER) is None:
            cluster.up(DEAD, self._say, only="cluster")


def config(name: str) -> ClusterConfig:
    found = find(name)
    assert found is not None, f"cluster {name} does not exist"
    return found


@pytest.fixture
def ill(world: World, say: Callable[[str], None]) -> Iterator[Ill]:
    made = None
    try:
        for name in (SLOW, CUT_OFF):
            cluster.up(name, say, only="kueue")
            multikueue.forward(config(name))
        made = Ill(say)
        multikueue.send_to(world.federation, {**world.federation.kubeconfigs, **made.kubeconfigs()}, say)
        yield made
    finally:
        if made is not None:
            made.join()
            made.rise()
            made.proxy.close()
        for name in (SLOW, CUT_OFF):
            cluster.down(name, say)


def active(world: World) -> set[str]:
    """Clusters that Kueue is connected to."""
    return {c["metadata"]["name"] for c in world.manager.list(MULTIKUEUE_CLUSTER) if is_true(c, "Active")}


def waited(world: World, training: Training) -> float:
    """Seconds from quota in the living cluster to the fence's answer there."""
    workload = world.workers[LIVING].get(WORKLOAD, NAMESPACE, world.rows.workload(training.name)["metadata"]["name"])
    reserved = condition(workload, "QuotaReserved")
    (answer,) = workload["status"]["admissionChecks"]
    assert reserved is not None and answer["state"] == "Ready", workload["status"]
    begin, end = (datetime.fromisoformat(each["lastTransitionTime"]) for each in (reserved, answer))
    return (end - begin).total_seconds()


def preempted(world: World, training: Training) -> None:
    """Somebody more important takes the living cluster, and the job is saved there."""
    fill(world.workers[LIVING])
    ended = training.until_ended()
    assert (ended.cluster, ended.ended_by) == (LIVING, "Preempted") and ended.checkpoint, ended


def offered(world: World, name: str, training: Training) -> Object | None:
    """The copy of the job's Workload in one of the other clusters."""
    copy = str(world.rows.workload(training.name)["metadata"]["name"])
    return connect(str(config(name).kubeconfig)).find(WORKLOAD, NAMESPACE, copy)


def clusters_of(status: JobStatus) -> Sequence[str | None]:
    return [record.cluster for record in status.attempts]


def test_a_job_of_the_living_cluster_is_not_held_up_by_dead_slow_and_cut_off_ones(world: World, ill: Ill) -> None:
    for kube in world.workers.values():
        clear(kube)
    ill.fall()
    training = submit(world, "survivor")
    training.until_steps(5)
    assert cluster_of(training) == LIVING
    first = waited(world, training)
    preempted(world, training)
    clear(world.workers[LIVING])
    training.until_attempt(2, steps=5)
    again = waited(world, training)
    world.rows.say(f"--> from quota to the fence's answer: {first:.0f} s, and {again:.0f} s for the second attempt")
    assert max(first, again) < WORKER_TIMEOUT_S, "a cluster that does not answer was waited for"
    last = training.finish()
    training.assert_exact(last)
    assert clusters_of(last) == [LIVING, LIVING]
    assert ill.proxy.fired["delay"], "no answer was late"
    lost = {LIVING: True, DEAD: False, CUT_OFF: False}
    wait_for(
        lambda: {name: name in active(world) for name in lost} == lost, "Kueue sees who has gone", TIMEOUT_S,
        detail=lambda: str(active(world)),
    )  # fmt: skip

    # The next one has to leave the living cluster, and those that come back are used.
    training = submit(world, "returner")
    training.until_steps(5)
    preempted(world, training)
    ill.join()
    for name in (SLOW, CUT_OFF):
        wait_for(partial(offered, world, name, training), f"the job is offered to cluster {name}", TIMEOUT_S)
    ill.rise()
    training.until_attempt(2, steps=5)
    watch_pods(world)
    last = training.finish()
    training.assert_exact(last)
    assert clusters_of(last) == [LIVING, DEAD]
