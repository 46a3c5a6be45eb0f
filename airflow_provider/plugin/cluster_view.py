"""The report of `singularityctl top` as one user may see it: jobs of tasks whose Dag the user may read are named, all
others are counted. Pure; nothing is judged here but who sees what.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from kueue_integration.kube import quantities
from kueue_integration.overview import moves, plain, quota, shares
from kueue_integration.overview.model import Amounts, Step
from kueue_integration.overview.model import Claim as Workload
from kueue_integration.overview.report import Overview

from ..identity import Claim, TaskKey

MOST = 200
"""Rows of each list at most; more are counted in `left_out`."""
AMOUNTS = ("nominal", "used", "borrowed", "free", "available")
_NAMED = re.compile(r"was preempted by [^;]*")


def shown(report: Overview, tasks: Mapping[str, Claim], may: Callable[[Claim], bool]) -> dict[str, Any]:
    """JSON data. `tasks`: which task instance a training job says it is of, by the job's UID.

    Times are Unix seconds, times that end in `_s` seconds, amounts numbers; `words` has amounts as people write them.
    """
    seen = {uid: claim for uid, claim in tasks.items() if may(claim)}
    full = plain.as_json(report)
    holders = [(h, _task(seen, h.claim)) for h in report.holders]
    waiters = [(w, _task(seen, w.claim)) for w in report.waiters]
    held = [
        {**_row(h.claim, task), "queue": h.claim.cluster_queue, "quota": _amounts(h.claim.holds or {}),
         "flavors": sorted({flavor for flavor, _ in h.claim.holds or {} if flavor}), "attempt": h.attempt,
         "for_s": h.held_s, "gpu_utilisation": h.gpu_utilisation}
        for h, task in holders if task
    ]  # fmt: skip
    waiting = [
        {**_row(w.claim, task), "queue": w.cluster_queue or w.claim.local_queue, "asks": _asks(w.claim.asks),
         "place": w.place.cluster_queue_place if w.place else None, "for_s": w.waited_s, "kueue": _raw(w.claim)}
        for w, task in waiters if task
    ]  # fmt: skip
    return {
        "at": report.at,
        "quota": [_line(line) for line in report.lines],
        "queues": full["queues"],
        "goodput": full["goodput"],
        "holds": len(holders),
        "waits": len(waiters),
        "holders": held[:MOST],
        "others_hold": _others((h.claim.cluster_queue, h.claim) for h, task in holders if not task),
        "waiting": waiting[:MOST],
        "others_wait": _others((w.cluster_queue, w.claim) for w, task in waiters if not task),
        "left_out": max(0, len(held) - MOST) + max(0, len(waiting) - MOST),
        "preemptions": [_preemption(p, seen) for p in report.preemptions if p.uid in seen],
        "others_preempted": sum(p.uid not in seen for p in report.preemptions),
        "actions": [_action(step, seen[step.uid].key) for step in report.steps if step.uid in seen][:MOST],
        "others_moved": sum(step.uid not in seen for step in report.steps),
        "shares": _shares(report, seen),
        "notes": full["notes"],
        "unreadable": len(report.unreadable),
    }


def _task(seen: Mapping[str, Claim], workload: Workload) -> TaskKey | None:
    claim = seen.get(workload.uid) if workload.training else None
    return None if claim is None else claim.key


def _place(task: TaskKey) -> dict[str, Any]:
    return {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": task.task_id, "map_index": task.map_index}


def _row(claim: Workload, task: TaskKey | None) -> dict[str, Any]:
    return {
        "uid": claim.uid,
        "job": f"{claim.namespace}/{claim.owner}",
        "task": None if task is None else _place(task),
        "pods": claim.pods,
        "priority": claim.priority,
        "phase": claim.phase,
        "reason": claim.reason,
        "message": _why(claim),
    }


def _why(claim: Workload) -> str:
    """The sentence of its tab. Who preempted it may be somebody else's job, and stands in another list."""
    return _NAMED.sub("was preempted", claim.said)


