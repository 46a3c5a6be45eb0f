"""Which ranks of a group share a device, and what such a group gets in place of its stock backend.

NCCL refuses a communicator with two ranks on one GPU. Such ranks come about when a job goes on with fewer devices than
ranks. Whenever a group's backend is made, each rank tells the others of the group, through the group's store, which
device it is on. If all devices are different, the group has the stock backend and nothing is added to any operation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..protocol import names
from . import gpu_names, guard
from .store import OURS

EXCLUSIVE = ("NCCL",)
"""Backends that refuse two ranks on one device."""
PREFIX = f"{OURS}device"

parts: list[tuple[str, Any]] = []
"""(name of a group, its backend), of groups that share devices; strong references, see `groups`."""
_told: set[tuple[int, ...]] = set()


def wanted(name: str) -> bool:
    """Do the ranks of a group with backend `name` have to know each other's devices?"""
    return name in EXCLUSIVE or bool(os.environ.get(names.ENV_DEVICE))


def own_device(options: Any) -> str:
    """Name of the device that this rank uses in the group; "": not known, so shared with nobody.

    The GPU is chosen as torch's own NCCL backend chooses it. `options`: torch's _DistributedBackendOptions.
    """
    named = os.environ.get(names.ENV_DEVICE)
    if named:
        return named
    cuda = sys.modules["torch"].cuda
    count = cuda.device_count()
    if not count:
        return ""
    bound = getattr(getattr(options, "process_group", None), "bound_device_id", None)
    if bound is not None and bound.index is not None:
        return gpu_names.uuid(cuda, bound.index)
    local = os.environ.get("LOCAL_RANK")
    ranks = list(options.global_ranks_in_group)
    return gpu_names.uuid(cuda, int(local or (ranks or range(options.group_size))[options.group_rank]) % count)


def exchange(store: Any, rank: int, size: int, own: str) -> list[str]:
    """Everybody's device, by rank in the group. Blocks until every rank of the group is here."""
    store.set(f"{PREFIX}/{rank}", own or f"rank {rank}")
    return [store.get(f"{PREFIX}/{other}").decode() for other in range(size)]


def sharing(devices: Sequence[str]) -> list[list[int]]:
    """Ranks by device, each list in order, the lists in the order of their first rank."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(devices):
        found.setdefault(name, []).append(rank)
    return list(found.values())


def make(name: str, options: Any, stock: Callable[[], Any]) -> Any:
    """The backend of a group: the stock one, or, where ranks share a device, one that does with one rank per device.

    :param stock: makes the stock backend of what `options` says
    """
    size = options.group_size
    if size == 1 or not wanted(name):
        return stock()
    devices = exchange(options.store, options.group_rank, size, own_device(options))
    sets = sharing(devices)
    if len(sets) == size:
        return stock()
    from . import device_group

    _tell(sets, devices, options)
    backend = device_group.make(name.lower(), options, sets, stock)
    parts.append((options.group_id, backend))
    return backend


def _tell(sets: Sequence[Sequence[int]], devices: Sequence[str], options: Any) -> None:
    mine = next(ranks for ranks in sets if options.group_rank in ranks)
    world = list(options.global_ranks_in_group) or list(range(options.group_size))
    together = tuple(world[rank] for rank in mine)
    if len(mine) > 1 and options.group_rank == mine[0] and together not in _told:
        _told.add(together)
        text = ", ".join(map(str, together))
        guard.report(f"ranks {text} share {devices[mine[0]]}: what they exchange goes through host memory")


def close(group: str = "") -> None:
    """End the threads and connections of `group`, or of all, after what has been issued. Nobody uses them any more."""
    for name, part in parts:
        if group in ("", name):
            part.close()
    parts[:] = [(name, part) for name, part in parts if group not in ("", name)]
    if not group:
        _told.clear()
