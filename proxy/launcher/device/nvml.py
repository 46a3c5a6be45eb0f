"""Health, memory and utilisation of this container's GPUs, from NVML (pynvml). Nothing where there is no GPU."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True)
class Health:
    """One GPU. Memory in bytes, utilisation in percent of the last sample period, None where NVML does not tell."""

    uuid: str
    name: str
    memory_used: int
    memory_total: int
    utilisation: int | None
    uncorrected_errors: int | None
    """Memory errors since the driver was loaded that ECC could not correct."""

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
    """pynvml as the image has it, else the one that came with the agent; None where there is neither."""
    for name in ("pynvml", f"{__package__.split('.')[0]}.pynvml"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def read(nvml: Any) -> list[Health]:
    """All GPUs that `nvml` sees; none: no driver, or no permission. Never raises: health is told, not needed."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_one(nvml, nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _one(nvml: Any, handle: Any) -> Health:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return Health(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_used=int(memory.used),
        memory_total=int(memory.total),
        utilisation=_maybe(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        uncorrected_errors=_maybe(nvml, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))),
    )


def _maybe(nvml: Any, ask: Any) -> int | None:
    """Not every GPU has every sensor."""
    try:
        return int(ask())
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
