"""The job as a script sees it: iterate, ask, report, save."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from . import contract, reduce, rng
from .data import Read, Source
from .engines import Compute, Framework, VirtualRanks
from .errors import ContractError, StateError, UsageError
from .handed import Handed, Order, savable
from .host import Host
from .newest import Newest
from .parts import Parts, pack, unpack
from .reach import Reach
from .rehearsal import Rehearsal
from .step import Progress, Step

FORMAT = 1
"""Of the parts and their description; the storage has a format of its own."""
SAVE_S = 1800.0
"""Longest wait for a checkpoint that is being written."""
STOP, SAVE, END = range(3)
log = logging.getLogger("singularity_train")


class Job:
    """Made by `attach`. Iterate over it once; it can be used as a context manager."""

    def __init__(
        self,
        parts: Parts,
        source: Source,
        engine: VirtualRanks | Framework,
        words: contract.Words,
        host: Host,
        checkpoints: Any,
        limits: tuple[int | None, int | None, int | None],
        reach: Reach,
        rehearsal: Rehearsal | None,
    ) -> None:
        self._parts, self._source, self._engine, self._words = parts, source, engine, words
        self._host, self._checkpoints = host, checkpoints
        self.steps, self.epochs, self._save_every = limits
        self.rank, self.world_size = reduce.world()
        self.step = 0
        """Steps that are done, over all attempts."""
        self.restored: str | None = None
        """Id of the checkpoint that this attempt goes on from."""
        self.stop_requested = False
        """Whether any rank was asked to stop; the ranks learn it in the same step."""
        self.reasons: list[contract.Reason] = []
        """Why the losses differ from those of a run that was never moved, as far as the library can know."""
        self._reach, self._rehearsal = reach, rehearsal
        self._metrics: dict[str, float] = {}
        self._loss: float | None = None
        self._open: Step | None = None
        self._batches = Read(source)
        self._wants_save = self._wants_end = self._ended = self._saving = self._looked = self._closed = False
        self._pending: Future[str] | None = None
        self._handed = Handed()
        self._saved_step = -1

    # --- what a script asks ---------------------------------------------------------------------------------------
    @property
    def verdict(self) -> contract.Verdict:
        """How the losses are related to those of a run that was never moved."""
        return contract.verdict(self.reasons)

    @property
    def inexact(self) -> list[str]:
        """Sentences: why the verdict is not `exact`; empty where nothing is known."""
        return [each.text for each in self.reasons]

    @property
    def rehearsed(self) -> int | None:
        """The step of this attempt that was computed again from what a checkpoint has, with the same bits. None: none,
        so far or because it could not be copied; the log says why."""
        return None if self._rehearsal is None else self._rehearsal.step

    @property
    def epoch(self) -> int | None:
        """Of the next step."""
        return self._source.epoch

    @property
    def finished(self) -> bool:
        """Whether all `steps` or `epochs` are done, or the script has ended it; False where a stop ended the loop."""
        if self._ended or (self.steps is not None and self.step >= self.steps):
            return True
        return self.epochs is not None and self._source.epoch is not None and self._source.epoch >= self.epochs

    @property
    def progress(self) -> Progress:
        return Progress(
            self.step, self.steps, self.epoch, self._loss, self.world_size, self._words.virtual_ranks,
            self.verdict.value, self.stop_requested, dict(self._metrics),
        )  # fmt: skip

    def report(self, **metrics: float) -> None:
        """Numbers that are shown with the progress from now on, such as `accuracy=0.9`."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    def save(self) -> None:
        """Ask for a checkpoint.

        Within the loop one rank is enough. The ranks agree in the next `step.backward`, and save when its step is
        over, while the training goes on. Outside the loop all ranks have to call it, and it is written at once.
        Without a folder it does nothing.
        """
        if self._open is not None:
            self._wants_save = True
        else:
            self._write()

    def end(self) -> None:
        """End the training early, as after too many epochs without progress.

        One rank is enough. The ranks agree in the next `step.backward`, whose step is the last one of the loop, with
        any number of workers. The end is saved, so that a later attempt makes no further step.
        """
        self._wants_end = True

    # --- the loop -------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Step]:
        if self._closed:
            raise UsageError("job: it is closed. Attach again to go on from its last checkpoint.")
        if self._open is not None:
            raise UsageError("job: a loop over it is running. Iterate over it in one place.")
        self._source.start(self._engine.share, self._total())
        try:
            while not (self.finished or self.stop_requested):
                rng.seed(self._words.seed, "body", self.step)
                step = self._open = Step(self, self.step, self._source.epoch)
                yield step
                if not step.done:
                    raise UsageError(f"step {step.number}: its body ended without step.backward. Call it in each step.")
                self._open = None
                self._rehearse(step)
                self._boundary()
            self._write()
            self._handed.wait()  # the script may end the process group next, which the save needs
        finally:
            self._open = None
            self._source.close()

    def _total(self) -> int:
        return self._words.virtual_ranks or self.world_size

    def _backward(self, step: Step, compute: Compute) -> float:
        if step.done:
            outcome = self._engine.backward(compute, (step.number, step.done), self._batches, [])
            rng.seed(self._words.seed, "after", step.number, step.done)
            self._loss = outcome.loss
            return outcome.loss
        wishes = [False, False, self._wants_end]
        wishes[STOP] = self._host.stop_requested()
        wishes[SAVE] = self._host.save_requested() or self._wants_save
        self._wants_save = False
        self._reach.begin_step()
        self._batches = Read(self._source)
        watch = None if self._rehearsal is None else self._rehearsal.watch(step, compute)
        outcome = self._engine.backward(compute, (step.number, 0), self._batches, wishes, watch)
        # What the body draws is the same on all ranks, however many virtual ranks they have.
        rng.seed(self._words.seed, "after", step.number)
        self._source.advance()
        self.step = step.number + 1
        self._loss = outcome.loss
        self.stop_requested, self._saving, self._ended = outcome.asked
        return outcome.loss

    def _rehearse(self, step: Step) -> None:
        """:raises UsageError: on all ranks, if one of them cannot compute a step again from what a checkpoint has"""
        if self._rehearsal is None or not self._rehearsal.due(step):
            return
        told = reduce.first_of(self._rehearsal.play(step))
        if told:
            raise UsageError(f"step.backward: {told}")
        if self.rank == 0:
            done = self._rehearsal.step
            log.info("rehearsal: %s", self._rehearsal.why if done is None else f"step {done} has the same bits")

    def _boundary(self) -> None:
        """Between two steps: the update is made, the position is that of the next step."""
        self._inexact(self._reach.end_step(self.step - 1))
        if not self._looked:
            self._looked = True
            savable(self._state)
        self._host.report(asdict(self.progress))
        self._host.boundary(self.step, self._write_to)
        due = self._save_every is not None and self.step % self._save_every == 0
        if self._checkpoints is None or self.stop_requested or not (due or self._saving):
            return
        self._settle()
        self._pending = self._checkpoints.save_async(*self._state(), step=self.step)
        self._saved_step = self.step

    def _inexact(self, found: list[str]) -> None:
        for text in found:
            log.warning("verdict: different. %s", text)
        self.reasons = contract.unique(
            [*self.reasons, *(contract.Reason(contract.Verdict.DIFFERENT, text) for text in found)]
        )

    def _write(self) -> None:
        """Save now, unless this step is saved. Collective."""
        self._settle()
        if self._checkpoints is not None and self._saved_step != self.step:
            checkpoint = self._checkpoints.save(*self._state(), step=self.step)
            self._saved_step = self.step
            self._host.saved(checkpoint, self.step)

    def _write_to(self, folder: Path) -> Order:
        """A checkpoint in a folder that this rank has to itself. Collective.

        :raises StateError, StateStorageError: on all ranks, which all train on
        """
        return self._handed.save(folder, self._state, self.step)

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written.

        :raises Exception: what made it fail; the one before is whole
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._host.saved(pending.result(SAVE_S), self._saved_step)

    # --- state ----------------------------------------------------------------------------------------------------
    def _tree(self) -> dict[str, Any]:
        states = {str(rank): pack("data", state) for rank, state in self._source.states().items()}
        return {**self._parts.tree(), **({"streams": states} if states else {})}

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {
            "format": FORMAT, "position": self._source.position(), "workers": self.world_size, "ended": self._ended,
            **contract.stored(self.reasons), **self._parts.describe(),
            **contract.to_json(self._words, contract.machine(self._device())),
        }  # fmt: skip
        return self._tree(), meta

    def _restore(self, checkpoints: Any, threads: int | None, require_exact: bool, expected: bool) -> None:
        """Go on from the last of `checkpoints` that is whole, if there is one. Collective.

        :param expected: there has to be one
        :raises DamagedError: there are checkpoints, and none of them is whole
        """
        newest = Newest(checkpoints)
        if newest.ids:
            newest.take(lambda saved: self._restore_from(checkpoints, saved, threads, require_exact))
            return
        if expected:
            raise StateError(f"{checkpoints.root}: the job has to go on from a checkpoint, and there is none in it")
        self._promise(None, threads, require_exact)
        self._engine.agree()
        self._reach.agreed()

    def _restore_from(self, checkpoints: Any, saved: Any, threads: int | None, require_exact: bool) -> None:
        """:raises DamagedError: on all ranks: the checkpoint is not whole. What was restored of it is overwritten by
        another one"""
        meta = dict(saved.meta)
        if meta.get("framework"):
            raise StateError(
                f"checkpoint {saved.id}: the adapter {meta['framework']['name']} wrote it. "
                "Go on with that adapter, or give another folder to begin anew."
            )
        if meta.get("format") != FORMAT:
            raise StateError(
                f"checkpoint {saved.id}: format = {meta.get('format')!r}, and this version reads {FORMAT}. "
                "Use the version that wrote it, or another folder to begin anew."
            )
        contract.compare(meta, self._words)
        self._parts.compare(meta)
        self._promise(meta, threads, require_exact)
        self._parts.prepare(meta)
        self._source.start(self._engine.share, self._total())
        # First to see whether it fits, so that nothing is loaded into a training that cannot go on.
        self._source.restore(meta["position"], {})
        loaded = self._parts.with_extra_of(meta, self._tree())
        checkpoints.load(saved, loaded)
        self._parts.apply(loaded)
        self._parts.thaw(meta)
        self._reach.agreed()
        streams = {int(rank): unpack(state) for rank, state in loaded.get("streams", {}).items()}
        self._source.restore(meta["position"], streams)
        self.step, self._ended = saved.step, bool(meta.get("ended"))
        self._saved_step = saved.step
        self.restored = saved.id
        log.info("goes on from step %d, checkpoint %s", saved.step, saved.id)

    def _promise(self, meta: Mapping[str, Any] | None, threads: int | None, require_exact: bool) -> None:
        """Set what decides about bits and can be set; say what else differs. Collective.

        :raises ContractError: something is known to differ, and `require_exact`
        """
        if self._words.virtual_ranks is not None:
            before = None if meta is None else int(meta["machine"]["threads"])
            torch.set_num_threads(threads or before or reduce.gathered(torch.get_num_threads())[0])
        mine = contract.machine(self._device())
        reasons = contract.known(self._words, mine, reduce.gathered(mine))
        if meta is not None:
            reasons = [*contract.recalled(meta), *reasons]
            reasons += contract.resized(self._words, self.world_size, meta.get("workers"))
            if self._words.virtual_ranks is not None:
                reasons += contract.differences(meta["machine"], mine, "in the checkpoint")
        self.reasons = contract.unique(reasons)
        told = "; ".join(self.inexact)
        if told and require_exact:
            raise ContractError(f"require_exact: the verdict is {self.verdict.value}. {told}")
        if told and self._words.virtual_ranks is not None and self.rank == 0:
            log.warning("verdict: %s. %s", self.verdict.value, told)

    def _device(self) -> Any:
        return next(iter(self._parts.parameters().values())).device

    # --- the end --------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Wait for what is being written, and let go of folder and signals. The training's objects stay as they are.

        :raises Exception: what made the last checkpoint fail
        """
        if self._closed:
            return
        self._closed = True
        self._source.close()
        self._reach.close()
        self._host.close()
        self._handed.close()
        self._settle()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        # The exception of the script is the one to be seen.
        try:
            self.close()
        except Exception:
            log.exception("the last checkpoint failed")
