"""A GAN: two nets and two optimizers that take turns, three steps of the critic for one of the generator.

argv: turns.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CRITIC_STEPS = 3


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judges = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    loss = nn.BCEWithLogitsLoss()
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for turn in range(int(sys.argv[1])):
        for _ in range(CRITIC_STEPS):
            real = torch.randn(16, 2) * 0.3 + 1.0
            fake = generator(torch.randn(16, 4)).detach()
            judges.zero_grad()
            told = critic(torch.cat([real, fake]))
            wrong = loss(told, torch.cat([torch.ones(16, 1), torch.zeros(16, 1)]))
            wrong.backward()
            judges.step()
            time.sleep(0.01)
            log.write(f"{turn} critic {wrong.item().hex()}\n")
        makes.zero_grad()
        for value in critic.parameters():
            value.requires_grad_(False)
        caught = loss(critic.module(generator(torch.randn(16, 4))), torch.ones(16, 1))
        caught.backward()
        makes.step()
        for value in critic.parameters():
            value.requires_grad_(True)
        time.sleep(0.01)
        log.write(f"{turn} generator {caught.item().hex()}\n")
    for net in (generator, critic):
        for name, value in net.state_dict().items():
            log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
