"""A tiny GPT-2 under the Trainer of Hugging Face, which goes on with any number of workers that divides 8.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_trainer.py    # kill -TERM one rank
    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 1 train_trainer.py    # goes on at the next step and sample

Needs transformers and accelerate.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from singularity_train.frameworks.transformers import attach

WORDS, LENGTH = 32, 16


class Counting(torch.utils.data.Dataset):
    """Sentences that count on from some number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(LENGTH)) % WORDS
        return {"input_ids": tokens, "labels": tokens}


def main() -> tuple[torch.nn.Module, bool]:
    """The model, and whether it is trained."""
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=1, num_train_epochs=2, learning_rate=1e-2,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=Counting())
    moving = attach(trainer, global_batch_size=8)
    if not moving.finished:
        trainer.train(resume_from_checkpoint=moving.checkpoint)
    return trainer.model, moving.finished


if __name__ == "__main__":
    main()
