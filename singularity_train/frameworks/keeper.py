"""What all adapters share: the agreement on a stop, the checkpoints, and the global batch that stays as it is.

A framework adds the gradients of `workers * accumulation` micro-batches. Another number of workers gets another
accumulation, so that each step reads the samples that it would have read. Random numbers are keyed by the place of a
micro-batch in its step, so they do not depend on the workers either. The order of the additions does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .. import contract, reduce, rng
from ..attach import checkpoints_of, not_restored
from ..errors import ContractError, DataError, StateError, UsageError
from ..handed import Handed, savable
from ..host import Host
from ..job import FORMAT, SAVE_S
from ..newest import Newest
from ..parts import Parts
from ..storage.folder import Folder

Made = TypeVar("Made")


def _has_statistics(module: Any) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.running_mean is not None


class Keeper:
    """Of one attempt. All ranks make it, and call `agree` and `save` in the same steps.

    :param framework: name of the adapter
    :param save_every: steps between two checkpoints; None: only at a stop and at the end
    :raises UsageError: `save_every` is too small, or only some ranks have a folder
    :raises StateError: the folder's checkpoints were made by another adapter, or the one to begin with is not there
    :raises DamagedError: there are checkpoints, and none can be read
    """

    def __init__(self, framework: str, host: Host, save_every: int | None) -> None:
        if save_every is not None and save_every < 1:
            raise UsageError(f"save_every = {save_every}: give 1 or more, or None")
        self.framework, self.host, self._save_every = framework, host, save_every
        self.rank, self.world_size = reduce.world()
        self.stop_requested = self.due = self._looked = False
        self.reasons: list[contract.Reason] = []
        """Why the losses differ from those of a run that was never moved, as far as the library can know."""
        start = host.start()
        self.root: Any = host.directory() if start is None else start
        """Folder of the checkpoint to begin with."""
        self._checkpoints = checkpoints_of(host.directory())
        self._first = self._checkpoints if start is None else checkpoints_of(start)
        self._handed = Handed()
        self._pending: Future[str] | None = None
        self._saved_step = -1
        self._newest = Newest(self._first)
        if start is not None and not self._newest.ids:
            raise StateError(f"{start}: the job has to go on from a checkpoint, and there is none in it")
        self.begins = None if not self._newest.ids else Folder(self._first.root).path(self._newest.ids[-1])
        """The newest checkpoint, also where it is damaged: what is known before the ranks have met."""
        self.saved: Any = None
        """That the training goes on from."""
        self.past: dict[str, Any] = {}
        """What the adapter has stored; empty in the first attempt."""
        if self._newest.ids:
            self.take(lambda: None)

    def take(self, way: Callable[[], Made]) -> Made:
        """What `way` makes of `saved` and `past`, which are of the newest checkpoint that it finds whole. Collective.

        :param way: may be called again, with the checkpoint before; see `Newest.take`
        :raises DamagedError: none is whole
        """

        def one(saved: Any) -> Made:
            by = saved.meta.get("framework")
            if saved.meta.get("format") != FORMAT or not by or by["name"] != self.framework:
                raise StateError(
                    f"checkpoint {saved.id}: it is not one of the adapter {self.framework} in format {FORMAT}. "
                    "Go on with what wrote it, or give another folder to begin anew."
                )
            self.saved, self.past, self._saved_step = saved, dict(by), saved.step
            return way()

        try:
            return self._newest.take(one)
        except Exception as error:
            not_restored(self.host, error)
            raise

    def accumulation(self, wanted: int | None, micro: int, present: int) -> int:
        """Micro-batches of each worker per step.

        :param wanted: samples per step that the script names; None: those of the first attempt
        :param micro: samples of one micro-batch
        :param present: the framework's own setting, which the first attempt keeps
        :raises ContractError: another number than the checkpoint's; UsageError: it cannot be divided
        """
        before = self.past.get("global_batch")
        if before is not None and wanted not in (None, before):
            raise ContractError(
                f"global_batch_size = {wanted}: the checkpoint was made with {before}. Give {before} or nothing."
            )
        self.global_batch = int(before or wanted or micro * present * self.world_size)
        each = micro * self.world_size
        if self.global_batch % each:
            raise UsageError(
                f"world size = {self.world_size}: a step reads {self.global_batch} samples, which are no multiple of "
                f"{each} (workers times micro-batch). Use a number of workers that divides "
                f"{self.global_batch // micro}, or another micro-batch."
            )
        return self.global_batch // each

    def same(self, **words: Any) -> None:
        """Check words that decide which numbers are added, by name.

        :raises ContractError: names the first that differs from the checkpoint's
        """
        for name, value in words.items():
            before = self.past.get(name, value)
            if before != value:
                raise ContractError(
                    f"{name} = {value!r}: the checkpoint was made with {before!r}, and another value changes what is "
                    f"trained. Give {before!r}, or another folder to begin anew."
                )

    def samples(self, count: int, whole: bool) -> int:
        """Check the length of the data set against the checkpoint.

        :param whole: an epoch has whole steps only; else the framework fills the last one with other samples
        :raises DataError: another one, or the end of an epoch depends on the workers and they have changed
        """
        before = self.past.get("samples", count)
        if before != count:
            raise DataError(
                f"data: {count} samples, and the checkpoint was made with {before}. Another number means another "
                "order, so that samples would be read twice or never: give the same data set."
            )
        workers = self.past.get("workers", self.world_size)
        if not whole and count % self.global_batch and workers != self.world_size:
            raise DataError(
                f"data: {count} samples are no multiple of the {self.global_batch} of a step. So the end of an epoch "
                f"depends on the workers, which were {workers} and are {self.world_size}. "
                f"Give {count - count % self.global_batch} samples, or {workers} workers."
            )
        return count

    @property
    def verdict(self) -> contract.Verdict:
        return contract.verdict(self.reasons)

    @property
    def inexact(self) -> list[str]:
        return [each.text for each in self.reasons]

    def promise(self, device: Any, model: Any) -> None:
        """Find out what is known to differ from a run that was never moved."""
        mine = contract.machine(device)
        found = contract.recalled(self.past)
        if self.past:
            found += contract.differences(self.past["machine"], mine, "in the checkpoint")
            if self.past["workers"] != self.world_size:
                moved = f"workers are {self.world_size} and were {self.past['workers']}: "
                text = f"{moved}{self.framework} adds their gradients in another order"
                found.append(contract.Reason(contract.Verdict.REORDERED, text))
                layer = next((name for name, each in model.named_modules() if _has_statistics(each)), None)
                if layer is not None:
                    text = f"{moved}the running statistics of {layer} are of other micro-batches"
                    found.append(contract.Reason(contract.Verdict.DIFFERENT, text))
        self.reasons = contract.unique(found)
        self._machine = contract.to_json(contract.Words(None, 0, 0, False, ""), mine)["machine"]

    def seed(self, seed: int, step: int, micro: int) -> None:
        """Before micro-batch `micro` of this worker."""
        rng.seed(seed, "step", step, micro * self.world_size + self.rank)

    def agree(self, step: int, device: Any) -> None:
        """After a step: whether any rank was asked to stop, and whether a checkpoint is due. Collective."""
        asked = [self.host.stop_requested(), self.host.save_requested()]
        flags = torch.tensor([float(each) for each in asked], device=device)
        if self.world_size > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        stop, save = (value > 0 for value in flags.tolist())
        self.stop_requested |= stop
        every = self._save_every is not None and step % self._save_every == 0
        self.due = self._checkpoints is not None and (save or every)

    def save(self, parts: Parts, state: Mapping[str, Any], step: int, wait: bool) -> None:
        """Store the training as it is after `step` steps, unless it is stored already. Collective.

        :param state: what the adapter needs besides, as JSON; that of rank 0 counts
        :param wait: until it is committed; else training goes on
        """
        self.due = False
        if self._checkpoints is None:
            return
        self._settle()
        if self._saved_step == step:
            return
        tree, meta = self._described(parts, state)
        self._saved_step = step
        if wait:
            self.host.saved(self._checkpoints.save(tree, meta, step=step), step)
        else:
            self._pending = self._checkpoints.save_async(tree, meta, step=step)

    def boundary(self, step: int, made: Callable[[], tuple[Parts, Mapping[str, Any]]]) -> None:
        """Between two steps, after `step` of them: the host may wait here, and have the state saved. Collective.

        :param made: the training, and what the adapter needs besides, as for `save`
        :raises StateError: on all ranks, after the first step: it cannot be saved
        """
        if not self._looked:
            self._looked = True
            savable(lambda: self._described(*made()))
        self.host.boundary(step, lambda folder: self._handed.save(folder, lambda: self._described(*made()), step))

    def _described(self, parts: Parts, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        by = {
            "name": self.framework, "workers": self.world_size, "global_batch": self.global_batch,
            "machine": self._machine, **contract.stored(self.reasons), **state,
        }  # fmt: skip
        return parts.tree(), {"format": FORMAT, "framework": by, **parts.describe()}

    def restore(self, parts: Parts) -> None:
        """Go on from `saved`, in place: a way for `take`. Collective.

        :raises ModelChangedError, OptimizerChangedError: it is one of another training
        :raises DamagedError: it is not whole
        """
        parts.compare(self.saved.meta)
        parts.prepare(self.saved.meta)
        loaded = parts.with_extra_of(self.saved.meta, parts.tree())
        self._first.load(self.saved, loaded)
        parts.apply(loaded)

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and let go of the signals.

        :raises Exception: what made it fail
        """
        self.host.close()
        self._handed.close()
        self._settle()

    def _settle(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.host.saved(pending.result(SAVE_S), self._saved_step)
