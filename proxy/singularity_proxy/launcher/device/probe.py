"""What `singularityctl doctor --probe --gpus` has a pod do: facts of its node, and a GPU's memory there and back.

The launcher does it in the place of ranks (`names.ENV_PROBE`), with all that a training pod has. It is the code of the
GPU kit's parts `facts` and `cycle`. The answer is a line of JSON, the last one that the pod prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from ...protocol.messages import GpuProbe, to_json
from . import cycle, facts, libraries
from .driver import CudaDriver, Driver, DriverError
from .python import of_image

SIZE = 1_000_000_000
"""Bytes that go there and back."""


class Held(Protocol):
    """A process with `size` bytes on a GPU, as `cycle.Holder` is."""

    pid: int
    size: int

    def wrong(self) -> int:
        """How many words are not what they were."""


Hold = Callable[[int], AbstractContextManager[Held]]


def answer(found: facts.Facts, driver: Callable[[], Driver], hold: Hold) -> GpuProbe:
    """Never raises for what the node is like."""
    names = [str(gpu["name"]) for gpu in found.gpus]
    told = GpuProbe(names, found.driver, str(found.torch.get("version", "")), list(found.problems))
    if not names:
        return told  # the facts say why
    try:
        with hold(min(SIZE, int(cycle.host_memory() / cycle.HOST_FACTOR))) as held:
            took = cycle.measure(driver(), held.pid, held.size)
            return replace(
                told, size=held.size, checkpoint_s=took.checkpoint, restore_s=took.restore, wrong=held.wrong()
            )
    except (DriverError, RuntimeError, ImportError, OSError, ValueError) as error:
        return replace(told, error=f"{type(error).__name__}: {error}")


def main(criu: Sequence[str], env: Mapping[str, str]) -> int:
    """Exit code of the container. `env`: its environment."""
    python = of_image(env)
    found = facts.gather(criu, python, libraries.find(facts.LIBRARY), tools=())
    told = answer(found, CudaDriver, lambda size: cycle.holder(size, python=python))
    print(to_json(told), flush=True)
    return 0
