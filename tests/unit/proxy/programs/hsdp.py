"""Hybrid sharding: FSDP2 on a 2x2 mesh, sharded in one dimension and replicated in the other. argv: steps."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        log.write(f"{step} {loss.item().hex()}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.full_tensor().double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
