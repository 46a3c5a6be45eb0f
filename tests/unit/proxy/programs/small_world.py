"""A small script that uses what the agent wraps: DDP, a second group, messages, works over boundaries, the store, a
forked child, a thread with collectives. Knows nothing of the agent. `main` returns its last weights."""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 14


def beside(group, end):
    beats = 0
    while True:
        last = torch.tensor([float(end.is_set())])
        dist.all_reduce(last, op=dist.ReduceOp.MIN, group=group)
        store = dist.distributed_c10d._get_default_store()
        store.set(f"beat/{dist.get_rank()}", str(beats))
        store.get(f"beat/{1 - dist.get_rank()}")
        beats += 1
        if last.item():
            return
        time.sleep(0.01)


def child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group()
    end = threading.Event()
    thread = threading.Thread(target=beside, args=(group, end))
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    store = dist.distributed_c10d._get_default_store()
    held = None
    for step in range(STEPS):
        if step == STEPS // 2:
            thread.start()
        loss = (net(torch.full((2, 4), 0.1 * (step + rank))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if held is not None:
            work, value = held
            work.wait()
            assert value.item() == 2 * (step - 1) + 1, (value, step)
        value = torch.tensor([float(step + rank)])
        held = dist.all_reduce(value, async_op=True), value
        other = torch.zeros(1)
        if rank == 0:
            dist.send(torch.tensor([float(step)]), 1)
        else:
            dist.recv(other, 0)
            assert other.item() == step
        store.add("steps", 1)
        if step in (1, STEPS - 2):
            child()
        time.sleep(0.02)
    held[0].wait()
    end.set()
    thread.join()
    dist.barrier()
    assert store.add("steps", 0) == 2 * STEPS
    dist.barrier()
    weights = [value.double().sum().item().hex() for value in net.state_dict().values()]
    dist.destroy_process_group()
    return " ".join(weights)
