"""The stage of the eviction rows: queues of a test's own, small training jobs, and the proof that no step was lost.

    rows = Rows(stage, "rows-mine", say)         # a namespace of its own; `rows.close()` removes all that it made
    rows.queue("drain", {"ondemand": "1"})       # ClusterQueue + LocalQueue with our fence, of that quota in CPUs
    job = rows.train("drain-1", queue="drain")   # through jobs.lifecycle; its pods sleep most of a step
    job.until_steps(5)                           # 5 steps done by the current attempt
    ...                                          # what the row is about
    ended = job.until_ended(1)                   # AttemptRecord of attempt 1, released; `job.look()`: JobStatus
    job.until_attempt(2, steps=3)                # the second attempt has done 3 steps
    last = job.finish()                          # the script ends by itself; the job must have Succeeded
    job.assert_exact(last)                       # no step lost, none run twice, every loss of every rank bit-identical
    # after a loss without a checkpoint: job.repeated() == the steps that were run twice (same bits)

`rows.other(...)` submits a plain Job that only takes quota; `rows.patch(...)`, `rows.workload(job)`, `job.until(...)`
do the rest. All waits are for conditions, with timeouts for a busy machine (`TIMEOUT_S`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.errors import AlreadyExists, Conflict, NotFound
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import JobStatus, describe
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    WORKLOAD,
    Kind,
    Object,
    is_true,
    kind_of,
    merge_patch,
)
from kueue_integration.spec import store_access
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.addons import store_keys
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

SCRIPT = Path(__file__).parent / "scripts" / "train_exact.py"
TIMEOUT_S = 600.0
"""Of every wait; many times what an idle machine takes."""
CPU = "50m"
"""What one training pod asks for unless told otherwise: quotas of rows are counted in it."""


def target(step: int, rank: int) -> float:
    return float((37 * step + 11 * rank) % 101)


def expected_losses(steps: int, ranks: int = 1) -> list[list[float]]:
    """`[rank][step]`: every loss of scripts/train_exact.py. `ranks` must be 1 or 2: more may be summed in any order."""
    weight = momentum = 0.0
    losses: list[list[float]] = [[] for _ in range(ranks)]
    for step in range(steps):
        gaps = [weight - target(step, rank) for rank in range(ranks)]
        for rank, gap in enumerate(gaps):
            losses[rank].append(gap * gap)
        gradient = sum(2 * gap / ranks for gap in gaps)
        momentum = gradient if step == 0 else 0.5 * momentum + gradient
        weight = weight - 0.125 * momentum
    return losses


class Training:
    """One submitted training job."""

    def __init__(self, rows: Rows, spec: TrainSpec, output: Path) -> None:
        self.rows, self.spec, self.output = rows, spec, output
        self.name = spec.name
        self._seen: JobStatus | None = None

    def look(self) -> JobStatus:
        """What a user reads now."""
        self._seen = describe(self.rows.kube, self.rows.namespace, self.name)
        return self._seen

    def job(self) -> Object:
        return self.rows.kube.get(JOB, self.rows.namespace, self.name)

    def pods(self) -> Sequence[Object]:
        """Its pods of all attempts that still exist."""
        return self.rows.kube.list_pods(self.rows.namespace, f"{job_names.LABEL_JOB}={self.name}")

    def until(self, condition: Callable[[JobStatus], object], what: str, timeout_s: float = TIMEOUT_S) -> JobStatus:
        """The first status for which `condition` holds. Fails when the job ends before, or time is up."""

        def holds() -> JobStatus | None:
            status = self.look()
            if condition(status):
                return status
            assert not status.final, f"{self.name} is {status.phase} before: {what}. {status.message}"
            return None

        found: JobStatus = wait_for(holds, f"{self.name}: {what}", timeout_s, detail=self._last)
        return found

    def _last(self) -> str:
        s = self._seen
        return "nothing" if s is None else f"{s.phase} {s.reason}: {s.message} (attempt {s.attempt}, step {s.step})"

    def until_steps(self, steps: int = 5) -> JobStatus:
        """The current attempt, not evicted, has done `steps` steps."""
        return self.until(lambda s: _done(s) >= steps, f"{steps} steps of an attempt")

    def until_attempt(self, number: int, steps: int = 3) -> JobStatus:
        """Attempt `number` or a later one, not evicted, has done `steps` steps."""
        return self.until(lambda s: s.attempt >= number and _done(s) >= steps, f"{steps} steps of attempt {number}")

    def until_ended(self, number: int = 1) -> AttemptRecord:
        """The record of attempt `number` once it says why it ended and that its quota was released."""
        status = self.until(
            lambda s: len(s.attempts) >= number and s.attempts[number - 1].ended_by
            and (s.attempts[number - 1].released_at or s.attempts[number - 1].finished_at),
            f"the end of attempt {number}",
        )  # fmt: skip
        return status.attempts[number - 1]

    def finish(self) -> JobStatus:
        """Let the script end; the job's last status, which must be Succeeded."""
        (self.output / "stop").touch()
        status = self.until(lambda s: s.final, "the end of the training")
        assert status.phase == "Succeeded", f"{self.name} is {status.phase}: {status.message}"
        # Kubernetes says that the Job is complete before our controller has written how the last attempt ended.
        return wait_for(self._recorded, f"{self.name}: the record of the last attempt", TIMEOUT_S, detail=self._last)

    def _recorded(self) -> JobStatus | None:
        status = self.look()
        return status if status.attempts and status.attempts[-1].finished_at else None

    def slow(self, slow: bool = True) -> None:
        """Make the step that runs, or the next one, last until this is called with False: nothing is saved meanwhile.

        A job of one rank is saved all the same, wherever it is.
        """
        (self.output / "slow").touch() if slow else (self.output / "slow").unlink(missing_ok=True)

    def lines(self, rank: int = 0) -> list[tuple[int, float]]:
        """(step, loss) as the script wrote them, oldest first."""
        try:
            text = (self.output / f"rank-{rank}.log").read_text()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind("\n") + 1].splitlines()
        return [(int(step), float.fromhex(loss)) for step, loss in (line.split() for line in complete)]

    def repeated(self) -> int:
        """Steps that were run more than once, the most of any rank, after checking every line of every rank.

        Fails unless the first step is 0, each line is followed by the next step (or by an earlier one: a restart from
        an older state), and every loss has the bits of an uninterrupted run.
        """
        worst = 0
        every = [self.lines(rank) for rank in range(self.spec.ranks)]
        expected = expected_losses(max(step for lines in every for step, _ in lines) + 1, self.spec.ranks)
        for rank, lines in enumerate(every):
            assert lines and lines[0][0] == 0, f"rank {rank} of {self.name} starts with {lines[:1]}"
            for (before, _), (step, _) in itertools.pairwise(lines):
                assert step <= before + 1, f"rank {rank} of {self.name}: step {before} is followed by {step}"
            wrong = [(step, loss, expected[rank][step]) for step, loss in lines if loss != expected[rank][step]]
            assert not wrong, f"rank {rank} of {self.name}: (step, loss, expected loss) {wrong[:3]}"
            worst = max(worst, len(lines) - len({step for step, _ in lines}))
        return worst

    def assert_exact(self, status: JobStatus | None = None) -> None:
        """No step was lost or run twice, every loss is that of an uninterrupted run; the records say the same."""
        status = status or self.look()
        assert self.repeated() == 0
        assert status.steps_lost == 0
        for before, after in itertools.pairwise(status.attempts):
            assert before.last_step is not None and before.checkpoint is not None, before
            assert after.first_step == before.last_step + 1, (before, after)
            assert after.restored_from == before.checkpoint, (before, after)


