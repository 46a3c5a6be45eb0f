"""How ranks are saved and come back: the seam between the launcher's loop and the engines.

`ProcessEngine` dumps whole processes by CRIU. `state_engine.StateEngine` keeps what the ranks save themselves.
`both_engine.BothEngine` does both at once, and goes on from either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ...protocol import image_room
from ...protocol.messages import Plan
from .. import device
from ..errors import CommandError, SlotError
from ..laps import Laps
from ..paths import Paths
from ..ranks import environment, mounts, process_scan
from ..ranks.nudge import Nudge
from ..ranks.rank import Rank
from ..ranks.slot import Slot
from ..tools import Tools
from . import container_layer, rank_dump, restore
from .criu import Criu
from .rank_dump import Order
from .restore import Say

AnyRank = TypeVar("AnyRank", bound=Rank)
WEIGHED = 1 << 30
"""Bytes up to which a quick sum is good enough for `weigh`."""


class Engine(Protocol[AnyRank]):
    """Of one pod. Ranks are given as number -> rank."""

    devices: device.Backend
    apart: bool
    """Ranks that have ended are saved as ended. Else nothing is saved any more once one has."""
    elastic: bool
    """Ranks may be started anew in the middle of a training, so each learns its place in the world, also the only one.
    """

    def prepare(self) -> None:
        """Before anything is started. Raises LauncherError."""

    def rank(self, number: int) -> AnyRank:
        """A place for a rank that is started anew. Raises SlotError."""

    def environment(self, number: int) -> dict[str, str]:
        """Variables of a rank that is started anew, besides those of every rank."""

    def log_positions(self, plan: Plan) -> dict[int, int]:
        """Bytes of each rank's log that earlier pods have shown. Raises RestoreError."""

    def restore(self, plan: Plan, start: Callable[[], dict[int, AnyRank]], say: Say, laps: Laps) -> dict[int, AnyRank]:
        """The ranks of `plan`, from its checkpoint. Raises RestoreError, MeetingError; no rank is left then.

        :param start: starts them anew
        :param laps: gets the phases of `StartPhases`
        """

    def dump(self, ranks: Mapping[int, AnyRank], order: Order, laps: Laps) -> list[str]:
        """Images of all ranks to IMAGE_DIR/<checkpoint id>; what the user may want to know.

        The ranks stand still then. `laps` get the phases of `SavePhases`. Raises DumpError; the ranks can be resumed.
        """

    def weigh(self, ranks: Mapping[int, AnyRank]) -> int:
        """Bytes that the ranks hold in memory, without those of files."""

    def resume(
        self, ranks: Mapping[int, AnyRank], generation: int, address: str, port: int, ended: Sequence[int] = ()
    ) -> list[str]:
        """Ranks that have frozen for `generation`, or were stopped for it, go on in place; what went wrong.

        :param ended: ranks of the world that have ended
        """

    def due(self, now: float, ranks: Mapping[int, AnyRank]) -> None:
        """Called by the launcher's loop; `now`: seconds of any steady clock."""


class ProcessEngine:
    """Whole processes, in slots, by CRIU.

    :param env: the container's
    """

    apart = True
    elastic = False

    def __init__(self, env: Mapping[str, str], paths: Paths) -> None:
        self._env, self._paths = env, paths
        self._files = rank_dump.Files(time.time(), container_layer.limit(env), _image_room(env))
        self._tools = Tools(paths.tools)
        self._criu = Criu(self._tools)
        self._nudge = Nudge(paths)
        self.devices: device.Backend = device.find(env)

    def prepare(self) -> None:
        self._tools.check()
        try:
            mounts.keep_ours(self._paths.root, self._paths.agent)
        except OSError as error:
            raise SlotError(f"{error}; the training container needs the capability SYS_ADMIN") from None

    def rank(self, number: int) -> Slot:
        return Slot(number, self._paths, self._tools)

    def environment(self, number: int) -> dict[str, str]:
        return {}

    def log_positions(self, plan: Plan) -> dict[int, int]:
        return restore.log_positions(plan, self._paths)

    def restore(self, plan: Plan, start: Callable[[], dict[int, Slot]], say: Say, laps: Laps) -> dict[int, Slot]:
        values = environment.pod_values(self._env)
        return restore.restore(plan, self._paths, self._criu, values, say, self.devices, laps)

    def dump(self, ranks: Mapping[int, Slot], order: Order, laps: Laps) -> list[str]:
        return rank_dump.dump(ranks, self._paths, self._criu, order, self._files, self.devices, laps)

    def weigh(self, ranks: Mapping[int, Slot]) -> int:
        pids = [pid for slot in ranks.values() for pid in process_scan.processes(slot.init)]
        return process_scan.memory_bytes(pids, enough=WEIGHED)

    def resume(
        self, ranks: Mapping[int, Slot], generation: int, address: str, port: int, ended: Sequence[int] = ()
    ) -> list[str]:
        values = environment.pod_values(self._env)
        return rank_dump.resume(ranks, self._paths, generation, address, port, values, self.devices, ended)

    def due(self, now: float, ranks: Mapping[int, Slot]) -> None:
        self._nudge.due(now, ranks)


def _image_room(env: Mapping[str, str]) -> int | None:
    try:
        return image_room.limit(env)
    except ValueError as error:
        raise CommandError(str(error)) from None
