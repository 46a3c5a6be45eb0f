"""A tiny module under the Trainer of Lightning. Each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from job_programs import digest
from torch import nn
from torch.utils.data import DataLoader
from trainer_programs import raised

from singularity_train.frameworks.lightning import SingularityCallback

SAMPLES = 52
"""The last 4 fill no step of 8."""


class Numbered(torch.utils.data.Dataset):
    def __init__(self, samples: int = SAMPLES) -> None:
        self.inputs = torch.randn(samples, 12, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return index, self.inputs[index], index % 3


class Net(pl.LightningModule):
    def __init__(self, stop: int | None = None, width: int = 24) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))
        self.stop, self.seen, self.losses = stop, {}, {}
        self.validated: list[int] = []

    def training_step(self, batch: Any, place: int) -> Any:
        step = self.trainer.global_step
        loss = F.cross_entropy(self.net(batch[1]), batch[2])
        self.seen.setdefault(step, []).extend(batch[0].tolist())
        self.losses.setdefault(step, []).append(loss.item())
        if self.stop is not None and step + 1 == self.stop:
            self.stop = None
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    def validation_step(self, batch: Any, place: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def trainer_of(world: int, callbacks: list[Any], **options: Any) -> pl.Trainer:
    os.environ.update(TORCHELASTIC_RUN_ID="tiny", GROUP_RANK="0")
    given = {
        "strategy": "ddp" if world > 1 else "auto", "max_epochs": 2, "gradient_clip_val": 0.5,
        "enable_checkpointing": False, "accumulate_grad_batches": 2,
    }  # fmt: skip
    return pl.Trainer(
        accelerator="cpu", devices=world, callbacks=callbacks, logger=False, enable_progress_bar=False,
        enable_model_summary=False, **{**given, **options},
    )  # fmt: skip


def train(
    rank: int, world: int, directory: str | None, stop: int | None = None, stop_rank: int = 0, workers: int = 0,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A whole attempt, in which one rank gets SIGTERM in the step before `stop` is done."""
    model = Net(stop if rank == stop_rank else None)
    moving = SingularityCallback(directory=directory, global_batch_size=8, seed=3)
    trainer = trainer_of(world, [moving], **options)
    loader = DataLoader(Numbered(), 2, shuffle=True, num_workers=workers)
    began = moving.checkpoint
    trainer.fit(model, loader, DataLoader(Numbered(4), 2), ckpt_path=began)
    steps = sorted(model.seen)
    return {
        "began": moving._keeper.saved.step if began else 0, "step": trainer.global_step,
        "seen": [model.seen[step] for step in steps], "losses": [model.losses[step] for step in steps],
        "finished": moving.finished, "stopped": moving.stop_requested, "verdict": moving.verdict.value,
        "accumulation": trainer.accumulate_grad_batches, "validated": sorted(set(model.validated)),
        "state": digest(model.state_dict(), trainer.optimizers[0].state_dict()["state"]),
        "weights": [each.tolist() for each in model.state_dict().values()], "epoch": trainer.current_epoch,
        "rate": trainer.lr_scheduler_configs[0].scheduler.get_last_lr(),
    }  # fmt: skip


class Judged(Net):
    """Has a figure after each epoch, which begins to grow in the third."""

    def on_train_epoch_end(self) -> None:
        assert len(self.seen[max(self.seen)]) == 2 * 2, "a whole step"
        self.ends = [*getattr(self, "ends", []), self.trainer.global_step]

    def validation_step(self, batch: Any, place: int) -> None:
        super().validation_step(batch, place)
        self.log("val", float(abs(2 - self.trainer.current_epoch)))


def judged(rank: int, world: int, directory: str | None, stop: int | None) -> dict[str, Any]:
    """With an EarlyStopping that looks at the end of each epoch, where a stop in the middle has nothing to look at."""
    model = Judged(stop)
    moving = SingularityCallback(directory=directory, seed=3)
    judge = pl.callbacks.EarlyStopping("val", patience=2)
    best = pl.callbacks.ModelCheckpoint(f"{directory}-best-{stop}", monitor="val")
    trainer = trainer_of(world, [judge, moving, best], enable_checkpointing=True, max_epochs=9)
    loader = DataLoader(Numbered(), 2, shuffle=True)
    trainer.fit(model, loader, DataLoader(Numbered(4), 2), ckpt_path=moving.checkpoint)
    return {
        "steps": sorted(model.seen), "finished": moving.finished, "step": trainer.global_step,
        "ends": getattr(model, "ends", []), "state": digest(model.state_dict()),
        "judge": [judge.wait_count, judge.stopped_epoch, float(judge.best_score)],
    }  # fmt: skip


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Foreign(pl.strategies.SingleDeviceStrategy):
    """Of another package."""


