"""The report as JSON data: amounts are Kubernetes quantities, times Unix seconds, `goodput` is from 0 to 1. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..kube import quantities
from . import shares
from .goodput import Goodput
from .model import Claim, Key
from .report import Overview


def as_json(report: Overview) -> dict[str, Any]:
    """Every field of the report under its name; times that end in `_s` within `goodput` are pod-seconds."""
    return {
        "at": report.at,
        "quota": [
            {
                **{k: v for k, v in _plain(line).items() if k != "usage"},
                **{f"used_by_{k}": v for k, v in _plain(line.usage).items()},
            }
            for line in report.lines
        ],
        "queues": [{**_plain(q), "goodput": _goodput(q.goodput)} for q in report.queues],
        "tenants": [{**_plain(t), "quota": _amounts(t.quota), "goodput": _goodput(t.goodput)} for t in report.tenants],
        "holders": [
            {**_claim(h.claim), "held_s": h.held_s, "gpu_utilisation": h.gpu_utilisation, "attempt": h.attempt}
            for h in report.holders
        ],
        "waiting": [
            {
                **_claim(w.claim),
                "cluster_queue": w.cluster_queue,
                "place": None if w.place is None else dataclasses.asdict(w.place),
                "waited_s": w.waited_s,
            }
            for w in report.waiters
        ],
        "goodput": _goodput(report.goodput),
        "shares": shares.as_json(report.shares),
        "planner": [dataclasses.asdict(step) for step in report.steps],
        "unsaveable": [dataclasses.asdict(each) for each in report.unsaveable],
        "preemptions": [dataclasses.asdict(each) for each in report.preemptions],
        "notes": list(report.notes),
        "unreadable": [dataclasses.asdict(item) for item in report.unreadable],
    }


def _plain(value: Any) -> dict[str, Any]:
    found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {name: quantities.text(item) if isinstance(item, Fraction) else item for name, item in found.items()}


def _amounts(amounts: Mapping[Key, Fraction]) -> list[dict[str, str]]:
    return [{"flavor": f, "resource": r, "amount": quantities.text(a)} for (f, r), a in sorted(amounts.items())]


def _claim(claim: Claim) -> dict[str, Any]:
    asks = {resource: quantities.text(amount) for resource, amount in claim.asks.items()}
    return {**_plain(claim), "holds": None if claim.holds is None else _amounts(claim.holds), "asks": asks}


def _goodput(done: Goodput) -> dict[str, Any]:
    numbers = {name: round(value, 6 if name == "cost" else 3) for name, value in dataclasses.asdict(done).items()}
    share, busy = done.share, done.gpu_utilisation
    return {
        **numbers,
        "useful_s": round(done.useful_s, 3),
        "goodput": None if share is None else round(share, 4),
        "gpu_utilisation": None if busy is None else round(busy, 1),
        "cost_per_step": done.cost_per_step,
    }
