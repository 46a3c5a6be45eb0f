"""One training job, Kueue, the Job controller, the hold policy and replicas of our controller, in virtual time.

Ours is the real code: decide, apply, reports, reconciler, lease. What Kueue, the Job controller and the API server's
policy do is written down here as `charts/` and the facts about Kueue say it. After every tick the invariants of
architecture.md 3.1 and 3.2 are checked: no hold outlives its limit, never two attempts at once, never a wrong resume.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import controller_scene as scene
from controller_scene import CHECK, NS, T0

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.controller import apply, kept
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.lease import LeaseKeeper
from kueue_integration.controller.look import Looks
from kueue_integration.controller.machines.nodes import Machines, Nodes
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.notes import Notes
from kueue_integration.controller.reconciler import Reconciler, Task
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.errors import Conflict, KubeError, Unreachable
from kueue_integration.job import states
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, LEASE, POD, WORKLOAD, annotation, is_true
from singularity_proxy.protocol.messages import CheckpointFailure, CheckpointRef, CommitRequest, Progress, Then
from singularity_proxy.sidecar.state_machine import ORDER

TICK_S = 0.5
BUDGET_S = 20
LEASE_S = 10
SAVE_S = 3.0
GRACE_S = 12.0
KUEUE_RETRY_S = 1.0
PARTITION_S = 60.0
TASK = Task("job", NS, "train")
WRITES = ("patch", "replace", "create", "delete")


class Crash(BaseException):
    """The controller's process ends here: nothing catches it but the world."""


class Server(FakeKube):
    """The API server. Requests of our replicas can be cut off, or end the replica that makes them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.actor: Replica | None = None
        self.writes = 0
        """Writes that replicas have made."""
        self.crash_at: int | None = None
        self.crash_after = True
        self.fired = 0

    def _note(self, verb: str, kind: Any, name: str) -> None:
        if self.actor is not None:
            if self._world.now < self.actor.cut_until:
                raise Unreachable("no route to host")
            if verb in WRITES and kind is not LEASE:
                self.writes += 1
                if self.writes == self.crash_at and not self.crash_after:
                    self._die()
        super()._note(verb, kind, name)

    def _die(self) -> None:
        self.crash_at = None
        self.fired += 1
        assert self.actor is not None
        self._world.fault(self.actor)

    def patch(self, kind: Any, *args: Any, **kwargs: Any) -> Any:
        done = super().patch(kind, *args, **kwargs)
        if self.actor is not None and self.writes == self.crash_at and self.crash_after and kind is not LEASE:
            self._die()
        return done

    def replace(self, obj: Any) -> Any:
        meta = {**obj["metadata"], "managedFields": [{"time": server_time.to_whole(self._world.now)}]}
        return super().replace({**obj, "metadata": meta})


class Copies:
    """A replica's copies of the objects, `lag` ticks old; frozen while the replica is cut off."""

    def __init__(self, world: World, replica: Replica, lag: int) -> None:
        self._world, self._replica, self._lag = world, replica, lag
        self._shown: Any = world.snapshots[-1]
        self.notes = Notes(world.kube)
        self.nodes = Nodes(world.kube)

    def job(self, namespace: str, key: str) -> Any:
        return kept.job(self._look()[0])

    def _look(self) -> Any:
        if self._world.now >= self._replica.cut_until:
            self._shown = self._world.snapshots[max(0, len(self._world.snapshots) - 1 - self._lag)]
        return self._shown

    def workload_of(self, namespace: str, name: str) -> Any:
        found = self._look()[1]
        return None if found is None else kept.workload(found)

    def pods_of(self, namespace: str, name: str) -> Any:
        return [kept.pod(pod) for pod in self._look()[2]]

    def lost_of(self, namespace: str, name: str) -> Any:
        return []

    def preemptor(self, uid: str) -> None:
        return None

    def flavors_of(self, workload: Any) -> Any:
        return ()


