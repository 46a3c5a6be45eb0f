"""Promised and delivered share of device time, per job and per tenant (a LocalQueue). Pure.

What a share is stands in `planner.shares`. Only Jobs that exist are counted: the records of a job go with it. So a
period that is longer than jobs are kept says too much or too little, and no number here repairs that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..planner import shares as records
from ..planner.shares import Service
from .model import Claim, Cluster, Training


@dataclass(frozen=True)
class JobShare:
    """One training job."""

    namespace: str
    job: str
    uid: str
    local_queue: str
    priority_class: str
    promised: float | None
    """0 to 1; None: its class promises nothing."""
    service: Service
    ended: bool
    unmeasured: str
    """Why there is no delivered share, "" if there is one."""
    remarks: Sequence[str]
    """What was not seen, and may have changed the share."""

    @property
    def delivered(self) -> float | None:
        """0 to 1; None: not measured."""
        return self.service.share

    @property
    def owed(self) -> float:
        """Device-seconds that are missing to the promise."""
        if self.promised is None or self.delivered is None:
            return 0.0
        return max(0.0, self.promised * self.service.asked - self.service.served)


@dataclass(frozen=True)
class TenantShare:
    """All jobs of one LocalQueue. Shares are weighted by the device time that the jobs asked for."""

    namespace: str
    local_queue: str
    jobs: int
    unmeasured: int
    """Jobs that no share of is known; they are in no sum."""
    behind: int
    """Jobs that have had less than promised."""
    promised: float | None
    """Mean over the jobs whose class promises something; None: no such job, likewise below."""
    delivered: float | None
    """To the same jobs."""
    delivered_all: float | None
    """To all jobs."""
    served_s: float
    """Device-seconds, all jobs."""
    asked_s: float
    owed_s: float


@dataclass(frozen=True)
class Shares:
    """The report. Jobs that are owed most come first."""

    at: float
    period_s: float
    jobs: Sequence[JobShare]
    tenants: Sequence[TenantShare]
    notes: Sequence[str]
    """What is not known about all of them."""


def shares(cluster: Cluster, period_s: float | None = None, only: Iterable[Training] | None = None) -> Shares:
    """Of the last `period_s` seconds, by default the platform's window; `only` these jobs."""
    period = cluster.promises.window_s if period_s is None else period_s
    claims = None if cluster.claims is None else {c.uid: c for c in cluster.claims if c.training}
    since = cluster.at - period
    jobs = [
        _job(cluster, job, claims, since)
        for job in (cluster.trainings or () if only is None else only)
        if job.ended is None or job.ended > since
    ]
    jobs.sort(key=lambda one: (-one.owed, one.promised is None, one.namespace, one.job))
    notes = []
    if cluster.promises.unknown:
        notes.append(f"what the tiers promise is not known: {cluster.promises.unknown}")
    elif not cluster.promises.tiers:
        notes.append("the platform promises nothing: planner.slaTiers.tiers of the chart is empty")
    if claims is None:
        notes.append("Workloads may not be read: who holds quota is told by the records alone")
    return Shares(cluster.at, period, jobs, _tenants(jobs), notes)


def _job(cluster: Cluster, job: Training, claims: Mapping[str, Claim] | None, since: float) -> JobShare:
    claim = None if claims is None else claims.get(job.uid)
    last = job.attempts[-1] if job.attempts else None
    # Without the right to see Workloads the record alone says whether the attempt has ended.
    by_record = last is not None and last.ended_by is None and job.ended is None
    holds = by_record if claims is None else claim is not None and claim.holds is not None
    if job.ended is not None:  # the controller writes the end of the last attempt a moment later
        holds = last is not None and last.released_at is None and last.finished_at is None
    stopped = last is not None and last.ended_by == records.PAUSED
    found = records.service(
        job.attempts,
        wanted=job.workers,
        devices_per_pod=max(job.devices_per_pod, 1 if claim is None else claim.devices_per_pod),
        created=job.created,
        now=cluster.at if job.ended is None else min(job.ended, cluster.at),
        since=since,
        holds=holds,
        paused=stopped and not holds and (claim is None or not claim.active),
    )
    return JobShare(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        local_queue=job.local_queue,
        priority_class=job.priority_class,
        promised=cluster.promises.tiers.get(job.priority_class),
        service=found,
        ended=job.ended is not None,
        unmeasured=_unmeasured(found),
        remarks=_remarks(found),
    )


def _unmeasured(found: Service) -> str:
    if found.share is not None:
        return ""
    paused = " besides its pause" if found.paused_s else ""
    return f"it has asked for device time for {found.wanted_s:.0f} s{paused}: too short to tell"


def _remarks(found: Service) -> list[str]:
    said = (
        ["attempts of the period are not on record any more: measured from the oldest one"] if found.forgotten else []
    )
    if found.unseen_ends:
        many = "an attempt" if found.unseen_ends == 1 else f"{found.unseen_ends} attempts"
        said.append(f"the end of {many} was not seen: it counts until the last moment on record")
    return said


def _tenants(jobs: Sequence[JobShare]) -> list[TenantShare]:
    found: dict[tuple[str, str], list[JobShare]] = {}
    for job in jobs:
        found.setdefault((job.namespace, job.local_queue), []).append(job)
    return [_tenant(*where, of) for where, of in sorted(found.items())]


def _tenant(namespace: str, local_queue: str, jobs: Sequence[JobShare]) -> TenantShare:
    measured = [job for job in jobs if job.delivered is not None]
    promised = [(job, job.promised) for job in measured if job.promised is not None]
    asked = sum(job.service.asked for job, _ in promised)
    return TenantShare(
        namespace=namespace,
        local_queue=local_queue,
        jobs=len(jobs),
        unmeasured=len(jobs) - len(measured),
        behind=sum(job.owed > 0 for job in measured),
        promised=sum(part * job.service.asked for job, part in promised) / asked if promised else None,
        delivered=_delivered([job for job, _ in promised]),
        delivered_all=_delivered(measured),
        served_s=sum(job.service.served for job in measured),
        asked_s=sum(job.service.asked for job in measured),
        owed_s=sum(job.owed for job in measured),
    )


def _delivered(jobs: Sequence[JobShare]) -> float | None:
    """What one job had beyond what it asks for now does not make up for another."""
    asked = sum(job.service.asked for job in jobs)
    return sum(min(job.service.served, job.service.asked) for job in jobs) / asked if jobs else None


# --- as data --------------------------------------------------------------------------------------------------------
def as_json(report: Shares) -> dict[str, Any]:
    """Shares from 0 to 1 (null: not measured, or nothing promised), times in device-seconds but for `period_s`."""
    return {
        "at": report.at,
        "period_s": report.period_s,
        "jobs": [job_json(job) for job in report.jobs],
        "tenants": [
            {name: _rounded(value) for name, value in dataclasses.asdict(tenant).items()} for tenant in report.tenants
        ],
        "notes": list(report.notes),
    }


def job_json(job: JobShare) -> dict[str, Any]:
    """One job, as in `as_json`."""
    return {
        "namespace": job.namespace,
        "job": job.job,
        "uid": job.uid,
        "local_queue": job.local_queue,
        "priority_class": job.priority_class,
        "promised": job.promised,
        "delivered": _rounded(job.delivered),
        "served_s": _rounded(job.service.served),
        "asked_s": _rounded(job.service.asked),
        "owed_s": _rounded(job.owed),
        "paused_s": _rounded(job.service.paused_s),
        "ended": job.ended,
        "unmeasured": job.unmeasured,
        "remarks": list(job.remarks),
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
