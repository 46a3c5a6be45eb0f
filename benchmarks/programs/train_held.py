"""A script with a small model. Rank 0 has tensors beside it, which neither compress nor repeat. argv: their GB."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PIECE = 64 << 20


def main():
    dist.init_process_group("gloo")
    pieces = round(float(sys.argv[1]) * 1e9 / PIECE) if dist.get_rank() == 0 else 0
    held = [torch.randint(-(2**63), 2**63 - 1, (PIECE // 8,)) for _ in range(pieces)]
    net = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    while len(held) == pieces:
        optimizer.zero_grad()
        net(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
