"""`SwapBackend`: the backend that a stock ProcessGroup holds, around a real one that can be thrown away and made again.

Every operation asks the gate first, is counted there, and is handed on to the real backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import gate, guard, work

_COLLECTIVES = [
    "broadcast",
    "allreduce",
    "allreduce_sparse",
    "allreduce_coalesced",
    "reduce",
    "allgather",
    "all_gather_single",
    "allgather_coalesced",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "all_to_all_single",
    "alltoall",
    "barrier",
]
POINT_TO_POINT = {"send": (0, 1), "recv": (1, 0)}
"""Does the peer, or do we, receive: order of (we, peer) in the channel's name."""
_FORWARDED = [
    "set_timeout",
    "_set_sequence_number_for_group",
    "_get_sequence_number_for_group",
    "_enable_collectives_timing",
    "eager_connect_single_device",
    "abort",
    "shutdown",
    "supports_tensor_alloc",
    "allocate_tensor",
    "get_error",
]


def forward(name: str) -> Any:
    """A method that calls the one of the same name of `self.inner`."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate.enter("", place=False)
        try:
            return getattr(self.inner, name)(*args, **kwargs)
        finally:
            gate.leave()

    method.__name__ = name
    return method


def _read(name: str) -> Any:
    def value(self: Any) -> Any:
        gate.enter("", place=False)
        try:
            return getattr(self.inner, name)
        finally:
            gate.leave()

    return value


def _collective(name: str, swap_work: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate.enter(self.channel, free=self.coalescing)
        try:
            started = getattr(self.inner, name)(*args, **kwargs)
        finally:
            gate.leave()
        return work.handle(started, swap_work)

    method.__name__ = name
    return method


def _point_to_point(name: str, order: tuple[int, int], swap_work: Any) -> Any:
    def method(self: Any, tensors: Any, peer: int, tag: int) -> Any:
        gate.enter(message_channel(self, peer, order), free=self.coalescing)
        try:
            started = getattr(self.inner, name)(tensors, peer, tag)
        finally:
            gate.leave()
        return work.handle(started, swap_work, message=True)

    method.__name__ = name
    return method


def message_channel(backend: Any, peer: int, order: tuple[int, int]) -> str:
    """Name of the channel of messages between us and `peer`, a rank within the group."""
    try:
        both = (backend.own, peer)
        ends = (both[order[0]], both[order[1]])
        channel = backend.messages.get(ends)
        if channel is None:
            channel = backend.messages[ends] = f"{backend.channel}:{ends[0]}>{ends[1]}"
            gate.known(channel, tuple(backend.ranks[end] for end in ends))
        return str(channel)
    except Exception as error:
        guard.took(error, "before a message of the script")
        return ""


def make_backend_class(base: Any, swap_work: Any, source_work: Any) -> Any:
    """SwapBackend, a subclass of torch's C++ Backend; its collectives return `swap_work`."""

    class SwapBackend(base):  # type: ignore[misc]
        def __init__(
            self, make: Any, inner: Any, rank: int, ranks: Sequence[int], name: str, channel: str, group: str
        ) -> None:
            super().__init__(rank, len(ranks))
            self.make = make
            self.inner = inner
            self.built_for = 0
            self.own = rank
            self.ranks = ranks
            """Global ranks."""
            self._label = name
            self.channel = channel
            self.group = group
            """The script's, which may have several backends."""
            self.messages: dict[tuple[int, int], str] = {}
            """(from, to), both ranks within the group -> channel."""
            self.coalescing = False
            """Between start and end of operations that are issued as one, and only then are under way."""

        def name(self) -> str:
            return self._label

        def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> Any:
            gate.enter(self.channel)
            try:
                return self.inner.monitored_barrier(options.timeout, wait_all_ranks)
            finally:
                gate.leave()

        def recv_anysource(self, tensors: Any, tag: int) -> Any:
            # The sender is known only when the receive has ended. So it belongs between two stops, and to no channel.
            gate.enter("", place=False)
            try:
                started = self.inner.recv_anysource(tensors, tag)
            finally:
                gate.leave()
            return work.handle(started, source_work)

        def start_coalescing(self) -> None:
            gate.enter("", opens=True)  # until the end: no stop comes between
            try:
                self.inner._start_coalescing()
            except BaseException:
                gate.leave(closes=True)
                raise
            self.coalescing = True

        def end_coalescing(self) -> Any:
            self.coalescing = False
            try:
                started = self.inner._end_coalescing()
            finally:
                gate.leave(closes=True)
            return work.handle(started, swap_work, message=True)

        @property
        def supports_splitting(self) -> bool:
            return False

        options = property(_read("options"))
        supports_coalescing = property(_read("supports_coalescing"))

    for name in _COLLECTIVES:
        if hasattr(base, name):
            setattr(SwapBackend, name, _collective(name, swap_work))
    for name, order in POINT_TO_POINT.items():
        setattr(SwapBackend, name, _point_to_point(name, order, swap_work))
    for name in _FORWARDED:
        if hasattr(base, name):
            setattr(SwapBackend, name, forward(name))
    return SwapBackend
