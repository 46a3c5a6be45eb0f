"""`SwapGroup`: a process group around a stock one that can be thrown away and made again, for torch before 2.14.

There a backend cannot be written in Python: nothing can sit inside a stock ProcessGroup as `swap_backend` does. But a
ProcessGroup can be a Python subclass: C++, DDP's reducer and the functional collectives say, calls its methods (torch's
`PyProcessGroup.hpp`). So the group is ours, owns a stock group, and hands every operation on. What torch tells a group
while it makes it is noted, and told to the next one.
"""

from __future__ import annotations

from typing import Any

from . import gate, groups, membership, work
from .groups import Gone
from .lanes import STRANGE, Lane, making, register
from .swap_backend import POINT_TO_POINT, forward, message_channel

_COLLECTIVES = (
    "broadcast",
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    # torch 2.13 has these, too
    "all_gather_single",
    "all_gather_single_coalesced",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "all_to_all_single",
)
_FORWARDED = (
    "_backend_id",
    "_get_sequence_number_for_group",
    "_wait_for_pending_works",
)
_SETTINGS = (
    "_set_default_backend",
    "_set_group_name",
    "_set_group_desc",
    "_set_sequence_number_for_group",
    "_enable_collectives_timing",
    "_register_on_completion_hook",
)
"""What a new stock group is told as the one before was; `_BEFORE` before it has its backends."""
_BEFORE = ("_set_default_backend",)
_NAMES = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
"""A group's method -> that of a backend of ours (`host_group`), which has torch 2.14's names."""


def _setting(name: str, base: Any) -> Any:
    keep = getattr(base, name) if name in ("_set_default_backend", "_set_group_desc") else None

    def method(self: Any, *args: Any) -> None:
        gate.enter("", place=False)
        try:
            getattr(self.inner, name)(*args)
        finally:
            gate.leave()
        if keep is not None:
            keep(self, *args)
        self.told.append((name, args))

    method.__name__ = name
    return method


