"""Health, memory and utilisation of this container's GPUs, from NVML (pynvml). Nothing where there is no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

GIB = 1 << 30
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Clocks event reasons of nvml.h: hardware slowdown, thermal slowdown by software and by hardware, power brake. A power
cap is normal under load, and is none of them."""


@dataclass(frozen=True)
class Health:
    """One GPU. Memory in bytes, utilisation in percent of the last sample period, None where NVML does not tell."""

    uuid: str
    name: str
    memory_used: int
    memory_total: int
    utilisation: int | None
    uncorrected_errors: int | None
    """Memory errors since the driver was loaded that ECC could not correct,"""
    corrected_errors: int | None = None
    """and those that it could."""
    throttled: bool | None = None
    """Whether heat or power makes the hardware slow its clocks down now."""

    @property
    def sound(self) -> bool:
        return not self.uncorrected_errors

    def line(self) -> str:
        """For the launcher's log."""
        busy = "" if self.utilisation is None else f", {self.utilisation} % busy"
        errors = "" if self.sound else f"; NOT SOUND: {self.uncorrected_errors} uncorrected memory errors, replace it"
        used, total = self.memory_used / GIB, self.memory_total / GIB
        return f"{self.uuid} {self.name}: {used:.1f} of {total:.1f} GiB used{busy}{errors}"


def library() -> ModuleType | None:
    """pynvml: the one that came with the agent, else an installed one; None where there is neither."""
    for name in (f"{__package__.split('.')[0]}.pynvml", "pynvml"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def load(path: str) -> ModuleType | None:
    """pynvml over this library of NVIDIA's; None where either cannot be used."""
    found = library()
    if found is not None:
        try:
            vars(found)["nvmlLib"] = ctypes.CDLL(path)  # else it looks for one by its name
        except OSError:
            return None
    return found


def read(nvml: Any) -> list[Health]:
    """All GPUs that `nvml` sees; none: no driver, or no permission. Never raises: health is only reported, nothing
    depends on it."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [look(nvml, nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def look(nvml: Any, handle: Any) -> Health:
    """One GPU, of a session that is open. Raises NVMLError for one that is lost."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Health(
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        name=text(nvml.nvmlDeviceGetName(handle)),
        memory_used=int(memory.used),
        memory_total=int(memory.total),
        utilisation=_maybe(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        uncorrected_errors=_errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        corrected_errors=_errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        throttled=None if (reasons := _reasons(nvml, handle)) is None else bool(reasons & SLOWED),
    )


def _errors(nvml: Any, handle: Any, kind: int) -> int | None:
    return _maybe(nvml, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)))


def _reasons(nvml: Any, handle: Any) -> int | None:
    return _maybe(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))


def _maybe(nvml: Any, ask: Any) -> int | None:
    """Not every GPU has every sensor."""
    try:
        return int(ask())
    except nvml.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """Older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else value
