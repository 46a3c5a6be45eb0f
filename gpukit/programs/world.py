"""A world of ranks: DDP, or FSDP2 (`fsdp`). argv: steps, width, ddp|fsdp. Writes as train.py does."""

import ctypes
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, KIND = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
CUDA = torch.cuda.is_available()


def main():
    torch.manual_seed(1)
    device = torch.device("cpu")
    if CUDA:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    if KIND == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (net[0], net[3], net):
            fully_shard(part, mesh=mesh)
    else:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(10 + dist.get_rank())
    began = time.monotonic()
    with open("losses", "a", buffering=1) as losses:
        for step in range(STEPS):
            batch = torch.randn(32, WIDTH, generator=data).to(device)
            loss = (net(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss.detach())
            losses.write(f"{step} {loss.item().hex()}\n")
    digest = hashlib.sha256()
    for value in net.parameters():
        here = (value.full_tensor() if KIND == "fsdp" else value).detach().cpu().contiguous()
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    with open("seconds", "w") as file:
        file.write(str((time.monotonic() - began) / STEPS))
    with open("memory", "w") as file:
        file.write(str(torch.cuda.max_memory_reserved() if CUDA else 0))
    with open("digest", "w") as file:
        file.write(digest.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
