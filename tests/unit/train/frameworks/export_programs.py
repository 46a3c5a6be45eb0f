"""Frameworks load what was exported from a store, each by its own code. One rank; returns JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed.checkpoint as dcp
from job_programs import digest
from lightning_programs import Net, Numbered
from lightning_programs import trainer_of as lightning_trainer
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from trainer_programs import model_of, trainer_of
from transformers import TrainerCallback


def trainer(rank: int, world: int, folder: str, whole: str) -> list[Any]:
    """Step, the same weights and moments as in the file of `torch`, and the step that it ends with."""
    made = trainer_of(f"{folder}/../output", max_steps=6, gradient_accumulation_steps=4)
    seen: list[Any] = []

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            optimizer = made.optimizer.optimizer.state_dict()["state"]
            seen.extend([state.global_step, same(made.model.state_dict(), whole), moments(optimizer, whole)])

    made.add_callback(Look())
    made.train(resume_from_checkpoint=folder)
    return [*seen, made.state.global_step]


def lightning(rank: int, world: int, folder: str, whole: str) -> list[Any]:
    seen: list[Any] = []

    class Look(pl.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            optimizer = trainer.optimizers[0].state_dict()["state"]
            seen.extend([trainer.global_step, same(module.state_dict(), whole), moments(optimizer, whole)])

    made = lightning_trainer(1, [Look()], max_steps=6, max_epochs=-1, accumulate_grad_batches=4)
    made.fit(Net(), DataLoader(Numbered(), 2), ckpt_path=folder)
    return [*seen, made.global_step]


def plain(rank: int, world: int, folder: str, whole: str) -> list[bool]:
    """torch.distributed.checkpoint and safetensors give the weights of `torch`, to a model of random ones."""
    model = model_of()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    before = same(model.state_dict(), whole)
    state = {"models": {"main": {name: each for name, each in model.state_dict().items() if "lm_head" not in name}}}
    dcp.load(state, storage_reader=dcp.FileSystemReader(f"{folder}/dcp"), no_dist=True)
    tensors = load_file(f"{folder}/model.safetensors")
    stripped = {name.removeprefix("main."): each for name, each in tensors.items()}
    return [before, same(model.state_dict(), whole), digest(stripped) == digest(weights(whole))]


def weights(whole: str) -> dict[str, Any]:
    return dict(torch.load(Path(whole), weights_only=True)["models"]["main"])


def same(state: dict[str, Any], whole: str) -> bool:
    return digest(dict(state)) == digest(weights(whole))


def moments(state: dict[int, Any], whole: str) -> bool:
    """Whether each second moment of AdamW is one of the checkpoint's, and none is zero."""
    kept = torch.load(Path(whole), weights_only=True)["optimizers"]["main"]["tensors"].values()
    known = sorted(each["exp_avg_sq"].double().sum().item() for each in kept)
    return known == sorted(each["exp_avg_sq"].double().sum().item() for each in state.values()) and known[-1] > 0
