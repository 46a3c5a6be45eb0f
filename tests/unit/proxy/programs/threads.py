"""DDP with threads of the script's own: one makes the batches, a pool reads the losses, one beats. argv: steps."""

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make(batches, steps, rank):
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        batches.put(torch.randn(4, 8, generator=generator))
    batches.put(None)


def beat(end, beats):
    while not end.wait(0.005):
        beats.append(time.monotonic())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    batches, end, beats = queue.Queue(maxsize=3), threading.Event(), []
    others = [
        threading.Thread(target=make, args=(batches, int(sys.argv[1]), dist.get_rank())),
        threading.Thread(target=beat, args=(end, beats)),
    ]
    for other in others:
        other.start()
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    step = 0
    with ThreadPoolExecutor(2) as pool:
        while (batch := batches.get()) is not None:
            loss = (net(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            known = len(beats)
            log.write(f"{step} {pool.submit(lambda value: value.item().hex(), loss.detach()).result()}\n")
            while len(beats) == known:  # the other thread lives, here and after a move
                time.sleep(0.001)
            step += 1
    end.set()
    for other in others:
        other.join()
    assert beats == sorted(beats), "the clock went backwards"
    for name, value in net.state_dict().items():
        log.write(f"{name} {value.double().sum().item().hex()}\n")
    dist.destroy_process_group()


main()
