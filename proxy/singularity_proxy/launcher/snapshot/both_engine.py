"""Engine `both`: whole processes by CRIU, and in the same images what the ranks have saved themselves at that step.

The ranks save their state while they can still talk to each other, then they freeze, and CRIU dumps them. A pod whose
node cannot take the processes starts the program anew from the state. The sidecars have agreed on that for all pods
(`Plan.through`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...protocol import names
from ...protocol.messages import Plan
from ...protocol.state_image import lay_together
from ..errors import DumpError, RestoreError
from ..laps import Laps
from ..paths import Paths
from ..ranks.slot import Slot
from . import outputs, rank_dump
from .engine import ProcessEngine
from .rank_dump import Order
from .restore import Say
from .state_engine import HOST


class BothEngine(ProcessEngine):
    """:param env: the container's"""

    apart = False
    elastic = True

    def __init__(self, env: Mapping[str, str], paths: Paths) -> None:
        super().__init__(env, paths)
        self._begun: set[int] = set()
        """Ranks that are started from a state."""

    def rank(self, number: int) -> Slot:
        # Before the rank's folder is given to its user.
        self._paths.state_beside(number).mkdir(parents=True, exist_ok=True)
        return super().rank(number)

    def environment(self, number: int) -> dict[str, str]:
        begun = {names.ENV_STATE_FROM: str(self._paths.state_begun(number))} if number in self._begun else {}
        return {
            names.ENV_ENGINE: names.ENGINE_BOTH,
            names.ENV_TRAIN_HOST: HOST,
            names.ENV_STATE_TO: str(self._paths.state_beside(number)),
            **begun,
        }

    def log_positions(self, plan: Plan) -> dict[int, int]:
        return dict.fromkeys(plan.ranks, 0) if plan.through == names.ENGINE_STATE else super().log_positions(plan)

    def restore(self, plan: Plan, start: Callable[[], dict[int, Slot]], say: Say, laps: Laps) -> dict[int, Slot]:
        if plan.through != names.ENGINE_STATE:
            return super().restore(plan, start, say, laps)
        say(f"the program starts anew, from the state in checkpoint {plan.checkpoint_id}{plan.why and ': '}{plan.why}")
        try:
            self._lay_out(plan)
        except OSError as error:
            raise RestoreError(f"the state in checkpoint {plan.checkpoint_id} cannot be laid out: {error}") from None
        laps.end("unpack")
        ranks = start()
        laps.end("restore")
        return ranks

    def _lay_out(self, plan: Plan) -> None:
        """Each rank gets a folder with all of the state: one copy in the pod, with a name for each rank."""
        first, *others = (self._paths.state_begun(rank) for rank in plan.ranks)
        lay_together(self._paths.images(plan.checkpoint_id), first)
        for other in others:
            shutil.copytree(first, other, copy_function=os.link)
        self._begun = {*plan.ranks}

    def dump(self, ranks: Mapping[int, Slot], order: Order, laps: Laps) -> list[str]:
        aside: dict[int, Path] = {}
        if not order.anywhere:
            for number, rank in ranks.items():
                rank_dump.wait_frozen(rank, self._paths, order)
                aside[number] = self._set_aside(number, order.generation)
        told = super().dump(ranks, order, laps)
        # All of them or none: before `attach` a script has no state.
        for number, saved in aside.items() if all(path.is_dir() for path in aside.values()) else ():
            _check(number, saved)
            if order.trial is None:
                state = self._paths.image(order.checkpoint_id, number) / names.STATE_PART
                shutil.copytree(saved, state)
                outputs.pack(self._paths, number, state)
        laps.end("dump")
        return told

    def _set_aside(self, number: int, generation: int) -> Path:
        """Out of the folder that travels with the rank. It stays there until the rank goes on: a restarted sidecar
        asks for the dump again."""
        aside = self._aside(number) / str(generation)
        saved = self._paths.state_beside(number) / str(generation)
        if saved.is_dir() and not saved.is_symlink():
            aside.parent.mkdir(exist_ok=True)
            saved.rename(aside)
        return aside

    def _aside(self, number: int) -> Path:
        return self._paths.work(number).parent / f".state-{number}"

    def resume(
        self, ranks: Mapping[int, Slot], generation: int, address: str, port: int, ended: Sequence[int] = ()
    ) -> list[str]:
        for number in ranks:
            shutil.rmtree(self._aside(number), ignore_errors=True)
            shutil.rmtree(self._paths.state_beside(number) / str(generation), ignore_errors=True)  # it was given up
        return super().resume(ranks, generation, address, port, ended)


def _check(number: int, saved: Path) -> None:
    """The rank's user has written it, and root reads it. Raises DumpError."""
    for folder, folders, files in os.walk(saved):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise DumpError(f"rank {number} has put {path.relative_to(saved)} beside its state, which is no file")
