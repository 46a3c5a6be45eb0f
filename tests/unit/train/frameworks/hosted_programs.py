"""Programs of the adapters under a host of the environment: it saves at a step and goes on, as a managed pod does."""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path
from typing import Any

from singularity_train.environment import ENV_HOST
from singularity_train.host import LocalHost, Write

PLACE, AT = "TEST_HOST_PLACE", "TEST_HOST_AT"


class SavingHost(LocalHost):
    """At step AT each rank saves into PLACE/images/rank-<rank>. It begins with PLACE/start, if that is there."""

    def __init__(self, rank: int) -> None:
        super().__init__(None, rank)
        self.steps: list[int] = []

    def start(self) -> Path | None:
        return start()

    def attached(self, step: int) -> None:
        self.steps.append(step)

    def boundary(self, step: int, write: Write) -> None:
        assert step > self.steps[-1], "each step has one boundary at most, after attached"
        self.steps.append(step)
        if step == int(os.environ[AT]):
            folder = Path(os.environ[PLACE]) / f"images/rank-{self._rank}"
            folder.mkdir(parents=True)
            write(folder).now()


made: list[SavingHost] = []


def make(rank: int, world_size: int) -> SavingHost:
    made.append(SavingHost(rank))
    return made[-1]


def start() -> Path | None:
    folder = Path(os.environ[PLACE]) / "start"
    return folder if folder.exists() else None


def train(rank: int, world: int, train_program: str, place: str, at: int) -> dict[str, Any]:
    os.environ.update({ENV_HOST: f"{__name__}:make", PLACE: place, AT: str(at)})
    found: dict[str, Any] = pkgutil.resolve_name(train_program)(rank, world, None)
    return {**found, "boundaries": made[0].steps}
