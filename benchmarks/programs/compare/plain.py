"""A plain DDP training script. Nothing in it knows of checkpoints. argv: width of the model, steps."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
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


def main():
    width, steps = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DistributedDataParallel(network(width))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    data = Rows(width)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    step = 0
    while step < steps:
        sampler.set_epoch(step // len(loader))
        for batch in loader:
            loss = net(batch).sub(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            say(step, loss)
            if step == steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
