"""Communication that can be dropped and rebuilt while the program keeps its ProcessGroup objects.

DDP's reducer, DeviceMesh and the script all hold stock ProcessGroups. Inside them sits `SwapBackend`, whose real
backend can be thrown away and made again; below the stock PrefixStores sits `ProxyStore`, whose TCPStore can be, too.
Measured with torch 2.15, gloo; destroying the backend object is the only thing that closes gloo's sockets.
"""

from __future__ import annotations

import datetime
import sys
from types import ModuleType
from typing import Any

from . import fork, hooks, work

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
# Have no future, and may never complete if the peer is at the barrier: must not be open across a step boundary.
_POINT_TO_POINT = ["send", "recv", "recv_anysource"]
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


def _asynchronous(name: str, swap_work: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = getattr(self.inner, name)(*args, **kwargs)
        return None if started is None else swap_work(started)

    method.__name__ = name
    return method


def make_backend_class(base: Any, swap_work: Any) -> Any:
    """SwapBackend, a subclass of torch's C++ Backend; its collectives return `swap_work`."""

    class SwapBackend(base):  # type: ignore[misc]
        def __init__(self, make: Any, rank: int, size: int, name: str) -> None:
            super().__init__(rank, size)
            self._make = make
            self._label = name
            self.inner: Any = make(0)
            backends.append(self)

        def name(self) -> str:
            return self._label

        def drop(self) -> None:
            self.inner = None

        def rebuild(self, generation: int) -> None:
            self.inner = self._make(generation)

        def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> Any:
            return self.inner.monitored_barrier(options.timeout, wait_all_ranks)

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
    for name in (*_POINT_TO_POINT, *_FORWARDED):
        if hasattr(base, name):
            setattr(SwapBackend, name, _forward(name))
    return SwapBackend


def install(module: ModuleType) -> None:
    """Put the replaceable parts under `module`, which is torch.distributed.distributed_c10d."""
    if not hasattr(module, "ProcessGroup"):  # a torch built without distributed: nothing to replace
        return
    c10d: Any = sys.modules[_C10D]
    proxy_store = make_store_class(c10d.Store)
    swap_backend = make_backend_class(c10d.Backend, work.make_work_class(c10d.Work))
    _wrap_rendezvous(module, proxy_store)
    _wrap_registration(module, swap_backend)
    _wrap_destroy(module)


def _wrap_rendezvous(module: Any, proxy_store: Any) -> None:
    stock = module.rendezvous

    def rendezvous(*args: Any, **kwargs: Any) -> Any:
        from . import boundary

        boundary.claim()
        with fork.communication():
            found = stock(*args, **kwargs)
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

            def make(generation: int) -> Any:
                if generation:  # keys of an earlier life never meet those of this one
                    options.store = module.PrefixStore(f"singularity/{generation}", base)
                with fork.communication():
                    return stock(options, backend_options)

            return swap_backend(make, options.group_rank, options.group_size, name.lower())

        creator.swaps = True  # type: ignore[attr-defined]
        registry._plugins[name] = plugin._replace(creator_fn=creator)
        if name == "GLOO":
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
    for name in SWAPPED:
        wrap(name)


def _wrap_destroy(module: Any) -> None:
    stock = module.destroy_process_group

    def destroy_process_group(group: Any = None) -> None:
        everything = group is None or group == module.GroupMember.WORLD
        stock(group)
        if everything:  # our strong references must not keep sockets open that the script has done with
            for backend in backends:
                backend.drop()
            for store in stores:
                store.inner = None
            backends.clear()
            stores.clear()

    destroy_process_group.__doc__ = stock.__doc__
    module.destroy_process_group = destroy_process_group


def drop() -> None:
    """Finish what is in flight, then let go of every backend and store. The caller collects garbage."""
    work.finish()
    for backend in backends:
        backend.drop()
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
