"""What scripts do with torch.distributed besides DDP, with its results printed. Knows nothing of checkpoints.

argv: steps, pause between steps (seconds), a free port: there the first groups meet. A script that destroys all its
groups and meets again at the same port would race: one rank may be back before rank 0 has closed the first store.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def every_collective(rank, world, group, step):
    """A number that depends on the result of each."""
    mine = torch.arange(4.0) + rank + step
    total = mine.clone()
    dist.all_reduce(total)
    work = dist.all_reduce(mine.clone(), async_op=True)
    work.wait()
    assert work.is_completed()
    parts = [torch.empty(4) for _ in range(world)]
    dist.all_gather(parts, mine)
    flat = torch.empty(4 * world)
    dist.all_gather_into_tensor(flat, mine)
    piece = torch.empty(4 // world)
    dist.reduce_scatter_tensor(piece, mine)
    sent = mine.clone() if rank == 0 else torch.empty(4)
    dist.broadcast(sent, 0)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "step": step})
    out = torch.empty(4)
    dist.all_to_all_single(out, mine)
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        dist.recv(out, 0)
    sub = mine.clone()
    dist.all_reduce(sub, op=dist.ReduceOp.MAX, group=group)
    dist.monitored_barrier()
    dist.barrier(group=group)
    numbers = [total, flat, piece, sent, out, sub, torch.stack(parts)]
    return sum(t.double().sum().item() for t in numbers) + sum(o["step"] for o in objects)


def main():
    steps, pause = int(sys.argv[1]), float(sys.argv[2])
    ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", **ranks)
    assert dist.get_backend() == "gloo"
    dist.destroy_process_group()  # and once more: what was made first must be gone
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(world)))
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)))
    sharded = nn.Linear(8, 8)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.SGD([*ddp.parameters()], lr=0.1, momentum=0.9)
    second = torch.optim.Adam(sharded.parameters(), lr=0.01)
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(64, 8))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    step, work, pending, late = 0, None, None, None
    while step < steps:
        for (batch,) in loader:
            for micro in batch.chunk(2):  # gradient accumulation
                loss = sharded(ddp(micro)).square().mean()
                loss.backward()
            optimizer.step()
            if step:
                pending.wait()
                log.write(f"late {late.tolist()} {work.is_completed()}\n")
            second.step()
            optimizer.zero_grad()
            second.zero_grad()
            held = torch.ones(2)
            work = dist.all_reduce(held, async_op=True)
            work.wait()  # the Work lives on over the next boundary
            late = torch.full((2,), float(step))
            pending = dist.all_reduce(late, async_op=True)  # is waited for after the next boundary
            log.write(f"{step} {loss.item().hex()} {every_collective(rank, world, group, step).hex()}\n")
            time.sleep(pause)
            step += 1
            if step >= steps:
                break
    pending.wait()
    print("stops", os.environ["MASTER_PORT"], flush=True)
    dist.destroy_process_group()
    own = {str(entry.readlink()) for entry in descriptors()}
    with open("/proc/self/net/tcp") as table:
        left = [line for line in table if f"socket:[{line.split()[9]}]" in own]
    assert not left, f"destroy_process_group left sockets open: {left}"


def descriptors():
    """Open descriptors, without the one that lists them."""
    return [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


if __name__ == "__main__":
    main()