class Replica:
    """One process of our controller; everything in it is lost when it crashes."""

    def __init__(self, world: World, name: str, skew_s: float = 0.0, lag: int = 0, always_leads: bool = False) -> None:
        self.world, self.name, self.skew_s, self.lag, self.always = world, name, skew_s, lag, always_leads
        self.cut_until = self.down_until = 0.0
        self.boot()

    def boot(self) -> None:
        server = server_time.ServerClock(lambda: self.world.now + self.skew_s)
        self.clock = server
        settings = Settings(regrow="none", max_budget_s=600)
        self.reconciler = Reconciler(self.world.kube, settings, Metrics(), now=server.now)
        copies: Any = Copies(self.world, self, self.lag)
        self.reconciler.world = copies
        machines, overdue = Machines(self.world.kube, Nodes(self.world.kube)), self.reconciler.overdue
        self.reconciler.looks = Looks(self.world.kube, settings, copies, overdue, machines.of, Metrics(), server.now)
        self.keeper = LeaseKeeper(
            self.world.kube,
            "sys",
            job_names.HOLD_LEASE,
            self.name,
            LEASE_S,
            2,
            lambda: True,
            lambda leads: None,
            server=server,
        )

    @property
    def alive(self) -> bool:
        return self.world.now >= self.down_until

    def act(self, work: Any) -> Any:
        """Run `work` as this replica; None when it is down, or crashes in it."""
        if not self.alive:
            return None
        self.world.kube.actor = self
        try:
            return work()
        except Crash:
            self.boot()
            return None
        finally:
            self.world.kube.actor = None

    def tick(self) -> None:
        if self.world.ticks % 4 == 0:
            self.act(self.keeper.tick)
        if self.always or self.keeper.leads:
            self.act(lambda: self.reconciler.handle(TASK))


