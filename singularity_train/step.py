"""One step of a script's loop, and where the job is between two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from .engines import Compute
from .errors import UsageError

if TYPE_CHECKING:
    from .job import Job


@dataclass(frozen=True)
class Progress:
    """Where a job is.

    :param step: how many steps are done, over all attempts
    :param steps: how many it is to do; None: the script or `epochs` says when it is over
    :param epoch: of the next step; None with streams
    :param loss: of the last `backward`, weighted mean over the global batch; None before the first
    :param verdict: how the losses so far are related to those of a run that was never moved (`contract.Verdict`)
    """

    step: int
    steps: int | None
    epoch: int | None
    loss: float | None
    world_size: int
    virtual_ranks: int | None
    verdict: str
    stop_requested: bool
    metrics: dict[str, float] = field(default_factory=dict)


class Step:
    """One step of the loop.

    number  counts from 0, over all attempts
    epoch   that its batches are of; None with streams. After `backward` it is behind `job.epoch` in the last step of
            an epoch
    done    calls of `backward` so far
    """

    def __init__(self, job: Job, number: int, epoch: int | None) -> None:
        self._job, self.number, self.epoch, self.done = job, number, epoch, 0

    def backward(self, compute: Compute) -> torch.Tensor:
        """Compute the gradients of the global batch into `.grad`, as the mean over its samples. Collective.

        The first call of a step drops the gradients that are there: `zero_grad()` does no harm and is not needed. Each
        further call reads the same batches, and adds to the gradients that are there, as torch does: a generator's
        after `zero_grad()` of its optimizer. An attached scaler scales each loss; the returned one is not scaled.

        :param compute: called with each batch of this worker; returns its mean loss, or (sum of losses, weight)
        :returns: the loss over the global batch, a number on the CPU without a graph, the same on all ranks
        :raises UsageError: called outside of its step, or the function returned no loss
        """
        if self is not self._job._open:
            raise UsageError(f"step.backward: step {self.number} is over. Call it on the step of the loop.")
        loss = self._job._backward(self, compute)
        self.done += 1
        return torch.tensor(loss)
