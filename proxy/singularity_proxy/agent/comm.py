"""Communication that can be dropped and rebuilt while the program keeps its ProcessGroup objects.

DDP's reducer, DeviceMesh and the script all hold ProcessGroups. With torch 2.14 or newer they are stock, and inside
them sits `swap_backend.SwapBackend`, whose real backend can be thrown away and made again; with an older torch they are
`swap_group.SwapGroup`, around a stock one. Below the stock PrefixStores sits `store.ProxyStore`. This module puts all
in their places. `groups` knows the backends that were made.
Measured with torch 2.15, gloo; destroying the backend object is the only thing that closes gloo's sockets.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ..protocol import names
from . import fork, gate, groups, guard, lanes, membership, resume_order, shared_device, store, swap_group, work
from .swap_backend import make_backend_class

_C10D = "torch._C._distributed_c10d"
SWAPPED = ("GLOO", "NCCL")


def install(module: ModuleType) -> None:
    """Put the replaceable parts under `module`, which is torch.distributed.distributed_c10d."""
    if not hasattr(module, "ProcessGroup"):  # a torch built without distributed: nothing to replace
        return
    if os.environ.get(names.ENV_ALONE):
        return
    version = getattr(sys.modules.get("torch.version"), "__version__", "")
    numbers = tuple(int(word) for word in version.split(".")[:2] if word.isdigit())
    if len(numbers) == 2 and numbers < names.OLDEST_TORCH:
        _refuse(module, version)
        return
    c10d: Any = sys.modules[_C10D]
    proxy_store = store.make_store_class(c10d.Store, membership.broke)
    swap_work = work.make_work_class(c10d.Work, keep=numbers < (2, 8))
    source_work = work.make_source_class(c10d.Work, lambda: sys.modules["torch"].futures.Future())
    _wrap_rendezvous(module, proxy_store)
    if hasattr(module.Backend, "_ensure_backend_registered"):
        swap_backend = make_backend_class(c10d.Backend, swap_work, source_work)
        _wrap_registration(module, swap_backend)
        _wrap_debug(module, swap_backend)
    else:
        lanes.install(module, c10d, swap_group.make_group_class(c10d.ProcessGroup, swap_work, source_work))
    for name in ("destroy_process_group", "_abort_process_group"):
        setattr(module, name, _wrap_destroy(module, getattr(module, name)))


def _refuse(module: Any, version: str) -> None:
    """Tell log and launcher, at the first rendezvous, that ranks of this torch cannot be saved.

    Then the first trial of the attempt fails with version and fix, before a preemption can.
    """
    stock = module.rendezvous

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
        oldest = ".".join(map(str, names.OLDEST_TORCH))
        why, advice = f"its torch is {version}, whose communication cannot be let go of", f"Use torch {oldest} or newer"
        if not _problem(rank, world_size):
            membership.give_up(f"{why}. {advice}")
        membership.stand_aside(why, advice)
        yield from stock(url, rank, world_size, **kwargs)

    module.rendezvous = rendezvous


def _wrap_rendezvous(module: Any, proxy_store: Any) -> None:
    stock = module.rendezvous

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
        ours = False
        try:
            ours = _claims(rank, world_size)
        except Exception as error:
            membership.broke(error, "before a rendezvous of the script")
        if not ours:
            yield from stock(url, rank, world_size, **kwargs)
            return
        before = fork.seen()
        found = stock(url, rank, world_size, **kwargs)
        triple = next(found)
        fork.communication(before)
        while True:
            yield _with_ours(triple, proxy_store)
            try:
                triple = next(found)
            except StopIteration:
                return

    module.rendezvous = rendezvous


def _claims(rank: int, world_size: int) -> bool:
    """Whether this process is a rank, which is about to meet the others."""
    problem = _problem(rank, world_size)
    if problem:
        membership.stand_aside(problem)
        return False
    membership.claim()
    resume_order.adopt_address()
    return True


def _problem(rank: int, world_size: int) -> str:
    """Why this process is no rank of the job; "" if it is one, or if that cannot be read."""
    try:
        return membership.stranger(rank, world_size)
    except (OSError, ValueError, KeyError):  # `claim` says so, too, and what becomes of it
        return ""


def _with_ours(triple: Any, proxy_store: Any) -> Any:
    try:
        inner, rank, world_size = triple
        return proxy_store(inner, world_size), rank, world_size
    except Exception as error:
        membership.broke(error, "after a rendezvous of the script")
        return triple


def _wrap_registration(module: Any, swap_backend: Any) -> None:
    registry = module.Backend

    def wrap(name: str) -> None:
        plugin = registry._plugins.get(name)
        if plugin is None or getattr(plugin.creator_fn, "swaps", False):
            return
        stock, label = plugin.creator_fn, name.lower()

        def creator(options: Any, backend_options: Any = None) -> Any:
            base = options.store
            channel, ranks = _place(options, label)

            def made() -> Any:
                before = fork.seen()
                try:
                    return stock(options, backend_options)
                finally:
                    fork.communication(before)

            def make(generation: int) -> Any:
                if generation:  # keys of an earlier life never meet those of this one
                    options.store = module.PrefixStore(f"{store.OURS}{generation}", base)
                return shared_device.make(name, options, made)

            gate.enter(channel, place=False)
            try:
                inner = make(0)
            finally:
                gate.leave()
            try:
                swapped = swap_backend(make, inner, options.group_rank, ranks, label, channel, options.group_id)
                groups.backends.append(swapped)
                return swapped
            except Exception as error:
                membership.broke(error, "after a group of the script was made")
                return inner

        creator.swaps = True  # type: ignore[attr-defined]
        replaced = plugin._replace(creator_fn=creator)
        if name == "GLOO":
            custom()
        registry._plugins[name] = replaced  # last: never without the type

    def custom() -> None:
        # With type GLOO the C++ DDP logger casts the object to ProcessGroupGloo and crashes. A stock group may have it.
        registry.backend_type_map["gloo"] = module.ProcessGroup.BackendType.CUSTOM

    register = registry.register_backend

    def register_backend(name: str, *args: Any, **kwargs: Any) -> Any:
        result = register(name, *args, **kwargs)
        try:
            if name.upper() in SWAPPED:
                wrap(name.upper())
        except Exception as error:
            membership.broke(error, "after a backend was registered")
        return result

    # Built-in backends register lazily, after this module was imported: wrap the registrar, and those already there.
    registry.register_backend = staticmethod(register_backend)
    custom()  # a group without a named backend looks its default type up before gloo is registered, and anew by that
    for name in SWAPPED:
        wrap(name)


def _place(options: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """Channel and global ranks of a group that is about to be made."""
    try:
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))  # none are named for the world
        group = f"{options.group_id}/{name}"
        channel = f"{group}/{groups.made(group)}"
        gate.known(channel, ranks)
        return channel, ranks
    except Exception as error:
        guard.took(error, "before a group of the script is made")
        return "", tuple(range(options.group_size))


def _wrap_debug(module: Any, swap_backend: Any) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper, with a gloo group of its own, around each backend. The
    wrapper has to go into our backend, so that both are dropped and made again together."""
    stock = module._create_process_group_wrapper
    ours = store.OURS

    def wrapper(wrapped_pg: Any, store_prefix: str, store: Any, *args: Any, **kwargs: Any) -> Any:
        # torch gives these by name
        if not isinstance(wrapped_pg, swap_backend):
            return stock(wrapped_pg, store_prefix, store, *args, **kwargs)
        make = wrapped_pg.make

        def checked(inner: Any, generation: int) -> Any:
            below = module.PrefixStore(f"{ours}{generation}", store) if generation else store
            before = fork.seen()
            try:
                return stock(inner, store_prefix, below, *args, **kwargs)
            finally:
                fork.communication(before)

        wrapped_pg.make = lambda generation: checked(make(generation), generation)
        wrapped_pg.inner = checked(wrapped_pg.inner, 0)
        return wrapped_pg

    module._create_process_group_wrapper = wrapper


def _wrap_destroy(module: Any, stock: Any) -> Any:
    def destroy_process_group(group: Any = None) -> None:
        everything = group is None or group == module.GroupMember.WORLD
        name = None if everything else module._world.pg_names.get(group)
        stock(group)
        try:  # our strong references must not keep sockets open that the script has done with
            if everything:
                groups.forget()
            elif name is not None:
                groups.destroy(name)
        except Exception as error:
            guard.took(error, "after the script has destroyed its groups")

    destroy_process_group.__doc__, destroy_process_group.__name__ = stock.__doc__, stock.__name__
    return destroy_process_group
