"""Groups of torch before 2.14: what stands in for its classes, and what a group is told when it is made anew."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from singularity_proxy.agent import gate, groups, lanes, store, swap_group
from singularity_proxy.agent.groups import Gone
from singularity_proxy.agent.stand_in import plain, stand_in

CPU, CUDA = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")


class Backend:
    def __init__(self, base: Any, rank: int, size: int, timeout: int = 7) -> None:
        self.base, self.rank, self.size = base, rank, size
        self.options = SimpleNamespace(_timeout=timeout, global_ranks_in_group=[], group_name="")
        self.numbered = 0

    def _set_sequence_number_for_group(self) -> None:
        self.numbered += 1

    def _set_default_timeout(self, timeout: int) -> None:
        self.options._timeout = timeout


class Group:
    """As torch's ProcessGroup, as far as it is used: it knows what it was told, and what it was asked to do."""

    def __init__(self, *args: Any) -> None:
        self.args, self.heard, self.registered, self.done = args, [], {}, []

    def _register_backend(self, device: Any, kind: str, backend: Any = None) -> None:
        self.registered[device.type] = backend

    def allreduce(self, tensors: list[Any], opts: Any = None) -> str:
        self.done.append(tensors)
        return "work"

    def send(self, tensors: list[Any], peer: int, tag: int) -> str:
        self.done.append((tensors, peer, tag))
        return "work"

    recv = send

    def shutdown(self) -> None:
        self.done.append("shutdown")


for name in ("_set_default_backend", "_set_group_name", "_set_group_desc", "_enable_collectives_timing"):
    setattr(Group, name, lambda self, *args, name=name: self.heard.append((name, args)))


class Work:
    def __init__(self, inner: Any, message: bool = False) -> None:
        self.inner = inner


class PrefixStore:
    def __init__(self, prefix: str, base: Any) -> None:
        self.prefix, self.base = prefix, base


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch.distributed.distributed_c10d with a helper that makes groups as torch 2.8's does."""
    c10d = SimpleNamespace(ProcessGroup=Group, PrefixStore=PrefixStore)
    module = SimpleNamespace(ProcessGroup=Group, ProcessGroupGloo=Backend)

    def helper(
        group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: str, group_name: str
    ) -> Any:
        group = module.ProcessGroup("store", group_rank, group_size)
        group._set_default_backend("gloo")
        for number, device in enumerate((CPU, CUDA)):
            if number == 0 or backend == "each":
                made = module.ProcessGroupGloo("base", group_rank, group_size, timeout=7)
                assert isinstance(made, module.ProcessGroupGloo)
            group._register_backend(device, "gloo", made)
        group._set_group_name(group_name)
        return group

    module._new_process_group_helper = helper
    module._create_process_group_wrapper = lambda wrapped_pg, store_prefix, store: ("checked", wrapped_pg, store)
    for name, value in {"backends": [], "destroyed": []}.items():
        monkeypatch.setattr(groups, name, value)
    gate.forget()
    lanes.install(module, c10d, swap_group.make_group_class(Group, Work, Work))
    yield module
    gate.forget()


def make(module: Any, backend: str = "gloo", name: str = "0") -> Any:
    return module._new_process_group_helper(2, 1, [4, 6], backend, group_name=name)


def test_a_stand_in_is_the_class_to_whoever_checks_or_derives() -> None:
    class Ours(Group):
        pass

    made = stand_in(Group, lambda *args: plain(made, Group, *args), Ours)
    assert type(made(1, 2)) is made and isinstance(made(1, 2), Ours) and isinstance(made(1, 2), Group)
    assert isinstance(Group(), made) and not isinstance(3, made)
    assert made == Group and made != Backend and len({made, Group}) == 1
    assert issubclass(Ours, made) and not issubclass(Backend, made)

    class Theirs(made):  # type: ignore[valid-type, misc]
        pass

    assert type(Theirs()) is Theirs and Theirs.__mro__[1] is Group
    assert made.__name__ == "Group" and made.send is Group.send


