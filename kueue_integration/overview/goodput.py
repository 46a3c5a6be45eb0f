"""Goodput: which part of the time that quota was held did steps that count. Pure.

This is the "runtime goodput" of ML productivity goodput (Wongpanich et al., Machine Learning Fleet Efficiency,
arXiv:2502.06982; Google's note of 10 April 2024 introduced the word). Of the time that devices are allocated, it is the
part in which training moves forward and is not done again later. The "effective training time ratio" of Kokolis et al.
(arXiv:2410.21680) leaves out the same losses: starts, restarts, and steps that are run again. The fleet's scheduling
goodput and the program's goodput (FLOPS against the peak) are other factors, and are not measured here.

Definition, from the records of a job's attempts. An attempt holds quota from `admitted_at` until `released_at`, or
`finished_at`, or now. That time is cut at three moments:

    trains   `first_step_at`, when the first step was done: the time of that step counts as start
    stops    `barrier_at`, else `finished_at`, else `evicted_at`, else the end
    saved    `committed_at`

Before the first moment it is `restoring` or, without a checkpoint, `starting`. Then it is `training`, then `saving`,
then `releasing` until the pods are gone. A step is lost if a later attempt ran it again. The training time of an
attempt is shared evenly among its steps, so `lost` is its training time * lost steps / steps. Of an attempt without
steps, `lost` is the time since the checkpoint that a later one started from (`jobs.lost_time`). Then

    useful = training - lost        goodput = useful / held

All times of an attempt are multiplied by its pods: unit pod-seconds, so sums over jobs weigh large ones more. What is
known by no record stays where it is: a pause for a periodic checkpoint is in `training`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from ..contract.attempt_records import STEPLESS_S
from ..contract.record_types import AttemptRecord
from ..jobs import cost as money


@dataclass(frozen=True)
class Goodput:
    """Sums over attempts. Times ending in `_s` are pod-seconds; held = starting + ... + releasing."""

    attempts: int = 0
    held_s: float = 0.0
    starting_s: float = 0.0
    restoring_s: float = 0.0
    training_s: float = 0.0
    saving_s: float = 0.0
    releasing_s: float = 0.0
    lost_s: float = 0.0
    """Part of `training_s`: steps that were run again."""
    waited_s: float = 0.0
    """In the queue, before attempts and now; not held."""
    steps: int = 0
    """Steps done, those included that were done again."""
    steps_lost: int = 0
    unseen_ends: int = 0
    """Attempts whose end nobody has seen: they count until their last known moment."""
    gpu_s: float = 0.0
    """GPU-seconds of attempts that have recorded the utilisation of their GPUs,"""
    gpu_busy_s: float = 0.0
    """and how many of them the GPUs had work."""
    cost: float = 0.0
    """Of attempts whose flavor had a price, in the unit of the chart's prices,"""
    cost_steps: int = 0
    """and the steps that count among theirs."""

    @property
    def useful_s(self) -> float:
        return max(0.0, self.training_s - self.lost_s)

    @property
    def share(self) -> float | None:
        """Goodput from 0 to 1, None where nothing was held."""
        return self.useful_s / self.held_s if self.held_s > 0 else None

    @property
    def gpu_utilisation(self) -> float | None:
        """Percent, the mean over GPU-seconds; None where no attempt has recorded it."""
        return 100 * self.gpu_busy_s / self.gpu_s if self.gpu_s > 0 else None

    @property
    def cost_per_step(self) -> float | None:
        """None where no step was made on a flavor with a price."""
        return self.cost / self.cost_steps if self.cost_steps else None

    def __add__(self, other: Goodput) -> Goodput:
        return Goodput(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def of_history(
    history: Sequence[AttemptRecord],
    now: float,
    holds: bool,
    stepless: bool = False,
    lost: Mapping[int, float] = MappingProxyType({}),
) -> Goodput:
    """Of one job. `holds`: its last attempt has quota still. `stepless`: its program makes no steps, as far as known.

    :param lost: `Lost.of`
    """
    spent = money.of_history(history, now, holds)
    total = Goodput(cost=spent.amount, cost_steps=spent.steps)
    again: int | None = None
    for index in reversed(range(len(history))):
        record = history[index]
        one = _attempt(record, now if holds and index == len(history) - 1 else None, again, stepless)
        if not one.steps and record.attempt in lost:
            one = replace(one, lost_s=min(one.training_s, lost[record.attempt] * max(1, record.pods)))
        total += one
        if record.first_step is not None:
            again = record.first_step if again is None else min(again, record.first_step)
    return total


def _attempt(record: AttemptRecord, now: float | None, again: int | None, stepless: bool) -> Goodput:
    """`now` for an attempt that has its quota still; steps from number `again` on were run by a later one."""
    end = record.released_at if record.released_at is not None else record.finished_at
    unseen = end is None and now is None
    if end is None:
        end = now if now is not None else _last_known(record)
    start = record.admitted_at
    end = max(start, end)
    trains = _trains(record, stepless)
    stopped = next((at for at in (record.barrier_at, record.finished_at, record.evicted_at) if at is not None), end)
    stops = _between(start, stopped, end)
    trains = stops if trains is None else _between(start, trains, stops)
    saves = record.barrier_at is not None or record.committed_at is not None
    saved = _between(stops, record.committed_at if record.committed_at is not None else end, end) if saves else stops
    steps, lost = _steps(record, again)
    pods = max(1, record.pods)
    restored = record.restored_from is not None
    training = (stops - trains) * pods
    runs = (end - _between(start, record.runs_since, end)) if record.runs_since is not None else 0.0
    gpus = record.gpus if record.gpus is not None and record.gpus.utilisation is not None else None
    gpu_s = gpus.count * runs if gpus else 0.0
    waited = start - record.queued_at if record.queued_at is not None else 0.0
    return Goodput(
        attempts=1,
        held_s=(end - start) * pods,
        starting_s=0.0 if restored else (trains - start) * pods,
        restoring_s=(trains - start) * pods if restored else 0.0,
        training_s=training,
        saving_s=(saved - stops) * pods,
        releasing_s=(end - saved) * pods,
        lost_s=training * lost / steps if steps else 0.0,
        waited_s=max(0.0, waited) * pods,
        steps=steps,
        steps_lost=lost,
        unseen_ends=int(unseen),
        gpu_s=gpu_s,
        gpu_busy_s=gpu_s * (gpus.utilisation or 0.0) / 100 if gpus else 0.0,
    )


def _between(least: float, at: float, most: float) -> float:
    """Clocks and rounded times may put a moment outside of its attempt."""
    return min(max(least, at), most)


def _trains(record: AttemptRecord, stepless: bool) -> float | None:
    """As `attempt_records.trains_since` has it for programs without steps."""
    if record.first_step_at is not None or not stepless or record.running_at is None:
        return record.first_step_at
    return record.running_at + (0.0 if record.ranks == 1 else STEPLESS_S)


def _last_known(record: AttemptRecord) -> float:
    known = (record.running_at, record.first_step_at, record.evicted_at, record.barrier_at, record.committed_at)
    return max((at for at in known if at is not None), default=record.admitted_at)


def _steps(record: AttemptRecord, again: int | None) -> tuple[int, int]:
    """Steps that the attempt has done, and how many of them were done again."""
    first, last = record.first_step, record.last_step
    if first is None or last is None or last < first:
        return 0, 0
    return last - first + 1, 0 if again is None else max(0, last + 1 - max(first, again))
