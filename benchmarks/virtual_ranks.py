"""What virtual ranks cost per step, against DistributedDataParallel with accumulation at the same number of workers.

Both train the same model on the same micro-batches, 8 per step, in the same processes and in turns. The wide MLP is the
worst case: it does little with each byte of its gradients.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localcluster.prepare import prepare

from .model import Group, Measured, Options, Say, Spec
from .nursery import Nursery
from .stats import median_ratio, spread
from .world import PROGRAMS

TURNS, STEPS = 11, 5
LIMIT_S = 1800.0
KINDS = ("mlp", "transformer")


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    count = TURNS // 5 if options.quick else TURNS
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        nursery = Nursery(Path(folder), [PROGRAMS / "virtual"], str(made.rootfs), str(made.torch))
        for world in (1, 2):
            ratios, texts, runs = [], [], []
            for kind in KINDS:
                given = {"kind": kind, "count": count, "steps": STEPS}
                ranks = nursery.run(world, "virtual_turns:turns", limit_s=LIMIT_S, **given)
                # A step is over when its slowest rank is.
                pairs, cpu = compared(ranks, 0, max), compared(ranks, 1, sum)
                ratios.append(median_ratio(pairs))
                scatter = spread([ours / theirs for ours, theirs in pairs])
                middle = sorted(theirs for _, theirs in pairs)[len(pairs) // 2] * 1000
                used = f"CPU time {median_ratio(cpu):.3g} (+- {spread([ours / theirs for ours, theirs in cpu]):.2g})"
                texts.append(f"{kind} {ratios[-1]:.3g} (+- {scatter:.2g}) of {middle:.3g} ms, {used}")
                runs.append({"seconds": pairs, "cpu": cpu})
                say(f"{world} workers: {texts[-1]}")
            found[f"virtual_ranks_k{world}_x"] = Measured(max(ratios), runs, "; ".join(texts))
        nursery.close()
    return found


def compared(ranks: Sequence[Any], what: int, join: Callable[[Iterable[float]], float]) -> list[tuple[float, float]]:
    """(ours, theirs) of each turn, of all ranks together.

    :param ranks: for each rank its turns, of which each has two sides, of which each has two figures
    :param what: which of them
    """
    turns = zip(*ranks, strict=True)
    return [(join(ours[what] for ours, _ in turn), join(theirs[what] for _, theirs in turn)) for turn in turns]


GROUP = Group(
    "virtual ranks",
    "root, training root file system, torch environment",
    [
        Spec("virtual_ranks_k1_x", "x", "", "a step of 8 virtual ranks on one worker against 8 plain micro-batches"),
        Spec("virtual_ranks_k2_x", "x", "", "a step of 8 virtual ranks on two workers against DDP with accumulation"),
    ],
    measure,
)
