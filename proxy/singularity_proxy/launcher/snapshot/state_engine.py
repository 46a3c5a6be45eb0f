"""The state engine: ranks are plain processes that save their state themselves, and are started anew to go on.

A rank's image is a folder of `singularity_train.storage` with the blobs that this rank has written; rank 0's has the
manifest. All of them together are the checkpoint, for any number of ranks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...protocol import names, page
from ...protocol.messages import Plan
from ...protocol.state_image import lay_together
from .. import device, pagewords
from ..errors import DumpError, RestoreError
from ..laps import Laps
from ..paths import Paths
from ..ranks import environment, process_scan
from ..ranks.plain import PlainRank
from . import outputs, rank_dump
from .engine import WEIGHED
from .image import RECORD
from .rank_dump import Order
from .restore import Say

HOST: Final = "_singularity.agent.train_host:make"
LOOK_S = 0.5
NOT_ATTACHED = (
    "{} called singularity_train.attach so far. With engine 'state' only a script that uses singularity_train can be "
    "saved, from attach on; use engine 'process' for others"
)


class StateEngine:
    """:param env: the container's"""

    apart = False
    elastic = True

    def __init__(self, env: Mapping[str, str], paths: Paths) -> None:
        self._env, self._paths = env, paths
        self._from: Path | None = None
        self._next = 0.0
        self.devices: device.Backend = device.NoDevices()

    def prepare(self) -> None:
        """Nothing here needs a right."""

    def rank(self, number: int) -> PlainRank:
        return PlainRank(number)

    def environment(self, number: int) -> dict[str, str]:
        """Where the rank saves its state, and begins; a home, where the image's passwd does not know its user."""
        given = {
            names.ENV_ENGINE: names.ENGINE_STATE,
            names.ENV_TRAIN_HOST: HOST,
            names.ENV_STATE_TO: str(self._paths.state_to(number)),
        }
        if self._from is not None:
            given[names.ENV_STATE_FROM] = str(self._from)
            if self._paths.state_parts.exists():
                given[names.ENV_STATE_PARTS] = str(self._paths.state_parts)
        if self._env.get("HOME", "/") == "/":
            given["HOME"] = str(self._paths.work(number))
        if not (self._env.get("USER") or self._env.get("LOGNAME")):
            given["USER"] = given["LOGNAME"] = "train"  # torch asks for a name
        return given

    def log_positions(self, plan: Plan) -> dict[int, int]:
        """The ranks begin new logs."""
        return dict.fromkeys(plan.ranks, 0)

    def restore(
        self, plan: Plan, start: Callable[[], dict[int, PlainRank]], say: Say, laps: Laps
    ) -> dict[int, PlainRank]:
        """The ranks are started anew, and go on when they call `attach`."""
        folder, images = self._paths.state_from, self._paths.images(plan.checkpoint_id)
        if not images.exists() and (folder / names.STATE_CHECKPOINTS).is_dir():
            say(f"the ranks fetch what they need of checkpoint {plan.checkpoint_id} into {folder}")
        else:
            try:
                count = lay_together(images, folder)
            except OSError as error:
                raise RestoreError(f"checkpoint {plan.checkpoint_id} cannot be laid out in {folder}: {error}") from None
            say(f"checkpoint {plan.checkpoint_id} of {count} ranks lies in {folder}")
        self._from = folder
        laps.end("unpack")
        ranks = start()
        laps.end("restore")
        return ranks

    def dump(self, ranks: Mapping[int, PlainRank], order: Order, laps: Laps) -> list[str]:
        if order.anywhere:
            some = any(pagewords.read(self._paths.run, rank, page.R_STATE) != page.STATE_ABSENT for rank in ranks)
            raise DumpError(NOT_ATTACHED.format("not all ranks have" if some else "no rank has"))
        steps = {number: rank_dump.wait_frozen(rank, self._paths, order)["step"] for number, rank in ranks.items()}
        laps.end("freeze")
        if order.trial is not None:
            for number in steps:
                if not self._saved(number, order.generation).is_dir():
                    raise DumpError(f"rank {number} says that its state is saved, but it is not there")
            return []  # it is deleted as soon as the ranks go on
        self._paths.images(order.checkpoint_id).mkdir(parents=True, exist_ok=True)
        for number, step in steps.items():
            saved, image = self._saved(number, order.generation), self._paths.image(order.checkpoint_id, number)
            shutil.rmtree(image, ignore_errors=True)
            try:
                (saved / RECORD).write_text(json.dumps({"engine": names.ENGINE_STATE, "rank": number, "step": step}))
                saved.rename(image)
                outputs.pack(self._paths, number, image)
            except OSError as error:
                raise DumpError(f"rank {number} says that its state is saved, but it is not there: {error}") from None
        laps.end("dump")
        return []

    def weigh(self, ranks: Mapping[int, PlainRank]) -> int:
        return process_scan.memory_bytes([pid for rank in ranks.values() for pid in rank.processes()], WEIGHED)

    def resume(
        self, ranks: Mapping[int, PlainRank], generation: int, address: str, port: int, ended: Sequence[int] = ()
    ) -> list[str]:
        values = environment.pod_values(self._env)
        for number in ranks:
            rank_dump.write_resume(self._paths, number, generation, address, port, values)
            shutil.rmtree(self._saved(number, generation), ignore_errors=True)  # of a checkpoint that was given up
        return []

    def due(self, now: float, ranks: Mapping[int, PlainRank]) -> None:
        """The checkpoint is not needed any more when all ranks have it."""
        if self._from is None or now < self._next:
            return
        self._next = now + LOOK_S
        if ranks and all(pagewords.read(self._paths.run, rank, page.R_STATE) != page.STATE_ABSENT for rank in ranks):
            shutil.rmtree(self._from, ignore_errors=True)
            self._from = None

    def _saved(self, rank: int, generation: int) -> Path:
        return self._paths.state_to(rank) / str(generation)
