"""A tiny GPT-2 under the Trainer of Hugging Face, in managed pods. Slow until OUTPUT/stop is there.

train_trainer.py --output OUTPUT --pace SECONDS --ballast 0. Each rank appends `step samples loss` to rank-<r>.log.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from singularity_train.frameworks.transformers import attach

SAMPLES, LENGTH, GLOBAL_BATCH, EPOCHS = 64, 12, 8, 15


class Sentences(torch.utils.data.Dataset):
    """The first token of a sentence is its number."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, SAMPLES, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(5))
        self.tokens[:, 0] = torch.arange(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Note(TrainerCallback):
    def __init__(self, output: Path, pace: float, model: Any) -> None:
        self.output, self.pace, self.seen = output, pace, []
        model.register_forward_pre_hook(self.forward, with_kwargs=True)

    def forward(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        self.seen.extend(given["input_ids"][:, 0].tolist())

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.seen.clear()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if "loss" not in logs:
            return
        with (self.output / f"rank-{args.process_index}.log").open("a") as log:
            log.write(f"{state.global_step} {','.join(map(str, self.seen))} {logs['loss']!r}\n")
        print(f"step {state.global_step}/{state.max_steps} loss {logs['loss']:.4f} world {args.world_size}", flush=True)
        if not (self.output / "stop").exists():
            time.sleep(self.pace)


def main(output: Path, pace: float) -> None:
    torch.manual_seed(1)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=SAMPLES, n_positions=LENGTH, **shape))
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=1, num_train_epochs=EPOCHS, learning_rate=1e-3, use_cpu=True,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=3,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=Sentences(), callbacks=[Note(output, pace, model)])
    moving = attach(trainer, global_batch_size=GLOBAL_BATCH)
    if not moving.finished:
        trainer.train(resume_from_checkpoint=moving.checkpoint)
    assert moving.finished
    if int(os.environ["RANK"]) == 0:
        (output / "inexact").write_text("\n".join(moving.inexact))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--ballast", type=int)
    given = parser.parse_args()
    main(given.output, given.pace)
