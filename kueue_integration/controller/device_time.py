"""Gauges: the promised and the delivered share of device time, of jobs and of tenants.

The numbers of `singularityctl report` within the platform's window. What is not measured has no series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..contract import kinds
from ..overview import objects
from ..overview.model import Claim, Cluster, Promises, Training
from ..overview.shares import shares
from ..planner.settings import SlaTiers
from .cache import World
from .forever import Skips
from .metrics import Series

JOB, TENANT = "singularity_job_device_time", "singularity_tenant_device_time"


def gauges(
    world: World, leads: Callable[[], bool], skips: Skips, clock: Callable[[], float], promised: SlaTiers
) -> Iterable[tuple[str, Series]]:
    """Of jobs whose class promises something. Empty where nothing is promised, and on replicas that follow."""
    found = {f"{scope}_{what}_ratio": Series() for scope in (JOB, TENANT) for what in ("promised", "delivered")}
    if promised.tiers and leads():
        report = shares(_cluster(world, skips, clock(), promised))
        for job in report.jobs:
            if not job.ended:
                _add(found, JOB, (job.namespace, job.job), job.promised, job.delivered)
        for tenant in report.tenants:
            _add(found, TENANT, (tenant.namespace, tenant.local_queue), tenant.promised, tenant.delivered)
    return found.items()


def _add(
    found: dict[str, Series], scope: str, labels: tuple[str, str], promised: float | None, delivered: float | None
) -> None:
    if promised is not None:
        found[f"{scope}_promised_ratio"][labels] = promised
        if delivered is not None:
            found[f"{scope}_delivered_ratio"][labels] = delivered


def _cluster(world: World, skips: Skips, now: float, promised: SlaTiers) -> Cluster:
    trainings: list[Training] = []
    claims: list[Claim] = []
    for job in world.all_jobs():
        where = kinds.place(job)
        with skips.over("metrics", "/".join(where)):
            training, _ = objects.training(job)
            workload = world.workload_of(*where)
            claim = None if workload is None else objects.claim(workload, job)
            trainings.append(training)
            claims += [] if claim is None else [claim]
    return Cluster(now, claims=claims, trainings=trainings, promises=Promises(promised.tiers, promised.window_s))
