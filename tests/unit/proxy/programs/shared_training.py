"""The same training twice in one process: undisturbed, and while somebody stops the ranks. argv: steps, tolerance.

DDP and FSDP2, each with its optimizer, on the default group. The second pass must give the losses of the first, to a
relative `tolerance` (0: every bit).
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).double()


def train(steps, pause):
    rank, world = dist.get_rank(), dist.get_world_size()
    replicated = DistributedDataParallel(net(1))
    sharded = net(2)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (replicated, sharded)]
    data = torch.Generator().manual_seed(10 + rank)
    for _ in range(steps):
        losses = []
        for model, optimizer in zip((replicated, sharded), optimizers, strict=True):
            batch = torch.randn(4, 8, generator=data, dtype=torch.float64)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        mean = torch.tensor(losses, dtype=torch.float64)
        work = dist.all_reduce(mean, async_op=True)
        time.sleep(pause)
        work.wait()
        yield [*losses, *mean.tolist()]


def main():
    steps, tolerance = int(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    wanted = list(train(steps, 0))
    worst = 0.0
    with open("losses", "w", buffering=1) as log:
        for step, (found, expected) in enumerate(zip(train(steps, 0.02), wanted, strict=True)):
            apart = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
            worst = max(worst, apart)
            log.write(f"{step} {apart}\n")
    print("apart at most", worst, flush=True)
    assert worst <= tolerance, f"losses are apart by {worst}, allowed {tolerance}"
    dist.destroy_process_group()


main()