def test_a_group_that_torch_makes_is_ours_and_one_of_the_script_is_not(module: Any) -> None:
    group = make(module)
    assert isinstance(group, Group) and type(group) is not Group
    assert operator.eq(type(group), module.ProcessGroup), "as torch asks"
    assert type(group) is module.ProcessGroup, "as torch 2.11 asks before it issues a batch as one"
    assert type(module.ProcessGroup(1, 2)) is Group and type(module.ProcessGroupGloo("s", 0, 1)) is Backend
    (lane,) = groups.backends
    assert (lane.channel, lane.group, lane.ranks, lane.own) == ("0/gloo/0", "0", (4, 6), 1)
    assert gate.channels() == {"0/gloo/0": (1, (4, 6))}, "its creation counts"
    assert group.inner.registered == {"cpu": lane.inner, "cuda": lane.inner}
    assert [device.type for device in group._device_types] == ["cpu", "cuda"]
    assert group.group_name == group.getGroupName() == "0"


def test_what_is_made_anew_is_told_what_the_last_one_was(module: Any) -> None:
    group = make(module)
    group.bound_device_id = CUDA
    group._enable_collectives_timing()
    (lane,) = groups.backends
    lane.inner._set_default_timeout(99)
    first, real = lane.inner, group.inner
    groups.drop()
    assert group.inner is None and lane.inner is None
    lane.inner = lane.make(7)
    assert group.inner is not real and lane.inner is not first
    assert group.inner.heard == [
        ("_set_default_backend", ("gloo",)), ("_set_group_name", ("0",)), ("_enable_collectives_timing", ()),
    ]  # fmt: skip
    assert group.inner.args == ("store", 1, 2) and group.inner.bound_device_id is CUDA
    assert group.inner.registered == {"cpu": lane.inner, "cuda": lane.inner}
    assert lane.inner.base.prefix == f"{store.OURS}7" and lane.inner.base.base == "base"
    assert lane.inner.options.global_ranks_in_group == [4, 6] and lane.inner.numbered == 1
    assert lane.inner.options._timeout == 99, "set by the script"


def test_an_operation_counts_on_the_lane_of_its_tensors(module: Any) -> None:
    group = make(module, "each")
    assert [lane.channel for lane in groups.backends] == ["0/gloo/0", "0/gloo/1"]
    on = {device.type: [SimpleNamespace(device=device)] for device in (CPU, CUDA)}
    work = group.allreduce(on["cuda"], opts="o")
    group.allreduce([on["cpu"]])
    group.allreduce([])
    assert isinstance(work, Work) and work.inner == "work" and len(group.inner.done) == 3
    group.send(on["cuda"], 0, 5)
    counted = {channel: count for channel, (count, _) in gate.channels().items()}
    assert counted == {"0/gloo/0": 3, "0/gloo/1": 2, "0/gloo/1:1>0": 1}
    assert gate.channels()["0/gloo/1:1>0"] == (1, (6, 4)) and gate.idle()


def test_a_group_that_another_rank_has_destroyed_says_so(module: Any) -> None:
    group, other = make(module), make(module, name="1")
    groups.destroy("0")
    with pytest.raises(RuntimeError, match="allreduce: a rank of this process group has destroyed it"):
        group.allreduce([])
    group.shutdown()
    assert isinstance(group.inner, Gone) and [lane.group for lane in groups.backends] == ["1"]
    other.shutdown()
    assert other.inner.done == ["shutdown"]


def test_the_wrapper_for_debugging_is_dropped_and_made_with_its_backend(module: Any) -> None:
    lanes.making.group, lanes.making.ranks, lanes.making.lanes = "0", (4, 6), {}
    try:
        backend = module.ProcessGroupGloo("base", 1, 2)
        wrapped = module._create_process_group_wrapper(backend, "0", store="base")
        (lane,) = lanes.making.lanes.values()
    finally:
        lanes.making.group, lanes.making.ranks, lanes.making.lanes = "", (), {}
    assert wrapped == ("checked", backend, "base") and lane.inner is wrapped
    kind, inner, below = lane.make(3)
    assert (kind, inner.base.prefix, below.prefix) == ("checked", f"{store.OURS}3", f"{store.OURS}3")
