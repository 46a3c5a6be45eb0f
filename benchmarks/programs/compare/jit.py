"""The training of `plain.py` with Hugging Face's Trainer, which saves when it is asked to end. argv: width, steps."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Rows(Dataset):
    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return {"batch": torch.randn(self.width, generator=torch.Generator().manual_seed(index))}


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, width))

    def forward(self, batch):
        return {"loss": self.layers(batch).sub(batch).square().mean()}


class Steps(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if os.environ["RANK"] == "0" and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']).hex()} at {time.time():.4f}", flush=True)


def main():
    width, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        enable_jit_checkpoint=True,
    )
    trainer = Trainer(Network(width), arguments, train_dataset=Rows(width), callbacks=[Steps()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if Path("out").is_dir() else None)


if __name__ == "__main__":
    main()
