"""After a few steps each rank evaluates for long, alone and in plain Python: no optimizer, no collective.

argv: rounds.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115

    def train():
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"train {loss.item().hex()}\n")

    train()
    for part in range(int(sys.argv[1])):
        total = 0.0
        with torch.no_grad():
            for _ in range(500):
                batch = torch.randn(4, 8)
                total += (net.module(batch) - batch).square().mean().item()
        log.write(f"{part} {total.hex()}\n")
    train()
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
