"""A gradient scaler that skips steps, on one rank only: gradients are averaged by hand, after the check.

argv: steps.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    torch.manual_seed(1 + rank)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        optimizer.zero_grad()
        loss = (net(batch) - batch).square().mean()
        scaler.scale(loss).backward()
        if rank == 1 and step % 4 == 1:
            net[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for value in net.parameters():
                dist.all_reduce(value, op=dist.ReduceOp.SUM)
                value /= dist.get_world_size()
        time.sleep(0.05)
        log.write(f"{step} {loss.item().hex()} {scaler.get_scale()}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
