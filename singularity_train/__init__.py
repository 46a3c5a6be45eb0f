"""The state engine's library: a training that goes on with any number of workers, on any machine, bit for bit.

    job = singularity_train.attach(model=model, optimizer=optimizer, data=dataset, batch_size=4, virtual_ranks=8)
    for step in job:
        loss = step.backward(lambda batch: loss_of(model, batch))
        optimizer.step()

`attach` restores; the loop saves when it is asked to stop. The folder is a top-level one because users write its name
in their scripts. It needs the standard library and torch, and imports nothing else of this project: the same files are
in the wheel and in managed pods.

  tree        the order in which values are added     reduce     the sums, over any number of workers
  rng         keys instead of generators              data       map-style data sets; `streams`: iterable ones
  buffers     running statistics                      engines    one step's gradients
  contract    what must be equal for equal bits       parts      what a checkpoint holds
  host        the seam to whoever runs the job        storage    checkpoints on disk
  reach       what a checkpoint would lose            rehearsal  a step computed again from one
  portable    checkpoints as others read them         frameworks adapters; each needs its framework
  newest      the checkpoint that is gone on from     prove      a script run twice, and compared
"""

from __future__ import annotations

from .attach import attach
from .errors import (
    ContractError,
    DataError,
    ModelChangedError,
    OptimizerChangedError,
    StateError,
    TrainError,
    UsageError,
)
from .job import Job
from .step import Progress, Step

__all__ = [
    "ContractError", "DataError", "Job", "ModelChangedError", "OptimizerChangedError", "Progress", "StateError",
    "Step", "TrainError", "UsageError", "attach",
]  # fmt: skip
