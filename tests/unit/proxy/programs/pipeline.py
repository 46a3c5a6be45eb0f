"""Pipeline parallelism (1F1B): stages pass activations and gradients by send and receive only. argv: steps."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(99)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(8, 8)
        losses = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        elif rank == world - 1:
            schedule.step(target=batch, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        time.sleep(0.01)
        log.write(f"{step} {[loss.item().hex() for loss in losses]}\n")
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
