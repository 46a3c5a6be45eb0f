"""DDP fed by worker processes that are several batches ahead, with random augmentation in them. argv: steps."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((8,), index / 96) + 0.1 * torch.randn(8)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = Noisy()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(
        data, batch_size=4, sampler=sampler, num_workers=2, prefetch_factor=4, pin_memory=True,
        generator=torch.Generator().manual_seed(1 + dist.get_rank()),
    )  # fmt: skip
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    step = 0
    while step < int(sys.argv[1]):
        sampler.set_epoch(step)
        for batch in loader:  # the workers are started anew for each epoch
            loss = (net(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{step} {loss.item().hex()}\n")
            step += 1
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
