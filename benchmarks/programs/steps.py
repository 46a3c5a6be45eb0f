"""A plain DDP training loop that makes as many steps as its arguments ask for, and says how long they took."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


def hook_cost(calls):
    """CPU nanoseconds of torch's loop over its global post-step hooks: with what is registered, and with none."""
    from torch.optim import optimizer as module

    hooks = module._global_optimizer_post_hooks

    def run(table):
        started = time.thread_time_ns()
        for _ in range(calls):
            for hook in table.values():
                hook(None, (), {})
        return (time.thread_time_ns() - started) / calls

    return {"agent": run(hooks), "empty": run({})}


def collective_cost(calls):
    """CPU nanoseconds of a small all-reduce, of all threads of this rank, which is the only one."""
    tensor = torch.zeros(16)
    started = time.process_time_ns()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return {"all_reduce": (time.process_time_ns() - started) / calls}


class Switch:
    """Takes the agent out of the running script (the hook at step boundaries, the backend around the stock one) and
    puts it back. So both sides have the same process, memory and data. With a torch before 2.14 the group itself is
    ours, and a reducer keeps its group: there each side has a net of its own."""

    def __init__(self, sides):
        from torch.optim import optimizer as module

        self.table = module._global_optimizer_post_hooks
        self.hooks = dict(self.table)
        self.sides = sides
        world = dist.group.WORLD
        self.ours = None if hasattr(world, "inner") else world._get_backend(CPU)
        assert self.hooks and (self.ours is None or hasattr(self.ours, "inner")), "the agent is not in this process"
        self.set(True)

    def set(self, on):
        self.table.clear()
        self.table.update(self.hooks if on else {})
        if self.ours is None:
            self.sides.use(on)
            return
        types = dist.ProcessGroup.BackendType
        kind, backend = (types.CUSTOM, self.ours) if on else (types.GLOO, self.ours.inner)
        dist.group.WORLD._register_backend(CPU, kind, backend)
        assert dist.group.WORLD._get_backend(CPU) is backend, "the group did not take the backend"


class Sides:
    """The net that trains: one, or with `use` one of two, on our group and on the stock one in it."""

    def __init__(self, width):
        self.width = width
        self.made = {}
        self.use(True)

    def use(self, ours):
        if ours not in self.made:
            self.made[ours] = self._net(None if ours else dist.group.WORLD.inner)
        self.net, self.optimizer = self.made[ours]

    def _net(self, group):
        width = self.width
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        net = nn.Sequential(nn.Embedding(64, width), layer, nn.Linear(width, 64))
        net = DistributedDataParallel(net, process_group=group)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


def main():
    switch = None
    dist.init_process_group("gloo")
    sides = Sides(int(sys.argv[1]))
    torch.manual_seed(100 + dist.get_rank())

    def step():
        net, optimizer = sides.net, sides.optimizer
        batch = torch.randint(0, 64, (8, 33))
        loss = nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for line in sys.stdin:
        order, number = line.split()
        if order == "agent":
            switch = switch or Switch(sides)
            switch.set(number == "on")
            print("{}", flush=True)
            continue
        if order in ("hook", "collective"):
            cost = hook_cost if order == "hook" else collective_cost
            print(json.dumps(cost(int(number))), flush=True)
            continue
        dist.barrier()
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(number)):
            step()
        taken = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
        print(json.dumps(taken), flush=True)


main()
