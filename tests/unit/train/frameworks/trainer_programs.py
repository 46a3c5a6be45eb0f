"""A tiny GPT-2 under the Trainer of Hugging Face. Each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from job_programs import digest
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from singularity_train.frameworks import transformers as adapter

SAMPLES, LENGTH = 48, 12
SHAPE = {
    "vocab_size": SAMPLES, "n_positions": LENGTH, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


class Sentences(torch.utils.data.Dataset):
    """The first token of a sentence is its number."""

    def __init__(self, samples: int = SAMPLES) -> None:
        made = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(0, SAMPLES, (samples, LENGTH), generator=made)
        self.tokens[:, 0] = torch.arange(samples)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Signal(TrainerCallback):
    """One rank gets SIGTERM in a step; all note the losses."""

    def __init__(self, at: int | None) -> None:
        self.at, self.losses = at, []

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def model_of(width: int = 16) -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(**SHAPE, n_embd=width))


class Mean(Trainer):
    """With an ordinary loss, as in most people's subclasses: the mean over its micro-batch."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        out = model(input_ids=inputs["input_ids"])
        loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
        return (loss, out) if return_outputs else loss


def trainer_of(
    output: str, callbacks: Any = (), samples: int = SAMPLES, model: Any = None, kind: Any = Trainer, **options: Any
) -> Trainer:
    given = {"per_device_train_batch_size": 2, "num_train_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 4}
    args = TrainingArguments(
        output, use_cpu=True, save_strategy="no", logging_steps=1, report_to=[], disable_tqdm=True,
        max_grad_norm=0.5, lr_scheduler_type="cosine", **{"seed": 3, **given, **options},
    )  # fmt: skip
    return kind(model or model_of(), args, train_dataset=Sentences(samples), callbacks=list(callbacks))


def train(
    rank: int, world: int, directory: str | None, stop: int | None = None, stop_rank: int = 0, **options: Any
) -> dict[str, Any]:
    """A whole attempt, which `stop` ends after that step."""
    noted = Signal(stop if rank == stop_rank else None)
    if options.pop("mean", False):
        options |= {"kind": Mean, "gradient_accumulation_steps": 1}
    options = {"gradient_accumulation_steps": 2, **options}
    trainer = trainer_of(str(Path(directory or "/tmp") / "output"), [noted], **options)
    seen: list[list[int]] = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, given: seen[-1].extend(given["input_ids"][:, 0].tolist()), with_kwargs=True
    )
    moving = adapter.attach(trainer, directory=directory, global_batch_size=8)
    trainer.add_callback(type("Steps", (TrainerCallback,), {"on_step_begin": lambda *a, **k: seen.append([])})())
    folder = moving.checkpoint
    began = 0 if moving._keeper.saved is None else moving._keeper.saved.step
    trainer.train(resume_from_checkpoint=folder)
    return {
        "began": began, "step": trainer.state.global_step, "seen": seen, "losses": noted.losses,
        "finished": moving.finished, "stopped": moving.stop_requested, "verdict": moving.verdict.value,
        "accumulation": trainer.args.gradient_accumulation_steps, "left": moving._folder,
        "leftover": bool(moving._folder) and Path(moving._folder).exists(),
        "state": digest(trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]),
        "weights": [each.tolist() for each in trainer.model.state_dict().values() if each.numel() < 300],
        "rate": trainer.lr_scheduler.get_last_lr(), "history": [e["step"] for e in trainer.state.log_history],
    }  # fmt: skip


def raised(call: Any) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(Sentences())


