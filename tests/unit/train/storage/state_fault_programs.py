"""What ranks do in the tests of faults. Each function is called in every rank."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from singularity_train.storage import Checkpoints, StateStorageError, folder, memory, planner, ranks, writer


def small(rank: int, step: int, count: int = 200_000) -> dict[str, Any]:
    """A state that each step changes: a replicated tensor, one of this rank, and objects."""
    return {
        "model": {"weight": torch.full((count,), float(step)), "bias": torch.full((3,), float(step))},
        "own": {f"{rank}": torch.full((count,), float(step * 10 + rank))},
        "step": step,
    }


def dies(rank: int, world: int, root: str, victim: int, phase: str, timeout_s: float = 120) -> dict[str, Any]:
    """The second save loses a rank. What the others get, and after how many seconds."""
    checkpoints = Checkpoints(root, timeout_s=timeout_s)
    first = checkpoints.save(small(rank, 1), {}, step=1)
    if rank == victim:
        _arm(phase)
    began = time.monotonic()
    try:
        checkpoints.save_async(small(rank, 2), {}, step=2).result(120)
    except StateStorageError as error:
        found = {"first": first, "error": type(error).__name__, "message": str(error)}
        took = time.monotonic() - began
        with contextlib.suppress(StateStorageError):
            checkpoints.save(small(rank, 3), {}, step=3)
            found["went on"] = "a save after a lost rank"
        return {**found, "seconds": took}
    return {"first": first, "error": ""}


PHASES: dict[str, tuple[Any, str, bool]] = {
    "planning": (planner.SavePlanner, "create_local_plan", True),
    "agreeing": (ranks.Ranks, "highest", True),
    "staging": (memory.Stage, "copy", True),
    "a blob written, not renamed": (Path, "replace", True),
    "blobs renamed, folder not synced": (folder, "_sync_folder", True),
    "all written, nobody told": (writer.BlobWriter, "write_data", False),
    "manifest not renamed": (Path, "replace", True),
    "committed, nobody told": (folder.Folder, "commit", False),
    "removing old ones": (folder.Folder, "sweep", True),
}
"""What is called there, and whether the rank dies before or after it."""


def _arm(phase: str) -> None:
    """This process ends as by the machine's loss, where `phase` begins or ends."""
    owner, name, before = PHASES[phase]
    whole = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if phase == "manifest not renamed" and "manifest" not in str(arguments[0]):
            return whole(*arguments, **named)
        if not before:
            whole(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(owner, name, call)


def freezes(rank: int, world: int, root: str, timeout_s: float) -> dict[str, Any]:
    """A rank that hangs: the others wait no longer than their timeout."""
    checkpoints = Checkpoints(root, timeout_s=timeout_s)
    checkpoints.save(small(rank, 1), {}, step=1)
    if rank == 1:
        time.sleep(4 * timeout_s)
        return {}
    began = time.monotonic()
    try:
        checkpoints.save(small(rank, 2), {}, step=2)
    except StateStorageError as error:
        return {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - began}
    return {}


def goes_on(rank: int, world: int, root: str, own: bool = True) -> dict[str, Any]:
    """Load the newest, save once more. What was found, and what the folder has in the end."""
    checkpoints = Checkpoints(root, timeout_s=30)
    saved = checkpoints.latest()
    assert saved is not None
    state = small(rank, 0)
    checkpoints.load(saved, state)
    step = state["step"]
    assert torch.equal(state["model"]["weight"], torch.full((200_000,), float(step)))
    assert torch.equal(state["own"][f"{rank}"], torch.full((200_000,), float(step * 10 + rank)))
    checkpoints.save(small(rank, 7), {}, step=7)
    path = Path(root)
    used = {name for each in path.glob("checkpoints/*/manifest.json") for name in json.loads(each.read_text())["blobs"]}
    return {
        "step": step,
        "unused": sorted({each.name for each in (path / "blobs").iterdir()} - used),
        "folders": len(list((path / "checkpoints").iterdir())),
    }


def fills_the_disk(rank: int, world: int, root: str) -> dict[str, Any]:
    """A file system of 6 MB. The second state does not fit until somebody makes room."""
    path = Path(root)
    if rank == 0:
        path.mkdir(exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        code = libc.mount(b"tmpfs", root.encode(), b"tmpfs", 0, b"size=6m")
        assert code == 0, os.strerror(ctypes.get_errno())
        (path / "ballast").write_bytes(bytes(2_400_000))
    dist.barrier()
    checkpoints = Checkpoints(root, keep=1, timeout_s=30)
    checkpoints.save(small(rank, 1), {}, step=1)
    found = {}
    for call in (checkpoints.save, lambda *given, **named: checkpoints.save_async(*given, **named).result(120)):
        try:
            call(small(rank, 2), {}, step=2)
        except StateStorageError as error:
            found[f"error {len(found)}"] = [type(error).__name__, str(error)]
    dist.barrier()
    saved = checkpoints.latest()
    assert saved is not None
    state = small(rank, 0)
    checkpoints.load(saved, state)
    found |= {"step": state["step"], "blobs": len(list((path / "blobs").iterdir()))}
    dist.barrier()
    if rank == 0:
        (path / "ballast").unlink()
    dist.barrier()
    checkpoints.save(small(rank, 2), {}, step=2)
    newest = checkpoints.latest()
    return {**found, "then": newest and newest.step}
