"""A plain DDP script: data loader workers, dropout, AdamW. Knows nothing of checkpoints."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Tokens(Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        return torch.randint(0, 64, (17,), generator=torch.Generator().manual_seed(index))


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.out = nn.Linear(width, 64)

    def forward(self, x):
        return self.out(self.block(self.embed(x)))


def main():
    steps, workers = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(Model())
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = Tokens()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    losses = open("losses", "a", buffering=1)  # noqa: SIM115
    step = epoch = 0
    while step < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            loss = nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.write(f"{step} {loss.item().hex()}\n")
            step += 1
            if step % 50 == 0:
                total = loss.detach().clone()
                dist.all_reduce(total)
                print(f"step {step} loss {total.item():.4f} port {os.environ['MASTER_PORT']}", flush=True)
            if step >= steps:
                break
    for name, tensor in net.state_dict().items():
        losses.write(f"{name} {tensor.double().sum().item().hex()}\n")
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
