"""What the ranks of the tests do. Each function is called in every rank, with the world's process group made."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from singularity_train.storage import Checkpoints

WIDTH = 256


def training(rank: int, world: int, kind: str, width: int = WIDTH) -> tuple[nn.Module, torch.optim.Optimizer]:
    """:param kind: ddp, fsdp or plain"""
    torch.manual_seed(1)
    layers = [nn.Linear(width, width + 3), nn.LayerNorm(width + 3), nn.Linear(width + 3, width)]
    model: nn.Module = nn.Sequential(*layers)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, count: int, width: int = WIDTH) -> None:
    for number in range(count):
        torch.manual_seed(number * 7 + rank)
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def digest(state: dict[str, Any]) -> str:
    """Of the full tensors, whatever their shards."""
    made = hashlib.sha256()

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                walk(f"{name}/{key}", value[key])
        elif torch.is_tensor(value):
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            made.update(name.encode() + full.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    walk("", state)
    return made.hexdigest()[:16]


def save_then_train(rank: int, world: int, root: str, kind: str) -> dict[str, Any]:
    """A save while training goes on; the digest is of the state when the save began."""
    model, optimizer = training(rank, world, kind)
    checkpoints = Checkpoints(root, keep=3, timeout_s=30)
    steps(model, optimizer, rank, 3)
    state = {**state_of(model, optimizer), "draws": {f"virtual-{rank}": random.Random(rank).getstate()}}
    wanted = digest(state)
    future = checkpoints.save_async(state, {"loss": 0.5, "names": ["a"]}, step=3)
    steps(model, optimizer, rank, 2)
    saved = future.result(120)
    found = {"id": saved, "digest": wanted, "now": digest(state_of(model, optimizer))}
    found["written"] = checkpoints.figures.written if checkpoints.figures else -1
    # The second save is of the same state: it was copied to the same place, and nothing of it is new.
    again = state_of(model, optimizer)
    checkpoints.save(again, {}, step=5)
    first = checkpoints.figures.written if checkpoints.figures else -1
    checkpoints.save(again, {}, step=5)
    found |= {"changed": first, "unchanged": checkpoints.figures.written if checkpoints.figures else -1}
    found["bytes"] = sum(t.numel() * t.element_size() for t in _tensors(again))
    checkpoints.close()
    return found


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in _tensors(each)]
    return [value] if torch.is_tensor(value) else []


def load_and_save(rank: int, world: int, root: str, kind: str, checkpoint: str) -> dict[str, Any]:
    """Load it, then save it as this world holds it."""
    model, optimizer = training(rank, world, kind)
    steps(model, optimizer, rank, 1)
    checkpoints = Checkpoints(root, timeout_s=30)
    state = state_of(model, optimizer)
    got = checkpoints.load(checkpoints.get(checkpoint), state)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    state = state_of(model, optimizer)
    found = {"digest": digest(state), "got": got, "id": checkpoints.save(state, {}, step=6)}
    local = [each.to_local() if hasattr(each, "to_local") else each for each in _tensors(state)]
    return {**found, "own": sum(each.numel() * each.element_size() for each in local)}
