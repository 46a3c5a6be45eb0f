"""Exports, read by the programs whose formats they are."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from singularity_train import export as command
from singularity_train.storage import Checkpoints


def model() -> tuple[nn.Module, torch.optim.Optimizer]:
    made = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300))
    return made, torch.optim.AdamW(made.parameters())


def state_of(made: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(made, optimizer)
    return {"model": weights, "optim": moments}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if torch.is_tensor(one) else bool(one == other)


def call(*words: object) -> list[Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = command.main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
    return [code, out.getvalue(), err.getvalue()]


def exports(rank: int, world: int, root: str, site: str) -> dict[str, Any]:
    torch.manual_seed(5)
    made, optimizer = model()
    made(torch.randn(2, 300)).sum().backward()
    optimizer.step()
    extra = {"half": torch.ones(3, dtype=torch.bfloat16), "list": [torch.zeros(1), {"a": (1, 2)}], "flag": True}
    state = {**state_of(made, optimizer), "extra": extra}
    checkpoints = Checkpoints(Path(root) / "state")
    checkpoints.save({**state, "extra": {}}, {}, step=1)
    checkpoints.save(state, {}, step=2)
    base, first = [Path(root) / "state"], sorted((Path(root) / "state/checkpoints").iterdir())[0].name
    found: dict[str, Any] = {"list": call(*base, "--list"), "help": call("--help")}

    file = Path(root) / "deep/er/all.pt"
    found["torch"] = call(*base, "--format", "torch", "--output", file)
    assert equal(torch.load(file, weights_only=True), state)
    again, other = model()
    loaded = torch.load(file, weights_only=True)
    set_state_dict(again, other, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
    assert equal(state_of(again, other), {name: state[name] for name in ("model", "optim")})

    folder = Path(root) / "dcp"
    found["dcp"] = call(*base, "--format", "dcp", "--output", folder, "--checkpoint", first)
    third, last = model()
    stock = state_of(third, last)
    assert not equal(stock["model"], state["model"])
    dcp.load(stock, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    assert equal(stock, {name: state[name] for name in ("model", "optim")})

    tensors = Path(root) / "model.safetensors"
    found["safetensors"] = call(*base, "--format", "safetensors", "--only", "model", "--output", tensors)
    whole = Path(root) / "all.safetensors"
    found["left out"] = call(*base, "--format", "safetensors", "--output", whole)
    sys.path.append(site)
    from safetensors.torch import load_file  # type: ignore[import-not-found]

    assert equal(load_file(tensors), dict(state["model"]))
    assert torch.equal(load_file(whole)["extra.half"], extra["half"])
    found["there"] = call(*base, "--format", "torch", "--output", file)
    found["no key"] = call(*base, "--format", "torch", "--only", "modell", "--output", Path(root) / "x")
    found["no id"] = call(*base, "--format", "torch", "--checkpoint", "nine", "--output", Path(root) / "x")
    found["nothing"] = call(Path(root) / "deep", "--format", "torch", "--output", Path(root) / "x")
    found["no format"] = call(*base)
    checkpoints.save({"odd": torch.ones(2, dtype=torch.complex128)}, {}, step=3)
    found["no type"] = call(*base, "--format", "safetensors", "--output", Path(root) / "x")
    found["left behind"] = sorted(path.name for path in Path(root).iterdir())
    return found