def _collective(name: str, swap_work: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        lane = self.lane(args)
        gate.enter(lane.channel, free=lane.coalescing)
        try:
            if lane.ours:
                started = getattr(lane.inner, _NAMES.get(name, name))(*args, **kwargs)
            else:
                started = getattr(self.inner, name)(*args, **kwargs)
        finally:
            gate.leave()
        return work.handle(started, swap_work)

    method.__name__ = name
    return method


def _point_to_point(name: str, order: tuple[int, int], swap_work: Any) -> Any:
    def method(self: Any, tensors: Any, peer: int, tag: int) -> Any:
        lane = self.lane((tensors,))
        gate.enter(message_channel(lane, peer, order), free=lane.coalescing)
        try:
            started = getattr(lane.inner if lane.ours else self.inner, name)(tensors, peer, tag)
        finally:
            gate.leave()
        return work.handle(started, swap_work, message=True)

    method.__name__ = name
    return method


def make_group_class(base: Any, swap_work: Any, source_work: Any) -> Any:
    """SwapGroup, a subclass of torch's C++ ProcessGroup; its collectives return `swap_work`."""

    forwarded = forward("_get_backend")

    class SwapGroup(base):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args[-2:])  # rank and size; the constructor with a store makes no subclass
            self.made_of = args
            self.told: list[tuple[str, tuple[Any, ...]]] = []
            self.bound: Any = None
            self.backends: list[tuple[Any, Any, Any]] = []
            """Device, type, and lane or backend that is none of ours."""
            self.inner = base(*args)

        def _register_backend(self, device: Any, kind: Any, backend: Any = None) -> None:
            register(self.inner, device, kind, backend)
            try:
                super()._register_backend(device, kind)  # for C++ that asks which devices there are
                lane = making.lanes.get(id(backend))
                self.backends.append((device, kind, lane or backend))
                if lane is not None and lane.owner is None:
                    lane.owner = self
                    groups.backends.append(lane)
            except Exception as error:
                membership.broke(error, "after a group of the script was made")

        def _get_backend(self, device: Any) -> Any:
            own = self._at(device)
            return forwarded(self, device) if own is None else own

        def _at(self, device: Any) -> Any:
            """The backend for `device`, if it is in Python."""
            part = next((part for at, _, part in self.backends if at.type == device.type), None)
            return part.inner if isinstance(part, Lane) and part.ours else None

        def _has_hooks(self) -> bool:
            return not self._own() and bool(self.inner._has_hooks())

        def abort(self) -> None:
            self._end("abort")

        def shutdown(self) -> None:
            self._end("shutdown")

        def _end(self, how: str) -> None:
            gate.enter("", place=False)
            try:
                for end in self._own() or [self.inner]:
                    getattr(end, how)()
            finally:
                gate.leave()

        def _own(self) -> list[Any]:
            """Every backend, if one is in Python, which the stock group does not have."""
            lanes = self.lanes()
            return [lane.inner for lane in lanes] if any(lane.ours for lane in lanes) else []

        def fit(self) -> None:
            """Have a stock group of the lanes' backends: none while one is missing."""
            lanes = self.lanes()
            gone = next((one.inner for one in lanes if isinstance(one.inner, Gone)), None)
            if gone is not None or any(one.inner is None for one in lanes):
                self.inner = gone
                return
            made = base(*self.made_of)
            for name, args in self.told:
                if name in _BEFORE:
                    getattr(made, name)(*args)
            if self.bound is not None:
                made.bound_device_id = self.bound
            for device, kind, part in self.backends:
                register(made, device, kind, part.inner if isinstance(part, Lane) else part)
            for name, args in self.told:
                if name not in _BEFORE:
                    getattr(made, name)(*args)
            self.inner = made

        def lanes(self) -> list[Lane]:
            return list({id(part): part for _, _, part in self.backends if isinstance(part, Lane)}.values())

        def lane(self, args: Any) -> Any:
            """Lane of an operation by the device of its first tensor; of one without tensors, the first."""
            parts = self.backends
            first = parts[0][2]
            if all(part is first for _, _, part in parts):
                return first if isinstance(first, Lane) else STRANGE
            value = args[0] if args else None
            while isinstance(value, list | tuple) and value:
                value = value[0]
            kind = getattr(getattr(value, "device", None), "type", parts[0][0].type)
            found = next((part for device, _, part in parts if device.type == kind), first)
            return found if isinstance(found, Lane) else STRANGE

        def monitored_barrier(self, *args: Any, **kwargs: Any) -> Any:
            lane = self.lane(())
            gate.enter(lane.channel)
            try:
                return (lane.inner if lane.ours else self.inner).monitored_barrier(*args, **kwargs)
            finally:
                gate.leave()

        def recv_anysource(self, tensors: Any, tag: int) -> Any:
            # The sender is known only when the receive has ended. So it belongs between two stops, and to no channel.
            gate.enter("", place=False)
            try:
                lane = self.lane((tensors,))
                started = (lane.inner if lane.ours else self.inner).recv_anysource(tensors, tag)
            finally:
                gate.leave()
            return work.handle(started, source_work)

        def _start_coalescing(self, device: Any) -> None:
            gate.enter("", opens=True)  # until the end: no stop comes between
            try:
                own = self._at(device)
                self.inner._start_coalescing(device) if own is None else own._start_coalescing()
            except BaseException:
                gate.leave(closes=True)
                raise
            for lane in self.lanes():
                lane.coalescing = True

        def _end_coalescing(self, device: Any) -> Any:
            for lane in self.lanes():
                lane.coalescing = False
            try:
                own = self._at(device)
                started = self.inner._end_coalescing(device) if own is None else own._end_coalescing()
            finally:
                gate.leave(closes=True)
            return work.handle(started, swap_work, message=True)

        def getBackendName(self) -> str:
            return "custom"  # with "gloo" the C++ DDP logger casts our group's backend, which it has not

        def getGroupName(self) -> str:
            return next((str(args[0]) for name, args in reversed(self.told) if name == "_set_group_name"), "")

        def name(self) -> str:
            return str(self.inner.name())

        _get_backend_name = name

        @property
        def group_name(self) -> str:
            return self.getGroupName()

        @property
        def _device_types(self) -> list[Any]:
            return [device for device, _, _ in self.backends]

        @property
        def bound_device_id(self) -> Any:
            return self.bound

        @bound_device_id.setter
        def bound_device_id(self, device: Any) -> None:
            self.bound = self.inner.bound_device_id = device

    for name in _COLLECTIVES:
        if hasattr(base, name):
            setattr(SwapGroup, name, _collective(name, swap_work))
    for name, order in POINT_TO_POINT.items():
        setattr(SwapGroup, name, _point_to_point(name, order, swap_work))
    for name in _FORWARDED:
        if hasattr(base, name):
            setattr(SwapGroup, name, forward(name))
    for name in _SETTINGS:
        if hasattr(base, name):
            setattr(SwapGroup, name, _setting(name, base))
    return SwapGroup
