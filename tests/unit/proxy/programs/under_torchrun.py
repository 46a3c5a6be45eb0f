"""What a script can read of torchrun, and losses under DDP.

argv: steps; `alone` or `together`: whether each rank has a working directory of its own.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOLD = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "OMP_NUM_THREADS",
)  # fmt: skip


def main():
    assert dist.is_torchelastic_launched()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + int(os.environ["LOCAL_RANK"]))
    path = "losses" if sys.argv[2] == "alone" else f"losses-{os.environ['RANK']}"
    log = open(path, "a", buffering=1)  # noqa: SIM115
    log.write(f"{[os.environ.get(name) for name in TOLD]}\n")
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"{step} {loss.item().hex()}\n")
        time.sleep(0.02)
    log.write(f"{[os.environ.get(name) for name in TOLD]}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
