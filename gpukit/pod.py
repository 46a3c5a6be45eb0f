"""`python3 -m gpukit.pod NAME PLACE`: pid 1 of a pod of the kit: the real launcher over the real driver or the fake."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from singularity_proxy.launcher import device
from singularity_proxy.launcher.__main__ import main
from singularity_proxy.launcher.device import libraries, nvml, watch
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.tools import Tools
from singularity_proxy.protocol.messages import Gpus

from .fake import FakeCuda, FileDriver, fake_nvml
from .kit import own_packages

ENV_FAKE = "GPUKIT_FAKE"
"""`1`: the fake driver. `1,2`: it has the GPUs with these numbers only."""


def _fake(env: Mapping[str, str]) -> device.Backend:
    numbers = [int(word) for word in env[ENV_FAKE].split(",")]
    whole = FileDriver().devices()
    mine = tuple(whole[number % len(whole)] for number in numbers)
    device.reader.start = partial(_watch, fake_nvml(mine))
    return FakeCuda(FileDriver(mine))


def _watch(library: Any, tell: Callable[[Gpus], None], say: Callable[[str], None], _: Tools) -> None:
    """In a thread of the launcher's: here nobody has mounted a library, and nobody else has rights."""
    for each in nvml.read(library) if library is not None else ():
        say(each.line())
    if library is not None:
        Thread(target=watch.watch, args=(library, tell, Event()), daemon=True).start()


if __name__ == "__main__":
    name, place = sys.argv[1:]
    socket.sethostname(name)
    own_packages(Path(__file__).resolve().parents[2])
    if os.environ.get(ENV_FAKE):
        device.find = _fake
    else:
        device.reader.start = partial(_watch, nvml.load(device.reader.LIBRARY))
    libraries.anywhere = True  # no container runtime has mounted them
    code = main([], dict(os.environ), Paths(Path(place)))
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a request to the conductor
