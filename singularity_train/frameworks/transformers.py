"""The Trainer of Hugging Face: one call after it is made, and what it returns is given to `train`.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    moving = singularity_train.frameworks.transformers.attach(trainer)
    trainer.train(resume_from_checkpoint=moving.checkpoint)

The Trainer resumes by itself: the checkpoint becomes a folder of its own format, once per machine. The position in the
data follows from the number of steps, as its sampler is seeded by the epoch.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch.utils.data as tud
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from .. import rng
from ..contract import Verdict
from ..errors import StateError, UsageError
from ..host import Host, of_environment
from ..parts import MAIN, Parts
from ..portable import as_trainer
from ..reduce import gathered, world
from ..storage import DamagedError, StateStorageError
from ..storage.export import export
from .keeper import Keeper

ITEMS = "num_items_in_batch"
SAMPLERS = ("SeedableRandomSampler", "SequentialSampler")
"""Their order is known from the seed and the epoch."""


def attach(
    trainer: Any,
    *,
    directory: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    global_batch_size: int | None = None,
    host: Host | None = None,
) -> SingularityCallback:
    """Attach a Trainer to the state engine. Call it after all callbacks are added, before `train`. Collective.

    A later attempt with another number of workers gets the `gradient_accumulation_steps` that keep the samples of a
    step. SIGTERM to any rank ends `train` after the step; `finished` tells that apart from the end of the training.

    :param directory: as of `singularity_train.attach`; without one nothing is saved
    :param save_every: steps between two checkpoints. One more is made at a stop and at the end
    :param global_batch_size: samples per step; default: those of the first attempt
    :raises UsageError: a strategy, a sampler or a data set whose state cannot move
    :raises ContractError, DataError, ModelChangedError, StateError: the checkpoint does not fit
    """
    refuse(trainer)
    if _means(trainer):
        # Another number of workers gets another accumulation, and the Trainer adds such losses up unless it is told.
        trainer.model_accepts_loss_kwargs = False
    host = host or of_environment(directory, *world())
    try:
        callback = SingularityCallback(trainer, Keeper("transformers", host, save_every), global_batch_size)
    except BaseException:
        host.close()
        raise
    trainer.add_callback(callback)
    return callback


def _means(trainer: Any) -> bool:
    """Whether the Trainer's own `compute_loss` gives the mean of a micro-batch: it never reads `num_items_in_batch`."""
    own = type(trainer).compute_loss
    if own is Trainer.compute_loss or trainer.compute_loss_func is not None:
        return False
    code = inspect.unwrap(own).__code__
    keywords = [each.name for each in inspect.signature(own).parameters.values() if each.kind is each.VAR_KEYWORD]
    loads = (each.argval for each in dis.get_instructions(code) if each.opname.startswith("LOAD"))
    read = {name for value in loads for name in _names(value)}
    return not read & {ITEMS, *keywords}


def _names(value: Any) -> tuple[Any, ...]:
    """Of one instruction: newer Pythons load two variables at once."""
    return value if isinstance(value, tuple) else (value,)


