"""The cluster at a glance as tables of text that fit 120 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..kube import quantities
from ..overview.goodput import Goodput
from ..overview.model import Key, Step
from ..overview.quota import Line
from ..overview.report import Holder, Overview, Unsaveable, Waiter
from ..overview.shares import TenantShare
from . import tables
from .output import printable

WIDTH = 120
SHOWN_UNREADABLE = 5
FEWER = "(-n NAMESPACE asks for one namespace only, --queue for one queue)"
QUOTA = ["QUOTA", "FLAVOR", "RESOURCE", "NOMINAL", "BORROWED", "USED", "FREE", "AVAILABLE", "TRAINING", "OTHERS"]
HOLDERS = ["HOLDS QUOTA", "KIND", "NAMESPACE", "QUEUE", "PRIO", "PODS", "QUOTA", "FOR", "PHASE", "GPU"]
WAITERS = ["WAITS", "KIND", "NAMESPACE", "QUEUE", "PRIO", "PLACE", "ASKS", "FOR", "REASON", "WHY"]
PLANNER = ["PLANNER", "NAMESPACE", "AGO", "HOW", "WHAT AND WHY"]
SHARES = ["DEVICE TIME OF", "QUEUE", "JOBS", "NOT MEASURED", "BEHIND", "PROMISED", "DELIVERED", "OWED"]
TENANTS = ["NAMESPACE", "HOLD", "WAIT", "QUOTA"]
GOODPUT = [
    "GOODPUT", "SHARE", "HELD", "TRAINING", "START", "RESTORE", "SAVE", "RELEASE", "WAITED", "STEPS", "LOST", "GPU",
]  # fmt: skip
UNSAVEABLE = ["CANNOT BE SAVED", "NAMESPACE", "ATTEMPT", "FOR", "KIND", "WHY"]
COSTS = ["COST", "IN ALL", "PER STEP", "STEPS"]


def text(report: Overview, rows: int = 20) -> str:
    """All tables that have a line, each with at most `rows` of them; then what could not be seen or read."""
    parts = [
        _head(report),
        listed(QUOTA, [_quota(line) for line in report.lines], rows),
        listed(HOLDERS, [_holder(holder) for holder in report.holders], rows),
        listed(UNSAVEABLE, [_unsaveable(report, one) for one in report.unsaveable], rows),
        listed(WAITERS, [_waiter(waiter) for waiter in report.waiters], rows),
        listed(TENANTS, [(t.namespace, t.holds, t.waits, _amounts(t.quota)) for t in report.tenants], rows),
        listed(GOODPUT, _goodputs(report), rows),
        listed(COSTS, _costs(report), rows),
        listed(SHARES, [_tenant(tenant) for tenant in report.shares.tenants if tenant.promised is not None], rows),
        listed(PLANNER, [_step(report, step) for step in report.steps], rows),
        *_remarks(report),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(report: Overview) -> str:
    queues = len({q.name for q in report.queues if q.name})
    cohorts = len({line.name for line in report.lines if line.scope == "cohort"})
    share = report.goodput.share
    said = [
        f"{tables.clock(report.at)}  {_many(queues, 'ClusterQueue')}, {_many(cohorts, 'cohort')}",
        f"{len(report.holders)} hold quota, {len(report.waiters)} wait",
    ]
    if share is not None:
        said.append(f"goodput {share:.0%} of {time_words(report.goodput.held_s)} pod time held")
    stopped = [f"{q.name} is {q.trouble}" for q in report.queues if q.trouble]
    return "\n".join(_wrapped(printable("; ".join([*said, *stopped]))))


def _quota(line: Line) -> tuple[object, ...]:
    amounts = (line.nominal, line.borrowed, line.used, line.free, line.available)
    others = line.usage.other + line.usage.unseen
    shown = [quantities.rounded(amount, line.resource) for amount in (*amounts, line.usage.training, others)]
    name = f"cohort {line.name}" if line.scope == "cohort" else line.name
    return "  " * line.depth + name, line.flavor, line.resource, *shown


def _holder(holder: Holder) -> tuple[object, ...]:
    claim = holder.claim
    busy = None if holder.gpu_utilisation is None else f"{holder.gpu_utilisation:.0f} %"
    held = _amounts(claim.holds or {})
    return (
        claim.owner, claim.kind, claim.namespace, claim.cluster_queue, claim.priority, claim.pods, held,
        time_words(holder.held_s), claim.phase, busy,
    )  # fmt: skip


def _unsaveable(report: Overview, one: Unsaveable) -> tuple[object, ...]:
    known = None if one.at is None else time_words(max(0.0, report.at - one.at))
    return one.job, one.namespace, one.attempt, known, one.cause, one.why


def _waiter(waiter: Waiter) -> tuple[object, ...]:
    claim = waiter.claim
    place = waiter.place.cluster_queue_place if waiter.place else None
    asks = ", ".join(f"{quantities.rounded(amount, r)} {r}" for r, amount in sorted(claim.asks.items()))
    queue = waiter.cluster_queue or claim.local_queue
    return (
        claim.owner, claim.kind, claim.namespace, queue, claim.priority, place, asks, time_words(waiter.waited_s),
        claim.reason, claim.needs or claim.message,
    )  # fmt: skip


def _step(report: Overview, step: Step) -> tuple[object, ...]:
    how = "done" if step.done else "dry run"
    return step.job, step.namespace, time_words(max(0.0, report.at - step.at)), how, step.message


def _tenant(tenant: TenantShare) -> tuple[object, ...]:
    return (
        tenant.namespace, tenant.local_queue, tenant.jobs, tenant.unmeasured, tenant.behind, percent(tenant.promised),
        percent(tenant.delivered), time_words(tenant.owed_s),
    )  # fmt: skip


def _named(report: Overview) -> list[tuple[str, Goodput]]:
    named = [("all", report.goodput)]
    named += [(f"queue {q.name or '(not known)'}", q.goodput) for q in report.queues]
    return named + [(f"namespace {tenant.namespace}", tenant.goodput) for tenant in report.tenants]


def _goodputs(report: Overview) -> list[tuple[object, ...]]:
    return [_goodput(name, done) for name, done in _named(report) if done.attempts or done.waited_s]


def _costs(report: Overview) -> list[tuple[object, ...]]:
    """None where no flavor has a price."""
    priced = [(name, done) for name, done in _named(report) if done.cost]
    return [
        (name, tables.amount(done.cost), tables.amount(done.cost_per_step), done.cost_steps) for name, done in priced
    ]


def _goodput(name: str, done: Goodput) -> tuple[object, ...]:
    times = (
        done.held_s, done.training_s, done.starting_s, done.restoring_s, done.saving_s, done.releasing_s, done.waited_s,
    )  # fmt: skip
    busy = done.gpu_utilisation
    return (
        name, percent(done.share), *map(time_words, times), done.steps, done.steps_lost,
        None if busy is None else f"{busy:.0f} %",
    )  # fmt: skip


def _remarks(report: Overview) -> list[str]:
    said = [paragraph(f"({note})") for note in report.notes]
    said += [FEWER] if said else []
    spoilt = [paragraph(f"({u.kind} {u.name}{f', {u.part}' if u.part else ''}: {u.why})") for u in report.unreadable]
    if spoilt:
        more = len(spoilt) - SHOWN_UNREADABLE
        said.append(f"{len(spoilt)} cannot be read:")
        said += spoilt[:SHOWN_UNREADABLE] + ([f"(and {more} more: -o json names all)"] if more > 0 else [])
    ends = report.goodput.unseen_ends
    if ends:
        said.append(f"({_many(ends, 'attempt')} ended unseen: counted until the last moment on record)")
    return ["\n".join(said)] if said else []


def listed(head: Sequence[str], lines: Sequence[Sequence[object]], rows: int) -> str:
    """A table of at most so many rows, "" without any."""
    if not lines:
        return ""
    shown = [[printable(cell) if isinstance(cell, str) else cell for cell in line] for line in lines[:rows]]
    more = len(lines) - rows
    below = f"\n(and {more} more: --rows, or -o json)" if more > 0 else ""
    return tables.table(head, shown, WIDTH) + below


def paragraph(sentence: str) -> str:
    """Wrapped, without control characters."""
    return "\n".join(_wrapped(printable(sentence)))


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _amounts(amounts: Mapping[Key, Fraction]) -> str:
    held: dict[str, list[str]] = {}
    for (flavor, resource), amount in sorted(amounts.items()):
        held.setdefault(flavor, []).append(f"{quantities.rounded(amount, resource)} {resource}")
    return "; ".join(f"{flavor}: {', '.join(parts)}" for flavor, parts in held.items())


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def percent(share: float | None) -> str | None:
    """Of a share from 0 to 1."""
    return None if share is None else f"{share:.1%}"


def time_words(seconds: float | None) -> str | None:
    """`8 s`, `12.5 min`, `3.4 h`, `12 d`."""
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
