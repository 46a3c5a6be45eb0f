"""Gives back what a policy has changed that is not on any more: priorities, parked jobs, chosen flavors. Pure."""

from __future__ import annotations

from collections.abc import Container

from ..model import ClusterSnapshot
from ..proposals import Proposal
from . import levels

NAME = "tidy"


def propose(snapshot: ClusterSnapshot, acting: Container[str]) -> list[Proposal]:
    """:param acting: the policies that are on and act"""
    found: list[Proposal] = []
    for job in snapshot.jobs.values():
        if job.parked_by and job.parked_by not in acting:
            found.append(Proposal("resume", job.key, f"policy {job.parked_by} is off", 0.0, NAME))
        if job.pinned_by and job.pinned_by not in acting:
            found.append(Proposal("unpin", job.key, f"policy {job.pinned_by} is off", 0.0, NAME))
        if job.boosted_by and job.boosted_by not in acting:
            found += levels.to(job, job.own_priority, f"policy {job.boosted_by} is off", 0.0, NAME)
    return found
