"""Ranks that share one GPU (a leader with NCCL, gloo beside it): pods 4 -> 1 -> 2, bits, time and memory."""

from __future__ import annotations

from singularity_proxy.protocol import names

from ..compare import outcome, same, undisturbed
from ..job import Job
from ..kit import Kit, Result


def run(kit: Kit, result: Result) -> None:
    steps, width = kit.pick((600, 1024), (600, 16))
    alone = _seconds(kit, "single", steps, width, 1, result)
    for world in kit.pick((2, 4), (2,)):
        arguments = (steps, width, "ddp")
        everyone = [[*range(world)]]
        # Without a GPU a name takes its place: all pods are on one.
        shared = {names.ENV_DEVICE: "GPU"} if kit.fake else {"CUDA_VISIBLE_DEVICES": "0"}
        wanted = undisturbed(kit, f"{world}-alone", "world.py", arguments, everyone, shared)
        with Job(kit, f"{world}-moved", "world.py", arguments, [[rank] for rank in range(world)], shared) as job:
            job.stop(steps // 3)
            job.move(everyone)
            job.stop(2 * steps // 3)
            half = world // 2
            job.move([[*range(half)], [*range(half, world)]])
            job.finish()
            same(result, f"{world} ranks in {world} pods -> 1 -> 2", wanted, outcome(job))
        if not kit.fake:
            together = _seconds(kit, f"{world}-timed", steps, width, world, result)
            result.figure(
                f"{world} ranks: time of a step against {world} times that of one", together / (world * alone)
            )
    result.sentence = "ranks of one GPU"


def _seconds(kit: Kit, name: str, steps: int, width: int, world: int, result: Result) -> float:
    """Of a step."""
    if kit.fake:
        return 1.0
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    with Job(kit, name, "world.py", (steps, width, "ddp"), [[*range(world)]], env) as job:
        job.finish()
        memory = [int(job.result(rank, "memory")) for rank in range(world)]
        result.figure(f"{world} ranks: GPU memory of each, GB", max(memory) / 1e9)
        return max(float(job.result(rank, "seconds")) for rank in range(world))
