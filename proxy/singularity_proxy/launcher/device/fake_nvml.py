"""NVML without a GPU: pynvml's functions as far as they are used here, with the same rules. For tests and the GPU kit.

`FakeNvml` is used in the place of the module `pynvml`; the same contract tests run against both.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass
class FakeGpu:
    """What a sensor says; None: this GPU has no such sensor. Tests change it between calls, as GPUs do."""

    uuid: str
    name: str = "Fake GPU"
    used: int = 0
    total: int = 80 << 30
    busy: int | None = 0
    corrected: int | None = 0
    uncorrected: int | None = 0
    clocks: int | None = None
    """Reasons why its clocks are not at their highest, as bits of nvml.h."""
    reports: bool = True
    """It reports Xids; a virtual GPU does not."""
    lost: bool = False
    """It has fallen off the bus."""


@dataclass(frozen=True)
class _Memory:
    used: int
    total: int


@dataclass(frozen=True)
class _Rates:
    gpu: int


@dataclass(frozen=True)
class _Event:
    device: int
    eventType: int
    eventData: int


class FakeNvml:
    """:param driver: False: none is loaded"""

    class NVMLError(Exception):
        """`value` as in nvml.h."""

        def __init__(self, value: int) -> None:
            super().__init__(value)
            self.value = value

    NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, 3
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 9, 10, 15
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    nvmlEventTypeDoubleBitEccError, nvmlEventTypeXidCriticalError = 2, 8

    def __init__(self, gpus: list[FakeGpu], driver: bool = True) -> None:
        self.gpus, self.driver = gpus, driver
        self.open = 0
        """Sessions."""
        self.sets: dict[int, dict[int, int]] = {}
        """Event sets that were not freed: kinds that a GPU reports there."""
        self._events: deque[_Event] = deque()
        self._changed = threading.Condition()

    # --- what tests do ----------------------------------------------------------------------------------------------
    def happens(self, number: int, kind: int, data: int = 0) -> None:
        """Something on GPU `number`: whoever waits for it hears of it."""
        with self._changed:
            self._events.append(_Event(number, kind, data))
            self._changed.notify_all()

    # --- pynvml -----------------------------------------------------------------------------------------------------
    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._used()
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._used()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._used()
        if not 0 <= index < len(self.gpus):
            raise self.NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> _Memory:
        gpu = self._gpu(handle)
        return _Memory(gpu.used, gpu.total)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        self._used()
        return self.gpus[handle].uuid  # known also of one that is lost

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._gpu(handle).name

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> _Rates:
        return _Rates(self._sensor(self._gpu(handle).busy))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, errorType: int, counterType: int) -> int:
        gpu = self._gpu(handle)
        return self._sensor(gpu.uncorrected if errorType == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else gpu.corrected)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._sensor(self._gpu(handle).clocks)

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:
        gpu = self._gpu(handle)
        if not gpu.reports:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return self.nvmlEventTypeXidCriticalError | self.nvmlEventTypeDoubleBitEccError

    def nvmlEventSetCreate(self) -> int:
        self._used()
        number = max(self.sets, default=0) + 1
        self.sets[number] = {}
        return number

    def nvmlDeviceRegisterEvents(self, handle: int, eventTypes: int, eventSet: int) -> None:
        if eventTypes & ~self.nvmlDeviceGetSupportedEventTypes(handle):
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        self.sets[eventSet][handle] = eventTypes

    def nvmlEventSetWait(self, eventSet: int, timeoutms: int) -> Any:
        """The next event of a GPU that is registered for it; NVML_ERROR_TIMEOUT when none comes."""
        self._used()
        kinds = self.sets[eventSet]

        def mine() -> _Event | None:
            return next((e for e in self._events if kinds.get(e.device, 0) & e.eventType), None)

        with self._changed:
            self._changed.wait_for(lambda: mine() is not None, timeoutms / 1000)
            event = mine()
            if event is None:
                raise self.NVMLError(self.NVML_ERROR_TIMEOUT)
            self._events.remove(event)
            return event

    def nvmlEventSetFree(self, eventSet: int) -> None:
        del self.sets[eventSet]

    def _used(self) -> None:
        if self.open < 1:
            raise self.NVMLError(self.NVML_ERROR_UNINITIALIZED)

    def _gpu(self, handle: int) -> FakeGpu:
        self._used()
        if self.gpus[handle].lost:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[handle]

    def _sensor(self, value: int | None) -> int:
        if value is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return value
