"""Gradient accumulation under `no_sync`: the body's gradients are summed over ranks with the last of 8 micro-batches.

The head steps after every micro-batch: a rank that is stopped there holds gradients that no other has. argv: steps.
"""

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO = 8


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)))
    head = DistributedDataParallel(nn.Linear(8, 8))
    slow = torch.optim.AdamW(body.parameters(), lr=1e-2)
    fast = torch.optim.SGD(head.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        for micro in range(MICRO):
            batch = torch.randn(4, 8)
            with body.no_sync() if micro < MICRO - 1 else contextlib.nullcontext():
                loss = (head(body(batch)) - batch).square().mean()
                loss.backward()
            fast.step()
            fast.zero_grad()
            held = body.module[0].weight.grad.double().sum().item().hex()
            log.write(f"{step}.{micro} {loss.item().hex()} {held}\n")
            time.sleep(0.01)
        slow.step()
        slow.zero_grad()
    for net in (body, head):
        for name, value in net.state_dict().items():
            log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
