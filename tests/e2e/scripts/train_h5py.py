"""Two ranks train on a file that h5py keeps open, until $OUTPUT/stop is there: step, loss (all bits), when."""

import os
import time
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

OUTPUT = Path(os.environ["OUTPUT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
path = f"/data-{rank}.h5"
random = np.random.default_rng(rank)
with h5py.File(path, "w") as file:
    file["x"] = random.normal(size=(512, 8)).astype(np.float32)
    file["y"] = random.normal(size=(512, 1)).astype(np.float32)
data = h5py.File(path, "r")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
step = 0
with (OUTPUT / f"lines-{rank}").open("a", buffering=1) as out:
    while True:
        at = step * 16 % 512
        batch, wanted = (torch.from_numpy(data[name][at : at + 16]) for name in ("x", "y"))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), wanted)
        loss.backward()
        stop = torch.tensor(float((OUTPUT / "stop").exists()))
        dist.all_reduce(stop)
        optimizer.step()
        out.write(f"{step} {loss.item().hex()} {time.time()}\n")
        step += 1
        if stop:
            break
        time.sleep(0.05)
dist.destroy_process_group()
