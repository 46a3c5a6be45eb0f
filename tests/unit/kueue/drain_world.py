"""Nodes with training jobs for the tests of `drain`, and a controller that answers requests step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kueue_samples as samples
from test_verbs_ask import flavor, node, queue

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import RequestStatus
from kueue_integration.drain.run import Drain
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, KUEUE_JOB_UID_LABEL, POD, WORKLOAD, Object
from kueue_integration.requests import placement, user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

ADMITTED = (("QuotaReserved", "True"), ("Admitted", "True"))


def pod(job: str, on: str, number: int = 0, phase: str = "Running", **meta: Any) -> Object:
    labels = {job_names.LABEL_JOB: job, job_names.LABEL_MANAGED: "true"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"{job}-{number}", "namespace": "default", "labels": labels, **meta},
        "spec": {"nodeName": on}, "status": {"phase": phase},
    }  # fmt: skip


class World:
    """Nodes n1 and n2 of ondemand, n3 of spot. `now` grows by a second per `tick`, which is one step of everybody."""

    def __init__(self) -> None:
        self.kube: FakeKube = samples.cluster(
            flavor("ondemand", flavor="ondemand"), flavor("spot", flavor="spot"),
            node("n1", "ondemand"), node("n2", "ondemand"), node("n3", "spot"),
        )  # fmt: skip
        self.kube.put(queue("ondemand", "spot"))
        self.now = 1000.0
        self.lines: list[str] = []
        self.most_at_once = 0
        self.dead = False
        """The controller answers nobody."""
        self.quota = True
        """What has left gets quota again."""
        self.save_fails = ""
        """Why no checkpoint can be had."""
        self.refuge = "n2"
        self.events: dict[int, Any] = {}
        """What else happens at a tick, by its number."""
        self.ticks = 0

    def train(
        self, name: str = "digits", on: str = "n1", priority: int = 0, stepped: bool = True, **notes: str
    ) -> None:
        """A job of one pod that trains on a node."""
        record = samples.attempt(pods=1, running_at=110.0)
        if stepped:
            record = replace(record, first_step=0, first_step_at=120.0)
        made = samples.job(history=[record], annotations={job_names.COMPLETIONS_EQUAL_PARALLELISM: "true", **notes})
        made["metadata"].update(name=name, uid=f"u-{name}")
        made["metadata"]["labels"][job_names.LABEL_JOB] = name
        made["spec"]["template"] = {"spec": {"containers": [], "terminationGracePeriodSeconds": 30}}
        workload = samples.workload(*ADMITTED)
        workload["metadata"].update(name=f"job-{name}", labels={KUEUE_JOB_UID_LABEL: f"u-{name}"})
        workload["spec"]["priority"] = priority
        for thing in (made, workload, pod(name, on)):
            self.kube.put(thing)

    def drain(self, *nodes: str, **options: Any) -> Drain:
        return Drain(
            self.kube, nodes or ("n1",), None, "ann", say=self._say, clock=lambda: self.now, pause=self.tick,
            **{"timeout_s": 100.0, **options},
        )  # fmt: skip

    def _say(self, key: tuple[str, str], text: str) -> None:
        self.lines.append(f"{key[1]}: {text}")

    def tick(self) -> None:
        self.now += 1
        self.ticks += 1
        self.events.get(self.ticks, lambda: None)()
        jobs = [obj for obj in self.kube.objects() if obj["kind"] == "Job"]
        asked = [user_requests.asked(job, user_requests.CHANGE) for job in jobs]
        answers = [user_requests.answer(job, user_requests.CHANGE) for job in jobs]
        under_way = [
            r for r, a in zip(asked, answers, strict=True) if r and r.node and (a is None or a.state == "running")
        ]
        self.most_at_once = max(self.most_at_once, len(under_way))
        for job in [] if self.dead else jobs:
            self._save(job)
            self._move(job)

    # --- the controller -----------------------------------------------------------------------------------------
    def note(self, job: str, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": annotations}}
        self.kube.patch(JOB, "default", job, body)

    def fail_change(self, why: str) -> None:
        """The request for a change of the one job has failed."""
        job = self.kube.get_job("default", "digits")
        request = user_requests.asked(job, user_requests.CHANGE)
        assert request is not None
        status = RequestStatus(request.id, "migrate", "failed", why, self.now, 1, self.now)
        self.note("digits", **user_requests.stored(status))

    def _save(self, job: Object) -> None:
        request = user_requests.asked(job, user_requests.CHECKPOINT)
        if request is None or user_requests.answer(job, user_requests.CHECKPOINT) is not None:
            return
        state, text = ("failed", self.save_fails) if self.save_fails else ("done", "checkpoint made")
        status = RequestStatus(request.id, "checkpoint", state, text, self.now, 1)  # type: ignore[arg-type]
        self.note(job["metadata"]["name"], **user_requests.stored(status))

    def _move(self, job: Object) -> None:
        """Taken up; evicted and saved; pods gone; admitted again; runs: a tick each."""
        name, request = job["metadata"]["name"], user_requests.asked(job, user_requests.CHANGE)
        if request is None or request.placement is None:
            return
        status, history = user_requests.answer(job, user_requests.CHANGE), attempt_records.history(job)
        last = history[-1]
        if status is None:
            running = RequestStatus(request.id, "migrate", "running", "moves", self.now, last.attempt)
            self.note(name, **user_requests.stored(running), **{job_names.ANN_PLACEMENT: to_json(request.placement)})
        elif status.state != "running":
            return
        elif request.node and last.attempt == status.attempt and last.ended_by is None:
            self._evict(name, history)
        elif self.kube.find(POD, "default", f"{name}-{last.attempt - 1}") and last.ended_by:
            self.kube.delete(POD, "default", f"{name}-{last.attempt - 1}")
            self.kube.patch(JOB, "default", name, {"spec": {"suspend": True}})
            gone = [{"type": "QuotaReserved", "status": "False"}, {"type": "Admitted", "status": "False"}]
            self._workload(name, gone)
        elif last.ended_by and self.quota:
            self._start(name, history)
        elif not last.ended_by:
            done = replace(status, state="done", message="runs", finished_at=self.now)
            self.note(name, **user_requests.stored(done))

    def _evict(self, name: str, history: list[Any]) -> None:
        saved = samples.saved(history[-1].attempt, 61)
        over = {"evicted_at": 200.0, "barrier_at": 201.0, "committed_at": 202.0, "last_step": 60}
        ended = replace(history[-1], ended_by="Migrated", checkpoint=saved.id, **over)
        self._write(name, [*history[:-1], ended])
        self.note(name, **{names.ANN_CHECKPOINT: to_json(saved)})
        self._workload(name, [{"type": "Evicted", "status": "True", "reason": "Deactivated"}, *_true(*ADMITTED)])

    def _start(self, name: str, history: list[Any]) -> None:
        number = history[-1].attempt + 1
        fresh = {"pods": 1, "running_at": 210.0, "first_step": 61, "first_step_at": 211.0}
        self._write(name, [*history, samples.attempt(number, **fresh, restored_from=history[-1].checkpoint)])
        self.kube.patch(JOB, "default", name, {"spec": {"suspend": False}})
        self._workload(name, _true(*ADMITTED))
        self.kube.put(pod(name, self.refuge, number - 1))

    def _workload(self, name: str, conditions: list[dict[str, str]]) -> None:
        self.kube.set_status(WORKLOAD, "default", f"job-{name}", {"conditions": conditions})

    def _write(self, name: str, history: list[Any]) -> None:
        text = to_json(list(history))
        self.note(name, **{job_names.ANN_HISTORY: text, job_names.ANN_ATTEMPT: str(history[-1].attempt)})

    def placement(self, name: str = "digits") -> Any:
        return placement.of(self.kube.get_job("default", name))

    def written(self) -> list[tuple[str, str, str]]:
        return [r for r in self.kube.requests if r[0] in ("patch", "create", "replace", "delete")]


def _true(*conditions: tuple[str, str]) -> list[dict[str, str]]:
    return [{"type": kind, "status": status} for kind, status in conditions]
