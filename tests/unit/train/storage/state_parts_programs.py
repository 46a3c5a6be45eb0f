"""Ranks of as many pods, each of which asks its own sidecar for the parts that it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from state_programs import digest, state_of, steps, training

from singularity_train.environment import ENV_HOST
from singularity_train.storage import Checkpoints

WIDTH = 1500


def save(rank: int, world: int, root: str, kind: str) -> dict[str, Any]:
    """As in a pod: each rank has a folder of its own."""
    model, optimizer = training(rank, world, kind, WIDTH)
    steps(model, optimizer, rank, 1, WIDTH)
    state = state_of(model, optimizer)
    Checkpoints(Path(root) / f"rank-{rank}", shared=False, timeout_s=60).save(state, {}, step=1)
    return {"digest": digest(state)}


def load(rank: int, world: int, root: str, kind: str) -> dict[str, Any]:
    """In pod `rank`; the model has other values before."""
    pod = Path(root) / f"{world}-{rank}"
    start = pod / "images/.from"
    os.environ.update({
        ENV_HOST: "singularity_proxy.agent.train_host:make", "SINGULARITY_STATE_FROM": str(start),
        "SINGULARITY_STATE_PARTS": str(pod / "run/parts.sock"),
    })  # fmt: skip
    model, optimizer = training(rank, world, kind, WIDTH)
    state = state_of(model, optimizer)
    checkpoints = Checkpoints(start, timeout_s=60)
    saved = checkpoints.latest()
    assert saved is not None
    read = checkpoints.load(saved, state)
    return {"digest": digest(state), "read": read}