def refuse(trainer: Any) -> None:
    """:raises UsageError: names what cannot move, and what to do"""
    args = trainer.args
    if any(isinstance(each, SingularityCallback) for each in trainer.callback_handler.callbacks):
        raise UsageError("attach: called twice for this Trainer. Call it once.")
    if trainer.state.global_step:
        raise UsageError(
            f"attach: this Trainer has made {trainer.state.global_step} steps already. Call it before train."
        )
    data = trainer.train_dataset
    wrong = {
        "deepspeed: DeepSpeed keeps its own state": trainer.is_deepspeed_enabled,
        "fsdp: the Trainer resumes sharded models from its own format only": trainer.is_fsdp_enabled,
        "model: it lies on several devices (model or tensor parallel)": getattr(trainer, "is_model_parallel", False)
        or (getattr(trainer.model, "tp_size", None) or 1) > 1,
        "n_gpu: DataParallel has several devices in one process": args.n_gpu > 1,
    }
    if _means(trainer) and args.gradient_accumulation_steps > 1:
        raise UsageError(
            f"compute_loss: it does not read {ITEMS}, so the Trainer adds the mean losses of "
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps} micro-batches up, and another number of "
            f"workers would change the sum. Divide by {ITEMS}, or set gradient_accumulation_steps=1."
        )
    for what, found in wrong.items():
        if found:
            raise UsageError(
                f"{what}. Use DistributedDataParallel under torchrun, or singularity_train.attach with fully_shard."
            )
    if data is None or isinstance(data, tud.IterableDataset) or not hasattr(data, "__len__"):
        raise UsageError(
            f"train_dataset: {type(data).__name__} has no order that can be cut for other workers. "
            "Give a map-style data set, or use singularity_train.attach with streams."
        )
    settings = {
        "auto_find_batch_size": (args.auto_find_batch_size, False),
        "ignore_data_skip": (args.ignore_data_skip, False),
        "enable_jit_checkpoint": (getattr(args, "enable_jit_checkpoint", False), False),
        "accelerator_config.split_batches": (args.accelerator_config.split_batches, False),
        "accelerator_config.use_seedable_sampler": (args.accelerator_config.use_seedable_sampler, True),
    }
    for name, (value, needed) in settings.items():
        if bool(value) != needed:
            raise UsageError(f"{name} = {value}: the place in the data, or the stop, would be another. Give {needed}.")


