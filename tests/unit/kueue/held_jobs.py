"""Training jobs that run on `two_controllers`, as far as anybody can tell, and Kueue that wants to suspend them.

    job = HeldJob(cluster, number)
    suspended = await job.evicted(save_s=5.0)     # the Job in the moment in which Kueue's suspend went through

Objects are those that creator, Kueue, Kubernetes and our controller leave behind. The pod is played by the sidecars'
own client, with a token of the pod. It reaches either controller by chance, as through a Service.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import waits
from api_server import CONTROLLER, KUEUE
from two_controllers import SYSTEM, Cluster

from benchmarks.cluster.live.line import At
from benchmarks.running_objects import ATTEMPTS, STORE, job, job_status, namespace_of, pod, pod_status, workload
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller.key_keeper import server_names
from kueue_integration.controller.snapshot import Job, required
from kueue_integration.errors import AlreadyExists, KubeError
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import JOB, LEASE, POD, WORKLOAD, Object
from singularity_proxy.errors import ControllerError
from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import CheckpointRef, CommitRequest
from singularity_proxy.sidecar.config import Config
from singularity_proxy.sidecar.controller_client import Controller

PATIENCE_S = waits.LIMIT_S
AGAIN_S = 0.2
HELD = "a checkpoint is being taken"
"""Of the message with which the policy refuses."""


class Sidecar(Controller):
    """The client of a leader pod. Each request goes to one of the controllers, one that has just died included.

    :param anew: over a connection of its own, which looks at the certificate
    """

    def __init__(self, config: Config, cluster: Cluster, anew: bool = False) -> None:
        super().__init__(config)
        self._cluster, self._anew = cluster, anew

    async def __aenter__(self) -> Controller:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=8, resolver=At("127.0.0.1"), force_close=self._anew)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def _once(
        self, method: str, path: str, body: str | None, timeout_s: float, query: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        port = random.choice(list(self._cluster.ports.values()))
        self._url = f"https://{server_names(SYSTEM)[0]}:{port}"
        return await super()._once(method, path, body, timeout_s, query)


@dataclass(frozen=True)
class Suspended:
    """:param job: in the moment in which Kueue's suspend went through
    :param checkpoint: that the pod has committed
    :param held: how often Kueue was refused
    """

    job: Job
    checkpoint: CheckpointRef
    held: int
    lease: Object | None
    """What stood in the Lease a moment later."""


class HeldJob:
    """Job `number`: it trains in its last attempt, and its hold is armed. `anew`: see `Sidecar`."""

    def __init__(self, cluster: Cluster, number: int, anew: bool = False) -> None:
        self.cluster, self.namespace, self.number, self._anew = cluster, namespace_of(number), number, anew
        admin, ours, kueue = cluster.kube, cluster.server.kube(CONTROLLER), cluster.server.kube(KUEUE)
        self._kueue, self._admin = kueue, admin
        self._in_namespace()
        wanted = job(number)
        wanted["metadata"]["annotations"][job_names.ANN_HOLD] = job_names.HOLD_OFF
        made = ours.create(wanted)
        self.name = str(made["metadata"]["name"])
        self._workload = kueue.create(workload(number, made["metadata"]["uid"]))
        admin.patch(JOB, self.namespace, self.name, {"status": job_status()}, subresource="status")
        its = admin.create(pod(number, made))
        admin.patch(POD, self.namespace, its["metadata"]["name"], {"status": pod_status()}, subresource="status")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": its["metadata"]["name"], "uid": its["metadata"]["uid"]}
        spec = {"audiences": [names.TOKEN_AUDIENCE], "expirationSeconds": 7200, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
        token = admin._json("POST", path, body={"spec": spec})["status"]["token"]
        self.pod, self._token = str(its["metadata"]["name"]), cluster.folder / f"token-{number}"
        self._token.write_text(token)
        self._ca = cluster.bundle()
        # Only now: a held Job that runs without a Workload or a pod is let go.
        armed = {"metadata": {"annotations": {job_names.ANN_HOLD: job_names.HOLD_ARMED}}}
        ours.patch_job(self.namespace, self.name, armed)

    def _in_namespace(self) -> None:
        for path, name in (("/api/v1/namespaces", self.namespace), (_ACCOUNTS.format(self.namespace), "default")):
            try:
                self._admin._json("POST", path, body={"metadata": {"name": name}})
            except AlreadyExists:
                continue

    def job(self) -> Job:
        return Job.parse(self._admin.get(JOB, self.namespace, self.name))

    def record(self) -> AttemptRecord:
        """Of its last attempt."""
        return required(self.job().history)[-1]

    # --- Kueue --------------------------------------------------------------------------------------------------------
    def evict(self) -> None:
        now = server_time.to_text(time.time())
        said = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"
        new = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": said, "lastTransitionTime": now}
        status = {"status": {"conditions": [*self._workload["status"]["conditions"], new]}}
        self._kueue.patch(WORKLOAD, self.namespace, self._workload["metadata"]["name"], status)

    def suspend(self) -> Object | None:
        """Ask once, as Kueue does; None: the hold stands.

        :raises KubeError: another refusal than the hold's
        """
        try:
            return self._kueue.patch_job(self.namespace, self.name, {"spec": {"suspend": True}})
        except KubeError as error:
            if HELD not in str(error):
                raise
            return None

    async def suspended(self, saving: asyncio.Future[CheckpointRef]) -> tuple[Object, int]:
        """The Job once Kueue's suspend has gone through, and how often it was refused."""
        end = time.monotonic() + PATIENCE_S
        for refused in range(10**6):
            done = await asyncio.to_thread(self.suspend)
            if done is not None:
                return done, refused
            if saving.done():
                saving.result()
            assert time.monotonic() < end, f"{self.name} is not suspended after {PATIENCE_S:.0f} s"
            await asyncio.sleep(AGAIN_S)
        raise AssertionError

    # --- the pod ------------------------------------------------------------------------------------------------------
    def sidecar(self) -> Sidecar:
        config = Config(
            self.namespace, self.name, self.pod, "10.0.0.1", 0, ATTEMPTS, 1, 1, STORE, "https://later", self._ca,
            self._token,
        )  # fmt: skip
        return Sidecar(config, self.cluster, self._anew)

    async def save(self, line: Controller, save_s: float) -> CheckpointRef:
        """Wait until a checkpoint is asked for, take so long for it, and commit it."""
        await self._asked(line)
        await asyncio.sleep(save_s)
        step, about = ATTEMPTS * 100 + 7, (self.namespace, self.name, ATTEMPTS)
        number = page.generation(ATTEMPTS, 1)
        ref = CheckpointRef(f"held-{self.number}", number, ATTEMPTS, step, 1, STORE, 9, 9, time.time(), "a" * 64)
        await line.commit(CommitRequest(*about, ref, save_s, step - 1), time.monotonic() + PATIENCE_S)
        return ref

    async def _asked(self, line: Controller) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                command = await line.next_command(0)
            except ControllerError:
                await asyncio.sleep(AGAIN_S)
                continue
            if command is not None and command.op == "checkpoint":
                return
        raise AssertionError(f"{self.name} was not asked for a checkpoint within {PATIENCE_S:.0f} s: {self._told()}")

    def _told(self) -> str:
        return f"hold {hold_of(self.job())}, {self.record()}"

    async def evicted(self, save_s: float) -> Suspended:
        """Kueue evicts the job, whose pod takes so long for its checkpoint. Fails if the hold is lost."""
        done = await self.let_go(save_s)
        lost = f"{self.name}: suspended with its hold {hold_of(done.job)} after {done.held} refusals, by {done.lease}"
        assert hold_of(done.job) == job_names.HOLD_RELEASED, lost
        return done

    async def let_go(self, save_s: float) -> Suspended:
        """The same, but the suspend may come before the commit: the pod saves on."""
        async with self.sidecar() as line:
            saving = asyncio.ensure_future(self.save(line, save_s))
            try:
                await asyncio.to_thread(self.evict)
                found, held = await self.suspended(saving)
                lease = (self._admin.find(LEASE, SYSTEM, job_names.HOLD_LEASE) or {}).get("spec")
                return Suspended(Job.parse(found), await saving, held, lease)
            finally:
                saving.cancel()

    def until_held(self) -> None:
        """Kueue was refused, and the pod was asked for a checkpoint."""
        asked = lambda: job_names.ANN_HOLD_DEADLINE in annotations(self.job())  # noqa: E731
        self.cluster.until(asked, f"{self.name} is being saved")

    def until_recorded(self, done: Suspended) -> None:
        """The pod ends, as those of a suspended Job do, and the history has its attempt with the checkpoint."""
        self._admin.delete(POD, self.namespace, self.pod)
        self.cluster.until(lambda: self.record().pods_gone_at, f"the attempt of {self.name} is on record")
        record = self.record()
        assert (record.ended_by, record.checkpoint) == ("Preempted", done.checkpoint.id), record


_ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts"


def annotations(job: Job) -> Mapping[str, str]:
    found: Mapping[str, str] = job.raw["metadata"].get("annotations") or {}
    return found


def hold_of(job: Job) -> str:
    return annotations(job).get(job_names.ANN_HOLD, "")
