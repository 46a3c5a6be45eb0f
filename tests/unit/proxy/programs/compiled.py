"""DDP around a compiled model. argv: steps, backend of torch.compile."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    run = torch.compile(net, backend=sys.argv[2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        loss = (run(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        log.write(f"{step} {loss.item().hex()}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
