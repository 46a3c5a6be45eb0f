"""A small network under the Trainer of Lightning, which goes on with any number of workers that divides 8.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_lightning.py    # kill -TERM one rank
    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 1 train_lightning.py    # goes on at the next step and sample

Needs lightning.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from singularity_train.frameworks.lightning import SingularityCallback


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def training_step(self, batch: Any, place: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> tuple[torch.nn.Module, bool]:
    """The model, and whether it is trained."""
    torch.manual_seed(1)
    model, inputs = Net(), torch.randn(64, 16)
    workers, each = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    moving = SingularityCallback(global_batch_size=8)
    trainer = pl.Trainer(
        callbacks=[moving], max_epochs=2, devices=each, num_nodes=workers // each,
        strategy="ddp" if workers > 1 else "auto", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(inputs, inputs.argmax(1) % 4), batch_size=1, shuffle=True)
    trainer.fit(model, loader, ckpt_path=moving.checkpoint)
    return model, moving.finished


if __name__ == "__main__":
    main()
