"""DDP, and beside it a thread with collectives and messages of its own, all the time, at its own pace. argv: steps."""

import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def beat(group, end, sums):
    rank, world = dist.get_rank(), dist.get_world_size()
    beats = 0
    while True:
        # All leave it together: whoever trains longest says so.
        last = torch.tensor([float(end.is_set())])
        dist.all_reduce(last, op=dist.ReduceOp.MIN, group=group)
        value = torch.tensor([float(beats + rank)])
        dist.all_reduce(value, group=group)
        assert value.item() == world * beats + world * (world - 1) / 2, (value, beats)
        told = torch.zeros(1)
        if rank % 2:
            dist.send(value, rank - 1, group=group)
        elif rank + 1 < world:
            dist.recv(told, rank + 1, group=group)
            assert told.item() == value.item()
        beats += 1
        sums.append(value.item())
        if last.item():
            return
        time.sleep(0.001 * (1 + rank))


def main():
    dist.init_process_group("gloo")
    group = dist.new_group()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    end, sums = threading.Event(), []
    thread = threading.Thread(target=beat, args=(group, end, sums))
    thread.start()
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        log.write(f"{step} {loss.item().hex()}\n")
    end.set()
    thread.join()
    assert len(sums) > 10
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