def _raw(claim: Workload) -> str:
    """Kueue's own words where ours do not say what is missing."""
    return "" if claim.needs else claim.raw


def _line(line: quota.Line) -> dict[str, Any]:
    amounts: dict[str, Fraction] = {name: getattr(line, name) for name in AMOUNTS}
    amounts |= {"training": line.usage.training, "others": line.usage.other + line.usage.unseen}
    return {
        "scope": line.scope, "name": line.name, "cohort": line.cohort, "depth": line.depth, "flavor": line.flavor,
        "resource": line.resource,
        **{name: float(amount) for name, amount in amounts.items()},
        "words": {name: quantities.rounded(amount, line.resource) for name, amount in amounts.items()},
    }  # fmt: skip


def _amounts(amounts: Amounts) -> str:
    """`a100: 4 cpu, 8 nvidia.com/gpu; spot: 2 cpu`."""
    held: dict[str, dict[str, Fraction]] = {}
    for (flavor, resource), amount in amounts.items():
        held.setdefault(flavor, {})[resource] = amount
    return "; ".join(f"{flavor}: {_asks(parts)}" for flavor, parts in sorted(held.items()))


def _asks(amounts: Mapping[str, Fraction]) -> str:
    return ", ".join(f"{quantities.rounded(amount, name)} {name}" for name, amount in sorted(amounts.items()))


def _others(claims: Iterable[tuple[str, Workload]]) -> list[dict[str, Any]]:
    """For each ClusterQueue how many they are, their pods, and what they hold together."""
    found: dict[str, tuple[int, int, dict[tuple[str, str], Fraction]]] = {}
    for queue, claim in claims:
        count, pods, sums = found.get(queue, (0, 0, {}))
        for key, amount in (claim.holds or {}).items():
            sums[key] = sums.get(key, quota.NONE) + amount
        found[queue] = count + 1, pods + claim.pods, sums
    return [
        {"queue": queue, "count": count, "pods": pods, "quota": _amounts(sums)}
        for queue, (count, pods, sums) in sorted(found.items())
    ]


def _shares(report: Overview, seen: Mapping[str, Claim]) -> dict[str, Any]:
    """Promised and delivered device time: of the user's jobs, and of the tenants that have one of these."""
    own = [job for job in report.shares.jobs if job.uid in seen]
    mine = {(job.namespace, job.local_queue) for job in own}
    tenants = shares.as_json(report.shares)["tenants"]
    return {
        "period_s": report.shares.period_s,
        "jobs": [
            {**shares.job_json(job), "job": f"{job.namespace}/{job.job}", "task": _place(seen[job.uid].key)}
            for job in own[:MOST]
        ],
        "others": len(report.shares.jobs) - len(own),
        "left_out": max(0, len(own) - MOST),
        "tenants": [t for t in tenants if (t["namespace"], t["local_queue"]) in mine],
        "notes": list(report.shares.notes),
    }


def _preemption(move: moves.Preemption, seen: Mapping[str, Claim]) -> dict[str, Any]:
    """The preemptor is named only if it is the job of a task that the user may see."""
    who = move.preemptor
    by = next((c for c in seen.values() if who and (c.namespace, c.name) == (who.namespace, who.job)), None)
    return {
        "time": move.time, "job": f"{move.namespace}/{move.job}", "task": _place(seen[move.uid].key),
        "attempt": move.attempt, "flavor": move.flavor, "pods": move.pods, "checkpoint": move.checkpoint,
        "released": move.released,
        "by": None if by is None else {"job": f"{by.namespace}/{by.name}", "task": _place(by.key)},
        "by_priority": None if who is None else who.priority,
    }  # fmt: skip


def _action(step: Step, task: TaskKey) -> dict[str, Any]:
    return {
        "time": step.at, "policy": step.policy, "job": f"{step.namespace}/{step.job}", "task": _place(task),
        "action": step.action, "reason": step.message, "dry_run": not step.done,
    }  # fmt: skip
