"""Tensors of any device and type through gloo: as bytes, in host memory."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch

Tensors = Sequence[Any]
_c10d: Any = torch._C._distributed_c10d


def nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def to_bytes(tensor: Any) -> Any:
    """Flat bytes in host memory; of a contiguous tensor that lies there, itself."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).cpu()


def put(target: Any, flat: Any) -> Any:
    """`flat`, on the same device, into `target`, which is returned."""
    if target.data_ptr() != flat.data_ptr():
        target.copy_(flat.view_as(target))
    return target


def _back(target: Any, data: Any) -> None:
    """Bytes from `to_bytes` into the tensor they are meant for."""
    if target.data_ptr() != data.data_ptr():
        target.copy_(data.view(target.dtype).view_as(target))


def _room(tensor: Any) -> Any:
    """Host bytes for the future content of `tensor`: its own memory, if that is contiguous and in host memory."""
    if not tensor.is_cuda and tensor.is_contiguous():
        return to_bytes(tensor)
    return torch.empty(nbytes(tensor), dtype=torch.uint8)


def padded(tensor: Any, width: int) -> Any:
    """Flat bytes on the tensor's own device, with zeros up to `width`."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return torch.nn.functional.pad(data, (0, width - data.numel())) if data.numel() < width else data


def _rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def broadcast(group: Any, flat: Any, root: int) -> None:
    """In place; `flat` is contiguous."""
    data = to_bytes(flat) if group.rank() == root else _room(flat)
    group.broadcast([data], _rooted(_c10d.BroadcastOptions(), root)).wait()
    _back(flat, data)


def collect(group: Any, own: Any) -> list[Any]:
    """On the first rank of the group: the tensors of all ranks, in order and on its device. Nothing on the other
    ranks."""
    data = to_bytes(own)
    first = group.rank() == 0
    found = [torch.empty_like(data) for _ in range(group.size())] if first else []
    group.gather([found] if first else [], [data], _rooted(_c10d.GatherOptions(), 0)).wait()
    return [own, *(each.view(own.dtype).view_as(own).to(own.device) for each in found[1:])] if first else []


def deal(group: Any, rows: Any, first: bool) -> Any:
    """Each rank's own row of the data of the first rank of the group. `rows`: at least as many as ranks."""
    mine = torch.empty_like(rows[0], device="cpu")
    given = [list(rows[: group.size()].cpu())] if first else []
    data = [[to_bytes(row) for row in given[0]]] if first else []
    group.scatter([to_bytes(mine)], data, _rooted(_c10d.ScatterOptions(), 0)).wait()
    return mine.to(rows.device)


def gather(group: Any, outputs: Sequence[Tensors], inputs: Tensors, options: Any) -> list[Any]:
    """As the backend's operation of that name; like the next two."""
    found = [[_room(tensor) for tensor in each] for each in outputs]
    group.gather(found, [to_bytes(own) for own in inputs], _rooted(_c10d.GatherOptions(), options.rootRank)).wait()
    return _all_back(outputs, found)


def scatter(group: Any, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> list[Any]:
    found = [_room(tensor) for tensor in outputs]
    given = [[to_bytes(tensor) for tensor in each] for each in inputs]
    group.scatter(found, given, _rooted(_c10d.ScatterOptions(), options.rootRank)).wait()
    return _all_back([outputs], [found])


def all_to_all(group: Any, outputs: Tensors, inputs: Tensors) -> list[Any]:
    """One tensor for, and one from, each rank."""
    found = [_room(tensor) for tensor in outputs]
    given = torch.cat([to_bytes(tensor) for tensor in inputs])
    whole = torch.empty(sum(each.numel() for each in found), dtype=torch.uint8)
    sizes = [each.numel() for each in found], [nbytes(tensor) for tensor in inputs]
    exchange = group.all_to_all_single if hasattr(group, "all_to_all_single") else group.alltoall_base  # before 2.14
    exchange(whole, given, *sizes, _c10d.AllToAllOptions()).wait()
    return _all_back([outputs], [whole.split(sizes[0])])


def _all_back(targets: Sequence[Tensors], found: Sequence[Tensors]) -> list[Any]:
    for into, data in zip(targets, found, strict=True):
        for target, each in zip(into, data, strict=True):
            _back(target, each)
    return [tensor for each in targets for tensor in each]


class _Message(_c10d.Work):  # type: ignore[misc]
    """Handle that keeps the host memory of a message until its transfer is complete."""

    def __init__(self, data: Tensors, work: Any) -> None:
        super().__init__()
        self._data, self._work = data, work

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return bool(self._work.wait(timeout) if timeout is not None else self._work.wait())

    def get_future(self) -> Any:
        raise RuntimeError("Work::getFuture not implemented.")  # as gloo's


class Sent(_Message):
    def __init__(self, group: Any, tensors: Tensors, peer: int, tag: int) -> None:
        data = [to_bytes(tensor) for tensor in tensors]
        super().__init__(data, group.send(data, peer, tag))


class Received(_Message):
    def __init__(self, group: Any, tensors: Tensors, peer: int, tag: int) -> None:
        data = [_room(tensor) for tensor in tensors]
        super().__init__(data, group.recv(data, peer, tag))
        self._tensors = tensors

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        done = super().wait(timeout)
        if done:
            with torch.no_grad():
                _all_back([self._tensors], [self._data])
        return done
