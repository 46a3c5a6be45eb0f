"""Communication that can be dropped and rebuilt while the program keeps its ProcessGroup objects.

DDP's reducer, DeviceMesh and the script all hold stock ProcessGroups. Inside them sits `SwapBackend`, whose real
backend can be thrown away and made again; below the stock PrefixStores sits `ProxyStore`, whose TCPStore can be, too.
Measured with torch 2.15, gloo; destroying the backend object is the only thing that closes gloo's sockets.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..protocol import names
from . import boundary, fork, hooks, shared_device, work

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
_POINT_TO_POINT = {"send": (0, 1), "recv": (1, 0)}
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
_STORE_METHODS = [
    "set",
    "get",
    "add",
    "check",
    "compare_set",
    "delete_key",
    "multi_get",
    "multi_set",
    "append",
    "num_keys",
    "set_timeout",
    "wait",
    "queue_pop",
    "queue_push",
    "queue_len",
    "list_keys",
    "has_extended_api",
]
_C10D = "torch._C._distributed_c10d"
SWAPPED = ("GLOO", "NCCL")
MIN_STORE_TIMEOUT = datetime.timedelta(seconds=300)
"""Other pods may still be downloading their images when this rank is ready to meet them."""

# Strong references: a Python subclass of a pybind class loses its overrides when only C++ still holds it.
backends: list[Any] = []
stores: list[Any] = []
epoch = 0
"""How often the script has destroyed all its groups."""


def _forward(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


def make_store_class(base: Any) -> Any:
    """ProxyStore, a subclass of torch's Store."""

    class ProxyStore(base):  # type: ignore[misc]
        def __init__(self, inner: Any, world_size: int) -> None:
            super().__init__()
            self.inner = inner
            self.world_size = world_size
            self.kept_timeout = inner.timeout
            stores.append(self)

        def clone(self) -> Any:
            return ProxyStore(self.inner.clone(), self.world_size)

        @property
        def timeout(self) -> Any:
            return self.inner.timeout

        def drop(self) -> None:
            if self.inner is not None and type(self.inner).__name__ == "TCPStore":
                self.kept_timeout = self.inner.timeout
                self.inner = None

        def rebuild(self, tcp_store: Any, rank: int, address: str, port: int) -> None:
            if self.inner is None:
                self.inner = tcp_store(
                    address, port, self.world_size, rank == 0, multi_tenant=True, use_libuv=False,
                    timeout=max(self.kept_timeout, MIN_STORE_TIMEOUT),
                )  # fmt: skip
                self.inner.set_timeout(self.kept_timeout)

    for name in _STORE_METHODS:
        if hasattr(base, name):
            setattr(ProxyStore, name, _forward(name))
    return ProxyStore


def channels() -> dict[str, tuple[int, tuple[int, ...]]]:
    """What this rank has issued on every group and to every peer, as `protocol.cut` compares it."""
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    for backend in backends:
        found[backend.channel] = (backend.issued, backend.ranks)
        for ends, issued in backend.messages.items():
            found[_message(backend, ends)] = (issued, tuple(backend.ranks[end] for end in ends))
    return found


def _message(backend: Any, ends: tuple[int, int]) -> str:
    return f"{backend.channel}:{ends[0]}>{ends[1]}"


