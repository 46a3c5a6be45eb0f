"""Storage of the state engine: how long a save holds training up, what it writes, how long a restore takes.

Four ranks under FSDP2 with AdamW save a state of 50 MB, in turns with `torch.distributed.checkpoint` alone: its
`async_save` and its `save`. A restore is measured of that state, where its fixed cost shows, and of one of 315 MB.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster.prepare import Prepared, prepare

from .box import enter
from .model import Group, Measured, Options, Say, Spec
from .stats import median, median_ratio, spread
from .world import PROGRAMS, free_port

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
WIDTH, LARGE = 1024, 2560
TURNS = 9
LIMIT_S = 600


def run(made: Prepared, kind: str, options: Options, width: int = WIDTH, *, saves: bool = True) -> dict[str, Any]:
    """Raises RuntimeError: the ranks failed.

    :param saves: False: restores only
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    bench = folder / "bench"
    bench.mkdir()
    try:
        shutil.copy(PROGRAMS / "state_save.py", bench / "state_save.py")
        shutil.copytree(ROOT / "singularity_train", bench / "lib" / "singularity_train")
        turns, width = (3, width // 4) if options.quick else (TURNS, width)
        plan = {"ranks": RANKS, "kind": kind, "width": width, "turns": turns, "saves": saves, "port": free_port()}
        plan["folder"] = "/bench/data"
        (bench / "data").mkdir()
        (bench / "plan.json").write_text(json.dumps(plan))
        process = enter(
            made,
            folder,
            ["python3", "/bench/state_save.py", "/bench/plan.json"],
            path=["/bench/lib"],
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise RuntimeError(f"the ranks have ended with {process.returncode}; see above")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pairs(found: dict[str, Any], other: str, what: str, mine: str = "ours") -> list[tuple[float, float]]:
    return [(turn[mine][what], turn[other][what]) for turn in found["saves"]]


def milliseconds(values: list[tuple[float, float]]) -> str:
    mine, theirs = (median(value * 1000 for value in each) for each in zip(*values, strict=True))
    return f"{mine:.3g} ms against {theirs:.3g} ms"


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    found = {kind: run(made, kind, options) for kind in ("fsdp", "ddp")}
    large = run(made, "fsdp", options, LARGE, saves=False)
    return {**stalls(found), **written(found), **restores(found["fsdp"], large)}


def stalls(found: Mapping[str, Any]) -> Mapping[str, Measured]:
    fsdp, ddp = found["fsdp"], found["ddp"]
    stall = pairs(fsdp, "theirs", "blocked")
    text = (
        f"{milliseconds(stall)}; "
        f"with DCP's memory kept {median_ratio(pairs(fsdp, 'cached', 'blocked')):.2f}; "
        f"under DDP {median_ratio(pairs(ddp, 'theirs', 'blocked')):.2f}; "
        f"until the steps beside it are done {median_ratio(pairs(fsdp, 'theirs', 'trained')):.2f}, "
        f"until the save is {median_ratio(pairs(fsdp, 'theirs', 'done')):.2f}"
    )
    sync = pairs(fsdp, "theirs_sync", "blocked")
    own, both = pairs(fsdp, "ours_sync", "blocked"), pairs(fsdp, "theirs_sync", "blocked", "ours_sync")
    sync_text = (
        f"{milliseconds(sync)} of DCP's save; under DDP {median_ratio(pairs(ddp, 'theirs_sync', 'blocked')):.2g}; "
        f"against our own save {median_ratio(own):.2g} ({milliseconds(own)}); our save against DCP's "
        f"{median_ratio(both):.2f}, under DDP {median_ratio(pairs(ddp, 'theirs_sync', 'blocked', 'ours_sync')):.2f}"
    )
    return {
        "state_async_stall": Measured(median_ratio(stall), stall, text),
        "state_sync_ratio": Measured(median_ratio(sync), fsdp["saves"], sync_text),
    }


def written(found: Mapping[str, Any]) -> Mapping[str, Measured]:
    bytes_of = {kind: each["written"] for kind, each in found.items()}
    ratios = {kind: each["written"] / each["state"] for kind, each in bytes_of.items()}
    fsdp = bytes_of["fsdp"]
    text = f"{fsdp['state'] / 1e6:.3g} MB; an unchanged state writes {fsdp['unchanged']} bytes"
    return {"state_written_ratio": Measured(max(ratios.values()), [bytes_of], text)}


def restores(small: Mapping[str, Any], large: Mapping[str, Any]) -> Mapping[str, Measured]:
    made = {}
    for key, found in (("state_restore_ratio", small), ("state_restore_large_ratio", large)):
        loads = [(turn["load"], turn["read"]) for turn in found["loads"]]
        scatter = spread([load / read for load, read in loads])
        text = f"{milliseconds(loads)} for {found['written']['state'] / 1e6:.3g} MB, files not in the page cache"
        made[key] = Measured(median_ratio(loads), loads, f"{text}; spread {scatter:.2g}")
    return made


GROUP = Group(
    "state storage",
    "root, training root file system",
    [
        Spec("state_async_stall", "x", "<= 1.05", "training held up by a save, against DCP's async_save alone"),
        Spec("state_sync_ratio", "x", "", "training held up by an async save, against DCP's synchronous save"),
        Spec("state_written_ratio", "x", "<= 1.02", "bytes that a save writes, against the state"),
        Spec("state_restore_ratio", "x", "<= 1.2", "seconds of a restore, against plainly reading the same bytes"),
        Spec("state_restore_large_ratio", "x", "<= 1.2", "the same with six times the state, 315 MB"),
    ],
    measure,
)
