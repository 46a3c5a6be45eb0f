"""Loops with an `Accelerator`: what `prepare` returned is attached, and the two `for` lines ask what is attached.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    moving = singularity_train.frameworks.accelerate.attach(accelerator, model, optimizer, loader, scheduler)
    for epoch in moving.epochs(3):
        for batch in moving.batches():
            with accelerator.accumulate(model):
                ...
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data as tud
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DistributedType

from .. import rng
from ..contract import Verdict
from ..data import shuffles
from ..errors import DataError, UsageError
from ..host import Host, of_environment
from ..parts import MAIN, Parts, bare
from ..reduce import world
from .keeper import Keeper
from .order import KeyedSamples

TYPES = ("NO", "MULTI_CPU", "MULTI_GPU")
"""Their model is whole on each worker."""
_attached: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def attach(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    loader: Any,
    scheduler: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    global_batch_size: int | None = None,
    seed: int = 0,
    host: Host | None = None,
) -> Moving:
    """Attach what `accelerator.prepare` returned, and bring it to where its last checkpoint was. Collective.

    A later attempt with another number of workers gets the `gradient_accumulation_steps` that keep the samples of a
    step. A prepared scheduler goes on with as many steps per update as in the first attempt, as accelerate makes one
    for each worker. The last samples of an epoch that fill no step are left out.

    :param loader: of the training; of a map-style data set
    :param extra: more state by name; each has `state_dict` and `load_state_dict`
    :param directory: as of `singularity_train.attach`; without one nothing is saved
    :param save_every: steps between two checkpoints. One more is made at a stop and at the end
    :param global_batch_size: samples per step; default: those of the first attempt
    :param seed: of the order of samples and of dropout
    :raises UsageError: it is called twice or after the first step, or a strategy or an optimizer cannot move
    :raises DataError: a loader whose order cannot move
    :raises ContractError, ModelChangedError, OptimizerChangedError, StateError: the checkpoint does not fit
    """
    _refuse(accelerator, optimizer, scheduler)
    sampler = _sampler(loader)
    host = host or of_environment(directory, *world())
    try:
        keeper = Keeper("accelerate", host, save_every)
        moving = Moving(accelerator, keeper, loader, seed)
        more = {f"scheduler.{MAIN}": scheduler} if scheduler is not None else {}
        more |= {"scaler": accelerator.scaler} if getattr(accelerator, "scaler", None) is not None else {}
        more |= {f"extra.{name}": each for name, each in (extra or {}).items()}
        moving._parts = Parts({MAIN: bare(model)}, {MAIN: optimizer.optimizer}, more)

        def fits() -> None:
            shuffle = bool(keeper.past.get("shuffle", shuffles(sampler.sampler)))
            keeper.same(seed=seed, micro=sampler.batch_size)
            accelerator.gradient_accumulation_steps = keeper.accumulation(
                global_batch_size, sampler.batch_size, accelerator.gradient_accumulation_steps
            )
            samples = keeper.samples(len(loader.dataset), whole=True)
            if samples < keeper.global_batch:
                raise DataError(f"data: {samples} samples are fewer than the {keeper.global_batch} of one step")
            keeper.promise(accelerator.device, bare(model))
            moving._words = {"micro": sampler.batch_size, "samples": samples, "shuffle": shuffle, "seed": seed}

        def restored() -> None:
            fits()
            keeper.restore(moving._parts)

        if keeper.saved is None:
            fits()
        else:
            keeper.take(restored)
        moving._begin(scheduler)
    except BaseException:
        host.close()
        raise
    # One order for all; accelerate deals its batches out to the processes.
    sampler.sampler = KeyedSamples(moving._words, keeper.global_batch, (0, 1), (moving.epoch, moving._offset))
    host.attached(moving.step)
    _attached.add(optimizer.optimizer)
    return moving


class Moving:
    """Made by `attach`: the loops of a training that may end at any step.

    step            optimizer steps that are done, over all attempts
    stop_requested  whether the ranks agreed on a stop         verdict  of `contract.Verdict`: what moves have changed
    finished        whether `epochs` came to its end           inexact  sentences: what is known to differ
    """

    def __init__(self, accelerator: Any, keeper: Keeper, loader: Any, seed: int) -> None:
        self._accelerator, self._keeper, self._loader, self._seed = accelerator, keeper, loader, seed
        self.epoch = self._offset = self.step = self._began = 0
        self.finished = False
        self._words: dict[str, Any] = {}
        self._rate_steps = 1
        self._parts: Any = None

    def _begin(self, scheduler: Any) -> None:
        """Be where the checkpoint is that was restored."""
        keeper = self._keeper
        self.epoch, self._offset = keeper.past.get("epoch", 0), keeper.past.get("offset", 0)
        self.step = self._began = keeper.saved.step if keeper.saved is not None else 0
        self._keep_rate(scheduler)

    @property
    def stop_requested(self) -> bool:
        return self._keeper.stop_requested

    @property
    def inexact(self) -> list[str]:
        return self._keeper.inexact

    @property
    def verdict(self) -> Verdict:
        return self._keeper.verdict

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`. Ends at a stop; the state is saved then, and at the end.

        :raises UsageError: the body did not read all of `batches`
        """
        while self.epoch < count and not self.stop_requested:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch and not self.stop_requested:
                raise UsageError(f"epoch {epoch}: its body left moving.batches() early. Read all of it in each epoch.")
        self.finished = self.epoch >= count
        self._save(wait=True)
        self._keeper.close()

    def batches(self) -> Iterator[Any]:
        """What is left of the epoch, from the prepared loader. Ends at a stop, after a whole step.

        :raises UsageError: the body does not use `accelerator.accumulate`
        """
        accelerator, keeper = self._accelerator, self._keeper
        epoch, whole = self.epoch, self._words["samples"] // keeper.global_batch * keeper.global_batch
        self._loader.set_epoch(epoch)
        if not self._offset and self.step > self._began:  # what followed the last epoch is over
            keeper.boundary(self.step, self._made)
        micro = 0
        for batch in self._loader:
            keeper.seed(self._seed, self.step, micro)
            yield batch
            micro += 1
            if micro < accelerator.gradient_accumulation_steps:
                continue
            if not accelerator.sync_gradients:
                raise UsageError("batches: no step was made. Put the body into `with accelerator.accumulate(model)`.")
            micro, self.step, self._offset = 0, self.step + 1, self._offset + keeper.global_batch
            if self._offset >= whole:
                self.epoch, self._offset = epoch + 1, 0
            rng.seed(self._seed, "after", self.step)
            self._boundary()
            if self.stop_requested:
                return

    def _boundary(self) -> None:
        self._keeper.agree(self.step, self._accelerator.device)
        self._keeper.host.report({
            "step": self.step, "steps": None, "epoch": self.epoch, "world_size": self._keeper.world_size,
        })  # fmt: skip
        # After the last step of an epoch the body may still evaluate: that is saved with the next step, or at the end.
        if self._offset:
            self._keeper.boundary(self.step, self._made)
        if self._offset and (self._keeper.due or self.stop_requested):
            self._save(wait=self.stop_requested)

    def _save(self, wait: bool) -> None:
        self._keeper.save(*self._made(), self.step, wait)

    def _made(self) -> tuple[Any, dict[str, Any]]:
        kept = {**self._words, "epoch": self.epoch, "offset": self._offset, "rate_steps": self._rate_steps}
        return self._parts, kept

    def _keep_rate(self, scheduler: Any) -> None:
        """The scheduler makes as many steps per update as in the first attempt."""
        if not isinstance(scheduler, AcceleratedScheduler) or not scheduler.step_with_optimizer:
            return
        workers = 1 if scheduler.split_batches else self._keeper.world_size
        self._rate_steps = int(self._keeper.past.get("rate_steps", workers))
        scheduler.split_batches = True
        scheduler.scheduler = _Repeated(scheduler.scheduler, self._rate_steps)