def _asynchronous(name: str, swap_work: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        rank = boundary.current()
        if rank is not None and rank.asked() and not self.coalescing:
            rank.meet(self.channel)
        self.issued += 1
        started = getattr(self.inner, name)(*args, **kwargs)
        return None if started is None else swap_work(started)

    method.__name__ = name
    return method


def _point_to_point(name: str, order: tuple[int, int], swap_work: Any) -> Any:
    def method(self: Any, tensors: Any, peer: int, tag: int) -> Any:
        both = (self.rank(), peer)
        ends = (both[order[0]], both[order[1]])
        messages = self.messages
        issued = messages.setdefault(ends, 0)
        rank = boundary.current()
        if rank is not None and rank.asked() and not self.coalescing:
            rank.meet(_message(self, ends))
        messages[ends] = issued + 1
        started = getattr(self.inner, name)(tensors, peer, tag)
        return None if started is None else swap_work(started, message=True)

    method.__name__ = name
    return method


def make_backend_class(base: Any, swap_work: Any, source_work: Any) -> Any:
    """SwapBackend, a subclass of torch's C++ Backend; its collectives return `swap_work`."""

    class SwapBackend(base):  # type: ignore[misc]
        def __init__(self, make: Any, rank: int, size: int, name: str, group: str, ranks: Sequence[int]) -> None:
            super().__init__(rank, size)
            self.make = make
            self._label = name
            self.inner: Any = make(0)
            self.ranks = tuple(ranks) or tuple(range(size))
            """Global ranks; none are named for the world."""
            same = sum(backend.channel.startswith(f"{group}/{name}/") for backend in backends)
            self.channel = f"{group}/{name}/{same}"
            self.issued = 1
            self.messages: dict[tuple[int, int], int] = {}
            """(from, to), both ranks within the group -> sends or receives issued."""
            self.coalescing = False
            """Between start and end of operations that are issued as one, and only then are under way."""
            backends.append(self)

        def name(self) -> str:
            return self._label

        def drop(self) -> None:
            self.inner = None

        def rebuild(self, generation: int) -> None:
            self.inner = self.make(generation)

        def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> Any:
            return self.inner.monitored_barrier(options.timeout, wait_all_ranks)

        def recv_anysource(self, tensors: Any, tag: int) -> Any:
            # From whom is known when it has ended: belongs between two stops, and to no channel.
            return source_work(self.inner.recv_anysource(tensors, tag))

        def start_coalescing(self) -> None:
            rank = boundary.current()
            if rank is not None and rank.asked():
                rank.meet("")
            self.inner._start_coalescing()
            self.coalescing = True

        def end_coalescing(self) -> Any:
            self.coalescing = False
            started = self.inner._end_coalescing()
            return None if started is None else swap_work(started, message=True)

        @property
        def options(self) -> Any:
            return self.inner.options

        @property
        def supports_splitting(self) -> bool:
            return False

        @property
        def supports_coalescing(self) -> Any:
            return self.inner.supports_coalescing

    for name in _COLLECTIVES:
        if hasattr(base, name):
            setattr(SwapBackend, name, _asynchronous(name, swap_work))
    for name, order in _POINT_TO_POINT.items():
        setattr(SwapBackend, name, _point_to_point(name, order, swap_work))
    for name in _FORWARDED:
        if hasattr(base, name):
            setattr(SwapBackend, name, _forward(name))
    return SwapBackend


def install(module: ModuleType) -> None:
    """Put the replaceable parts under `module`, which is torch.distributed.distributed_c10d."""
    if not hasattr(module, "ProcessGroup"):  # a torch built without distributed: nothing to replace
        return
    if os.environ.get(names.ENV_ALONE):
        return
    c10d: Any = sys.modules[_C10D]
    proxy_store = make_store_class(c10d.Store)
    swap_work = work.make_work_class(c10d.Work)
    source_work = work.make_source_class(c10d.Work, lambda: sys.modules["torch"].futures.Future())
    swap_backend = make_backend_class(c10d.Backend, swap_work, source_work)
    _wrap_rendezvous(module, proxy_store)
    _wrap_registration(module, swap_backend)
    _wrap_debug(module, swap_backend)
    _wrap_destroy(module)


def _wrap_rendezvous(module: Any, proxy_store: Any) -> None:
    stock = module.rendezvous

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
        from . import freeze  # which needs us

        try:
            problem = boundary.stranger(rank, world_size)
        except (OSError, ValueError, KeyError):  # `claim` says so, too, and what becomes of it
            problem = ""
        if problem:
            boundary.stand_aside(problem)
            yield from stock(url, rank, world_size, **kwargs)
            return
        boundary.claim()
        freeze.adopt_address()
        with fork.communication():
            found = stock(url, rank, world_size, **kwargs)
            triple = next(found)
        while True:
            store, rank, world_size = triple
            yield proxy_store(store, world_size), rank, world_size
            try:
                triple = next(found)
            except StopIteration:
                return

    module.rendezvous = rendezvous


def _wrap_registration(module: Any, swap_backend: Any) -> None:
    registry = module.Backend

    def wrap(name: str) -> None:
        plugin = registry._plugins.get(name)
        if plugin is None or getattr(plugin.creator_fn, "swaps", False):
            return
        stock = plugin.creator_fn

        def creator(options: Any, backend_options: Any = None) -> Any:
            base = options.store

            def made() -> Any:
                with fork.communication():
                    return stock(options, backend_options)

            def make(generation: int) -> Any:
                if generation:  # keys of an earlier life never meet those of this one
                    options.store = module.PrefixStore(f"singularity/{generation}", base)
                return shared_device.make(name, options, made)

            found = (options.group_id, options.global_ranks_in_group)
            return swap_backend(make, options.group_rank, options.group_size, name.lower(), *found)

        creator.swaps = True  # type: ignore[attr-defined]
        registry._plugins[name] = plugin._replace(creator_fn=creator)
        if name == "GLOO":
            custom()

    def custom() -> None:
        # With type GLOO the C++ DDP logger casts the object to ProcessGroupGloo and crashes.
        registry.backend_type_map["gloo"] = module.ProcessGroup.BackendType.CUSTOM

    register = registry.register_backend

    def register_backend(name: str, *args: Any, **kwargs: Any) -> Any:
        result = register(name, *args, **kwargs)
        if name.upper() in SWAPPED:
            wrap(name.upper())
        return result

    # Built-in backends register lazily, after this module was imported: wrap the registrar, and those already there.
    registry.register_backend = staticmethod(register_backend)
    custom()  # a group without a named backend looks its default type up before gloo is registered, and anew by that
    for name in SWAPPED:
        wrap(name)


def _wrap_debug(module: Any, swap_backend: Any) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper, with a gloo group of its own, around each backend: it has
    to go into ours, so that it is dropped and made again with it."""
    stock = module._create_process_group_wrapper

    def wrapper(wrapped_pg: Any, store_prefix: str, store: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(wrapped_pg, swap_backend):
            return stock(wrapped_pg, store_prefix, store, *args, **kwargs)
        make = wrapped_pg.make

        def checked(inner: Any, generation: int) -> Any:
            below = module.PrefixStore(f"singularity/{generation}", store) if generation else store
            with fork.communication():
                return stock(inner, store_prefix, below, *args, **kwargs)

        wrapped_pg.make = lambda generation: checked(make(generation), generation)
        wrapped_pg.inner = checked(wrapped_pg.inner, 0)
        return wrapped_pg

    module._create_process_group_wrapper = wrapper


def _wrap_destroy(module: Any) -> None:
    stock = module.destroy_process_group

    def destroy_process_group(group: Any = None) -> None:
        global epoch
        everything = group is None or group == module.GroupMember.WORLD
        stock(group)
        if everything:  # our strong references must not keep sockets open that the script has done with
            for backend in backends:
                backend.drop()
            shared_device.close()
            for store in stores:
                store.inner = None
            backends.clear()
            stores.clear()
            epoch += 1

    destroy_process_group.__doc__ = stock.__doc__
    module.destroy_process_group = destroy_process_group


def drop() -> None:
    """Finish what is in flight, then let go of every backend and store. The caller collects garbage."""
    work.finish()
    for backend in backends:
        backend.drop()
    shared_device.close()
    for store in stores:
        store.drop()


def rebuild(generation: int, rank: int, address: str, port: int) -> None:
    """Meet the other ranks at `address:port` and make every backend again, in the order of their creation."""
    with fork.communication():
        for store in stores:
            store.rebuild(sys.modules[_C10D].TCPStore, rank, address, port)
    for backend in backends:
        backend.rebuild(generation)
    if backends or stores:
        hooks.report(f"rank {rank} meets the others at {address}:{port}")
