"""`plain.py` with checkpoints by `torch.distributed.checkpoint.async_save`. One more argument: steps between two."""

import itertools
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset):
    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.randn(self.width, generator=torch.Generator().manual_seed(index))


def network(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, width))


def say(step, loss):
    if os.environ["RANK"] == "0":
        print(f"step {step} loss {loss.item().hex()} at {time.time():.4f}", flush=True)


def states(rank, net, optimizer, step):
    of_net, of_optimizer = get_state_dict(net, optimizer)
    own = torch.get_rng_state()
    return {"net": of_net, "optimizer": of_optimizer, "step": torch.tensor(step), f"random-{rank}": own}


def load(rank, net, optimizer):
    complete = [path.parent for path in Path("out").glob("step-*/.metadata")]
    if not complete:
        return 0, None
    found = states(rank, net, optimizer, 0)
    dcp.load(found, checkpoint_id=max(complete, key=lambda path: int(path.name.split("-")[1])))
    set_state_dict(net, optimizer, model_state_dict=found["net"], optim_state_dict=found["optimizer"])
    return int(found["step"]), found[f"random-{rank}"]


def main():
    width, steps, every = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DistributedDataParallel(network(width))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    data = Rows(width)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    step, random = load(rank, net, optimizer)
    group, pending = dist.new_group(backend="gloo"), None
    while step < steps:
        sampler.set_epoch(step // len(loader))
        for batch in itertools.islice(loader, step % len(loader), None):
            if random is not None:
                torch.set_rng_state(random)
                random = None
            loss = net(batch).sub(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            say(step, loss)
            if step % every == 0:
                if pending is not None:
                    pending.result()
                found = states(rank, net, optimizer, step)
                pending = dcp.async_save(found, checkpoint_id=f"out/step-{step}", process_group=group)
            if step == steps:
                break
    if pending is not None:
        pending.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
