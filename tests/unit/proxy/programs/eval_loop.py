"""DDP with an evaluation after each epoch, much longer than the epoch. argv: epochs."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for epoch in range(int(sys.argv[1])):
        net.train()
        for _ in range(3):
            batch = torch.randn(4, 8)
            loss = (net(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{epoch} {loss.item().hex()}\n")
        net.eval()
        total = torch.zeros(2)
        with torch.no_grad():
            for _ in range(250):
                time.sleep(0.02)
                batch = torch.randn(4, 8)
                total += torch.tensor([(net(batch) - batch).square().mean().item(), 1])
                dist.all_reduce(total)
                total /= dist.get_world_size()
        log.write(f"{epoch} eval {total[0].item().hex()} {total[1].item().hex()}\n")
    dist.destroy_process_group()


main()
