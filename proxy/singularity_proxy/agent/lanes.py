"""Backends of groups that can be thrown away and made again, for torch before 2.14, which makes them in place.

There `_new_process_group_helper` calls the constructors of gloo's and NCCL's backends. They get stand-ins, which note
how each was made. A `Lane` is such a backend of a group, `swap_group.SwapGroup` the group itself.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from . import fork, gate, groups, membership, shared_device, store
from .stand_in import plain, stand_in

_BACKENDS = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}


class Lane:
    """A backend of a group, as `groups` knows it.

    :param make: generation -> a real backend
    """

    def __init__(
        self, make: Callable[[int], Any], inner: Any, rank: int, ranks: tuple[int, ...], channel: str, group: str
    ) -> None:
        self.make = make
        self.own = rank
        self.ranks = ranks
        """Global ranks."""
        self.channel = channel
        self.group = group
        self.built_for = 0
        self.messages: dict[tuple[int, int], str] = {}
        self.coalescing = False
        self.owner: Any = None
        """The SwapGroup that has it."""
        self._timeout: Any = None
        self._inner = inner

    @property
    def inner(self) -> Any:
        return self._inner

    @inner.setter
    def inner(self, backend: Any) -> None:
        with contextlib.suppress(AttributeError):  # the wrapper for debugging has none
            if backend is None:
                self._timeout = self._inner.options._timeout
            elif self._timeout is not None:
                backend._set_default_timeout(self._timeout)
        self._inner = backend
        if self.owner is not None:
            self.owner.fit()

    @property
    def ours(self) -> bool:
        """Whether the backend is in Python, for ranks that share a device: no stock group can have it."""
        return getattr(type(self._inner), "stands_in", False)


class _Strange:
    """A lane of a backend that the agent does not replace: its operations are on no channel."""

    channel, coalescing, messages, own, ranks, ours = "", False, {}, 0, (), False  # type: ignore[var-annotated]


STRANGE = _Strange()


class _Making(threading.local):
    """The group that torch makes in this thread."""

    group = ""
    ranks: tuple[int, ...] = ()
    device: Any = None
    """The one that it is bound to."""
    lanes: dict[int, Lane]
    """By the identity of the backend that torch has got, which is alive."""


making = _Making()


def install(module: Any, c10d: Any, swapped: Any) -> None:
    """Have `module`, torch.distributed.distributed_c10d, make groups of class `swapped`, with lanes."""
    stock_group = c10d.ProcessGroup

    def group(*args: Any) -> Any:
        return plain(ours, stock_group, *args) if making.group else stock_group(*args)

    module.ProcessGroup = ours = stand_in(stock_group, group, swapped)
    for label, name in _BACKENDS.items():
        stock = getattr(module, name, None)
        if stock is not None:
            setattr(module, name, stand_in(stock, _backend_maker(label, stock, c10d)))
    _wrap_helper(module)
    _wrap_debug(module, c10d)


def register(group: Any, device: Any, kind: Any, backend: Any) -> None:
    """Give a stock group its backend for `device`; one of ours is none to it."""
    if backend is None or getattr(type(backend), "stands_in", False):
        group._register_backend(device, kind)
    else:
        group._register_backend(device, kind, backend)


def _wrap_helper(module: Any) -> None:
    module._get_split_source = lambda pg: None  # a communicator that is split off another would keep it alive
    stock = module._new_process_group_helper
    signature = inspect.signature(stock)

    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        with _made(signature, args, kwargs):
            return stock(*args, **kwargs)

    module._new_process_group_helper = new_process_group_helper


@contextlib.contextmanager
def _made(signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    try:
        given = signature.bind(*args, **kwargs).arguments
        making.ranks = tuple(given["global_ranks_in_group"]) or tuple(range(given["group_size"]))
        making.lanes, making.device = {}, given.get("device_id")
        making.group = str(given["group_name"])
    except Exception as error:
        membership.broke(error, "before a group of the script is made")
    try:
        yield
    finally:
        making.group, making.ranks, making.lanes, making.device = "", (), {}, None


def _backend_maker(label: str, stock: Any, c10d: Any) -> Callable[..., Any]:
    def backend(base: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        group, ranks = making.group, making.ranks
        if not group:
            return stock(base, rank, size, *args, **kwargs)

        options = SimpleNamespace(
            store=base, group_rank=rank, group_size=size, group_id=group, global_ranks_in_group=list(ranks),
            timeout=kwargs.get("timeout") or (args[0]._timeout if args else None),
            process_group=SimpleNamespace(bound_device_id=making.device),
        )  # fmt: skip

        def made() -> Any:
            before = fork.seen()
            try:
                return stock(options.store, options.group_rank, options.group_size, *args, **kwargs)
            finally:
                fork.communication(before)

        def make(generation: int) -> Any:
            # keys of an earlier life never meet those of this one
            options.store = c10d.PrefixStore(f"{store.OURS}{generation}", base) if generation else base
            backend = shared_device.make(label.upper(), options, made)
            if generation:  # torch does it to the first
                with contextlib.suppress(AttributeError):  # torch 2.6's gloo has neither
                    backend.options.global_ranks_in_group, backend.options.group_name = list(ranks), group
                backend._set_sequence_number_for_group()
            return backend

        channel = f"{group}/{label}/{groups.made(f'{group}/{label}')}"
        gate.known(channel, ranks)
        gate.enter(channel, place=False)
        try:
            inner = make(0)
        finally:
            gate.leave()
        making.lanes[id(inner)] = Lane(make, inner, rank, ranks, channel, group)
        return inner

    return backend


def _wrap_debug(module: Any, c10d: Any) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper, with a gloo group of its own, around each backend: both
    are one to us, dropped and made again together."""
    stock = module._create_process_group_wrapper

    def wrapper(wrapped_pg: Any, store_prefix: str, *args: Any, **kwargs: Any) -> Any:
        base = kwargs.pop("store") if "store" in kwargs else args[0]
        args = args[1:] if args else ()
        lane = making.lanes.pop(id(wrapped_pg), None) if making.group else None
        if lane is None:
            return stock(wrapped_pg, store_prefix, base, *args, **kwargs)
        make = lane.make

        def checked(inner: Any, generation: int) -> Any:
            below = c10d.PrefixStore(f"{store.OURS}{generation}", base) if generation else base
            before = fork.seen()
            group, making.group = making.group, ""  # the wrapper's own gloo group is none of the script's
            try:
                return stock(inner, store_prefix, below, *args, **kwargs)
            finally:
                making.group = group
                fork.communication(before)

        lane.make = lambda generation: checked(make(generation), generation)
        lane.inner = checked(wrapped_pg, 0)
        making.lanes[id(lane.inner)] = lane
        return lane.inner

    module._create_process_group_wrapper = wrapper
