"""Uneven inputs under `Join`: rank r has r batches more in each epoch; who has none left shadows the others.

argv: epochs.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for epoch in range(int(sys.argv[1])):
        with Join([net]):
            for _ in range(3 + rank):
                batch = torch.randn(4, 8)
                loss = (net(batch) - batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.05)
                log.write(f"{epoch} {loss.item().hex()}\n")
        # Whoever joined early has not made the last steps: start the next epoch with the same weights.
        with torch.no_grad():
            for value in net.module.parameters():
                dist.broadcast(value, dist.get_world_size() - 1)
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
