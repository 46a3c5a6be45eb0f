"""A driver without a GPU: the same states, refusals and order of calls as the real one. For unit tests."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .copies import Copies
from .driver import Device, DriverError, State


@dataclass
class FakeProcess:
    """A process that uses CUDA. `memory`: UUID of a device -> what it holds there; `saved` while checkpointed."""

    memory: dict[str, bytes]
    busy: bool = False
    """It has work on the device that does not end: a lock times out."""
    state: State = State.RUNNING
    saved: dict[str, bytes] = field(default_factory=dict)


class FakeDriver:
    """:param devices: what the container sees
    :param processes: by PID; tests may change them between calls, as programs do
    """

    def __init__(self, devices: Sequence[Device], processes: dict[int, FakeProcess]) -> None:
        self._devices = list(devices)
        self.processes = processes
        self.calls: list[tuple[str, int]] = []
        self.fail: dict[tuple[str, int], str] = {}
        """(verb, pid) -> error that this call meets once."""
        self.lending = True
        self.stops_copying = ""
        """Error that our copies meet."""
        self._guard = threading.Lock()

    def devices(self) -> list[Device]:
        return list(self._devices)

    def state(self, pid: int) -> State:
        return self._process("GetState", pid).state

    def lock(self, pid: int, timeout_ms: int) -> None:
        process = self._enter("Lock", pid, State.RUNNING)
        if process.busy:
            if timeout_ms <= 0:
                raise AssertionError("the real driver would wait for ever")
            raise DriverError("cuCheckpointProcessLock", "CUDA_ERROR_NOT_READY")
        process.state = State.LOCKED

    def lends(self) -> bool:
        return self.lending

    def checkpoint(self, pid: int, copies: Copies | None = None) -> None:
        process = self._enter("Checkpoint", pid, State.LOCKED)
        process.saved, process.memory = process.memory, {}
        if copies is not None:
            for name, content in process.saved.items():
                if self.stops_copying:
                    process.state = State.CHECKPOINTED
                    raise DriverError("cuMemcpyDtoHAsync", self.stops_copying)
                copies.room(name, len(content))[:] = content
            process.saved = {name: bytes(len(content)) for name, content in process.saved.items()}
            copies.complete = True
        process.state = State.CHECKPOINTED

    def restore(self, pid: int, pairs: Mapping[str, str], copies: Copies | None = None) -> None:
        process = self._enter("Restore", pid, State.CHECKPOINTED)
        here = {device.uuid for device in self._devices}
        places = {old: pairs.get(old, old) if pairs else old for old in process.saved}
        if pairs and not process.saved.keys() <= pairs.keys():
            raise DriverError("cuCheckpointProcessRestore", "CUDA_ERROR_INVALID_VALUE")  # every old one must be listed
        if not set(places.values()) <= here or len(set(places.values())) < len(places):
            raise DriverError("cuCheckpointProcessRestore", "CUDA_ERROR_INVALID_DEVICE")
        process.memory = {
            places[old]: content if copies is None else bytes(copies.content(old, len(content)))
            for old, content in process.saved.items()
        }
        process.saved = {}
        process.state = State.LOCKED

    def unlock(self, pid: int) -> None:
        self._enter("Unlock", pid, State.LOCKED).state = State.RUNNING

    def _process(self, verb: str, pid: int) -> FakeProcess:
        with self._guard:
            self.calls.append((verb, pid))
            error = self.fail.pop((verb, pid), None)
        call = f"cuCheckpointProcess{verb}"
        if error is not None:
            raise DriverError(call, error)
        if pid not in self.processes:
            raise DriverError(call, "CUDA_ERROR_INVALID_VALUE")
        return self.processes[pid]

    def _enter(self, verb: str, pid: int, wanted: State) -> FakeProcess:
        process = self._process(verb, pid)
        if process.state is not wanted:
            raise DriverError(f"cuCheckpointProcess{verb}", "CUDA_ERROR_ILLEGAL_STATE")
        return process
