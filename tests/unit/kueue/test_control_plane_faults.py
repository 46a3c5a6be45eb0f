"""Faults around two controllers in the middle of a save: the hold goes on or ends as promised, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from held_jobs import HeldJob, hold_of
from two_controllers import SYSTEM, Cluster, two_controllers

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.controller.key_keeper import server_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import ADMISSION_POLICY_BINDING, JOB, LEASE, SECRET, Object

pytestmark = pytest.mark.long
LEASE_S = 10.0
SAVE_S = 4.0
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with two_controllers(tmp_path_factory.mktemp("cluster")) as found:
        for name in ("a", "b"):
            found.start(name)
        yield found


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.until_led()
    return running


async def test_both_controllers_die(cluster: Cluster) -> None:
    """Kueue waits for no dead controller. The pod goes on saving, and the next controller takes the checkpoint."""
    job = await asyncio.to_thread(HeldJob, cluster, 100)
    ending = asyncio.ensure_future(job.let_go(LEASE_S + 5))
    await asyncio.to_thread(job.until_held)
    died = time.monotonic()
    for name in [*cluster.running]:
        cluster.kill(name)
    suspended = lambda: job.job().suspended  # noqa: E731
    await asyncio.to_thread(cluster.until, suspended, "the hold is void")
    assert time.monotonic() - died > LEASE_S / 2, "a moment without a controller is no reason"
    for name in ("a", "b"):
        cluster.start(name)
    done = await ending
    assert hold_of(done.job) == job_names.HOLD_ARMED, "nobody had let it go"
    await asyncio.to_thread(job.until_recorded, done)


async def test_the_lease_is_deleted(cluster: Cluster) -> None:
    job = await asyncio.to_thread(HeldJob, cluster, 101)
    ending = asyncio.ensure_future(job.let_go(SAVE_S))
    await asyncio.to_thread(job.until_held)
    uid = cluster.kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE)["metadata"]["uid"]
    cluster.kube.delete(LEASE, SYSTEM, job_names.HOLD_LEASE)
    await asyncio.to_thread(job.until_recorded, await ending)
    await asyncio.to_thread(cluster.until_led)
    assert cluster.kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE)["metadata"]["uid"] != uid
    after = await asyncio.to_thread(HeldJob, cluster, 102)
    assert (await after.evicted(SAVE_S)).held > 0, "with the new Lease holds stand again"


async def test_the_binding_of_the_hold_is_deleted(cluster: Cluster) -> None:
    job = await asyncio.to_thread(HeldJob, cluster, 103)
    ending = asyncio.ensure_future(job.let_go(SAVE_S))
    await asyncio.to_thread(job.until_held)
    binding = cluster.kube.get(ADMISSION_POLICY_BINDING, None, job_names.HOLD_LEASE)
    cluster.kube.delete(ADMISSION_POLICY_BINDING, None, job_names.HOLD_LEASE)
    try:
        await asyncio.to_thread(job.until_recorded, await ending)
    finally:
        meta = {key: binding["metadata"].get(key) for key in ("name", "labels")}
        cluster.kube.create({**binding, "metadata": meta})
    numbers = itertools.count(200)
    in_force = lambda: HeldJob(cluster, next(numbers)).suspend() is None  # noqa: E731
    await asyncio.to_thread(cluster.until, in_force, "the hold is in force again")


async def test_keys_are_rotated(cluster: Cluster) -> None:
    old = cluster.bundle()
    job = await asyncio.to_thread(HeldJob, cluster, 104)
    ending = asyncio.ensure_future(job.evicted(SAVE_S))
    await asyncio.to_thread(job.until_held)
    rotate = {"metadata": {"annotations": {job_names.KEYS_ROTATE: "in the middle of a save"}}}
    cluster.kube.patch(SECRET, SYSTEM, job_names.KEYS_SECRET, rotate)
    await asyncio.to_thread(cluster.until, lambda: cluster.bundle() != old, "the rotation is published")
    await asyncio.to_thread(job.until_recorded, await ending)


async def test_a_certificate_of_the_platforms_own_ends(tmp_path: Path) -> None:
    """Nobody has renewed it: no pod accepts a controller. The hold stands, and the commit comes with the next one."""
    authority, key = certificates.authority(time.time(), 30)
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "ca.crt").write_text(authority)

    def sign(at: float) -> None:
        made = certificates.leaf(authority, key, server_names(SYSTEM), at)
        for name, text in zip(("tls.crt", "tls.key"), made, strict=True):
            (folder / name).write_text(text)

    sign(time.time())
    (tmp_path / "cluster").mkdir()
    with two_controllers(tmp_path / "cluster") as cluster:
        cluster.env["SINGULARITY_SECRET_DIR"] = str(folder)
        for name in ("a", "b"):
            cluster.start(name)
        await asyncio.to_thread(cluster.until_led)
        job = await asyncio.to_thread(HeldJob, cluster, 106, anew=True)
        ending = asyncio.ensure_future(job.evicted(2 * SAVE_S))
        await asyncio.to_thread(job.until_held)
        sign(time.time() - (certificates.LEAF_DAYS + 1) * 86400)
        refused = lambda: not any(cluster.reaches(authority, name) for name in cluster.running)  # noqa: E731
        await asyncio.to_thread(cluster.until, refused, "pods accept neither controller")
        await asyncio.sleep(3 * SAVE_S)  # the length of the fault: the checkpoint is there, and nobody hears of it
        assert not ending.done() and await asyncio.to_thread(job.suspend) is None, "Kueue waits on"
        sign(time.time())
        await asyncio.to_thread(job.until_recorded, await ending)


async def test_a_webhook_of_others_is_away(cluster: Cluster) -> None:
    """Nobody can write on a Job: neither Kueue nor the controllers. Afterwards all goes on where it was."""
    job = await asyncio.to_thread(HeldJob, cluster, 105)
    with away(cluster, job):
        await asyncio.to_thread(job.evict)
        leader = cluster.folder / f"{cluster.leader()}.log"
        failed = lambda: "failed calling webhook" in leader.read_text()  # noqa: E731
        await asyncio.to_thread(cluster.until, failed, "the leader has met the webhook")
        assert job_names.ANN_HOLD_DEADLINE not in (job.job().raw["metadata"].get("annotations") or {})
    done = await job.evicted(SAVE_S)
    assert done.held > 0
    await asyncio.to_thread(job.until_recorded, done)


@contextlib.contextmanager
def away(cluster: Cluster, job: HeldJob) -> Iterator[None]:
    """A webhook that must be asked of each write on a Job does not answer."""
    name = "nobody.example.com"
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["UPDATE"]}
    hook: Object = {
        "name": name, "rules": [rule], "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail",
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 2,
    }  # fmt: skip
    cluster.kube._json("POST", _WEBHOOKS, body={"metadata": {"name": name}, "webhooks": [hook]})

    def refused() -> bool:
        try:
            cluster.kube.patch(JOB, job.namespace, job.name, {"metadata": {"labels": {"a": str(time.time_ns())}}})
        except KubeError as error:
            return "failed calling webhook" in str(error)
        return False

    try:
        cluster.until(refused, "the API server asks the webhook")
        yield
    finally:
        cluster.kube._json("DELETE", f"{_WEBHOOKS}/{name}")
    cluster.until(lambda: not refused(), "the API server has forgotten the webhook")
