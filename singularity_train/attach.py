"""The one call that a script makes before its loop."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils.data as tud
from torch.nn.parallel import DistributedDataParallel

from . import contract, reduce
from .buffers import RULES
from .data import MapSource, Source, read
from .engines import Framework, VirtualRanks
from .errors import UsageError
from .host import Host, of_environment
from .job import Job
from .parts import Parts, bare, named
from .reach import Reach, refuse
from .rehearsal import Rehearsal
from .streams import StreamSource

_current: weakref.ref[Job] | None = None


def attach(
    *,
    model: Any,
    optimizer: Any,
    data: Any,
    batch_size: int | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    extra: Mapping[str, Any] | None = None,
    virtual_ranks: int | None = None,
    seed: int = 0,
    steps: int | None = None,
    epochs: int | None = None,
    shuffle: bool | None = None,
    num_workers: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    buffers: str = "first",
    threads: int | None = None,
    require_exact: bool = False,
    rehearse: bool = True,
    directory: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    host: Host | None = None,
) -> Job:
    """Attach a training to the state engine, and bring it to where its last checkpoint was. Collective.

    Call it once, when model and optimizer are on their device, before the first step. Without `torch.distributed` the
    world has one rank. Without a folder nothing is saved or restored.

    :param model: a module, or several by name
    :param optimizer: one, or several by name
    :param data: a map-style data set, a DataLoader, or a function `(virtual_rank, virtual_ranks) -> iterable`
    :param batch_size: samples of one micro-batch: of one virtual rank, or of one worker; a DataLoader has its own
    :param scheduler: one, or several by name
    :param scaler: a GradScaler; `step.backward` scales with it
    :param extra: more state by name; each has `state_dict` and `load_state_dict`
    :param virtual_ranks: the largest world that the job may have. The global batch is `virtual_ranks * batch_size` for
        any number of workers, and the losses have the same bits. None: the model is wrapped by DistributedDataParallel
        or `fully_shard`, which adds the gradients of one batch per worker
    :param seed: of the order of samples, dropout and augmentation
    :param steps: end after so many, over all attempts
    :param epochs: end after so many; not with streams
    :param shuffle: of a data set; default True, or as the DataLoader does
    :param buffers: "first": BatchNorm keeps the statistics of virtual rank 0; "mean": the mean over all
    :param threads: of torch in one operation. Default: as in the checkpoint, else as on rank 0
    :param require_exact: refuse to train where other bits are certain. What the library cannot know is not refused:
        the verdict is `unchecked` at best
    :param rehearse: compute one of the first steps again from what a checkpoint has, on copies, and refuse to train on
        if loss or gradients differ. Only with virtual ranks
    :param directory: folder for checkpoints, the same for all ranks. Default: SINGULARITY_TRAIN_DIR, else none. Not
        used in managed pods, which keep the job's checkpoints in its store
    :param save_every: steps between two checkpoints. One more is made at a stop and at the end
    :param host: what runs the job; default: the one that the environment names, else the environment and signals
    :raises UsageError: called twice, after the first step, or with arguments that cannot work. Here or in the first
        steps: state changes while it trains, and would be lost
    :raises DataError: data that cannot be read like this, or another data set than the checkpoint's
    :raises ContractError: other words than the checkpoint's
    :raises ModelChangedError: other parameters than the checkpoint's
    :raises OptimizerChangedError: another optimizer, scheduler, scaler or extra state than the checkpoint's
    """
    global _current
    before = _current() if _current is not None else None
    if before is not None and not before._closed:
        raise UsageError("attach: called twice. Attach all models at once, or close() the first job before.")
    rank, workers = reduce.world()
    given, optimizers = named(model), named(optimizer)
    models = {name: bare(each) for name, each in given.items()}
    _check(given, models, optimizers, virtual_ranks, workers)
    for what, value in (("steps", steps), ("epochs", epochs), ("save_every", save_every), ("threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{what} = {value}: give 1 or more, or None")
    if buffers not in RULES:
        raise UsageError(f"buffers = {buffers!r}: give one of {', '.join(RULES)}")
    more = {f"scheduler.{name}": each for name, each in named(scheduler).items()}
    more |= {"scaler": scaler} if scaler is not None else {}
    more |= {f"extra.{name}": each for name, each in (extra or {}).items()}
    for name, each in more.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise UsageError(f"{name}: {type(each).__name__} has no state_dict and load_state_dict. Give it both.")
    dataset, loading = read(data, batch_size, shuffle, num_workers, collate_fn)
    source: Source
    stream = isinstance(dataset, tud.IterableDataset)
    if not stream and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        source = MapSource(dataset, loading, seed, virtual_ranks or workers)
    elif stream or not callable(dataset):
        raise UsageError(
            f"data: {type(dataset).__name__} is one stream, which cannot be divided. "
            "Give a function (virtual_rank, virtual_ranks) -> iterable, which makes the part of one virtual rank."
        )
    elif virtual_ranks is None or epochs is not None:
        raise UsageError(
            "data: streams need virtual_ranks, whose places move with them, and have no epochs: give steps"
        )
    else:
        source = StreamSource(dataset, loading, seed)
    words = contract.Words(virtual_ranks, loading.batch_size, seed, loading.shuffle, buffers)
    engine: VirtualRanks | Framework
    if virtual_ranks is None:
        engine = Framework(list(given.values()), seed, scaler)
    else:
        engine = VirtualRanks(list(models.values()), virtual_ranks, seed, buffers, scaler)
    host, reach = host or of_environment(directory, rank, workers), None
    try:
        parts, limits = Parts(models, optimizers, more), (steps, epochs, save_every)
        reach = Reach(parts)
        own, start = (checkpoints_of(each) for each in (host.directory(), host.start()))
        rehearsal = Rehearsal(parts, seed, (host, source, dataset)) if rehearse and virtual_ranks is not None else None
        job = Job(parts, source, engine, words, host, own, limits, reach, rehearsal)
        job._restore(own if start is None else start, threads, require_exact, expected=start is not None)
        if start is not None:
            start.close()
        host.attached(job.step)
    except BaseException as error:
        not_restored(host, error)
        host.close()
        if reach is not None:
            reach.close()
        raise
    _current = weakref.ref(job)
    return job


def not_restored(host: Host, error: BaseException) -> None:
    """Tell who has given the checkpoint that it is not whole; another one may be."""
    from .storage import DamagedError

    if isinstance(error, DamagedError) and host.start() is not None:
        host.not_restored(str(error))


def checkpoints_of(directory: Path | None) -> Any:
    """Of the folder, or None.

    :raises UsageError: some ranks have a folder and others have none
    """
    folders = reduce.gathered(directory is not None)
    if any(folders) != all(folders):
        rank = folders.index(False)
        raise UsageError(f"directory: rank {rank} has none and others do. Give all ranks the same folder.")
    if directory is None:
        return None
    from .storage import Checkpoints

    return Checkpoints(directory)


def _check(
    given: Mapping[str, Any],
    models: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    virtual_ranks: int | None,
    workers: int,
) -> None:
    """:raises UsageError: the call comes too late, or the models do not suit the way of adding gradients"""
    for name, each in models.items():
        if not isinstance(each, torch.nn.Module) or not any(True for _ in each.parameters()):
            raise UsageError(f"model {name}: {type(each).__name__} is no torch.nn.Module with parameters")
    # First: a wrapper has state at once, and some are no optimizers of torch.
    refuse(models, optimizers)
    for name, each in optimizers.items():
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(f"optimizer {name}: {type(each).__name__} is no torch.optim.Optimizer")
    known = {id(parameter) for each in models.values() for parameter in each.parameters()}
    for name, each in optimizers.items():
        held = [parameter for group in each.param_groups for parameter in group["params"]]
        if any(id(parameter) not in known for parameter in held):
            raise UsageError(f"optimizer {name}: it has parameters of no attached model. Attach that model too.")
        # Some make their state at once, such as Adagrad; a look at one makes it, empty.
        stepped = any(state and state.get("step", 1) != 0 for state in each.state.values())
        if stepped or any(parameter.grad is not None for parameter in held):
            raise UsageError(
                f"optimizer {name}: it has made a step, or has gradients. Call attach before the first step."
            )
    sharded = any(hasattr(parameter, "placements") for each in models.values() for parameter in each.parameters())
    wrapped = all(isinstance(each, DistributedDataParallel) for each in given.values())
    if virtual_ranks is None:
        if workers > 1 and not (wrapped or sharded):
            raise UsageError(
                "model: nothing adds the gradients of the workers. "
                "Wrap it in DistributedDataParallel or fully_shard, or give virtual_ranks."
            )
        return
    if virtual_ranks < workers:
        raise UsageError(
            f"virtual_ranks = {virtual_ranks}: the world has {workers} workers, and each needs one or more. "
            f"Use at most {virtual_ranks} workers; a job under way keeps its virtual ranks."
        )
    if sharded or any(isinstance(each, DistributedDataParallel) for each in given.values()):
        raise UsageError(
            "model: with virtual_ranks the library adds the gradients. "
            "Give the model without DistributedDataParallel and fully_shard, or leave virtual_ranks out."
        )
