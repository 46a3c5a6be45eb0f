"""NVIDIA's checkpoint API as four verbs on a process, its device list, and one exception.

Source: CUDA driver API, section CUDA Checkpointing (`cuCheckpointProcess*`, driver 570 or newer). States of a process:
RUNNING -> lock -> LOCKED -> checkpoint -> CHECKPOINTED -> restore -> LOCKED -> unlock -> RUNNING.
"""

from __future__ import annotations

import enum
import importlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class State(enum.IntEnum):
    """As the driver numbers them."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


@dataclass(frozen=True)
class Device:
    """One GPU that this container sees. `uuid` as `GPU-xxxxxxxx-...`, `memory` in bytes."""

    uuid: str
    name: str
    memory: int


class DriverError(Exception):
    """The driver refused. `code` is its name for the error, CUDA_ERROR_NOT_READY for a lock that took too long."""

    def __init__(self, call: str, code: str) -> None:
        self.code = code
        super().__init__(f"{call}: {code}")


class Driver(Protocol):
    """PIDs are those of our own PID namespace. Every call raises DriverError."""

    def devices(self) -> list[Device]:
        """What this container sees, in the order of CUDA's device numbers."""

    def state(self, pid: int) -> State:
        """State of a process that uses CUDA; others are refused."""

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Let no new CUDA call through and wait for those under way; when that takes too long it stays RUNNING."""

    def checkpoint(self, pid: int) -> None:
        """Copy its device memory into its own memory and give the devices up. It must be LOCKED."""

    def restore(self, pid: int, pairs: Mapping[str, str]) -> None:
        """Take devices again and copy back; old UUID -> new UUID, none: the same. It is LOCKED afterwards."""

    def unlock(self, pid: int) -> None:
        """Let its calls through again."""


class CudaDriver:
    """The real one. Raises ImportError without cuda.bindings, DriverError without a driver or a device."""

    def __init__(self) -> None:
        self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise ImportError("cuda.bindings is older than 12.8: it has no checkpoint API")
        self._call("cuInit", 0)

    def devices(self) -> list[Device]:
        found = []
        for number in range(self._call("cuDeviceGetCount")):
            device = self._call("cuDeviceGet", number)
            raw = bytes(self._call("cuDeviceGetUuid", device).bytes)
            name = self._call("cuDeviceGetName", 128, device).split(b"\0", 1)[0].decode()
            found.append(Device(f"GPU-{uuid.UUID(bytes=raw)}", name, int(self._call("cuDeviceTotalMem", device))))
        return found

    def state(self, pid: int) -> State:
        return State(int(self._call("cuCheckpointProcessGetState", pid)))

    def lock(self, pid: int, timeout_ms: int) -> None:
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        self._call("cuCheckpointProcessLock", pid, arguments)

    def checkpoint(self, pid: int) -> None:
        self._call("cuCheckpointProcessCheckpoint", pid, self._cuda.CUcheckpointCheckpointArgs())

    def restore(self, pid: int, pairs: Mapping[str, str]) -> None:
        arguments = self._cuda.CUcheckpointRestoreArgs()
        if pairs:
            arguments.gpuPairs = [self._pair(old, new) for old, new in pairs.items()]
            arguments.gpuPairsCount = len(pairs)
        self._call("cuCheckpointProcessRestore", pid, arguments)

    def unlock(self, pid: int) -> None:
        self._call("cuCheckpointProcessUnlock", pid, self._cuda.CUcheckpointUnlockArgs())

    def _pair(self, old: str, new: str) -> Any:
        pair = self._cuda.CUcheckpointGpuPair()
        pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
        return pair

    def _uuid(self, text: str) -> Any:
        found = self._cuda.CUuuid()
        found.bytes = uuid.UUID(text.removeprefix("GPU-")).bytes
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *values = getattr(self._cuda, name)(*arguments)
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            raise DriverError(name, code.name)
        return values[0] if values else None
