"""State on devices: moved to the ranks' own memory before CRIU dumps them, and back after it has restored them.

`backend` is what the launcher uses; it has one implementation for machines without devices and one for CUDA. `driver`
is the thin layer over NVIDIA's checkpoint API (libcuda, where `libraries` finds it). `fake` keeps its rules without a
GPU and passes the same contract tests. `remap` says which GPU takes the place of which. `nvml` reads health, and
`watch` reads the work of the GPUs, in the process without rights that `reader` starts; `fake_nvml` takes NVML's place
where there is none.

The driver itself copies device memory into the memory of the process that owns it, so that CRIU's images have it. The
store keeps once what replicas have in common. With `SINGULARITY_DEVICE_COPIES=own` and a driver of CUDA 13.4 or newer
(`copies`), the launcher copies device memory into files of the image instead. It does not pass through the memory of
the process. Nothing here knows about ranks of other pods, checkpoints or stores.
"""

from __future__ import annotations

from . import reader
from .backend import RECORD, Backend, DeviceRecord, NoDevices, by_inner, find, read, write

__all__ = ["RECORD", "Backend", "DeviceRecord", "NoDevices", "by_inner", "find", "read", "reader", "write"]