class _Repeated:
    """A scheduler that makes several steps for one."""

    def __init__(self, scheduler: Any, times: int) -> None:
        self._scheduler, self._times = scheduler, times

    def step(self, *args: Any, **more: Any) -> None:
        for _ in range(self._times):
            # As accelerate does for OneCycleLR, whose steps are counted.
            if self._scheduler._step_count <= getattr(self._scheduler, "total_steps", self._scheduler._step_count):
                self._scheduler.step(*args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def _sampler(loader: Any) -> Any:
    """The batch sampler below the one that deals out batches.

    :raises DataError: the order of the loader cannot be replaced
    """
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSamplerShard) and not sampler.split_batches:
        sampler = sampler.batch_sampler
    stream = isinstance(getattr(loader, "dataset", None), tud.IterableDataset)
    if not isinstance(loader, DataLoaderShard) or stream or type(sampler) is not tud.BatchSampler:
        raise DataError(
            f"loader: {type(loader).__name__} with {type(sampler).__name__} has no order that can be cut for other "
            "workers. Give a prepared DataLoader of a map-style data set, without split_batches."
        )
    return sampler


def _refuse(accelerator: Any, optimizer: Any, scheduler: Any) -> None:
    """:raises UsageError: names what cannot move, and what to do"""
    kind = DistributedType(accelerator.distributed_type).value
    if kind not in TYPES:
        raise UsageError(
            f"accelerator: {kind} keeps its own state. Use DistributedDataParallel (accelerate launch --multi_gpu), or "
            "singularity_train.attach with fully_shard."
        )
    if not isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        raise UsageError(
            f"optimizer: {type(optimizer).__name__} was not prepared. Give what accelerator.prepare returned."
        )
    if optimizer.optimizer in _attached:
        raise UsageError("attach: called twice for this optimizer. Call it once, before the loops over epochs.")
    held = [parameter for group in optimizer.optimizer.param_groups for parameter in group["params"]]
    if optimizer.optimizer.state or any(parameter.grad is not None for parameter in held):
        raise UsageError("optimizer: it has made a step, or has gradients. Call attach before the first step.")
    if scheduler is not None and not (hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict")):
        raise UsageError(f"scheduler: {type(scheduler).__name__} has no state_dict and load_state_dict. Give it both.")
