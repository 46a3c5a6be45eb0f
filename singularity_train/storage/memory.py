"""The bytes of tensors, and copies of them that training cannot change."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch

from .errors import UnsavableError


def name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of_name(name: str) -> torch.dtype:
    """:raises ValueError: torch has no such type"""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype = {name!r}: torch {torch.__version__} has no such type")
    return found


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU. It keeps the tensor. torch without numpy has no call for it."""
    count = tensor.numel() * tensor.element_size()
    if not count:
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * count).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")


def check(name: str, tensor: torch.Tensor) -> None:
    """:raises UnsavableError: a tensor without plain bytes"""
    why = ""
    if tensor.layout != torch.strided or tensor.is_quantized:
        why = f"layout = {tensor.layout}, dtype = {tensor.dtype}: only dense tensors are stored; make it dense first"
    elif tensor.device.type == "meta":
        why = "device = meta: it has no values; give it values before it is saved"
    if why:
        raise UnsavableError(f"state[{name!r}]: {why}")


class Stage:
    """Copies in memory that is used again by the next save: new memory costs as much as the copy.

    Copies of what lies on an accelerator are in pinned memory, so that the copy runs at full speed.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, torch.Tensor] = {}

    def copy(self, tensors: Mapping[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """Contiguous copies on the CPU, by the same keys; those of the call before are overwritten."""
        made: dict[Any, torch.Tensor] = {}
        devices = set()
        for key, tensor in tensors.items():
            local = tensor.detach()
            kept = self._kept.get(key)
            if kept is None or kept.shape != local.shape or kept.dtype != local.dtype:
                kept = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            kept.copy_(local, non_blocking=True)
            made[key] = kept
            if local.device.type != "cpu":
                devices.add(local.device)
        for device in devices:
            torch.accelerator.synchronize(device)
        self._kept = made
        return made


def elements(sizes: tuple[int, ...]) -> int:
    return math.prod(sizes)
