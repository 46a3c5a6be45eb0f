"""Trains with so much on the GPU beside it. argv: steps, megabytes. Writes the longest time between two steps."""

import sys
import time

import torch
from torch import nn

STEPS, MEGABYTES = (int(word) for word in sys.argv[1:3])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(1)
    held = torch.arange(MEGABYTES << 17, device=DEVICE, dtype=torch.int64)
    wanted = int(held.sum().item())
    net = nn.Linear(64, 64).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    longest, before, step = 0.0, time.monotonic(), 0
    while step < STEPS:
        net(torch.ones(8, 64, device=DEVICE)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        time.sleep(0.002)
        step += 1
        now = time.monotonic()
        if step > 20:
            longest = max(longest, now - before)
        before = now
    with open("longest", "w") as file:
        file.write(str(longest))
    with open("wrong", "w") as file:
        file.write(str(int(held.sum().item()) - wanted))


if __name__ == "__main__":
    main()
