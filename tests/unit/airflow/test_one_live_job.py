"""Whatever happens between its tries, a task has one live Job in all clusters and namespaces that it was ever in.

Drawn: tries that end at some request to the API server, retries, clears, ends of the Job, and Dags that are changed.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from kueue_samples import namespace
from test_train_operator import NAMESPACE, Airflow, _task_runs, kube, operator

from airflow_provider import cluster, compat
from airflow_provider.compat import AirflowRescheduleException, TaskDeferred
from airflow_provider.ending import over
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, LOCAL_QUEUE, Object

__all__ = ["_task_runs", "kube"]
SPACES = (NAMESPACE, "b")
STEPS = 20


class WorkerLostError(BaseException):
    """The process of a try is gone."""


class Played:
    """A task in two clusters, and what was done to it."""

    def __init__(self, kube: FakeKube, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        kube.put(namespace("b"))
        queue = kube.get(LOCAL_QUEUE, NAMESPACE, "training")
        kube.put({**queue, "metadata": {"name": "training", "namespace": "b"}})
        self.kubes = {"one": kube, "two": FakeKube(*copy.deepcopy(kube.objects()))}
        self.draw, self.airflow = draw, Airflow()
        self.airflow.max_tries = 1000  # retries enough
        self.conn_id, self.namespace = "one", NAMESPACE
        self.said: list[str] = []
        self.renewed = False
        """Whether a clear or a failure has come since the last Job was made."""
        self.left: int | None = None
        """Requests that the worker has time for; None: for all."""
        self.start_from = draw.choice([None, "earlier run"])
        monkeypatch.setattr(cluster, "connect", lambda conn_id: (self.kubes[conn_id], "default"))
        for name, each in self.kubes.items():
            each.server = f"https://{name}"
            for verb in ("create", "delete", "patch", "list", "get"):
                monkeypatch.setattr(each, verb, self._counted(getattr(each, verb)))

    def _counted(self, call: Any) -> Any:
        """The worker dies before or after the request that it has no time for."""

        def counted(*given: Any, **named: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left == 0:
                    raise WorkerLostError
            found = call(*given, **named)
            if self.left == 1 and self.draw.random() < 0.5:
                self.left = None
                raise WorkerLostError
            return found

        return counted

    def alive(self) -> list[Object]:
        before, self.left = self.left, None
        jobs = [job for kube in self.kubes.values() for space in SPACES for job in kube.list(JOB, space)]
        self.left = before
        return [job for job in jobs if not over(job) and not job["metadata"].get("deletionTimestamp")]

    def try_it(self, lost: bool) -> None:
        before = self.alive()
        op = operator(kubernetes_conn_id=self.conn_id, namespace=self.namespace, start_from=self.start_from)
        self.left = self.draw.randint(1, 20) if lost else None
        try:
            op.execute(self.airflow.context())
        except TaskDeferred as deferred:
            self.left = None
            (job,) = self.alive()
            assert job["metadata"]["uid"] == deferred.trigger.uid
            if before and not self.renewed:
                assert job["metadata"]["uid"] == before[0]["metadata"]["uid"], "a job that lives is adopted"
            if self.renewed:
                assert job["metadata"]["uid"] not in {each["metadata"]["uid"] for each in before}
            self.renewed = False
        except (WorkerLostError, AirflowRescheduleException):
            self.left = None
            assert len(self.alive()) <= 1
            if self.renewed and self.alive() and self.alive() != before:
                self.renewed = False  # made, and not told of yet
        self.left = None

    def step(self) -> None:
        # Without a store nobody knows where the try before has looked.
        moves = ["conn", "conn", "space"] if compat.HAS_STORE else []
        what = self.draw.choice(["try", "lost", "lost", "lost", "clear", "fail", *moves])
        self.said.append(what)
        if what in ("try", "lost"):
            self.try_it(what == "lost")
            self.airflow.retry()
        elif what == "clear":
            self.airflow.clear()
            self.renewed = True
        elif what == "conn":
            self.conn_id = self.draw.choice(sorted(self.kubes))
        elif what == "space":
            self.namespace = self.draw.choice(SPACES)
        else:
            for job in self.alive():
                meta = job["metadata"]
                kube = next(k for k in self.kubes.values() if k.find(JOB, meta["namespace"], meta["name"]) == job)
                status = {"conditions": [{"type": "Failed", "status": "True"}]}
                kube.set_status(JOB, meta["namespace"], meta["name"], status)
                self.renewed = True


@pytest.mark.parametrize("seed", range(40))
def test_one_live_job_whatever_happens(kube: FakeKube, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    played = Played(kube, random.Random(seed), monkeypatch)
    try:
        for _ in range(STEPS):
            played.step()
            assert len(played.alive()) <= 1
    except BaseException:
        print(" ".join(played.said))
        raise
    played.try_it(lost=False)
    assert len(played.alive()) == 1
