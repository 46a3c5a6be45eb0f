"""The Host of `singularity_train` in a managed pod: a step of its loop is a boundary, and it saves the state.

The library finds `make` by its name in the environment. The two know each other by the methods of `PodHost` alone,
which are those of `singularity_train.host.Host`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..protocol import names, page
from . import freeze, guard, membership, state_parts
from .boundary import Boundary, NoRank


class Save(Protocol):
    """`singularity_train.handed.Order`."""

    def now(self) -> None: ...

    def in_background(self) -> Any:
        """A concurrent.futures.Future."""


Write = Callable[[Path], Save]
REPORT_S = 1.0
"""Reports in between are dropped: a step may take a millisecond."""


class PodHost:
    """:param rank_dir: control directory of the rank"""

    def __init__(self, rank_dir: Path, rank: int) -> None:
        self._rank_dir, self._rank = rank_dir, rank
        self._boundary = Boundary(rank_dir, rank, self._freeze)
        self._write: Write | None = None
        self._reported = 0.0

    def directory(self) -> Path | None:
        """The platform keeps the checkpoints."""
        return None

    def start(self) -> Path | None:
        return start()

    def attached(self, step: int) -> None:
        """From here on the rank can be saved. A process that is no rank trains on without it."""
        self._boundary.lead_by_loop(step, self._freeze)
        try:
            self._boundary.open()
        except NoRank as error:
            guard.report(f"process {os.getpid()} takes no part in checkpoints: {error}")
        except Exception as error:
            membership.give_up(f"when it had called singularity_train.attach: {error!r}")
        else:
            guard.watch(self._boundary)
            atexit.register(self._finish, os.getpid())

    def not_restored(self, why: str) -> None:
        """The launcher gives the checkpoint up for this rank, and the job goes back to the one before it at last."""
        guard.write_json(self._rank_dir / names.NOT_RESTORED_FILE, {"message": why[:1000]})

    def boundary(self, step: int, write: Write) -> None:
        self._write = write
        self._boundary.count = step - 1
        self._boundary.step()

    def stop_requested(self) -> bool:
        """The barrier stops the ranks, and not the script."""
        return False

    def save_requested(self) -> bool:
        return False

    def report(self, progress: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if self._rank or now - self._reported < REPORT_S:
            return
        self._reported = now
        try:
            told = {name: progress[name] for name in ("step", "steps", "loss")}
            guard.write_json(self._rank_dir / names.PROGRESS_FILE, told)
        except (OSError, ValueError, KeyError) as error:
            guard.report(f"the progress is not shown: {error!r}")

    def saved(self, checkpoint: str, step: int) -> None:
        """The sidecars say when a checkpoint is committed."""

    def close(self) -> None:
        """The rank is one until its process ends."""

    def _freeze(self, boundary: Boundary, generation: int) -> None:
        if boundary.goes_on(generation):
            freeze.go_on(boundary, generation, self._begin)
        else:
            freeze.freeze_in_place(boundary, generation, lambda at: self._order(at).now())

    def _order(self, boundary: Boundary) -> Save:
        write = self._write
        if write is None:
            raise RuntimeError("the loop of singularity_train has made no step yet")
        return write(Path(os.environ[names.ENV_STATE_TO]) / str(boundary.frozen_for))

    def _begin(self, boundary: Boundary) -> None:
        generation, step = boundary.frozen_for, boundary.count

        def ended(future: Any) -> None:
            """In the thread that saves."""
            try:
                error = future.exception()
                if error is None:
                    freeze.saved(boundary, generation, step)
                    return
                text = f"while its state was saved in the background: {type(error).__name__}: {error}"
                guard.report(f"no checkpoint of step {step}, the script goes on: {text}")
                boundary.refuse_past(generation, text)
            except Exception as problem:
                guard.report(f"the launcher is not told how the save of step {step} has ended: {problem!r}")

        self._order(boundary).in_background().add_done_callback(ended)

    def _finish(self, pid: int) -> None:
        if os.getpid() == pid:
            self._boundary.close(page.STATE_FINISHED)


class BesideHost(PodHost):
    """The rank is saved as a process, too: its boundary is the one that the agent's hooks on torch have made."""

    def attached(self, step: int) -> None:
        """From here on the rank's state is saved beside its process."""
        begun = start()
        if begun is not None:  # it would travel with the rank
            shutil.rmtree(begun, ignore_errors=True)
        membership.lead_by_loop(step, self._freeze)

    def boundary(self, step: int, write: Write) -> None:
        self._write = write
        membership.after_step(step)

    def _freeze(self, boundary: Boundary, generation: int) -> None:
        freeze.freeze_beside(boundary, generation, lambda at: self._order(at).now())


bring = state_parts.bring
"""`singularity_train.environment.bring_of_environment`."""


def start() -> Path | None:
    """Folder of the checkpoint that the job begins with; None: it begins anew."""
    given = os.environ.get(names.ENV_STATE_FROM)
    return Path(given) if given else None


def make(rank: int, world_size: int) -> PodHost | None:
    """The Host of this process, which is `rank` of `world_size`. None: it is below a rank and none itself.

    Raises ValueError: it has met other ranks than those of the job.
    """
    given = os.environ.get(names.ENV_RANK_DIR)
    if not given:
        return None
    own, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if (rank, world_size) != (own, world):
        raise ValueError(
            f"this is rank {rank} of {world_size} to torch.distributed, and rank {own} of {world} of the job. Call "
            "torch.distributed.init_process_group before attach, without rank and world_size"
        )
    kind = BesideHost if os.environ.get(names.ENV_ENGINE) == names.ENGINE_BOTH else PodHost
    return kind(Path(given), own)
