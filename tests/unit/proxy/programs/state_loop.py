"""A script of the state engine: state_loop.py STEPS [spoil | late | faults | raise].

Its losses have the same bits for 1 to 4 ranks.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import singularity_train


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=torch.Generator().manual_seed(index)) + 0.1 * torch.rand(8)


class Spoilt:
    """State that cannot be stored."""

    def state_dict(self) -> object:
        return {"what": object() if Path("spoil").exists() else 1}

    def load_state_dict(self, state: object) -> None:
        pass


def break_saves() -> None:
    """Each write of a save waits while the file `hold` is there, and ends this process where `die` is."""
    from singularity_train.storage import folder

    write = folder._write

    def faulty(*arguments: object) -> None:
        Path("writes").touch()
        while Path("hold").exists():
            time.sleep(0.005)
        if Path("die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        write(*arguments)  # type: ignore[arg-type]

    folder._write = faulty


def main(steps: int, how: str) -> None:
    if how == "faults":
        break_saves()
    dist.init_process_group("gloo")
    while how == "late" and not Path("attach").exists():
        time.sleep(0.01)
    torch.manual_seed(3)
    layers = torch.nn.Linear(8, 300), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(300, 1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    extra = {"spoilt": Spoilt()} if how == "spoil" else None
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples(), batch_size=2, virtual_ranks=4, steps=steps, extra=extra
    )
    for step in job:
        if how == "raise" and step.number == 3 and dist.get_rank() == 1:
            raise ValueError("the batch of step 3 is bad")
        loss = step.backward(lambda batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean())
        optimizer.step()
        if dist.get_rank() == 0:
            told = f"world {job.world_size} verdict {job.verdict.value}"
            print(f"at {step.number} loss {loss.item().hex()} {told}", flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()


main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
