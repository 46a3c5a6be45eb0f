"""`libnvidia-ml.so.1` without a driver: the C functions that the real pynvml calls, over what `FakeNvml` says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from singularity_proxy.launcher.device.fake_nvml import FakeNvml


class FakeLibrary:
    """In the place of the `CDLL`. A function takes what pynvml hands to C, and returns 0 or an error."""

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake

    def _call(self, work: Callable[[], object]) -> int:
        try:
            work()
        except FakeNvml.NVMLError as error:
            return error.value
        return 0

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self._call(self._fake.nvmlInit)

    def nvmlShutdown(self) -> int:
        return self._call(self._fake.nvmlShutdown)

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        return self._call(lambda: _put(out, self._fake.nvmlDeviceGetCount()))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        return self._call(lambda: _point(out._obj, self._fake.nvmlDeviceGetHandleByIndex(index.value) + 1))

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        def work() -> None:
            found = self._fake.nvmlDeviceGetMemoryInfo(_index(handle))
            out._obj.used, out._obj.total = found.used, found.total

        return self._call(work)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        return self._call(lambda: _text(buffer, self._fake.nvmlDeviceGetUUID(_index(handle))))

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        return self._call(lambda: _text(buffer, self._fake.nvmlDeviceGetName(_index(handle))))

    def nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:
        def work() -> None:
            out._obj.gpu = self._fake.nvmlDeviceGetUtilizationRates(_index(handle)).gpu

        return self._call(work)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> int:
        ask = self._fake.nvmlDeviceGetTotalEccErrors
        return self._call(lambda: _put(out, ask(_index(handle), kind.value, counter.value)))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> int:
        return self._call(lambda: _put(out, self._fake.nvmlDeviceGetCurrentClocksEventReasons(_index(handle))))

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any, out: Any) -> int:
        return self._call(lambda: _put(out, self._fake.nvmlDeviceGetSupportedEventTypes(_index(handle))))

    def nvmlEventSetCreate(self, out: Any) -> int:
        return self._call(lambda: _point(out._obj, self._fake.nvmlEventSetCreate() + 1))

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, event_set: Any) -> int:
        work = self._fake.nvmlDeviceRegisterEvents
        return self._call(lambda: work(_index(handle), kinds.value, _index(event_set)))

    def nvmlEventSetWait_v2(self, event_set: Any, out: Any, timeout: Any) -> int:
        def work() -> None:
            found = self._fake.nvmlEventSetWait(_index(event_set), timeout.value)
            _point(out._obj.device, found.device + 1)
            out._obj.eventType, out._obj.eventData = found.eventType, found.eventData

        return self._call(work)

    def nvmlEventSetFree(self, event_set: Any) -> int:
        return self._call(lambda: self._fake.nvmlEventSetFree(_index(event_set)))


def _put(out: Any, value: int) -> None:
    out._obj.value = value


def _text(buffer: Any, value: str) -> None:
    buffer.value = value.encode()


def _point(pointer: Any, number: int) -> None:
    """Handles are pointers that nobody follows."""
    ctypes.c_void_p.from_buffer(pointer).value = number


def _index(pointer: Any) -> int:
    return int(ctypes.cast(pointer, ctypes.c_void_p).value or 0) - 1
