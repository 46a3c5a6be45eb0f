"""Snapshots for the tests of the planner: a queue, jobs that train in it, and a cluster that plays moves out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.planner import model, quota
from kueue_integration.planner.job import BY, Given, Job, Request, Workload
from kueue_integration.planner.model import ClusterSnapshot, Queue

NOW = 1_800_000_000.0
GPU = "nvidia.com/gpu"


def queue(name: str = "training", devices: int = 8, cohort: str = "", flavors: tuple[str, ...] = ("a100",)) -> Queue:
    nominal = {(flavor, GPU): Fraction(devices) for flavor in flavors}
    return Queue(name, cohort, [quota.Group([GPU], list(flavors), nominal)])


def record(attempt: int = 1, **changes: Any) -> AttemptRecord:
    """An attempt of two pods that was admitted 1000 s ago, and has made its first step 20 s later."""
    values: dict[str, Any] = {
        "attempt": attempt, "reservation": f"r{attempt}", "flavor": "a100", "pods": 2, "ranks": 4,
        "admitted_at": NOW - 1000, "running_at": NOW - 985, "first_step": 0, "first_step_at": NOW - 980,
    }  # fmt: skip
    return AttemptRecord(**{**values, **changes})


def moved(attempt: int, ago: float, by: str = "Migrated", save: float = 10.0, restore: float = 20.0) -> AttemptRecord:
    """An attempt that somebody has ended `ago` seconds ago; it was restored and saved in so many seconds."""
    begun, ended = NOW - ago - 600, NOW - ago
    return record(
        attempt, admitted_at=begun, running_at=begun + restore, first_step_at=begun + restore, last_step=100,
        restored_from=f"c{attempt - 1}", evicted_at=ended, barrier_at=ended + 1, committed_at=ended + save - 1,
        released_at=ended + save, ended_by=by,
    )  # fmt: skip


def job(
    name: str = "digits",
    *,
    namespace: str = "team",
    count: int = 2,
    since: float = NOW - 980,
    history: tuple[AttemptRecord, ...] = (),
    queue_name: str = "training",
    priority: int = 10,
    **changes: Any,
) -> Job:
    """A job of four ranks that trains on `count` GPUs."""
    number = (history[-1].attempt if history else 0) + 1
    last = record(number, pods=count, admitted_at=since - 20, running_at=since - 5, first_step_at=since)
    used = {("a100", GPU): Fraction(count)}
    workload = Workload("team", f"job-{name}", f"wl-{name}", queue_name, priority, NOW - 5000, holds=used)
    values: dict[str, Any] = {
        "key": (namespace, name), "uid": f"uid-{namespace}-{name}", "created": NOW - 5000, "workload": workload,
        "given": Given(count, "a100", {GPU: "a100"}, {GPU: Fraction(count)}), "wanted": count, "fewest": 1, "ranks": 4,
        "resizable": True, "attempts": (*history, last), "runs_since": since, "whole": True,
        "nodes": frozenset({"n1"}), "own_priority": priority,
    }  # fmt: skip
    return Job(**{**values, **changes})


def waiting(name: str = "later", *, devices: int = 2, priority: int = 10, since: float = NOW - 100) -> Job:
    """A job that waits for its first start."""
    asks = {GPU: Fraction(devices)}
    workload = Workload("team", f"job-{name}", f"wl-{name}", "training", priority, since, asks=asks, waits=True)
    return Job(
        ("team", name), f"uid-team-{name}", since, workload=workload, own_priority=priority, wanted=devices, ranks=4
    )


def parked(found: Job, policy: str, ago: float = 100.0) -> Job:
    """`found`, which `policy` has paused so many seconds ago."""
    last = replace(found.attempts[-1], ended_by="Paused", evicted_at=NOW - ago, released_at=NOW - ago + 5)
    assert found.workload is not None
    asks = {GPU: Fraction(found.devices)}
    return replace(
        found, given=None, runs_since=None, whole=False, paused=True, attempts=(*found.attempts[:-1], last),
        workload=replace(found.workload, holds=None, asks=asks),
        change=Request("pause", f"{BY}{policy}: its turn is over", "done", last.attempt, NOW - ago),
    )  # fmt: skip


def snapshot(
    *jobs: Job, queues: tuple[Queue, ...] = (), others: tuple[Workload, ...] = (), now: float = NOW,
    nodes: dict[str, str] | None = None, symptoms: tuple[model.Symptom, ...] = (),
) -> ClusterSnapshot:
    """`nodes`: name -> why jobs should leave it."""
    known = queues or (queue(),)
    places = {name: model.Node(name, why) for name, why in (nodes or {"n1": "", "n2": ""}).items()}
    workloads = [j.workload for j in jobs if j.workload is not None]
    known_jobs = {j.key: j for j in jobs}
    return ClusterSnapshot(
        now, {q.name: q for q in known}, [*workloads, *others], known_jobs, places, symptoms=symptoms
    )