class SingularityCallback(TrainerCallback):  # type: ignore[misc]
    """Made by `attach`.

    stop_requested  whether the ranks agreed on a stop         verdict  of `contract.Verdict`: what moves have changed
    finished        whether the training came to its own end   inexact  sentences: what is known to differ

    A checkpoint remembers that it is finished: the Trainer would make one step more, so ask before `train`.
    """

    def __init__(self, trainer: Any, keeper: Keeper, global_batch_size: int | None) -> None:
        self._trainer, self._keeper, self._folder, self._micro = trainer, keeper, "", 0
        self._began = 0
        self._global_batch = global_batch_size
        self._fits()

    def _fits(self) -> None:
        """Check the Trainer against the checkpoint that it goes on from, if there is one."""
        keeper, args = self._keeper, self._trainer.args
        self.finished = bool(keeper.past.get("finished"))
        args.gradient_accumulation_steps = keeper.accumulation(
            self._global_batch, args.per_device_train_batch_size, args.gradient_accumulation_steps
        )
        self._samples = keeper.samples(len(self._trainer.train_dataset), whole=False)
        keeper.same(seed=args.seed if args.data_seed is None else args.data_seed)
        if keeper.saved is not None:
            Parts({MAIN: self._trainer.model}, {}, {}).compare_models(keeper.saved.meta)
        keeper.promise(args.device, self._trainer.model)

    @property
    def stop_requested(self) -> bool:
        return self._keeper.stop_requested

    @property
    def inexact(self) -> list[str]:
        return self._keeper.inexact

    @property
    def verdict(self) -> Verdict:
        return self._keeper.verdict

    @property
    def checkpoint(self) -> str | None:
        """For `train(resume_from_checkpoint=...)`; None in the first attempt. Collective when it is first asked.

        A folder of temporary files, one for each machine. It is removed when it is loaded.

        :raises StateError: it cannot be written, or the checkpoint cannot be read
        :raises DamagedError: no checkpoint is whole
        """
        if self._keeper.saved is not None and not self._folder:
            self._folder = self._keeper.take(self._unpacked)
        return self._folder or None

    def _unpacked(self) -> str:
        self._fits()
        return _unpacked(self._keeper.root, self._keeper.saved.id, self._keeper.rank)

    # --- events of the Trainer ------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        sampler = _innermost(more["train_dataloader"])
        if type(sampler).__name__ not in SAMPLERS:
            raise UsageError(
                f"train_dataset: {type(sampler).__name__} draws another order in each attempt. "
                "Leave train_sampling_strategy at random or sequential, and get_train_dataloader as it is."
            )
        saved = self._keeper.saved
        if saved is not None and state.global_step != saved.step:
            raise UsageError(
                f"train: it begins at step {state.global_step}, and the checkpoint is of step {saved.step}. "
                "Call train(resume_from_checkpoint=moving.checkpoint) with what attach returned."
            )
        handler = self._trainer.callback_handler
        # The last one sees what all others have changed in a step. The Trainer adds some anew when it resumes.
        handler.callbacks = [each for each in handler.callbacks if each is not self] + [self]
        gathered(None)  # All ranks have loaded.
        if self._folder:
            shutil.rmtree(Path(self._folder).parent, ignore_errors=True)
        self._began = state.global_step
        self._keeper.host.attached(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self._keeper.due:
            self._save(wait=False)
        if state.global_step > self._began:
            self._keeper.boundary(state.global_step, self._made)
        self._micro = 0
        self._keeper.seed(args.seed, state.global_step, 0)

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._micro += 1
        self._keeper.seed(args.seed, state.global_step, self._micro)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        rng.seed(args.seed, "after", state.global_step)
        self._keeper.agree(state.global_step, args.device)
        losses = [entry["loss"] for entry in state.log_history[-1:] if "loss" in entry]
        self._keeper.host.report({
            "step": state.global_step, "steps": state.max_steps, "epoch": state.epoch,
            "loss": losses[0] if losses else None, "world_size": self._keeper.world_size,
        })  # fmt: skip
        # What an epoch's end evaluates belongs to its last step: the stop waits for one more step.
        ends = state.epoch == int(state.epoch) and "epoch" in (args.eval_strategy, args.save_strategy)
        if self.stop_requested and (not ends or state.global_step >= state.max_steps):
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not control.should_training_stop:
            return
        self.finished = not self.stop_requested or state.global_step >= state.max_steps
        # After the evaluation of this step, before the best model is loaded in its place.
        self._save(wait=True)
        if not self.finished:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._keeper.close()

    def _save(self, wait: bool) -> None:
        self._keeper.save(*self._made(), self._trainer.state.global_step, wait)

    def _made(self) -> tuple[Parts, dict[str, Any]]:
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        more = {f"scheduler.{MAIN}": trainer.lr_scheduler}
        scaler = getattr(trainer.accelerator, "scaler", None)
        more |= {"scaler": scaler} if scaler is not None else {}
        stateful = [
            each for each in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(each, ExportableState)
        ]
        state = dataclasses.asdict(dataclasses.replace(trainer.state, stateful_callbacks=stateful))
        parts = Parts({MAIN: trainer.model}, {MAIN: optimizer}, more)
        seed = trainer.args.seed if trainer.args.data_seed is None else trainer.args.data_seed
        kept = {
            "trainer_state": json.dumps(state, sort_keys=True), "samples": self._samples, "seed": seed,
            "finished": self.finished,
        }  # fmt: skip
        return parts, kept


def _innermost(loader: Any) -> Any:
    """The sampler below those that cut its batches for the processes."""
    sampler = loader.batch_sampler
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)


def _unpacked(root: Any, checkpoint: str, rank: int) -> str:
    """A folder of the Trainer's format that the first rank of each machine writes. Collective.

    :raises StateError, DamagedError: on all ranks
    """
    machines = gathered(socket.gethostname())
    leader = machines.index(machines[rank])
    made = ""
    failed: Exception | None = None
    if rank == leader:
        try:
            made = str(Path(tempfile.mkdtemp(prefix="singularity-")) / "checkpoint")
            export(root, made, "trainer", checkpoint=checkpoint, writers={"trainer": as_trainer})
        except DamagedError as error:
            failed = error
        except (StateStorageError, OSError) as error:
            failed = StateError(f"checkpoint {checkpoint}: {error}")
    answers = gathered((made, failed))
    wrong = next((each for _, each in answers if each), None)
    if wrong:
        raise wrong
    return str(answers[leader][0])
