"""NVIDIA's checkpoint API as four verbs on a process, its device list, and one exception.

Source: CUDA driver API, section CUDA Checkpointing (`cuCheckpointProcess*`, driver 570 or newer). States of a process:
RUNNING -> lock -> LOCKED -> checkpoint -> CHECKPOINTED -> restore -> LOCKED -> unlock -> RUNNING.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from . import libraries
from .copies import Copies, Info, PerDevice, address

SUCCESS = 0
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
        """Take devices again and copy the memory back from its copy. Old UUID -> new UUID; none: the same GPUs. The
        process is LOCKED afterwards."""

    def unlock(self, pid: int) -> None:
        """Let its calls through again."""


class Uuid(ctypes.Structure):
    """CUuuid."""

    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs. All reserved fields are zero."""

    _fields_ = [("timeoutMs", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair."""

    _fields_ = [("oldUuid", Uuid), ("newUuid", Uuid)]


class CheckpointArgs(ctypes.Structure):
    """CUcheckpointCheckpointArgs; before CUDA 13.4 all fields were reserved."""

    _fields_ = [("customStorageInfo_out", ctypes.c_void_p), ("reserved", ctypes.c_char * 56)]


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs; customStorageInfo_out was reserved before CUDA 13.4."""

    _fields_ = [
        ("gpuPairs", ctypes.POINTER(GpuPair)), ("gpuPairsCount", ctypes.c_uint), ("padding0", ctypes.c_uint),
        ("customStorageInfo_out", ctypes.c_void_p), ("reserved", ctypes.c_char * 40),
    ]  # fmt: skip


class UnlockArgs(ctypes.Structure):
    """CUcheckpointUnlockArgs."""

    _fields_ = [("reserved", ctypes.c_uint64 * 8)]


NAME_BYTES = 128


class CudaDriver:
    """The real one, by its C interface: it belongs to no Python and no image. Raises DriverError without a driver or a
    device.

    :param library: libcuda, if it is open already
    """

    def __init__(self, library: Any = None) -> None:
        self._cuda = _open() if library is None else library
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise DriverError("libcuda", "no checkpoint API: its driver is older than 570")
        self._call("cuInit", ctypes.c_uint(0))

    def devices(self) -> list[Device]:
        return [self._describe(device) for device in self._numbers()]

    def _numbers(self) -> list[ctypes.c_int]:
        found = []
        for number in range(self._out("cuDeviceGetCount", ctypes.c_int)):
            device = ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            found.append(device)
        return found

    def _describe(self, device: ctypes.c_int) -> Device:
        name = ctypes.create_string_buffer(NAME_BYTES)
        self._call("cuDeviceGetName", name, ctypes.c_int(NAME_BYTES), device)
        memory = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        return Device(self._uuid_of(device), name.value.decode(), memory.value)

    def _uuid_of(self, device: ctypes.c_int) -> str:
        found = Uuid()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(found), device)
        return f"GPU-{uuid.UUID(bytes=bytes(found.bytes))}"

    def version(self) -> int:
        """CUDA version that the driver knows: 13040 for 13.4."""
        return self._out("cuDriverGetVersion", ctypes.c_int)

    def state(self, pid: int) -> State:
        found = ctypes.c_int()
        self._call("cuCheckpointProcessGetState", ctypes.c_int(pid), ctypes.byref(found))
        return State(found.value)

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._call("cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(LockArgs(timeoutMs=timeout_ms)))

    def lends(self) -> bool:
        return hasattr(self._cuda, "cuCheckpointOperationComplete") and self.version() >= OWN_COPIES

    def checkpoint(self, pid: int, copies: Copies | None = None) -> None:
        arguments = CheckpointArgs()
        if copies is None:
            self._call("cuCheckpointProcessCheckpoint", ctypes.c_int(pid), ctypes.byref(arguments))
            return

        def copy(name: str, part: PerDevice) -> None:
            room = ctypes.c_void_p(address(copies.room(name, part.size)))
            self._call("cuMemcpyDtoHAsync_v2", room, *_sized(part))

        self._lent("cuCheckpointProcessCheckpoint", pid, arguments, copy)
        copies.complete = True

    def restore(self, pid: int, pairs: Mapping[str, str], copies: Copies | None = None) -> None:
        arguments = RestoreArgs()
        if pairs:
            listed = (GpuPair * len(pairs))(*(GpuPair(_uuid(old), _uuid(new)) for old, new in pairs.items()))
            arguments.gpuPairs, arguments.gpuPairsCount = listed, len(pairs)
        if copies is None:
            self._call("cuCheckpointProcessRestore", ctypes.c_int(pid), ctypes.byref(arguments))
            return
        old_names = {new: old for old, new in pairs.items()}
        held = []  # until all is copied: the calls do not wait for that

        def copy(name: str, part: PerDevice) -> None:
            held.append(copies.content(old_names.get(name, name), part.size))
            pointer, size, stream = _sized(part)
            self._call("cuMemcpyHtoDAsync_v2", pointer, ctypes.c_void_p(address(held[-1])), size, stream)

        self._lent("cuCheckpointProcessRestore", pid, arguments, copy)

    def _lent(
        self, name: str, pid: int, arguments: CheckpointArgs | RestoreArgs, copy: Callable[[str, PerDevice], None]
    ) -> None:
        """A call that maps memory of the process on our side, then the copies, then the notice that they are complete.

        :param copy: called with UUID and memory for each GPU
        """
        out = ctypes.c_void_p()
        arguments.customStorageInfo_out = ctypes.addressof(out)
        with self._contexts() as contexts:
            self._call(name, ctypes.c_int(pid), ctypes.byref(arguments))
            info = ctypes.cast(out, ctypes.POINTER(Info)).contents
            try:
                for part in info.devices[: info.count]:
                    device = ctypes.c_int()
                    self._call("cuStreamGetDevice", ctypes.c_void_p(part.stream), ctypes.byref(device))
                    self._call("cuCtxPushCurrent_v2", contexts[device.value])
                    try:
                        if part.size:
                            copy(self._uuid_of(device), part)
                    except ValueError as error:
                        raise DriverError(f"{name}: {error}", "incomplete copies") from None
                    finally:
                        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
            finally:
                self._call("cuCheckpointOperationComplete", ctypes.c_void_p(info.handle))

    @contextlib.contextmanager
    def _contexts(self) -> Iterator[dict[int, ctypes.c_void_p]]:
        """Primary contexts of all GPUs, by number. The driver needs them during that time; each takes GPU memory."""
        found: dict[int, ctypes.c_void_p] = {}
        devices = self._numbers()
        try:
            for device in devices:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                found[device.value] = context
            yield found
        finally:
            for device in devices[: len(found)]:
                self._call("cuDevicePrimaryCtxRelease_v2", device)

    def unlock(self, pid: int) -> None:
        self._call("cuCheckpointProcessUnlock", ctypes.c_int(pid), ctypes.byref(UnlockArgs()))

    def _out(self, name: str, kind: type[ctypes.c_int]) -> int:
        found = kind()
        self._call(name, ctypes.byref(found))
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != SUCCESS:
            text = ctypes.c_char_p()
            known = self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == SUCCESS
            raise DriverError(name, text.value.decode() if known and text.value else f"error {code}")


def _open() -> ctypes.CDLL:
    path = libraries.find("libcuda.so.1")
    if path is None:
        raise DriverError("libcuda", "no driver: the container runtime has mounted none")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise DriverError("libcuda", str(error)) from None


def _uuid(text: str) -> Uuid:
    return Uuid((ctypes.c_ubyte * 16)(*uuid.UUID(text.removeprefix("GPU-")).bytes))


def _sized(part: PerDevice) -> tuple[ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]:
    """Pointer, bytes and stream, as the driver takes them."""
    return ctypes.c_uint64(part.pointer), ctypes.c_size_t(part.size), ctypes.c_void_p(part.stream)
