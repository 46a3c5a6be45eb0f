"""A small network under the Trainer of Lightning, in managed pods. Slow until OUTPUT/stop is there.

train_lightning.py --output OUTPUT --pace SECONDS --ballast 0. Each rank appends `step samples loss` to rank-<r>.log.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from singularity_train.frameworks.lightning import SingularityCallback

SAMPLES, GLOBAL_BATCH, EPOCHS = 64, 8, 15


class Numbered(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.inputs = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, self.inputs[index], index % 4


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.seen: list[int] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, place: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[1]), batch[2])
        self.seen.extend(batch[0].tolist())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Note(pl.Callback):
    """The loss of a rank is the mean of its own micro-batches."""

    def __init__(self, output: Path, pace: float) -> None:
        self.output, self.pace = output, pace

    def on_train_batch_end(self, trainer: Any, net: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        loss = sum(net.losses) / len(net.losses)
        with (self.output / f"rank-{trainer.global_rank}.log").open("a") as log:
            log.write(f"{trainer.global_step} {','.join(map(str, net.seen))} {loss!r}\n")
        print(f"step {trainer.global_step} loss {loss:.4f} world {trainer.world_size}", flush=True)
        net.seen.clear()
        net.losses.clear()
        if not (self.output / "stop").exists():
            time.sleep(self.pace)


def main(output: Path, pace: float) -> None:
    workers, each = (int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    moving = SingularityCallback(global_batch_size=GLOBAL_BATCH, seed=3)
    trainer = pl.Trainer(
        callbacks=[Note(output, pace), moving], max_epochs=EPOCHS, accelerator="cpu", devices=each,
        num_nodes=workers // each, strategy="ddp" if workers > 1 else "auto", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(Numbered(), batch_size=1, shuffle=True), ckpt_path=moving.checkpoint)
    assert moving.finished
    if trainer.global_rank == 0:
        (output / "inexact").write_text("\n".join(moving.inexact))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--ballast", type=int)
    given = parser.parse_args()
    main(given.output, given.pace)
