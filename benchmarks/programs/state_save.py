"""Four ranks that save and load a state, with Checkpoints and with torch.distributed.checkpoint alone, in turns."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from singularity_train.storage import Checkpoints
from singularity_train.storage.folder import Folder

warnings.filterwarnings("ignore")
BESIDE = 3
"""Steps of training while a save is under way."""


class Bench:
    def __init__(self, rank: int, world: int, kind: str, width: int, folder: Path) -> None:
        self.rank, self.width, self.folder = rank, width, folder
        torch.manual_seed(1)
        layers = [nn.Linear(width, width) for _ in range(4)]
        self.model: nn.Module = nn.Sequential(*layers)
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (world,))
            for layer in [*layers, self.model]:
                fully_shard(layer, mesh=mesh)
        else:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.group = dist.new_group(backend="gloo")
        self.stager = DefaultStager(StagingOptions(False, False, False, False))  # keeps its memory
        self.checkpoints = Checkpoints(folder / "ours")
        self.turn = 0

    def step(self) -> None:
        self.model(torch.randn(4, self.width)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": moments}

    def ours(self, state: dict[str, Any]) -> Callable[[], object]:
        return self.checkpoints.save_async(state, {}, step=self.turn).result

    def ours_sync(self, state: dict[str, Any]) -> Callable[[], object]:
        self.checkpoints.save(state, {}, step=self.turn)
        return lambda: None

    def theirs_sync(self, state: dict[str, Any]) -> Callable[[], object]:
        path = self.folder / f"theirs-{self.turn}-sync"
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path), process_group=self.group)
        return lambda: None

    def theirs(self, state: dict[str, Any], stager: Any = None) -> Callable[[], object]:
        path = self.folder / f"theirs-{self.turn}-{stager is not None}"
        future: Any = dcp.async_save(
            state, storage_writer=dcp.FileSystemWriter(path), process_group=self.group, async_stager=stager
        )
        return getattr(future, "upload_completion", future).result  # type: ignore[no-any-return]

    def one(self, save: Callable[[dict[str, Any]], Callable[[], object]]) -> dict[str, float]:
        """Seconds on the slowest rank: of the call, and until both the steps beside it and the save are done."""
        state = self.state()
        dist.barrier()
        began = time.perf_counter()
        result = save(state)
        blocked = time.perf_counter() - began
        for _ in range(BESIDE):
            self.step()
        trained = time.perf_counter() - began
        result()
        taken = torch.tensor([blocked, trained, time.perf_counter() - began], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return dict(zip(("blocked", "trained", "done"), taken.tolist(), strict=True))

    def saves(self, turns: int) -> list[dict[str, dict[str, float]]]:
        ways = {
            "ours": self.ours,
            "theirs": self.theirs,
            "cached": lambda state: self.theirs(state, self.stager),
            "ours_sync": self.ours_sync,
            "theirs_sync": self.theirs_sync,
        }
        found = []
        for turn in range(turns + 1):
            self.turn = turn
            order = list(ways) if turn % 2 else list(ways)[::-1]
            taken = {name: self.one(ways[name]) for name in order}
            if turn:  # the first of each has no plan and no memory yet
                found.append(taken)
            dist.barrier()
            if self.rank == 0:
                for path in self.folder.glob("theirs-*"):
                    shutil.rmtree(path)
        return found

    def written(self) -> dict[str, float]:
        """Of one more save after a step."""
        self.step()
        state = self.state()
        path = self.checkpoints.get(self.checkpoints.save(state, {}, step=0)).path
        figures = self.checkpoints.figures
        total = torch.tensor([figures.written if figures else 0])
        dist.all_reduce(total)
        again = self.checkpoints.get(self.checkpoints.save(state, {}, step=0)).path
        blobs = json.loads(path.read_text())["tensors"]
        bytes_of = {"float32": 4}
        whole = sum(torch.Size(each["size"]).numel() * bytes_of[each["dtype"]] for each in blobs.values())
        return {"written": int(total) + path.stat().st_size, "state": whole, "unchanged": again.stat().st_size}

    def loads(self, turns: int) -> list[dict[str, float]]:
        """Seconds on the slowest rank to load, and to read the same bytes of the same files into memory."""
        saved = self.checkpoints.latest()
        assert saved is not None
        state = self.state()
        calls: list[tuple[str, int, int]] = []
        whole = Folder.read_into

        def record(folder: Folder, blob: Any, start: int, target: memoryview) -> int:
            calls.append((blob.name, start, len(target)))
            return whole(folder, blob, start, target)

        Folder.read_into = record  # type: ignore[method-assign]
        self.checkpoints.load(saved, state)
        Folder.read_into = whole  # type: ignore[method-assign]
        buffers = [memoryview(bytearray(size)) for _, _, size in calls]
        found = []
        for turn in range(turns + 1):
            taken = {}
            for name in ("load", "read") if turn % 2 else ("read", "load"):
                self._forget()
                dist.barrier()
                began = time.perf_counter()
                if name == "load":
                    self.checkpoints.load(saved, state)
                else:
                    for (blob, start, _), buffer in zip(calls, buffers, strict=True):
                        _read(self.folder / "ours/blobs" / blob, start, buffer)
                    dist.barrier()
                seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
                dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
                taken[name] = seconds.item()
            if turn:
                found.append(taken)
        return found

    def _forget(self) -> None:
        """Take the files out of the page cache."""
        dist.barrier()
        if self.rank == 0:
            for path in (self.folder / "ours/blobs").iterdir():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
        dist.barrier()


def _read(path: Path, start: int, buffer: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(buffer):
            done += os.preadv(file.fileno(), [buffer[done:]], start + done)


def rank(number: int, plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(plan["port"])}
    dist.init_process_group("gloo", rank=number, world_size=plan["ranks"])
    bench = Bench(number, plan["ranks"], plan["kind"], plan["width"], Path(plan["folder"]))
    bench.step()
    saves = bench.saves(plan["turns"]) if plan["saves"] else []
    found = {"saves": saves, "written": bench.written(), "loads": bench.loads(plan["turns"])}
    if number == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    children = []
    for each in range(given["ranks"]):
        pid = os.fork()
        if not pid:
            rank(each, given)
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
