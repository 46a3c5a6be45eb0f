"""Device memory of one process in files of its rank's image: what the driver calls custom storage.

The driver maps the device memory of the process on our side and we copy it. So it does not pass through the process's
own memory and CRIU's images. Source: CUDA driver API 13.4, CUDA Checkpointing, CUcheckpointCustomStorageInfo.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import CommandError

ENV_COPIES = "SINGULARITY_DEVICE_COPIES"
"""`own`: this module copies device memory, where the driver supports it; `driver` (default): the driver copies it."""


class PerDevice(ctypes.Structure):
    """CUcheckpointCustomStoragePerDeviceData."""

    _fields_ = [("pointer", ctypes.c_uint64), ("size", ctypes.c_size_t), ("stream", ctypes.c_void_p)]


class Info(ctypes.Structure):
    """CUcheckpointCustomStorageInfo, allocated by the driver."""

    _fields_ = [
        ("handle", ctypes.c_void_p), ("devices", ctypes.POINTER(PerDevice)), ("count", ctypes.c_uint)
    ]  # fmt: skip


class Copies:
    """:param folder: the image of the rank
    :param pid: of the process, in its slot
    """

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._maps: dict[str, mmap.mmap] = {}
        self.complete = False
        """The copy is complete."""
        self.problem = ""
        """Why the copies are in memory and not in the image, where they do not outlive us."""

    def _path(self, uuid: str) -> Path:
        return self._folder / f"device-{self._pid}-{uuid}.bin"

    def room(self, uuid: str, size: int) -> mmap.mmap:
        """Memory of ours for `size` > 0 bytes. Once the driver has mapped a process's memory there is no way back. So a
        full disk is noted in `problem` and raises no error."""
        path = self._path(uuid)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # else a full disk is a SIGBUS
                made = mmap.mmap(file.fileno(), size)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            self.problem = f"no room for {size} bytes of device memory in {path}: {error.strerror}"
            made = mmap.mmap(-1, size)
        self._maps[uuid] = made
        return made

    def content(self, uuid: str, size: int) -> mmap.mmap:
        """The data that was copied from that GPU. Raises ValueError if it is not the expected data."""
        found = self._maps.get(uuid)
        if found is None:
            try:
                with self._path(uuid).open("rb") as file:
                    found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise ValueError(f"{self._path(uuid)}: {error}") from None
        if len(found) != size:
            raise ValueError(f"{self._path(uuid)} has {len(found)} bytes, the driver wants {size}")
        return found


def address(memory: mmap.mmap) -> int:
    """The address of `memory`, which must be kept while the address is in use."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def wanted(env: Mapping[str, str]) -> bool:
    """Shall we copy? Raises CommandError."""
    text = env.get(ENV_COPIES) or "driver"
    if text not in ("own", "driver"):
        raise CommandError(f"{ENV_COPIES} = {text!r}: wanted own (the launcher copies) or driver (as without it)")
    return text == "own"
