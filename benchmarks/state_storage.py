"""Storage of the state engine: how long a save holds training up, what it writes, how long a restore takes.

Four ranks under FSDP2 with AdamW save a state of 50 MB, in turns with `torch.distributed.checkpoint.async_save` alone.
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
from .stats import median, median_ratio
from .world import PROGRAMS, free_port

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
WIDTH = 1024
TURNS = 9
LIMIT_S = 600


def run(made: Prepared, kind: str, options: Options) -> dict[str, Any]:
    """Raises RuntimeError: the ranks failed."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    bench = folder / "bench"
    bench.mkdir()
    try:
        shutil.copy(PROGRAMS / "state_save.py", bench / "state_save.py")
        shutil.copytree(ROOT / "singularity_train", bench / "lib" / "singularity_train")
        turns, width = (3, WIDTH // 4) if options.quick else (TURNS, WIDTH)
        plan = {"ranks": RANKS, "kind": kind, "width": width, "turns": turns, "port": free_port()}
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


def pairs(found: dict[str, Any], other: str, what: str) -> list[tuple[float, float]]:
    return [(turn["ours"][what], turn[other][what]) for turn in found["saves"]]


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    found = {kind: run(made, kind, options) for kind in ("fsdp", "ddp")}
    fsdp = found["fsdp"]
    stall = pairs(fsdp, "theirs", "blocked")
    ours, theirs = median(one for one, _ in stall) * 1000, median(other for _, other in stall) * 1000
    text = (
        f"{ours:.3g} ms against {theirs:.3g} ms; "
        f"with DCP's memory kept {median_ratio(pairs(fsdp, 'cached', 'blocked')):.2f}; "
        f"under DDP {median_ratio(pairs(found['ddp'], 'theirs', 'blocked')):.2f}; "
        f"until the steps beside it are done {median_ratio(pairs(fsdp, 'theirs', 'trained')):.2f}, "
        f"until the save is {median_ratio(pairs(fsdp, 'theirs', 'done')):.2f}"
    )
    written = {kind: each["written"] for kind, each in found.items()}
    ratios = {kind: each["written"] / each["state"] for kind, each in written.items()}
    of = f"{fsdp['written']['state'] / 1e6:.3g} MB; an unchanged state writes {fsdp['written']['unchanged']} bytes"
    loads = [(turn["load"], turn["read"]) for turn in fsdp["loads"]]
    seconds = f"{median(load for load, _ in loads):.3g} s against {median(read for _, read in loads):.3g} s"
    return {
        "state_async_stall": Measured(median_ratio(stall), stall, text),
        "state_written_ratio": Measured(max(ratios.values()), [written], of),
        "state_restore_ratio": Measured(median_ratio(loads), loads, f"{seconds}, files not in the page cache"),
    }


GROUP = Group(
    "state storage",
    "root, training root file system",
    [
        Spec("state_async_stall", "x", "<= 1.05", "training held up by a save, against DCP's async_save alone"),
        Spec("state_written_ratio", "x", "<= 1.02", "bytes that a save writes, against the state"),
        Spec("state_restore_ratio", "x", "<= 1.2", "seconds of a restore, against plainly reading the same bytes"),
    ],
    measure,
)
