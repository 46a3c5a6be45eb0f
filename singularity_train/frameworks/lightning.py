"""The Trainer of PyTorch Lightning: one callback, and the path that it gives to `fit`.

    moving = singularity_train.frameworks.lightning.SingularityCallback()
    trainer = Trainer(callbacks=[moving])
    trainer.fit(model, DataLoader(dataset, batch_size=4, shuffle=True), ckpt_path=moving.checkpoint)

Lightning restores by its own code: a `CheckpointIO` gives it the checkpoint as the dictionary that it knows. Its own
checkpoints do not know the place in an epoch, so the order of samples is keyed by the epoch, as in this library.
"""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.utils.data as tud
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities.exceptions import _TunerExitException

from .. import rng
from ..contract import Verdict
from ..data import shuffles
from ..errors import DataError, StateError, UsageError
from ..host import Host, LocalHost, local_directory, of_environment, start_of_environment
from ..parts import MAIN, Parts, pack, unpack
from ..portable import lightning_checkpoint, portable
from ..reduce import world
from ..storage.export import Source
from ..storage.folder import Folder
from ..storage.reader import BlobReader
from .keeper import Keeper
from .order import KeyedSamples

OWN_STATE = (BaseFinetuning, EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging)
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""Their model is whole on each worker."""
HYPER_PARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")
log = logging.getLogger("singularity_train")


class SingularityCallback(Callback):  # type: ignore[misc]
    """Give it to the Trainer, and `checkpoint` to `fit`.

    A later attempt with another number of workers gets the `accumulate_grad_batches` that keep the samples of a step.
    SIGTERM to any rank ends `fit` after the step. The last samples of an epoch that fill no step are left out.

    stop_requested  whether the ranks agreed on a stop         verdict  of `contract.Verdict`: what moves have changed
    finished        whether the training came to its own end   inexact  sentences: what is known to differ

    :param directory: as of `singularity_train.attach`; without one nothing is saved
    :param save_every: steps between two checkpoints. One more is made at a stop and at the end
    :param global_batch_size: samples per step; default: those of the first attempt
    :param seed: of the order of samples and of dropout
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        global_batch_size: int | None = None,
        seed: int = 0,
        host: Host | None = None,
    ) -> None:
        self._directory, self._save_every, self._host = directory, save_every, host
        self._global_batch, self._seed = global_batch_size, seed
        self.finished = self.stop_requested = False
        self.inexact: list[str] = []
        self.verdict = Verdict.UNCHECKED
        self._keeper: Keeper | None = None
        self._words: dict[str, Any] = {}

    @property
    def checkpoint(self) -> str | None:
        """For `fit(ckpt_path=...)`; None in the first attempt."""
        if self._host is None:
            root = start_of_environment() or local_directory(self._directory)
        else:
            root = self._host.start() or self._host.directory()
        if root is None:
            return None
        ids = Folder(root).ids()
        return str(Folder(root).path(ids[-1])) if ids else None

    # --- before the training --------------------------------------------------------------------------------------
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """:raises UsageError: a strategy or a setting whose state cannot move"""
        if stage != "fit":
            return
        _refuse(trainer, pl_module)
        host = self._host or of_environment(self._directory, *world())
        try:
            self._keeper = keeper = Keeper("lightning", host, self._save_every)
            keeper.same(seed=self._seed)
        except BaseException:
            host.close()
            raise
        # The last one sees what all others have changed in a step.
        trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]
        trainer.strategy.checkpoint_io = StateIO(trainer.strategy.checkpoint_io, self, trainer)
        process = trainer.strategy.process_dataloader

        def keyed(loader: Any) -> Any:
            made = process(loader)
            return self._keyed(trainer, made) if trainer.training else made

        trainer.strategy.process_dataloader = keyed

    def _keyed(self, trainer: Any, loader: Any) -> Any:
        """The loader of the training, with an order that goes on anywhere."""
        keeper = self._keeper
        assert keeper is not None
        sampler: Any = getattr(loader, "batch_sampler", None)
        if not isinstance(loader, tud.DataLoader) or type(sampler) is not tud.BatchSampler:
            raise DataError(
                f"train_dataloader: {type(loader).__name__} with {type(sampler).__name__} has no order that can be cut "
                "for other workers. Give one DataLoader of a map-style data set with batch_size."
            )
        if self._words:
            raise DataError("train_dataloader: there are several, or it is loaded anew. Give one, for all epochs.")
        keeper.same(micro=loader.batch_size)
        steps = keeper.accumulation(self._global_batch, loader.batch_size, trainer.accumulate_grad_batches)
        trainer.accumulate_grad_batches = steps
        samples = keeper.samples(len(loader.dataset), whole=True)
        if samples < keeper.global_batch:
            raise DataError(f"data: {samples} samples are fewer than the {keeper.global_batch} of one step")
        shuffle = bool(keeper.past.get("shuffle", shuffles(loader.sampler)))
        self._words = {"micro": loader.batch_size, "samples": samples, "shuffle": shuffle, "seed": self._seed}
        keeper.promise(trainer.strategy.root_device, trainer.lightning_module)
        self.inexact, self.verdict = keeper.inexact, keeper.verdict
        place = (keeper.past.get("epoch", 0), keeper.past.get("offset", 0))
        sampler.sampler = KeyedSamples(self._words, keeper.global_batch, (keeper.rank, keeper.world_size), place)
        return loader

    # --- hooks of the Trainer -------------------------------------------------------------------------------------
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        keeper = self._running()
        if keeper.saved is not None and trainer.global_step != keeper.saved.step:
            raise UsageError(
                f"fit: it begins at step {trainer.global_step}, and the checkpoint is of step {keeper.saved.step}. "
                "Call fit(..., ckpt_path=moving.checkpoint) with the callback's."
            )
        if keeper.saved is None and trainer.global_step:
            raise UsageError(
                f"fit: it begins at step {trainer.global_step}, and the callback knows of no step before. Give it to "
                "the Trainer before its first step, and begin with no other checkpoint than the callback's."
            )
        # Lightning's own handler talks to the other ranks as soon as one of them gets the signal, which may hang.
        if isinstance(keeper.host, LocalHost):
            keeper.host.listen()
        # Lightning forgets that a callback has ended the training, and would train until it does so once more.
        trainer.should_stop |= bool(keeper.past.get("early"))
        keeper.host.attached(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        micro = batch_idx % trainer.accumulate_grad_batches
        self._running().seed(self._seed, trainer.global_step, micro)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        batches = batch_idx + 1
        if batches % trainer.accumulate_grad_batches:
            return
        keeper, step = self._running(), trainer.global_step
        rng.seed(self._seed, "after", step)
        due = keeper.due
        keeper.agree(step, trainer.strategy.root_device)
        keeper.due |= due
        keeper.host.report({
            "step": step, "steps": trainer.max_steps if trainer.max_steps > 0 else None,
            "epoch": trainer.current_epoch, "world_size": keeper.world_size,
        })  # fmt: skip
        # What follows the end of an epoch belongs to its last step: a stop and a checkpoint wait for one more step.
        if trainer.is_last_batch or step == trainer.max_steps:
            return
        offset = batches // trainer.accumulate_grad_batches * keeper.global_batch
        keeper.boundary(step, lambda: self._made(trainer, trainer.current_epoch, offset))
        if keeper.stop_requested:
            self.stop_requested = True
            self._end(trainer)
        if keeper.stop_requested or keeper.due:
            self._save(trainer, trainer.current_epoch, offset, wait=keeper.stop_requested)

    def _end(self, trainer: Any) -> None:
        """End the epoch after this step, without a validation that nobody waits for."""
        trainer.should_stop = True
        trainer.limit_val_batches = 0
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.callbacks = [self, *(each for each in trainer.callbacks if each is not self)]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """:raises _TunerExitException: the epoch was left by a stop: `fit` returns. Its end belongs to a later attempt,
        and EarlyStopping, a checkpoint of the best or the module itself would miss what only a whole epoch has
        """
        if self.stop_requested:
            raise _TunerExitException

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not self.stop_requested:
            self.finished = True
            self._save(trainer, trainer.current_epoch, 0, wait=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _running(self) -> Keeper:
        assert self._keeper is not None
        return self._keeper

    def _save(self, trainer: Any, epoch: int, offset: int, wait: bool) -> None:
        self._running().save(*self._made(trainer, epoch, offset), trainer.global_step, wait)

    def _made(self, trainer: Any, epoch: int, offset: int) -> tuple[Parts, dict[str, Any]]:
        more = {f"scheduler.{place:02}": each.scheduler for place, each in enumerate(trainer.lr_scheduler_configs)}
        parts = Parts(
            {MAIN: trainer.lightning_module},
            {MAIN: trainer.optimizers[0]} if trainer.optimizers else {},
            {**more, "lightning": _Fixed(_rest(trainer))},
        )
        kept = {
            **self._words, "epoch": epoch, "offset": offset, "accumulation": trainer.accumulate_grad_batches,
            "finished": self.finished, "early": self.finished and trainer.should_stop,
        }  # fmt: skip
        return parts, kept


class StateIO(CheckpointIO):  # type: ignore[misc]
    """Gives Lightning the checkpoint that the callback names; all other paths go to the one before."""

    def __init__(self, inner: Any, callback: SingularityCallback, trainer: Any) -> None:
        self._inner, self._callback, self._trainer = inner, callback, trainer

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self._inner.save_checkpoint(checkpoint, path, storage_options=storage_options)

    def remove_checkpoint(self, path: Any) -> None:
        self._inner.remove_checkpoint(path)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        keeper = self._callback._running()
        if keeper.begins is None or Path(path) != keeper.begins:
            options = {} if map_location is None else {"map_location": map_location}
            loaded: dict[str, Any] = self._inner.load_checkpoint(path, weights_only=weights_only, **options)
            return loaded
        return keeper.take(self._read)

    def _read(self) -> dict[str, Any]:
        """:raises DamagedError: the checkpoint is not whole"""
        keeper = self._callback._running()
        Parts({MAIN: self._trainer.lightning_module}, {}, {}).compare_models(keeper.saved.meta)
        source = Source(BlobReader(keeper.root, keeper.saved.id), None)
        made = lightning_checkpoint(portable(source.nested(), keeper.saved.meta, keeper.saved.step))
        before = int(keeper.past["accumulation"])
        now = int(keeper.past["global_batch"]) // int(keeper.past["micro"]) // keeper.world_size
        return rescaled(made, before, max(now, 1))


def rescaled(checkpoint: dict[str, Any], before: int, now: int) -> dict[str, Any]:
    """The same place for workers that read `now` micro-batches in a step, in place of `before`: Lightning counts them.

    A checkpoint is made when a micro-batch is processed and not yet completed, so the counters may differ by one.
    """
    made = copy.deepcopy({"loops": checkpoint["loops"]})
    progress = made["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counters in (progress["total"], progress["current"]):
        shift = counters["ready"] // before * (now - before)
        for name in counters:
            counters[name] += shift
    return {**checkpoint, **made}


class _Fixed:
    """State that is there already."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


def _rest(trainer: Any) -> dict[str, Any]:
    """What Lightning stores besides weights, optimizers and schedulers, as rank 0 has it. Collective.

    :raises StateError: on all ranks: a callback's state cannot be stored without code
    """
    state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    for name in ("state_dict", "optimizer_states", "lr_schedulers"):
        del state[name]
    rank, workers = world()
    packed: list[Any] = [None]
    if rank == 0:
        try:
            try:
                packed = [pack("lightning", state)]
            except StateError:
                for name in HYPER_PARAMETERS:
                    state.pop(name, None)
                packed = [pack("lightning", state)]
                log.warning("lightning: the hyper-parameters need code to be read. They are left out of checkpoints.")
        except StateError as error:
            packed = [str(error)]
    if workers > 1:
        dist.broadcast_object_list(packed, 0)
    if isinstance(packed[0], str):
        raise StateError(packed[0])
    return dict(unpack(packed[0]))


def _refuse(trainer: Any, module: Any) -> None:
    """:raises UsageError: names what cannot move, and what to do"""
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        raise UsageError(
            f"strategy: {strategy} keeps its own state. Use strategy='ddp' under torchrun, or singularity_train.attach "
            "with fully_shard."
        )
    if not module.automatic_optimization:
        raise UsageError(
            "automatic_optimization = False: a step has no end that is known here. Leave it at True, or use "
            "singularity_train.attach in a loop of your own."
        )
    if sum(isinstance(each, SingularityCallback) for each in trainer.callbacks) > 1:
        raise UsageError("callbacks: SingularityCallback is there twice. Give it once.")
    averaging = next((type(each).__name__ for each in trainer.callbacks if isinstance(each, OWN_STATE)), "")
    if averaging:
        raise UsageError(
            f"callbacks: {averaging} keeps weights, or what is frozen, to itself, and a stop would lose that. "
            "Leave it out, or use the process engine."
        )
    if any(isinstance(each, GradientAccumulationScheduler) for each in trainer.callbacks):
        raise UsageError(
            "callbacks: GradientAccumulationScheduler changes the samples of a step, which a move has to keep. "
            "Leave it out, and set accumulate_grad_batches."
        )
