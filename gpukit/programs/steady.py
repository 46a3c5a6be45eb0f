"""Times mini-batches with CUDA events where there is a GPU. argv: steps, width. Writes their median to `milliseconds`.

At its end it takes a few steps while torch refuses every hidden synchronisation, and says so in `synchronised`.
"""

import statistics
import sys
import time

import torch
from torch import nn

STEPS, WIDTH = (int(word) for word in sys.argv[1:3])
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def main():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batch = torch.randn(64, WIDTH, device=DEVICE)

    def step():
        loss = (net(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step()
    took = []
    for _ in range(STEPS):
        if CUDA:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            step()
            took.append(1000 * (time.perf_counter() - began))
    problem = ""
    if CUDA:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                step()
        except RuntimeError as error:
            problem = str(error).splitlines()[0]
        torch.cuda.set_sync_debug_mode("default")
    with open("milliseconds", "w") as file:
        file.write(str(statistics.median(took)))
    with open("synchronised", "w") as file:
        file.write(problem)


if __name__ == "__main__":
    main()
