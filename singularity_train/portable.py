"""A checkpoint in the shape that torch's own `load_state_dict` takes, and the files that frameworks resume from.

Within a checkpoint the state of an optimizer is named by parameters, so that it can be cut anew. Outside, its entries
are numbered in the order of the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .parts import MAIN, unpack, untensors
from .storage import ArgumentError
from .storage.export import WRITERS, Source, Writer, safetensors

LIGHTNING_VERSION = "1.5.0"
"""Whose layout `lightning` writes where no Trainer made it: the last without loops. Lightning adds them as it reads."""


@dataclass(frozen=True)
class Portable:
    """:param models: state dictionaries by name; so are `optimizers` and `extra`
    :param by: what the adapter of a framework has stored; empty for a loop that uses the library itself
    """

    step: int
    models: dict[str, dict[str, Any]]
    optimizers: dict[str, dict[str, Any]]
    extra: dict[str, dict[str, Any]]
    by: Mapping[str, Any]


def portable(state: Mapping[str, Any], meta: Mapping[str, Any], step: int) -> Portable:
    """Turn what a checkpoint holds into state dictionaries.

    :raises ArgumentError: it was not made by this library's `attach` or its adapters
    """
    if "models" not in state or not {"parameters", "optimizers"} <= meta.keys():
        raise ArgumentError(
            "checkpoint: trainer and lightning take all of a checkpoint that `attach` or an adapter made. "
            "Leave --only out, or use torch, dcp or safetensors."
        )
    optimizers = {
        name: optimizer_state(kept, meta["optimizers"][name]["groups"])
        for name, kept in state.get("optimizers", {}).items()
    }
    models = {name: untensors(kept) for name, kept in state["models"].items()}
    extra = {name: untensors(kept) for name, kept in state.get("extra", {}).items()}
    return Portable(step, models, optimizers, extra, meta.get("framework", {}))


def optimizer_state(kept: Mapping[str, Any], groups: list[list[str]]) -> dict[str, Any]:
    """What `Optimizer.load_state_dict` takes.

    :param groups: names of the parameters of each group, in order
    """
    rest = unpack(kept["rest"])
    number = {name: place for place, name in enumerate(name for group in groups for name in group)}
    state: dict[int, dict[str, Any]] = {}
    for part in (kept.get("tensors", {}), rest["numbers"]):
        for name, values in part.items():
            state.setdefault(number[name], {}).update(values)
    options = [
        {**each, "params": [number[name] for name in names]} for each, names in zip(rest["groups"], groups, strict=True)
    ]
    return {"state": dict(sorted(state.items())), "param_groups": options}


def _read(source: Source) -> Portable:
    manifest = source.reader.manifest
    return portable(source.nested(), manifest.meta, manifest.step)


def as_trainer(source: Source, path: Path) -> list[str]:
    """A folder for `Trainer.train(resume_from_checkpoint=...)` of Hugging Face.

    :raises ArgumentError: there are several models or optimizers
    """
    made = _read(source)
    if made.models.keys() != {MAIN} or len(made.optimizers) > 1:
        raise ArgumentError("format = 'trainer': it has one model and one optimizer; use 'torch' or 'dcp'")
    path.mkdir()
    safetensors(made.models[MAIN], made.step, path / "model.safetensors")
    for name, kept in made.optimizers.items():
        assert name == MAIN
        torch.save(kept, path / "optimizer.pt")
    for file, key in (("scheduler.pt", f"scheduler.{MAIN}"), ("scaler.pt", "scaler")):
        if key in made.extra:
            torch.save(made.extra[key], path / file)
    bare = {"global_step": made.step, "train_batch_size": 1}  # Where no Trainer wrote it; it wants both.
    (path / "trainer_state.json").write_text(made.by.get("trainer_state") or json.dumps(bare))
    return sorted(made.extra.keys() - {f"scheduler.{MAIN}", "scaler"})


def lightning_checkpoint(made: Portable) -> dict[str, Any]:
    """What `Trainer.fit(ckpt_path=...)` of Lightning loads.

    :raises ArgumentError: there are several models
    """
    if made.models.keys() != {MAIN}:
        raise ArgumentError("format = 'lightning': it has one module; use 'torch' or 'dcp'")
    schedulers = {name: kept for name, kept in made.extra.items() if name.startswith("scheduler.")}
    bare = {
        "epoch": 0, "global_step": made.step, "callbacks": {}, "pytorch-lightning_version": LIGHTNING_VERSION
    }  # fmt: skip
    return {
        **made.extra.get("lightning", bare), "state_dict": made.models[MAIN],
        "optimizer_states": [made.optimizers[name] for name in sorted(made.optimizers)],
        "lr_schedulers": [schedulers[name] for name in sorted(schedulers)],
    }  # fmt: skip


def as_lightning(source: Source, path: Path) -> list[str]:
    made = _read(source)
    torch.save(lightning_checkpoint(made), path)
    return sorted(name for name in made.extra if name != "lightning" and not name.startswith("scheduler."))


FORMATS: Mapping[str, Writer] = {**WRITERS, "trainer": as_trainer, "lightning": as_lightning}
"""All formats of the command `python -m singularity_train.export`."""