class World:
    def __init__(self, monkeypatch: Any, replicas: int = 1, down_s: float = 1.0, cut_s: float = 0.0, **options: Any):
        self.now = T0 + 100
        self.ticks = 0
        self.down_s, self.cut_s = down_s, cut_s
        monkeypatch.setattr("kueue_integration.controller.lease.time", SimpleNamespace(monotonic=lambda: self.now))
        self.kube = Server(self)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        self.kube.put({**lease, "metadata": {"name": job_names.HOLD_LEASE, "namespace": "sys"}})
        self.kube.put(
            scene.job(
                annotations={
                    job_names.ANN_HOLD: "armed", job_names.ANN_BUDGET: str(BUDGET_S), job_names.ANN_WORLD_SIZE: "2",
                    job_names.ANN_STORE: "file:///shared/checkpoints",
                }
            )
        )  # fmt: skip
        self.kube.put(scene.workload(reserved_at=None, state="Pending"))
        self.snapshots: list[Any] = []
        self._snap()
        self.training: Training | None = None
        self.committed: list[CheckpointRef] = []
        self.started: list[tuple[int, int]] = []
        """(attempt, first step) of every start."""
        self.lost = 0
        """Steps that were run and are run again."""
        self.evicted_at: float | None = None
        self.longest_hold = 0.0
        self.denials = 0
        self.asked: list[tuple[float, int, bool]] = []
        """(time, attempt, whether it goes on) of every checkpoint that the pods were asked for."""
        self.report_s = float("inf")
        """How often the pods tell their progress after the first time."""
        self.save_s, self.save_fails = SAVE_S, False
        """Of checkpoints that Kueue does not ask for; and whether none can be had at all."""
        self.reached = 0
        """Steps that ranks have made."""
        self.when_saved: Any = lambda: None
        """Called when ranks that were saved begin to stay stopped."""
        self.replicas = [Replica(self, f"replica-{n}", **options) for n in range(replicas)]

    # --- faults -------------------------------------------------------------------------------------------------------
    def fault(self, replica: Replica) -> None:
        """What the armed fault does to the replica that has just written."""
        if self.cut_s:
            replica.cut_until = self.now + self.cut_s
            return
        replica.down_until = self.now + self.down_s
        raise Crash

    # --- objects ------------------------------------------------------------------------------------------------------
    def job(self) -> Any:
        return self.kube.get(JOB, NS, "train")

    def workload(self) -> Any:
        return self.kube.get(WORKLOAD, NS, "job-train-1")

    def pods(self) -> list[Any]:
        return self.kube.list(POD, NS)

    def _snap(self) -> None:
        self.snapshots.append((self.job(), self.workload(), self.pods()))

    # --- time ---------------------------------------------------------------------------------------------------------
    def run(self, until: Any, limit_s: float = 300.0) -> None:
        end = self.now + limit_s
        while not until():
            assert self.now < end, f"not within {limit_s} s; {self.job()['metadata']['annotations']}"
            self.tick()

    def tick(self) -> None:
        self.now += TICK_S
        self.ticks += 1
        if self.ticks % int(KUEUE_RETRY_S / TICK_S) == 0:
            self._kueue()
        self._job_controller()
        if self.training is not None:
            self.training.tick()
        self._snap()
        for replica in self.replicas:
            replica.tick()
        self._snap()
        self._check()

    def _check(self) -> None:
        attempts = {annotation(p, job_names.ANN_ATTEMPT) for p in self.pods() if states.can_write(p)}
        assert len(attempts) <= 1, f"two attempts at once: {attempts}"
        if self.evicted_at is not None and not self.job()["spec"]["suspend"]:
            held = self.now - self.evicted_at
            self.longest_hold = max(self.longest_hold, held)
            # The deadline counts from when the eviction was seen: by a replica that may have to take over first.
            assert held <= BUDGET_S + LEASE_S + 4 + KUEUE_RETRY_S, f"H1: Kueue is held back for {held} s"
            if not self.pods():
                assert held <= LEASE_S + 4, "H3: held back without any pod"

    # --- Kueue --------------------------------------------------------------------------------------------------------
    def evict(self, reason: str = "Preempted") -> None:
        self.evicted_at = self.now
        self._conditions(Evicted=(True, reason))
        self._status({"admissionChecks": [{"name": CHECK, "state": "Pending", "message": ""}]})

    def _conditions(self, **changes: tuple[bool, str]) -> None:
        old = {c["type"]: c for c in self.workload()["status"].get("conditions") or ()}
        for type_, (status, reason) in changes.items():
            before = old.get(type_)
            if before is None or before["status"] != str(status):
                old[type_] = scene.condition(type_, status, self.now - T0, reason)
        self._status({"conditions": list(old.values())})

    def _status(self, status: Any) -> None:
        self.kube.patch(WORKLOAD, NS, "job-train-1", {"status": status}, subresource="status")

    def _kueue(self) -> None:
        workload, job = self.workload(), self.job()
        if is_true(workload, "Evicted"):
            if not job["spec"]["suspend"]:
                if self._denied(job):
                    self.denials += 1
                else:
                    self.kube.patch_job(NS, "train", {"spec": {"suspend": True}})
            elif self._active() == 0:
                self.evicted_at = None
                self._conditions(QuotaReserved=(False, "Pending"), Admitted=(False, "NoReservation"))
                self._status({"admission": None})
                self._conditions(Evicted=(False, "QuotaReserved"))
        elif workload["spec"].get("active") is False:
            if states.reservation(workload) is not None:
                self.evict("Deactivated")
        elif states.reservation(workload) is None:
            given = scene.workload()["status"]["admission"]
            checks = [{"name": CHECK, "state": "Pending", "message": ""}]
            self._status({"admission": given, "admissionChecks": checks})
            self._conditions(QuotaReserved=(True, "QuotaReserved"))
        elif scene.check(workload).get("state") == "Retry":
            self.evict("AdmissionCheck")
        elif scene.check(workload).get("state") == "Ready" and job["spec"]["suspend"]:
            (update,) = scene.check(workload)["podSetUpdates"]
            self.template = update["annotations"]
            self._conditions(Admitted=(True, "Admitted"))
            self.kube.patch_job(NS, "train", {"spec": {"suspend": False}})

    def _denied(self, job: Any) -> bool:
        """charts/singularity/templates/hold.yaml: "now" is the API server's clock."""
        if annotation(job, job_names.ANN_HOLD) != job_names.HOLD_ARMED:
            return False
        lease = self.kube.get(LEASE, "sys", job_names.HOLD_LEASE).get("spec") or {}
        silent = not lease or self.now > server_time.parse(lease["renewTime"]) + lease["leaseDurationSeconds"]
        deadline = annotation(job, job_names.ANN_HOLD_DEADLINE)
        return not silent and not (deadline is not None and self.now > server_time.parse(deadline))

    # --- the Job controller and the kubelet ---------------------------------------------------------------------------
    def _active(self) -> int:
        return len([p for p in self.pods() if not p["metadata"].get("deletionTimestamp")])

    def _job_controller(self) -> None:
        job, pods = self.job(), self.pods()
        if job["spec"]["suspend"]:
            for pod in pods:
                if not pod["metadata"].get("deletionTimestamp"):
                    stamp = server_time.to_whole(self.now)
                    self.kube.patch(POD, NS, pod["metadata"]["name"], {"metadata": {"deletionTimestamp": stamp}})
                    assert self.training is not None
                    self.training.terminate()
            if pods and self.training is not None and self.training.gone:
                for pod in pods:
                    self.kube.delete(POD, NS, pod["metadata"]["name"])
                self.training = None
        elif not pods:  # podReplacementPolicy: Failed, so never beside an old one
            number = int(self.template[job_names.ANN_ATTEMPT])
            for index in (0, 1):
                self.kube.put(scene.pod(index, attempt=number, created=self.now - T0, ip=f"10.0.0.{index}"))
            self.training = Training(self, number)


