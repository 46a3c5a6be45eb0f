"""NVIDIA's checkpoint API as four verbs on a process, its device list, and one exception.

Source: CUDA driver API, section CUDA Checkpointing (`cuCheckpointProcess*`, driver 570 or newer). States of a process:
RUNNING -> lock -> LOCKED -> checkpoint -> CHECKPOINTED -> restore -> LOCKED -> unlock -> RUNNING.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import importlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from . import copies as own
from .copies import Copies

OWN_COPIES = 13040
"""CUDA version of the first driver that lets us copy."""


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

    def lends(self) -> bool:
        """Can we copy the device memory of a process ourselves?"""

    def checkpoint(self, pid: int, copies: Copies | None = None) -> None:
        """Copy its device memory into its own memory, or into `copies`, and give the devices up. It must be LOCKED."""

    def restore(self, pid: int, pairs: Mapping[str, str], copies: Copies | None = None) -> None:
        """Take devices again and copy back, from where it was copied to; old UUID -> new UUID, none: the same. It is
        LOCKED afterwards."""

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
            name = self._call("cuDeviceGetName", 128, device).split(b"\0", 1)[0].decode()
            found.append(Device(self._uuid_of(device), name, int(self._call("cuDeviceTotalMem", device))))
        return found

    def _uuid_of(self, device: Any) -> str:
        return f"GPU-{uuid.UUID(bytes=bytes(self._call('cuDeviceGetUuid', device).bytes))}"

    def state(self, pid: int) -> State:
        return State(int(self._call("cuCheckpointProcessGetState", pid)))

    def lock(self, pid: int, timeout_ms: int) -> None:
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        self._call("cuCheckpointProcessLock", pid, arguments)

    def lends(self) -> bool:
        known = hasattr(self._cuda, "cuCheckpointOperationComplete")
        return known and int(self._call("cuDriverGetVersion")) >= OWN_COPIES

    def checkpoint(self, pid: int, copies: Copies | None = None) -> None:
        arguments = self._cuda.CUcheckpointCheckpointArgs()
        if copies is None:
            self._call("cuCheckpointProcessCheckpoint", pid, arguments)
            return

        def copy(name: str, pointer: int, size: int, stream: Any) -> None:
            self._call("cuMemcpyDtoHAsync", own.address(copies.room(name, size)), pointer, size, stream)

        self._lent("cuCheckpointProcessCheckpoint", pid, arguments, copy)
        copies.complete = True

    def restore(self, pid: int, pairs: Mapping[str, str], copies: Copies | None = None) -> None:
        arguments = self._cuda.CUcheckpointRestoreArgs()
        if pairs:
            arguments.gpuPairs = [self._pair(old, new) for old, new in pairs.items()]
            arguments.gpuPairsCount = len(pairs)
        if copies is None:
            self._call("cuCheckpointProcessRestore", pid, arguments)
            return
        old_names = {new: old for old, new in pairs.items()}

        def copy(name: str, pointer: int, size: int, stream: Any) -> None:
            content = copies.content(old_names.get(name, name), size)
            self._call("cuMemcpyHtoDAsync", pointer, own.address(content), size, stream)

        self._lent("cuCheckpointProcessRestore", pid, arguments, copy)

    def _lent(self, name: str, pid: int, arguments: Any, copy: Callable[[str, int, int, Any], None]) -> None:
        """A call after which memory of the process is mapped on our side, its copies, and the word that they are done.

        :param copy: called with UUID, pointer, bytes and stream for each GPU
        """
        out = ctypes.c_void_p()
        arguments.customStorageInfo_out = ctypes.addressof(out)
        with self._contexts() as contexts:
            self._call(name, pid, arguments)
            info = ctypes.cast(out, ctypes.POINTER(own.Info)).contents
            try:
                for part in info.devices[: info.count]:
                    stream = self._cuda.CUstream(part.stream)
                    device = self._call("cuStreamGetDevice", stream)
                    self._call("cuCtxPushCurrent", contexts[int(device)])
                    try:
                        if part.size:
                            copy(self._uuid_of(device), part.pointer, part.size, stream)
                    except ValueError as error:
                        raise DriverError(f"{name}: {error}", "incomplete copies") from None
                    finally:
                        self._call("cuCtxPopCurrent")
            finally:
                handle = self._cuda.CUcheckpointCustomStorageInfo(_ptr=out.value).handle
                self._call("cuCheckpointOperationComplete", handle)

    @contextlib.contextmanager
    def _contexts(self) -> Iterator[dict[int, Any]]:
        """Primary contexts of all GPUs, by number, which the driver needs for as long; each takes GPU memory."""
        found: dict[int, Any] = {}
        devices = [self._call("cuDeviceGet", number) for number in range(self._call("cuDeviceGetCount"))]
        try:
            for device in devices:
                found[int(device)] = self._call("cuDevicePrimaryCtxRetain", device)
            yield found
        finally:
            for device in devices[: len(found)]:
                self._call("cuDevicePrimaryCtxRelease", device)

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
