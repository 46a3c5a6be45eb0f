"""Unmodified programs of many kinds, each moved once: the bits of the undisturbed run, or why not."""

from __future__ import annotations

from importlib.util import find_spec

from ..compare import outcome, same, undisturbed
from ..job import Job
from ..kit import Kit, PartError, Result

KINDS: dict[str, tuple[str, ...]] = {
    "compiled": (), "graphs": (), "scaled": (), "recomputed": (), "streams": (), "nvml": ("pynvml",), "nanogpt": (),
    "trainer": ("transformers", "accelerate"), "lightning": ("lightning",),
}  # fmt: skip
"""Function of programs/matrix.py -> modules that it needs beside torch."""
ANYWHERE = ("recomputed", "nanogpt")
"""Those that run without a GPU, too."""
ENOUGH_S = 45.0
"""Seconds that must be left for one more."""


def run(kit: Kit, result: Result) -> None:
    steps = kit.pick(300, 120)
    for kind, needs in KINDS.items():
        if kit.fake and kind not in ANYWHERE:
            continue
        missing = [name for name in needs if find_spec(name) is None]
        if missing:
            result.note(f"{kind}: not tried, {missing[0]} is not installed")
            continue
        if kit.left < ENOUGH_S:
            result.note(f"{kind}: not tried, the time of this part is over")
            continue
        try:
            _one(kit, result, kind, steps)
        except PartError as error:  # the others are still of interest
            result.check(kind, False, str(error)[-600:])
    result.sentence = f"{sum(check.ok for check in result.checks)} of {len(result.checks)} kinds"


def _one(kit: Kit, result: Result, kind: str, steps: int) -> None:
    wanted = undisturbed(kit, f"{kind}-alone", "matrix.py", (kind, steps), [[0]])
    with Job(kit, f"{kind}-moved", "matrix.py", (kind, steps), [[0]]) as job:
        job.stop(steps // 2)
        job.move([[0]])
        job.finish()
        same(result, f"{kind}: moved at boundary {job.step}", wanted, outcome(job))
