"""A rank trains a transformer, is stopped, dumped, killed and restored in a new slot: every bit as if undisturbed."""

from __future__ import annotations

import statistics
import time

from singularity_proxy.launcher.device import nvml

from ..compare import outcome, same, undisturbed
from ..job import Job
from ..kit import Kit, Result

TIMES = 20


def run(kit: Kit, result: Result) -> None:
    steps, moves = kit.pick((420, TIMES), (60, 1))
    arguments = (steps, *kit.pick((1024, 8), (32, 1)))
    wanted = undisturbed(kit, "alone", "train.py", arguments, [[0]])
    if not kit.fake:
        same(result, "two undisturbed runs are alike", wanted, undisturbed(kit, "twice", "train.py", arguments, [[0]]))
    stops, restores = [], []
    with Job(kit, "moved", "train.py", arguments, [[0]]) as job:
        for number in range(moves):
            began = time.monotonic()
            job.stop((number + 1) * steps // (moves + 1))
            stops.append(time.monotonic() - began)
            image = sum(f.stat().st_size for f in job.pods[0].image(job.checkpoint, 0).rglob("*") if f.is_file())
            restores.append(job.move([[0]]))
            result.note(f"move {number + 1}: at step {job.step}, {image / 1e9:.2f} GB, {restores[-1]:.2f} s to restore")
        job.finish()
        _watched(kit, result, job)
        same(result, f"after {moves} moves", wanted, outcome(job))
    if not kit.fake:
        result.figure("image, GB", image / 1e9)
        result.figure("wait for the step, barrier and dump s, least", min(stops))
        result.figure("restore s, median", statistics.median(restores))
    result.sentence = f"{moves} moves"


def _watched(kit: Kit, result: Result, job: Job) -> None:
    """What NVML says of the GPUs reaches the launcher's sidecar, also from a pod that was restored."""
    if not kit.fake and nvml.library() is None:
        result.note("pynvml is not here: what the GPUs do is not told")
        return
    told = [event.gpus for event in job.pods[0].conductor.events if event.gpus is not None]
    result.check("the launcher has told what the GPUs do", bool(told), str(told[-1]) if told else "")
