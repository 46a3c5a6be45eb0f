"""Groups that are made, used and destroyed all along; on rank 1 every other one lives a step longer. argv: steps."""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def held():
    gc.collect()
    return [len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task")]


def main():
    steps = int(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks = list(range(world))
    lasting = dist.new_group(ranks)
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    losses = open("losses", "a", buffering=1)  # noqa: SIM115
    late = None
    counted = []
    for step in range(steps):
        group = dist.new_group(ranks)
        total = torch.full((4,), float(rank + step))
        dist.all_reduce(total, group=group)
        work = dist.all_reduce(total, group=lasting, async_op=True)
        if late is not None:
            dist.destroy_process_group(late)
            late = None
        if rank == 1 and step % 2:
            late = group
        else:
            dist.destroy_process_group(group)
        work.wait()
        weights.grad = total
        optimizer.step()
        losses.write(f"{step} {weights.sum().item()}\n")
        if not step % 25:
            counted.append(held())
    if late is not None:
        dist.destroy_process_group(late)
    counted.append(held())
    early, last = counted[0], counted[-1]
    more = [after - before for before, after in zip(early, last, strict=True)]
    print(f"rank {rank}: descriptors and threads {early}, {last}: {more[0]} and {more[1]} more", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
