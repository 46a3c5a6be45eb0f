"""DDP with processes of the script's own: a program behind pipes, and a Process with queues. argv: steps."""

import multiprocessing
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def double(numbers, doubled):
    for number in iter(numbers.get, None):
        doubled.put(2 * number)


def main():
    context = multiprocessing.get_context("spawn")
    numbers, doubled = context.Queue(), context.Queue()
    child = context.Process(target=double, args=(numbers, doubled))
    child.start()
    count = "import sys\ntotal = 0\nfor line in sys.stdin:\n    total += int(line)\n    print(total, flush=True)\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    program = subprocess.Popen([sys.executable, "-c", count], **pipes)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    for step in range(int(sys.argv[1])):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        numbers.put(step)
        program.stdin.write(f"{step}\n")
        optimizer.step()  # answers of both children are under way
        log.write(f"{step} {loss.item().hex()} {doubled.get()} {int(program.stdout.readline())}\n")
    numbers.put(None)
    child.join()
    program.stdin.close()
    assert program.wait() == 0 and child.exitcode == 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
