"""`python3 -m gpukit.pod NAME PLACE`: pid 1 of a pod of the kit: the real launcher over the real driver or the fake."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from proxy.launcher import device
from proxy.launcher.__main__ import main
from proxy.launcher.device import libraries, nvml
from proxy.launcher.paths import Paths

from .fake import FakeCuda, FileDriver, fake_nvml
from .kit import own_packages

ENV_FAKE = "GPUKIT_FAKE"
"""`1`: the fake driver. `1,2`: it has the GPUs with these numbers only."""


def _fake(env: Mapping[str, str]) -> device.Backend:
    numbers = [int(word) for word in env[ENV_FAKE].split(",")]
    whole = FileDriver().devices()
    mine = tuple(whole[number % len(whole)] for number in numbers)
    setattr(nvml, "mounted", lambda: fake_nvml(mine))  # noqa: B010 - in the real one's place
    return FakeCuda(FileDriver(mine))


if __name__ == "__main__":
    name, place = sys.argv[1:]
    socket.sethostname(name)
    own_packages(Path(__file__).resolve().parents[2])
    if os.environ.get(ENV_FAKE):
        device.find = _fake
    libraries.anywhere = True  # no container runtime has mounted them
    code = main([], dict(os.environ), Paths(Path(place)))
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a request to the conductor
