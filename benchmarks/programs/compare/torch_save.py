"""`plain.py` with checkpoints of its own, from which torchrun starts it anew. One more argument: steps between two."""

import itertools
import os
import sys
import time
from pathlib import Path

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


def save(rank, net, optimizer, step):
    folder = Path(f"out/step-{step}")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(torch.get_rng_state(), folder / f"random-{rank}.pt")
    if rank == 0:
        states = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(states, folder / "states.pt")
    dist.barrier()
    if rank == 0:
        Path("out/latest.tmp").write_text(str(folder))
        Path("out/latest.tmp").replace("out/latest")


def load(rank, net, optimizer):
    if not Path("out/latest").exists():
        return 0, None
    folder = Path(Path("out/latest").read_text())
    states = torch.load(folder / "states.pt")
    net.module.load_state_dict(states["net"])
    optimizer.load_state_dict(states["optimizer"])
    return states["step"], torch.load(folder / f"random-{rank}.pt")


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
                save(rank, net, optimizer, step)
            if step == steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
