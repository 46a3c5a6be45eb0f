"""Each collective twice: on a stock group, and on one whose ranks share devices. argv: layouts, as `0011 0000`.

The n-th letter of a layout names the device of rank n. Whole numbers in floating point: every order of a sum is exact.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
OPS = ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")


def values(rank, dtype, n=12, seed=0):
    """Whole numbers that no product of four overflows."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(0, 4, (n,), generator=generator).to(dtype)


def reductions(group, rank, world):
    for dtype in TYPES:
        for name in OPS:
            if name[0] == "B" and dtype.is_floating_point:
                continue
            op = getattr(dist.ReduceOp, name)
            tensor = values(rank, dtype)
            dist.all_reduce(tensor, op, group=group)
            yield f"all_reduce {dtype} {name}", tensor
            tensor = values(rank, dtype)
            dist.reduce(tensor, 1, op, group=group)
            if rank == 1:
                yield f"reduce {dtype} {name}", tensor
            if name in ("SUM", "MAX"):
                output = torch.empty(3, dtype=dtype)
                dist.reduce_scatter_tensor(output, values(rank, dtype), op, group=group)
                yield f"reduce_scatter_tensor {dtype} {name}", output
                output = torch.empty((3, 1), dtype=dtype)
                dist.reduce_scatter(output, list(values(rank, dtype).view(4, 3, 1)), op, group=group)
                yield f"reduce_scatter {dtype} {name}", output
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, group=group)
    yield "all_reduce of a scalar", scalar
    wide = values(rank, torch.float32).view(3, 4).t()
    dist.all_reduce(wide, group=group)
    yield "all_reduce of a transposed one", wide
    parameter = nn.Parameter(values(rank, torch.float32))
    dist.all_reduce(parameter.data, group=group)
    yield "all_reduce of a parameter", parameter.data
    empty = torch.empty(0)
    dist.all_reduce(empty, group=group)
    several = [values(rank, torch.float32), values(rank, torch.float32, 5)]
    dist.all_reduce_coalesced(several, group=group)
    yield from ((f"all_reduce_coalesced {n}", tensor) for n, tensor in enumerate(several))


def moves(group, rank, world):
    for dtype in (*TYPES, torch.bool, torch.complex64):
        for root in range(world):
            tensor = values(rank, dtype, seed=root)
            dist.broadcast(tensor, root, group=group)
            yield f"broadcast {dtype} from {root}", tensor
        parts = [torch.empty((2, 6), dtype=dtype) for _ in range(world)]
        dist.all_gather(parts, values(rank, dtype).view(2, 6), group=group)
        yield f"all_gather {dtype}", torch.stack(parts)
        whole = torch.empty(12 * world, dtype=dtype)
        dist.all_gather_into_tensor(whole, values(rank, dtype), group=group)
        yield f"all_gather_into_tensor {dtype}", whole
    mine = values(rank, torch.float32)
    for root in range(world):
        found = [torch.empty(12) for _ in range(world)] if rank == root else None
        dist.gather(mine, found, root, group=group)
        if found:
            yield f"gather to {root}", torch.stack(found)
        given = [mine + n for n in range(world)] if rank == root else None
        part = torch.empty(12)
        dist.scatter(part, given, root, group=group)
        yield f"scatter from {root}", part
    output = torch.empty(12)
    dist.all_to_all_single(output, mine, group=group)
    yield "all_to_all_single", output
    sizes = [1, 2, 3, 4]
    output = torch.empty(world * sizes[rank], 2)
    dist.all_to_all_single(output, torch.arange(20.0).view(10, 2) + rank, [sizes[rank]] * world, sizes, group=group)
    yield "all_to_all_single, uneven", output
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (5 + rank)}, group=group)
    yield "all_gather_object", torch.tensor([o["rank"] + len(o["text"]) for o in objects])
    with dist._coalescing_manager(group=group):
        whole = [torch.empty(4 * n) for n in (2, 3)]
        for tensor, n in zip(whole, (2, 3), strict=True):
            dist.all_gather_into_tensor(tensor, values(rank, torch.float32, n), group=group)
    yield "coalesced all_gather", torch.cat(whole)
    with dist._coalescing_manager(group=group):
        whole = [torch.empty(n) for n in (2, 3)]
        for tensor, n in zip(whole, (2, 3), strict=True):
            dist.reduce_scatter_tensor(tensor, values(rank, torch.float32, 4 * n), group=group)
    yield "coalesced reduce_scatter", torch.cat(whole)


def messages(group, rank, world):
    """A ring, all sends first; then in one batch; then from whoever sends."""
    right, left = (rank + 1) % world, (rank - 1) % world
    found = torch.empty(3, 4)
    waits = [dist.isend(values(rank, torch.float32).view(3, 4), right, group=group)]
    waits += [dist.irecv(found, left, group=group)]
    for each in waits:
        each.wait()
    yield "ring", found
    found = torch.empty(12, dtype=torch.bfloat16)
    mine = values(rank, torch.bfloat16)
    both = [dist.P2POp(dist.isend, mine, right, group), dist.P2POp(dist.irecv, found, left, group)]
    for each in dist.batch_isend_irecv(both):
        each.wait()
    yield "batch", found
    if rank == 0:
        dist.send(mine, 3, group=group, tag=7)
    elif rank == 3:
        assert dist.recv(found, None, group=group, tag=7) == 0
        yield "from any rank", found