def wrong(rank: int, world: int, directory: str) -> dict[str, list[str]]:
    """After one attempt of one rank, whose checkpoint is whole in the end. A stop at the end of an epoch waits."""
    first = train(0, 1, directory, stop=6)

    def attempt(
        net: Any = None, callbacks: Any = (), loader: Any = None, resume: bool = True, samples: int = SAMPLES,
        given: Any = None, **options: Any,
    ) -> list[str]:  # fmt: skip
        def call() -> None:
            moving = SingularityCallback(**{"directory": directory, "seed": 3, **(given or {})})
            trainer = trainer_of(1, [moving, *callbacks], **options)
            data = loader or DataLoader(Numbered(samples), 2, shuffle=True)
            trainer.fit(net or Net(), data, ckpt_path=moving.checkpoint if resume else None)

        return raised(call)

    def late() -> None:
        trainer = trainer_of(1, [], max_epochs=1)
        trainer.fit(net := Net(), DataLoader(Numbered(), 2))
        trainer.callbacks.append(SingularityCallback(directory=f"{directory}/late"))
        trainer.fit_loop.max_epochs = 2
        trainer.fit(net, DataLoader(Numbered(), 2))

    picked = torch.utils.data.SubsetRandomSampler(range(40))
    found = {
        "strategy": attempt(strategy=Foreign("cpu")),
        "manual": attempt(Manual(), gradient_clip_val=None, accumulate_grad_batches=1),
        "twice": attempt(callbacks=[SingularityCallback(directory=directory)]),
        "schedule": attempt(callbacks=[pl.callbacks.GradientAccumulationScheduler({0: 1})], accumulate_grad_batches=1),
        "averaging": attempt(callbacks=[pl.callbacks.EMAWeightAveraging()]),
        "finetuning": attempt(callbacks=[pl.callbacks.BackboneFinetuning()]),
        "sampler": attempt(loader=DataLoader(Numbered(), 2, sampler=picked)),
        "loaders": attempt(loader=[DataLoader(Numbered(), 2, shuffle=True)] * 2),
        "stream": attempt(loader=iter(DataLoader(Numbered(), 2))), "samples": attempt(samples=60),
        "micro": attempt(loader=DataLoader(Numbered(), 4, shuffle=True)),
        "batch": attempt(given={"global_batch_size": 16}), "seed": attempt(given={"seed": 4}),
        "model": attempt(Net(width=25)), "not resumed": attempt(resume=False), "late": raised(late),
    }  # fmt: skip
    last = train(0, 1, directory)
    found["unchanged"] = [str(first["step"]), str(first["validated"]), str(last["began"]), str(last["step"])]
    over = train(0, 1, directory)
    found["over"] = [str(over["step"]), str(over["seen"]), str(over["state"] == last["state"])]
    return found


def exported(rank: int, world: int, directory: str) -> dict[str, Any]:
    """A loop of the library itself goes on under Lightning; so does a moved job without the callback."""
    import singularity_train
    from singularity_train import export

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    with singularity_train.attach(
        model=model, optimizer=optimizer, scheduler=rate, data=Numbered(), batch_size=2, virtual_ranks=4,
        directory=f"{directory}/own", steps=3,
    ) as job:  # fmt: skip
        for step in job:
            step.backward(lambda batch: F.cross_entropy(model.net(batch[1]), batch[2]))
            optimizer.step()
            rate.step()
    moved = train(0, 1, f"{directory}/moved", stop=4)
    want = {"own": digest(model.state_dict(), optimizer.state_dict()["state"]), "moved": moved["state"]}
    found: dict[str, Any] = {}
    for name, state in want.items():
        file = f"{directory}/{name}.ckpt"
        code = export.main([f"{directory}/{name}", "--format", "lightning", "--output", file])
        other, seen = Net(), []

        class Look(pl.Callback):
            def on_train_start(self, trainer: Any, module: Any) -> None:
                states = digest(module.state_dict(), trainer.optimizers[0].state_dict()["state"])
                seen.extend([states == state, trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"]])  # noqa: B023

        trainer = trainer_of(1, [Look()], max_steps=6, max_epochs=-1, accumulate_grad_batches=4)
        trainer.fit(other, DataLoader(Numbered(), 2), ckpt_path=file)
        found[name] = [code, *seen, trainer.global_step]
    return found
