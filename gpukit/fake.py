"""The fake driver for ranks that are real processes: what a GPU's driver does to them is kept in a file of the rank.

The file lies in the rank's own folder, which travels with its image. So, as with a real driver, a restored process is
in the state in which it was dumped. What the real driver does to threads and memory of a process has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.launcher.device.backend import Cuda
from singularity_proxy.launcher.device.copies import Copies
from singularity_proxy.launcher.device.driver import Device, DriverError, State
from singularity_proxy.launcher.device.fake_nvml import FakeGpu, FakeNvml
from singularity_proxy.launcher.ranks.slot_init import FIRST_PID

FAKE_GPUS = tuple(Device(f"GPU-{n:08d}-fa4e-0000-0000-000000000000", "Fake GPU", 80 << 30) for n in range(4))
SIZE = 256
"""Bytes of the file, always: CRIU and the launcher look at sizes."""


class FileDriver:
    """A `Driver`. The first process of a rank has state on the device, its children have not.

    :param refuses: verb -> error, for every process
    """

    def __init__(self, devices: tuple[Device, ...] = FAKE_GPUS, refuses: Mapping[str, str] | None = None) -> None:
        self._devices = devices
        self._refuses = refuses or {}

    def devices(self) -> list[Device]:
        return list(self._devices)

    def state(self, pid: int) -> State:
        return State(int(self._read(pid)["state"]))

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._step("Lock", pid, State.RUNNING, State.LOCKED)

    def lends(self) -> bool:
        return False

    def checkpoint(self, pid: int, copies: Copies | None = None) -> None:
        self._step("Checkpoint", pid, State.LOCKED, State.CHECKPOINTED)

    def restore(self, pid: int, pairs: Mapping[str, str], copies: Copies | None = None) -> None:
        where = str(self._read(pid)["gpu"])
        place = pairs.get(where, where)
        if place not in {device.uuid for device in self._devices}:
            raise DriverError("cuCheckpointProcessRestore", "CUDA_ERROR_INVALID_DEVICE")
        self._step("Restore", pid, State.CHECKPOINTED, State.LOCKED, place)

    def unlock(self, pid: int) -> None:
        self._step("Unlock", pid, State.LOCKED, State.RUNNING)

    def _step(self, verb: str, pid: int, wanted: State, then: State, gpu: str = "") -> None:
        call = f"cuCheckpointProcess{verb}"
        if verb in self._refuses:
            raise DriverError(call, self._refuses[verb])
        now = self._read(pid)
        if now["state"] != wanted:
            raise DriverError(call, "CUDA_ERROR_ILLEGAL_STATE")
        self._write(pid, then, gpu or str(now["gpu"]))

    def _path(self, pid: int) -> Path:
        """Raises DriverError for a process that is not a rank's first."""
        try:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            inner = next(line.split()[-1] for line in status if line.startswith("NSpid:"))
            words = dict(word.partition("=")[::2] for word in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        except (OSError, StopIteration, UnicodeDecodeError):
            inner, words = "", {}
        if inner != str(FIRST_PID) or "TMPDIR" not in words:
            raise DriverError("cuCheckpointProcessGetState", "CUDA_ERROR_INVALID_VALUE")
        return Path(words["TMPDIR"]) / "fake-gpu"

    def _read(self, pid: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._path(pid).read_text())
        except FileNotFoundError:
            return {"state": int(State.RUNNING), "gpu": self._devices[0].uuid}
        return found

    def _write(self, pid: int, state: State, gpu: str) -> None:
        self._path(pid).write_text(json.dumps({"state": int(state), "gpu": gpu}).ljust(SIZE))


def fake_nvml(devices: Sequence[Device] = FAKE_GPUS) -> FakeNvml:
    """What NVML says of the fake GPUs."""
    return FakeNvml([FakeGpu(each.uuid, each.name, 1 << 30, each.memory, busy=50) for each in devices])


class FakeCuda(Cuda):
    """The launcher's own backend over `FileDriver`: ranks have no /dev/nvidia0 to be known by."""

    def _holds_a_device(self, pid: int) -> bool:
        return True