def wrong(rank: int, world: int, directory: str) -> dict[str, list[str]]:
    """After one attempt of one rank, whose checkpoint is whole in the end."""
    train(0, 1, directory, stop=4)
    output = str(Path(directory) / "other")

    def attempt(given: dict[str, Any] | None = None, call: Any = None, **options: Any) -> list[str]:
        return raised(lambda: (call or began)(trainer_of(output, **options), **(given or {})))

    def began(trainer: Any, resume: bool = True, **given: Any) -> None:
        moving = adapter.attach(trainer, directory=directory, **given)
        trainer.train(resume_from_checkpoint=moving.checkpoint if resume else None)

    def fake(name: str, value: Any) -> Any:
        def call(trainer: Any) -> None:
            setattr(trainer, name, value)
            adapter.attach(trainer, directory=directory)

        return call

    def stream(trainer: Any) -> None:
        trainer.train_dataset = Stream()
        adapter.attach(trainer, directory=directory)

    def twice(trainer: Any) -> None:
        adapter.attach(trainer, directory=directory)
        adapter.attach(trainer, directory=directory)

    def late(trainer: Any) -> None:
        trainer.args.max_steps = 1
        trainer.train()
        adapter.attach(trainer, directory=directory)

    eight = {"gradient_accumulation_steps": 4}
    mean = {"kind": Mean, "gradient_accumulation_steps": 2}
    found = {
        "deepspeed": attempt(call=fake("is_deepspeed_enabled", True)),
        "fsdp": attempt(call=fake("is_fsdp_enabled", True)),
        "model parallel": attempt(call=fake("is_model_parallel", True)),
        "stream": attempt(call=stream), "twice": attempt(call=twice), "late": attempt(call=late),
        "skip": attempt(ignore_data_skip=True), "jit": attempt(enable_jit_checkpoint=True),
        "mean": attempt(**mean), "sampler": attempt(train_sampling_strategy="group_by_length", **eight),
        "not resumed": attempt({"resume": False}, **eight), "batch": attempt({"global_batch_size": 16}),
        "seed": attempt(seed=4, **eight), "micro": attempt(per_device_train_batch_size=3),
        "samples": attempt(samples=40, **eight),
        "model": attempt(model=model_of(32), **eight), "save_every": attempt({"save_every": 0}),
    }  # fmt: skip
    found["library"] = raised(lambda: library(directory))
    found["unchanged"] = [str(train(0, 1, directory)["step"])]
    return found


def library(directory: str) -> None:
    import singularity_train

    model = model_of()
    singularity_train.attach(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), data=Sentences(), batch_size=2,
        directory=directory,
    )  # fmt: skip


def uneven(rank: int, world: int, directory: str) -> list[str]:
    """46 samples, which 8 does not divide."""
    return raised(lambda: train(rank, world, directory, stop=2, samples=46))


def exported(rank: int, world: int, directory: str) -> dict[str, Any]:
    """A loop of the library itself goes on under the Trainer."""
    import singularity_train
    from singularity_train import export

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with singularity_train.attach(
        model=model, optimizer=optimizer, scheduler=scheduler, data=Sentences(), batch_size=2, virtual_ranks=4,
        directory=directory, steps=3,
    ) as job:  # fmt: skip
        for step in job:
            step.backward(lambda batch: model(**batch).loss)
            optimizer.step()
            scheduler.step()
    code = export.main([directory, "--format", "trainer", "--output", f"{directory}/checkpoint-3"])
    parts = export.main([directory, "--format", "trainer", "--only", "models", "--output", f"{directory}/no"])
    other = model_of()
    mine = torch.optim.AdamW(other.parameters())
    found: list[Any] = [digest(model.state_dict(), optimizer.state_dict()["state"])]

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            found.extend([digest(other.state_dict(), mine.state_dict()["state"]), state.global_step])
            found.append(mine.param_groups[0]["lr"])

    trainer = trainer_of(f"{directory}/output", [Look()], model=other, max_steps=4)
    trainer.optimizer, trainer.lr_scheduler = mine, torch.optim.lr_scheduler.ConstantLR(mine)
    trainer.train(resume_from_checkpoint=f"{directory}/checkpoint-3")
    return {"codes": [code, parts], "states": found[:2], "step": found[2], "rate": found[3]}
