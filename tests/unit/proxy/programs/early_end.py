"""After some steps together some ranks end, and the others go on without them, until there is a file `enough`.

argv: ranks that end, how the others go on. `train`: in a group of those that are left. `evaluate`: in plain Python,
with no optimizer and no collective.
"""

import itertools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    early, how = [int(rank) for rank in sys.argv[1].split(",")], sys.argv[2]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    left = dist.new_group([other for other in range(world) if other not in early])
    weights = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=1.0)

    def step(group, total):
        """Whether a rank has had enough."""
        weights.grad = torch.tensor([-1.0])
        dist.all_reduce(weights.grad, group=group)
        assert weights.grad.item() == -total
        optimizer.step()
        enough = torch.tensor([float(Path("enough").exists())])
        dist.all_reduce(enough, group=group)
        return bool(enough.item())

    for _ in range(3):
        step(None, world)
    dist.barrier()
    if rank in early:
        print("ends early", flush=True)
        return
    log = open("numbers", "a", buffering=1)  # noqa: SIM115
    for number in itertools.count():
        over = step(left, world - len(early)) if how == "train" else Path("enough").exists()
        log.write(f"{number} {weights.item():.0f}\n")
        if over:
            break
        time.sleep(0.02)
    dist.destroy_process_group()
    print("ends late", flush=True)


main()