def _done(status: JobStatus) -> int:
    """Steps that the current attempt has done, 0 if it is evicted or has ended."""
    last = status.attempts[-1] if status.attempts else None
    if last is None or last.first_step is None or last.ended_by is not None or status.phase != "Running":
        return 0
    return status.step - last.first_step


class Rows:
    """Queues and jobs of one test or module in a namespace of their own. What it made is removed by `close`."""

    def __init__(self, stage: Stage, namespace: str, say: Callable[[str], None]) -> None:
        self.stage, self.kube, self.namespace, self.say = stage, stage.kube, namespace, say
        self.submit: Callable[[TrainSpec], object] = lambda spec: lifecycle.submit(self.kube, spec, stage.platform)
        """How `train` submits: with the library of another release, say."""
        self._made: list[Object] = []
        labels = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
        self.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
        if store_access.of(stage.platform, namespace).keys:
            self.make(store_keys.secret(namespace))

    def make(self, manifest: Mapping[str, Any]) -> Object:
        """Create an object that `close` deletes; one that is there already is taken as it is."""
        try:
            made = self.kube.create(manifest)
        except AlreadyExists:
            meta = manifest["metadata"]
            return self.kube.get(kind_of(manifest), meta.get("namespace"), meta["name"])
        self._made.append(made)
        return made

    def queue(
        self,
        name: str,
        quota: Mapping[str, str],
        *,
        cohort: str | None = None,
        preemption: Mapping[str, Any] | None = None,
        checks: Sequence[str] = (),
        **spec: Any,
    ) -> None:
        """ClusterQueue and LocalQueue `name`. `quota`: flavor -> CPUs; `checks`: besides our fence; `spec`: more of it.

        The ClusterQueue's name has the namespace before it: `cluster_queue(name)`.
        """
        flavors = [
            {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpus}]} for flavor, cpus in quota.items()
        ]
        all_checks = [{"name": check} for check in (job_names.ADMISSION_CHECK_NAME, *checks)]
        body: dict[str, Any] = {
            "namespaceSelector": {},
            "preemption": dict(preemption or {"withinClusterQueue": "LowerPriority"}),
            "admissionChecksStrategy": {"admissionChecks": all_checks},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
            **spec,
        }
        if cohort is not None:
            body["cohortName"] = f"{self.namespace}-{cohort}"
        own = self.cluster_queue(name)
        self.make(_kueue(CLUSTER_QUEUE, {"name": own}, body))
        self.local_queue(name, own)

    def local_queue(self, name: str, cluster_queue: str) -> None:
        """Jobs of this namespace in a ClusterQueue, maybe one of another namespace's."""
        self.make(_kueue(LOCAL_QUEUE, {"name": name, "namespace": self.namespace}, {"clusterQueue": cluster_queue}))

    def cluster_queue(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def train(
        self,
        name: str,
        queue: str,
        *,
        workers: int = 1,
        cpu: str = CPU,
        pace: float = 0.05,
        ballast: int = 0,
        script: str = SCRIPT.name,
        args: Sequence[str] = (),
        **spec: Any,
    ) -> Training:
        """Submit a training job of `workers` pods with one rank each.

        :param script: another of the job's `files`, which takes the same arguments
        :param args: more arguments
        :param spec: more fields of TrainSpec
        """
        folder = Path(self.namespace) / f"{name}-{time.time_ns()}"
        output = self.stage.cluster.shared / folder
        output.mkdir(parents=True)
        output.chmod(0o777)
        own = ["--output", f"/shared/{folder}", "--pace", str(pace), "--ballast", str(ballast), *args]
        full = TrainSpec(
            **{
                "name": name,
                "namespace": self.namespace,
                "queue": queue,
                "command": ["python3", script, *own],
                "files": {SCRIPT.name: SCRIPT.read_text()},
                "workers": workers,
                "resources": {"cpu": cpu},
                "priority_class": "low",
                "checkpoint_budget_s": 600,  # what a row is about, not how fast a busy machine writes
                **spec,
            }
        )
        self.submit(full)
        return Training(self, full, output)

    def other(self, name: str, queue: str, *, pods: int = 1, cpu: str = CPU, priority: str = "high") -> str:
        """A plain Job that takes quota and does nothing; returns the name. `remove` ends it."""
        image = self.stage.platform.train_image
        self.kube.create(intruder(name, self.namespace, queue, image, pods, cpu, priority))
        return name

    def remove(self, name: str) -> None:
        """Delete a Job and wait until its pods are gone. No error when it is not there."""
        if self.kube.find(JOB, self.namespace, name) is not None:
            self.kube.delete(JOB, self.namespace, name)
        wait_for(
            lambda: self.kube.find(JOB, self.namespace, name) is None
            and not self.kube.list(POD, self.namespace, f"job-name={name}"),
            f"Job {name} gone with its pods",
            TIMEOUT_S,
        )  # fmt: skip

    def workload(self, job: str) -> Object:
        """Kueue's Workload of the Job `job`, waited for."""
        return wait_for(
            lambda: self.kube.get_workload_for_job(self.kube.get(JOB, self.namespace, job)),
            f"the Workload of {job}",
            TIMEOUT_S,
        )

    def until_admitted(self, job: str) -> Object:
        """The Workload of the Job `job` once it is admitted."""
        return wait_for(
            lambda: (w := self.workload(job)) and is_true(w, "Admitted") and w, f"{job} admitted", TIMEOUT_S
        )

    def patch(self, kind: Kind, name: str, spec: Mapping[str, Any]) -> Object:
        """Merge `spec` into the spec of an object (of our namespace, if it has one)."""
        return self.kube.patch(kind, self.namespace if kind.namespaced else None, name, {"spec": spec})

    def activate(self, job: str, active: bool) -> None:
        """Set `spec.active` of the Job's Workload."""
        self.patch(WORKLOAD, self.workload(job)["metadata"]["name"], {"active": active})

    def answer(self, job: str, check: str, state: str, message: str) -> None:
        """Answer an admission check as its controller would; `state`: Ready, Retry, Rejected."""

        def answered() -> bool:
            workload = self.workload(job)
            meta, checks = workload["metadata"], (workload.get("status") or {}).get("admissionChecks") or []
            own = next((c for c in checks if c["name"] == check), None)
            if own is None:
                return False
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            new = merge_patch(own, {"state": state, "message": message, "lastTransitionTime": stamp})
            body = {"status": {"admissionChecks": [new if c is own else c for c in checks]}}
            try:
                self.kube.patch_workload_status(self.namespace, meta["name"], body, meta["resourceVersion"])
            except Conflict:
                return False
            return True

        wait_for(answered, f"admission check {check} of {job} set to {state}", TIMEOUT_S, tick_s=0.1)

    def close(self) -> None:
        """Delete everything that was made, jobs first."""
        for job in self.kube.list(JOB, self.namespace):
            self.kube.delete(JOB, self.namespace, job["metadata"]["name"])
        wait_for(
            lambda: not self.kube.list(JOB, self.namespace) and not self.kube.list(POD, self.namespace),
            f"the jobs of namespace {self.namespace} gone",
            TIMEOUT_S,
        )
        for made in reversed(self._made):
            kind, meta = kind_of(made), made["metadata"]
            if kind is NAMESPACE:
                continue  # a namespace takes long to go, and without its controller for ever; it is empty and ours
            with contextlib.suppress(NotFound):
                self.kube.delete(kind, meta.get("namespace"), meta["name"])
        self._made.clear()


def _kueue(kind: Kind, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": dict(meta), "spec": dict(spec)}


def places(job: Training) -> set[str]:
    """Nodes of the pods that are at work."""
    pods = [pod for pod in job.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    return {str(pod["spec"].get("nodeName")) for pod in pods}
