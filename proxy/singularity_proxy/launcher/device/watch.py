"""The state of this pod's GPUs while its ranks train: utilisation, memory, ECC errors and Xids, from NVML.

The launcher watches, for its container is the one that has the GPUs; the sidecar's has none. A thread of its own waits
for NVML, whose calls may hang on a GPU that is broken: the launcher's loop never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...protocol import gpus
from ...protocol.messages import GpuFault, Gpus
from . import nvml as health
from .nvml import Health

EVERY_S = 5.0
"""Seconds between two samples. Xids and ECC errors that the driver reports are sent at once."""
NO_EVENTS_S = 1.0


@dataclass
class _Gpu:
    """What is known of one GPU. `busy`: percents of all looks, summed up."""

    uuid: str
    busy: int = 0
    looks: int = 0
    slowed: int = 0
    clocks: int = 0
    """Looks at which its clocks were slowed down, and those at which NVML told."""
    peak: int = 0
    total: int = 0
    errors: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Kind -> the driver's count when it was seen last, errors since the first look."""

    def see(self, now: Health) -> None:
        if now.utilisation is not None:
            self.busy, self.looks = self.busy + min(100, now.utilisation), self.looks + 1
        if now.throttled is not None:
            self.slowed, self.clocks = self.slowed + now.throttled, self.clocks + 1
        self.total = now.memory_total
        self.peak = max(self.peak, now.memory_used)
        for kind, count in (("corrected", now.corrected_errors), ("uncorrected", now.uncorrected_errors)):
            if count is not None:
                before, sum_ = self.errors.get(kind, (count, 0))
                # A GPU that was reset, or whose driver was loaded anew, counts from zero again.
                self.errors[kind] = count, sum_ + (count - before if count >= before else count)


class Tally:
    """Looks and events of an attempt, added up. Pure but for its memory."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._faults: dict[tuple[str, int], int] = {}

    def look(self, now: Health) -> None:
        self._gpus.setdefault(now.uuid, _Gpu(now.uuid)).see(now)

    def xid(self, uuid: str, number: int) -> None:
        self._gpus.setdefault(uuid, _Gpu(uuid))
        self._faults[uuid, number] = self._faults.get((uuid, number), 0) + 1

    def sum(self) -> Gpus | None:
        """None before the first look."""
        parts = [
            Gpus(
                count=1,
                utilisation=gpu.busy / gpu.looks if gpu.looks else None,
                memory_peak=gpu.peak,
                memory_total=gpu.total,
                ecc_corrected=gpu.errors["corrected"][1] if "corrected" in gpu.errors else None,
                ecc_uncorrected=gpu.errors["uncorrected"][1] if "uncorrected" in gpu.errors else None,
                throttled=100 * gpu.slowed / gpu.clocks if gpu.clocks else None,
                faults=[GpuFault(gpu.uuid, xid, n) for (uuid, xid), n in self._faults.items() if uuid == gpu.uuid],
            )
            for gpu in self._gpus.values()
        ]
        return gpus.merged(parts)


class Session:
    """NVML, open until `close`. Raises NVMLError where there is no driver."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        try:
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise
        self._waits = [self._register(handle) for handle in self._handles]

    def _register(self, handle: Any) -> bool:
        """Whether this GPU reports what happens to it; a virtual one does not."""
        nvml = self._nvml
        try:
            wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            kinds = wanted & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if kinds:
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
        except nvml.NVMLError:
            return False
        return bool(kinds & nvml.nvmlEventTypeXidCriticalError)

    def look(self) -> list[Health]:
        """All GPUs that can still be asked."""
        found = []
        for handle in self._handles:
            try:
                found.append(health.look(self._nvml, handle))
            except self._nvml.NVMLError:
                continue
        return found

    def wait(self, seconds: float, ended: threading.Event) -> tuple[str, int] | None:
        """UUID and Xid that come within so many seconds; None: nothing, or an ECC error, which `look` counts."""
        nvml = self._nvml
        if not any(self._waits):
            ended.wait(seconds)
            return None
        try:
            event = nvml.nvmlEventSetWait(self._set, max(1, int(seconds * 1000)))
            uuid = health.text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != nvml.NVML_ERROR_TIMEOUT:
                ended.wait(min(seconds, NO_EVENTS_S))  # it answers at once, and would do so for ever
            return None
        return (uuid, int(event.eventData)) if event.eventType == nvml.nvmlEventTypeXidCriticalError else None

    def close(self) -> None:
        for end in (lambda: self._nvml.nvmlEventSetFree(self._set), self._nvml.nvmlShutdown):
            try:
                end()
            except self._nvml.NVMLError:
                continue


def watch(nvml: Any, tell: Callable[[Gpus], None], ended: threading.Event, every_s: float = EVERY_S) -> None:
    """Until `ended`, report the sum of all samples and events: after each sample, and at once after an Xid.

    Returns at once where NVML has no driver or no GPU.
    """
    try:
        session = Session(nvml)
    except nvml.NVMLError:
        return
    tally, next_look = Tally(), time.monotonic()
    try:
        while not ended.is_set():
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + every_s
                for each in session.look():
                    tally.look(each)
                _tell(tally, tell)
            event = session.wait(max(0.0, next_look - time.monotonic()), ended)
            if event is not None:
                tally.xid(*event)
                _tell(tally, tell)
    finally:
        session.close()


def _tell(tally: Tally, tell: Callable[[Gpus], None]) -> None:
    found = tally.sum()
    if found is not None:
        tell(found)
