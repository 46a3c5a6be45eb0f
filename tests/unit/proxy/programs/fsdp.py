"""FSDP2 with accumulated gradients, sub-groups, and collectives that are waited for later. argv: steps; four ranks."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

ACCUMULATED = 2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    pair = pairs[rank // 2]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    body = torch.optim.AdamW(net[0].parameters(), lr=1e-2)
    head = torch.optim.SGD(net[2].parameters(), lr=1e-2, momentum=0.9)
    torch.manual_seed(1 + rank)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    seen = torch.zeros(())
    for step in range(int(sys.argv[1])):
        for part in range(ACCUMULATED):
            net.set_requires_gradient_sync(part == ACCUMULATED - 1)
            batch = torch.randn(4, 8)
            loss = (net(batch) - batch).square().mean()
            loss.backward()
        told = loss.detach().clone()
        work = dist.all_reduce(told, group=pair, async_op=True)
        everybody = [torch.zeros(()) for _ in range(world)]
        other = dist.all_gather(everybody, loss.detach(), async_op=True)
        body.step()
        body.zero_grad()
        head.step()
        head.zero_grad()
        work.wait()
        other.wait()
        seen = seen * 0.5 + torch.stack(everybody).sum()
        time.sleep(0.01)
        log.write(f"{step} {loss.item().hex()} {told.item().hex()} {seen.item().hex()}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.full_tensor().double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
