"""A cluster of one queue in seconds instead of hours: Kueue admits by priority and age, and preempts lower priorities.

A move costs what it costs: `SAVE_S` to leave, `RESTORE_S` to come back, in which the devices do nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean

import planner_scene as scene
from planner_scene import GPU, NOW

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.planner import policies
from kueue_integration.planner.arbiter import Arbiter, Limits, Ruling, Terms
from kueue_integration.planner.job import BY, Given, Job, Request, Workload
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.policies import Policy

SAVE_S, RESTORE_S, TICK_S, LOOK_S = 10.0, 20.0, 5.0, 30.0


@dataclass
class Sim:
    """One job; `state` is waits, runs (starting or training), leaves, parked or done."""

    name: str
    arrives: float
    size: int
    needs_s: float
    """Seconds of training."""
    own: int = 10
    kind: str = ""
    state: str = "waits"
    priority: int = 10
    trained_s: float = 0.0
    trains_at: float = 0.0
    free_at: float = 0.0
    ended_at: float = 0.0
    by: str = ""
    attempts: list[AttemptRecord] = field(default_factory=list)

    def job(self) -> Job:
        """As the planner sees it."""
        holds = {("a100", GPU): Fraction(self.size)}
        on, asks = self.state in ("runs", "leaves"), {GPU: Fraction(self.size)}
        workload = Workload(
            "team", self.name, self.name, "training", self.priority, self.arrives, holds if on else None, asks,
            waits=self.state == "waits", leaves=self.state == "leaves",
        )  # fmt: skip
        parked = Request("pause", self.by, "done", len(self.attempts), self.free_at) if self.state == "parked" else None
        given = Given(self.size, "a100", {GPU: "a100"}, {GPU: Fraction(self.size)}) if self.state == "runs" else None
        return Job(
            ("team", self.name), self.name, self.arrives, workload=workload, given=given, priority_class=self.kind,
            own_priority=self.own, boosted_by="x" if self.priority != self.own else "", wanted=self.size,
            ranks=self.size, attempts=tuple(self.attempts), whole=self.state == "runs",
            runs_since=self.trains_at if self.state == "runs" else None, paused=self.state == "parked", change=parked,
        )  # fmt: skip


@dataclass
class Outcome:
    completion_s: float
    """Mean, from arrival to end."""
    first_start_s: float
    moves: int
    """Kueue's preemptions and the planner's pauses."""
    makespan_s: float
    delivered: dict[str, float]
    """Priority class -> mean share of the time from arrival to end in which jobs held their devices."""


def workload(
    seed: int, jobs: int = 60, gap_s: float = 150.0, median_s: float = 400.0, spread: float = 1.6
) -> list[Sim]:
    """Lognormal durations, as in the published traces: most jobs are short, a few take nearly all of the time."""
    chance, now, found = random.Random(seed), NOW, []
    for number in range(jobs):
        now += chance.expovariate(1 / gap_s)
        needs = min(20_000.0, median_s * chance.lognormvariate(0, spread))
        found.append(Sim(f"j{number:02d}", now, chance.choice([1, 2, 2, 4]), needs))
    return found


def play(jobs: Sequence[Sim], policy: tuple[str, Policy] | None, limits: Limits, devices: int = 8) -> Outcome:
    """Until all jobs are done."""
    judge = Arbiter({policy[0]: Terms(limits)}) if policy else None
    now, looked, moves = NOW, NOW, 0
    queue = scene.queue(devices=devices)
    while any(job.state != "done" for job in jobs):
        now += TICK_S
        assert now < NOW + 2_000_000, "it never ends"
        here = [job for job in jobs if job.arrives <= now and job.state != "done"]
        _pass_time(here, now)
        moves += _kueue(here, devices, now)
        if judge is not None and policy is not None and now - looked >= LOOK_S:
            looked = now
            seen = [job.job() for job in here if job.state != "done"]
            snapshot = ClusterSnapshot(now, {queue.name: queue}, [j.workload for j in seen if j.workload], {
                j.key: j for j in seen
            })  # fmt: skip
            proposals = policies.ask({policy[0]: policy[1]}, snapshot, _never)
            by_name = {job.name: job for job in here}
            for ruling in judge.rule(snapshot, proposals, now - NOW):
                moves += ruling.allowed and _do(by_name[ruling.proposal.job[1]], ruling, now)
    ends, kinds = [job.ended_at - job.arrives for job in jobs], {job.kind for job in jobs}
    starts = [job.attempts[0].admitted_at - job.arrives for job in jobs]
    shares = {k: fmean(_held(j) / (j.ended_at - j.arrives) for j in jobs if j.kind == k) for k in kinds}
    return Outcome(fmean(ends), fmean(starts), moves, now - NOW, shares)


def _never(policy: str, what: str, error: BaseException | None) -> None:
    raise AssertionError(f"{policy} {what}") from error


def _held(job: Sim) -> float:
    return sum((a.released_at or a.finished_at or 0.0) - a.admitted_at for a in job.attempts)


def _pass_time(jobs: Sequence[Sim], now: float) -> None:
    for job in jobs:
        if job.state == "runs" and now > job.trains_at:
            job.trained_s += min(TICK_S, now - job.trains_at)
            if job.trained_s >= job.needs_s:
                job.state, job.ended_at = "done", now
                job.attempts[-1] = replace(job.attempts[-1], finished_at=now)
        elif job.state == "leaves" and now >= job.free_at:
            job.state = "parked" if job.by else "waits"
            job.attempts[-1] = replace(job.attempts[-1], released_at=now, committed_at=now)


def _kueue(jobs: Sequence[Sim], devices: int, now: float) -> int:
    """Admits, preempts; how many it has preempted."""
    preempted = 0
    order = sorted([j for j in jobs if j.state == "waits"], key=lambda j: (-j.priority, j.arrives))
    free = devices - sum([j.size for j in jobs if j.state in ("runs", "leaves")])
    lowest = min([j.priority for j in jobs if j.state == "runs"], default=0)
    leaving = sum([j.size for j in jobs if j.state == "leaves"])
    for job in order:
        if job.size <= free:
            free, lowest = free - job.size, min(lowest, job.priority)
            restored = {"restored_from": "c"} if job.attempts else {}
            job.state, job.trains_at = "runs", now + RESTORE_S
            job.attempts.append(
                scene.record(
                    len(job.attempts) + 1, pods=job.size, admitted_at=now, running_at=job.trains_at,
                    first_step_at=job.trains_at, **restored,
                )
            )  # fmt: skip
            continue
        lower = [j for j in jobs if j.state == "runs" and j.priority < job.priority] if lowest < job.priority else []
        lower.sort(key=lambda j: (j.priority, -j.attempts[-1].admitted_at))
        while free + leaving < job.size and lower:
            victim = lower.pop(0)
            leaving, preempted = leaving + victim.size, preempted + 1
            _leave(victim, "Preempted", "", now)
        if free + leaving >= job.size:
            break  # it is next
    return preempted


def _leave(job: Sim, ended_by: str, by: str, now: float) -> None:
    job.state, job.free_at, job.by = "leaves", now + SAVE_S, by
    job.attempts[-1] = replace(job.attempts[-1], evicted_at=now, ended_by=ended_by)


def _do(job: Sim, ruling: Ruling, now: float) -> int:
    proposal = ruling.proposal
    if proposal.action == "priority":
        job.priority = proposal.priority
    elif proposal.action == "pause":
        _leave(job, "Paused", f"{BY}{proposal.policy}: why", now)
        return 1
    elif proposal.action == "resume":
        job.state, job.by = "waits", ""
    return 0

