"""A script that keeps things in the default store: settings, counters, a ballot, a list. argv: steps."""

import datetime
import sys

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore


def main():
    steps = int(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    mine = PrefixStore(f"mine/{rank}", store)
    if rank == 0:
        store.set("settings", b"\x00rate=0.1\xff")
        store.set("gone", "soon")
        store.delete_key("gone")
    elected = store.compare_set("ballot", "", f"rank {rank}")
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for step in range(steps):
        weights.grad = torch.ones(4)
        dist.all_reduce(weights.grad)
        optimizer.step()
        store.add("steps", 1)
        mine.set("last", str(step))
        store.append(f"order {rank}", f"{step} ")
        if step % world == rank:
            assert store.compare_set("baton", str(step - 1) if step else "", str(step)) == str(step).encode()
        store.wait([f"mine/{(rank + 1) % world}/last"], datetime.timedelta(seconds=30))
    dist.barrier()
    assert store.get("settings") == b"\x00rate=0.1\xff" and not store.check(["gone"])
    assert store.get("ballot") == elected
    assert store.add("steps", 0) == steps * world, store.get("steps")
    assert [store.get(f"mine/{r}/last") for r in range(world)] == [str(steps - 1).encode()] * world
    order = "".join(f"{n} " for n in range(steps)).encode()
    assert [store.get(f"order {r}") for r in range(world)] == [order] * world
    print(f"rank {rank}: all as it was", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