class Training:
    """The pods of one attempt: launcher, sidecars, ranks; a step a tick."""

    def __init__(self, world: World, attempt: int) -> None:
        self.world, self.attempt = world, attempt
        self.step: int | None = None
        self.first = 0
        self.told = self.gone = False
        self.asked_after = 0
        self.save_done: float | None = None
        self.deadline = 0.0
        self.kill_at: float | None = None
        self.done = False
        self.ref: CheckpointRef | None = None
        self.then: Then = "stop"
        self.stay_s = 0.0
        self.stands_until: float | None = None
        """Saved, and the ranks stay stopped until then."""
        self.saved = 0
        self.told_at = 0.0

    @property
    def goes_on(self) -> bool:
        return self.then != "stop"

    def terminate(self) -> None:
        """SIGTERM: a checkpoint within the grace period, unless one was committed."""
        self.kill_at = self.world.now + GRACE_S
        self.then = "stop"
        if self.done or self.step is None:
            self.gone = True
        elif self.stands_until is not None:
            self._end_as_saved(self.kill_at)
        elif self.save_done is None:
            self.save_done, self.deadline = self.world.now + SAVE_S, self.kill_at

    def _call(self, work: Any) -> Any:
        """A request to the Service: any replica that is up answers. None: nobody did."""
        for replica in self.world.replicas:
            if replica.alive and self.world.now >= replica.cut_until:
                before = self.world.kube.fired
                try:
                    result = replica.act(work)
                except KubeError:
                    continue
                if self.world.kube.fired == before:
                    return result
        return None

    def _write(self, change: Any) -> bool | None:
        kube = self.world.kube

        def attempt() -> bool:
            for _ in range(8):
                job = kube.get_job(NS, "train")
                annotations = change(job)
                if not annotations:
                    return True
                try:
                    apply.patch_annotations(kube, job, annotations)
                    return True
                except Conflict:
                    continue
            return False

        found: bool | None = self._call(attempt)
        return found

    def tick(self) -> None:
        world = self.world
        if self.gone:
            return
        if self.kill_at is not None and world.now >= self.kill_at:
            self.gone = True
            return
        if self.step is None:
            self._start()
            return
        if self.done:
            return  # stopped with the dump, waits for SIGTERM
        if (not self.told or world.now >= self.told_at + world.report_s) and self.step > self.first:
            seen = Progress(NS, "train", self.attempt, "running", self.step, self.first, 0.0)
            self.told = bool(self._write(lambda j: reports.progress(j, seen, world.now, world.pods()))) or self.told
            self.told_at = world.now
        if self.save_done is None and self.stands_until is None:
            self.step += 1
            world.reached = max(world.reached, self.step)
        if self.goes_on or self.save_done is None:
            self._obey()
        if self.stands_until is not None and world.now >= self.stands_until:
            self._go_on()
        elif self.save_done is None:
            return
        elif world.now >= self.save_done and world.save_fails and self.kill_at is None:
            self._fail("the store is full")
        elif world.now >= self.deadline and self.goes_on:
            self._fail("not saved in time")
        elif world.now >= self.save_done and not world.save_fails:
            self._commit()

    def _fail(self, why: str) -> None:
        seen = CheckpointFailure(NS, "train", self.attempt, why, self.step or 0, goes_on=self.goes_on)
        self._write(lambda j: reports.failure(j, seen, self.world.now))
        self._go_on()

    def _obey(self) -> None:
        """As the leader's state machine has it: what comes during a save joins it, and `resume` calls a stay off."""
        world = self.world
        command = self._call(lambda: reports.command(world.kube.get_job(NS, "train"), world.now))
        if command is None or command.seq <= self.asked_after:
            return
        self.asked_after = command.seq
        if command.op == "resume":
            if self.stands_until is not None:
                self._go_on()
            elif self.save_done is not None and self.then == "stay":
                self.then = "continue"
            return
        deadline = world.now + command.remaining_s
        world.asked.append((world.now, self.attempt, command.then != "stop"))
        if self.stands_until is not None:
            self.then = "stay" if command.then == "continue" else command.then
            self._end_as_saved(deadline)
        elif self.save_done is None:
            self.then, self.stay_s, self.deadline = command.then, command.stay_s, deadline
            self.save_done = world.now + (world.save_s if self.goes_on else SAVE_S)
        else:
            self.then, self.stay_s = max(self.then, command.then, key=ORDER.index), max(self.stay_s, command.stay_s)
            self.deadline = deadline

    def _end_as_saved(self, deadline: float) -> None:
        self.save_done, self.stands_until, self.deadline = self.world.now, None, deadline

    def _go_on(self) -> None:
        self.saved, self.ref, self.save_done, self.stands_until = self.saved + 1, None, None, None

    def _start(self) -> None:
        job = self._call(lambda: self.world.kube.get_job(NS, "train"))
        if job is None:
            return
        reports.require_current(job, self.attempt)
        ref = attempt_records.checkpoint(job)
        newest = self.world.committed[-1] if self.world.committed else None
        assert ref == newest, "a wrong resume: not the newest committed checkpoint"
        self.first = self.step = ref.step if ref else 0
        self.world.started.append((self.attempt, self.step))

    def _commit(self) -> None:
        world = self.world
        assert self.step is not None
        if self.ref is None:
            # By the node's clock, which nobody else goes by.
            new = scene.checkpoint(self.attempt, self.saved + 1, step=self.step)
            self.ref = dataclasses.replace(new, created_at=world.now - 95)
        ref = self.ref
        stays = self.then == "stay"
        request = CommitRequest(NS, "train", self.attempt, ref, SAVE_S, self.step - 1, self.goes_on, stays)
        try:
            said = self._write(lambda j: reports.commit(j, request, world.now))
        except RefusedError:
            self.gone = True  # stale: everything ends, nothing was written
            return
        found = attempt_records.checkpoint(world.job())
        stands = found is not None and found.id == ref.id
        if stands and found not in world.committed:
            world.committed.append(found)
        if said and stays:
            assert stands
            self.save_done, self.stands_until = None, world.now + self.stay_s
            world.when_saved()
        elif said and self.goes_on:
            assert stands
            self._go_on()
        elif said:
            assert stands
            self.done = True
            self.gone = self.kill_at is not None
        elif world.now >= self.deadline and self.kill_at is None and not stands:
            self._go_on()  # given up
