"""What happens in a simulation, what it comes to, and what it cannot play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .active import Active
from .model import Cluster, Job


class EndlessError(RuntimeError):
    """Jobs are left, and they preempt each other for ever or nothing will ever happen to them."""


class Kind(Enum):
    """Of an event."""

    ARRIVES = "arrives"
    READY = "ready"
    NEVER_READY = "never ready"
    DONE = "done"
    LEFT = "left"
    QUEUED = "queued"
    TICK = "tick"
    REQUEUE = "requeue"
    WINDOW = "window"


@dataclass(frozen=True)
class Outcome:
    """:param jobs: in the order of arrival, all done
    :param window_s: while jobs arrived
    :param held_device_s: device seconds held within the window
    :param worked_device_s: work done within the window, in device seconds of the reference
    :param refused: proposals that were not carried out; `allowed`: those that were; both by policy
    """

    jobs: Sequence[Active]
    cluster: Cluster
    window_s: float
    held_device_s: float
    worked_device_s: float
    refused: Counter[str]
    allowed: Counter[str]
    events: int


def check(job: Job, cluster: Cluster) -> None:
    """:raises ValueError: a job that can never run on this cluster"""
    rooms = [flavor.devices for flavor in cluster.flavors if job.speeds.get(flavor.name, 0) > 0]
    if job.tenant >= len(cluster.shares) or job.workers > max(rooms, default=0):
        raise ValueError(
            f"job {job.id}: tenant = {job.tenant}, workers = {job.workers}: the cluster has {len(cluster.shares)} "
            f"tenants and flavors for it with at most {max(rooms, default=0)} devices"
        )
