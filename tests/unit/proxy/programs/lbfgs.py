"""LBFGS: one step() calls the closure, and so DDP's all-reduce, many times. argv: steps."""

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
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(16, 8)

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = (net(batch) - batch).square().mean()
            loss.backward()
            loss = loss.detach()
            dist.all_reduce(loss)  # the line search must decide alike everywhere
            return loss

        time.sleep(0.01)
        log.write(f"{step} {optimizer.step(closure).item().hex()}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
