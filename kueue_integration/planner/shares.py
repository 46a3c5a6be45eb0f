"""The share of device time that a job was served, from the records of its attempts. Pure.

    served = sum over attempts of  pods * devices of a pod * seconds with quota
    asked  = workers wanted        * devices of a pod * seconds that it wanted to run
    share  = served / asked, at most 1

Both within one window. Source: the GPU fraction of Singularity (Shukla et al., arXiv:2202.07848), by which its tiers
are defined. A job wants to run from its creation until it has ended, but not while it is paused. Where older attempts
are forgotten, it counts from the first one on record. The number of workers is the one that it asks for now: the
records do not have former wishes. The policy `slaTiers`, the report and the metrics all take their numbers from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..contract.record_types import AttemptRecord
from . import measure

YOUNG_S: Final = 60.0
"""A share of less time than that says nothing."""
PAUSED: Final = "Paused"
"""`ended_by` of an attempt after which the job was out of its queue, because somebody had asked for it."""


@dataclass(frozen=True)
class Service:
    """Of one job in one window. `served` and `asked` are device-seconds."""

    served: float
    asked: float
    wanted_s: float
    """Seconds that it wanted to run."""
    paused_s: float = 0.0
    unseen_ends: int = 0
    """Attempts whose end nobody has seen: they count until their last known moment."""
    forgotten: bool = False
    """Older attempts were in the window too, and are not on record any more."""

    @property
    def share(self) -> float | None:
        """From 0 to 1; None: it wanted to run for less than YOUNG_S."""
        return None if self.wanted_s < YOUNG_S else min(1.0, self.served / self.asked)


def service(
    attempts: Sequence[AttemptRecord],
    *,
    wanted: int,
    devices_per_pod: int,
    created: float,
    now: float,
    since: float,
    holds: bool,
    paused: bool = False,
) -> Service:
    """:param since: Unix seconds, when the window begins
    :param now: when it ends; for a job that has ended, at most the time of its end
    :param holds: the last attempt has its quota still
    :param paused: it is paused now
    """
    # A Job that was made anew, by adoption say, has records that are older than itself.
    begins = max(min([created, *(_queued(record) for record in attempts[:1])]), since)
    forgotten = bool(attempts) and attempts[0].attempt > 1 and _queued(attempts[0]) > begins
    if forgotten:
        begins = _queued(attempts[0])
    idle = min(_paused_s(attempts, now, begins, paused), max(0.0, now - begins))
    wanted_s = max(0.0, now - begins - idle)
    pod_s = measure.served_s(attempts, holds, now, begins)
    open_end = attempts[:-1] if holds else attempts
    return Service(
        served=pod_s * devices_per_pod,
        asked=wanted_s * max(1, wanted) * devices_per_pod,
        wanted_s=wanted_s,
        paused_s=idle,
        unseen_ends=sum(_unseen(record) and (record.evicted_at or record.admitted_at) > begins for record in open_end),
        forgotten=forgotten,
    )


def _queued(record: AttemptRecord) -> float:
    return record.admitted_at if record.queued_at is None else record.queued_at


def _unseen(record: AttemptRecord) -> bool:
    return record.released_at is None and record.finished_at is None


def _paused_s(attempts: Sequence[AttemptRecord], now: float, since: float, paused: bool) -> float:
    """Seconds from `since` on between an attempt that ended by a pause and the next time in the queue."""
    total = 0.0
    for record, after in zip(attempts, [*attempts[1:], None], strict=False):
        if record.ended_by != PAUSED or (after is None and not paused):
            continue
        begin = max(since, record.admitted_at + measure.held_s(record, None))
        total += max(0.0, (now if after is None else _queued(after)) - begin)
    return total
