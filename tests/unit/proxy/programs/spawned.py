"""DDP whose ranks are started by mp.spawn, in each process that the launcher starts. argv: steps, processes."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(local, steps, processes, node, nodes):
    dist.init_process_group("gloo", rank=node * processes + local, world_size=nodes * processes)
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    log = open("losses", "a", buffering=1) if local == 0 else None  # noqa: SIM115
    for step in range(steps):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, loss.item().hex())
        time.sleep(0.01)
        if log:
            log.write(f"{step} {' '.join(every)}\n")
    if log:
        for name, value in net.state_dict().items():
            log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    steps, processes = int(sys.argv[1]), int(sys.argv[2])
    node, nodes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if nodes == 1:  # as in a plain shell
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29512"
    mp.spawn(train, (steps, processes, node, nodes), processes)
