"""What a job has cost, from the prices that stand in the records of its attempts. Pure.

An attempt costs its price for an hour of a pod, times its pods, times the hours for which it held quota. So times of
start, save and release cost as much as steps. The unit is that of the chart value `planner.prices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.record_types import AttemptRecord

HOUR_S = 3600.0


@dataclass(frozen=True)
class Cost:
    """Of the attempts that have a price."""

    amount: float = 0.0
    steps: int = 0
    """Steps that count: those that a later attempt ran again are left out."""
    attempts: int = 0

    @property
    def per_step(self) -> float | None:
        """None where no step was made for that money."""
        return self.amount / self.steps if self.attempts and self.steps else None


def of_history(history: Sequence[AttemptRecord], now: float, holds: bool) -> Cost:
    """Of one job. `holds`: its last attempt has quota still."""
    amount, steps, attempts = 0.0, 0, 0
    again: int | None = None
    for index in reversed(range(len(history))):
        record = history[index]
        if record.price is not None:
            current = now if holds and index == len(history) - 1 else None
            amount += _held_s(record, current) * max(1, record.pods) * record.price / HOUR_S
            steps, attempts = steps + _steps(record, again), attempts + 1
        if record.first_step is not None:
            again = record.first_step if again is None else min(again, record.first_step)
    return Cost(amount, steps, attempts)


def _held_s(record: AttemptRecord, now: float | None) -> float:
    """`now` for an attempt that has its quota still; one whose end nobody has seen counts until its last known time."""
    ends = (record.released_at, record.finished_at, now, record.committed_at, record.evicted_at, record.first_step_at)
    end = next((at for at in ends if at is not None), record.admitted_at)
    return max(0.0, end - record.admitted_at)


def _steps(record: AttemptRecord, again: int | None) -> int:
    """Steps that no later attempt, whose first was number `again`, has run again."""
    if record.first_step is None or record.last_step is None:
        return 0
    end = record.last_step + 1 if again is None else min(record.last_step + 1, again)
    return max(0, end - record.first_step)
