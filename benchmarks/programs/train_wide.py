"""A DDP script whose trained state has the size that is asked for. argv: width of the model, data loader workers.

Parameters: about 2 * width^2; with gradients and Adam's two moments 32 * width^2 bytes.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset):
    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(self.width, generator=torch.Generator().manual_seed(index))


def main():
    width, workers = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)))
    torch.manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = Rows(width)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            optimizer.zero_grad()
            net(batch).sub(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":  # its data loader workers import this file again
    main()