def asynchronous(group, rank, world):
    """Issued together, waited for late and in another order, read by their futures."""
    tensors = [values(rank, torch.float32, seed=n) for n in range(5)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
    yield "five all_reduce", torch.stack(tensors)
    future = dist.all_reduce(values(rank, torch.float32), group=group, async_op=True).get_future()
    yield "future", future.then(lambda done: done.value()[0] * 2).wait()
    early = dist.all_reduce(late := values(rank, torch.float32), group=group, async_op=True) if rank == 0 else None
    if rank == 0:  # a message between issuing and waiting, which the peer wants before it issues its part
        dist.send(torch.ones(2), 1, group=group)
    elif rank == 1:
        dist.recv(torch.empty(2), 0, group=group)
    early = early or dist.all_reduce(late := values(rank, torch.float32), group=group, async_op=True)
    early.wait()
    yield "all_reduce around a message", late
    dist.barrier(group=group)
    dist.monitored_barrier(group=group)


def modules(group, rank, world):
    torch.manual_seed(1)
    plain = nn.Linear(4, 2)
    net = DistributedDataParallel(plain, process_group=group)
    net(values(rank, torch.float32, 8).view(2, 4)).sum().backward()
    yield "gradients of DDP", plain.weight.grad


def order(group, rank, stock, layout):
    """Sums of numbers that do not add up exactly: the same bits every time and everywhere, neighbours first."""
    torch.manual_seed(rank)
    mine = torch.randn(1000)
    parts = [torch.empty(1000) for _ in range(4)]
    dist.all_gather(parts, mine, group=stock)
    sums = [mine.clone() for _ in range(10)]
    for work in [dist.all_reduce(total, group=group, async_op=True) for total in sums]:
        work.wait()
    everyone = [torch.empty(1000) for _ in range(4)]
    dist.all_gather(everyone, sums[0], group=stock)
    for total in (*sums, *everyone):
        assert torch.equal(total, sums[0]), "a sum depends on more than the layout"
    pieces = torch.empty(250)
    dist.reduce_scatter_tensor(pieces, mine, group=group)
    if layout in ("0011", "0000"):  # blocks of neighbours on at most two devices
        wanted = (parts[0] + parts[1]) + (parts[2] + parts[3])
        assert torch.equal(sums[0], wanted)
        assert torch.equal(pieces, wanted[250 * rank : 250 * rank + 250])


def patience(group, rank, stock):
    """A wait with an end of its own gives up, and the operation goes on."""
    if rank == 0:
        work = dist.all_reduce(late := torch.ones(2), group=group, async_op=True)
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            assert "Timed out waiting 0.050 s" in str(error)
        else:
            raise AssertionError("nobody else has issued it")
    dist.barrier(group=stock)
    if rank:
        work = dist.all_reduce(late := torch.ones(2), group=group, async_op=True)
    work.wait()
    assert late.tolist() == [4.0, 4.0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stock = dist.new_group()
    parts = (reductions, moves, messages, asynchronous, modules)
    expected = {name: value for part in parts for name, value in part(stock, rank, world)}
    mesh = init_device_mesh("cpu", (world,))
    sharded = DTensor.from_local(values(rank, torch.float32), mesh, [Shard(0)]).full_tensor()
    for layout in sys.argv[1:]:
        os.environ["SINGULARITY_DEVICE"] = layout[rank]
        group = dist.new_group()
        found = {name: value for part in parts for name, value in part(group, rank, world)}
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert torch.equal(value, expected[name]), f"{layout}: {name}: {value}, wanted {expected[name]}"
        for op in (dist.ReduceOp.AVG, dist._make_nccl_premul_sum(1 / world)):  # gloo has neither
            mean = values(rank, torch.float32)
            dist.all_reduce(mean, op, group=group)
            assert torch.equal(mean, expected["all_reduce torch.float32 SUM"] / world)
        whole = values(rank, torch.int64)
        dist.all_reduce(whole, dist.ReduceOp.AVG, group=group)
        assert torch.equal(whole, expected["all_reduce torch.int64 SUM"] // world)
        mesh = init_device_mesh("cpu", (world,))
        mine = DTensor.from_local(values(rank, torch.float32), mesh, [Shard(0)])
        assert torch.equal(mine.full_tensor(), sharded)
        order(group, rank, stock, layout)
        patience(group, rank, stock)
        print(layout, len(found), "alike", flush=True)
        del os.environ["SINGULARITY_DEVICE"]
    dist.destroy_process_group()


main()
