"""With two or more GPUs: NCCL over all of them, ranks that come back on each other's GPU, and on half of them."""

from __future__ import annotations

import json

from singularity_proxy.protocol import names

from ..compare import outcome, same, undisturbed
from ..job import Job
from ..kit import Kit, Result, SkipPartError


def run(kit: Kit, result: Result) -> None:
    gpus = len(kit.devices())
    if gpus < 2:
        raise SkipPartError("this machine has one GPU")
    world = kit.pick(gpus, 2)
    steps = 600
    arguments = (steps, kit.pick(1024, 16), "ddp")
    each = [[rank] for rank in range(world)]
    wanted = undisturbed(kit, "alone", "world.py", arguments, each, pod_env=_names(kit, each))
    with Job(kit, "turned", "world.py", arguments, each, gpus=each, pod_env=_names(kit, each)) as job:
        job.stop(steps // 3)
        turned = [*each[1:], each[0]]
        job.move(each, gpus=turned, pod_env=_names(kit, turned))
        job.finish()
        same(result, f"{world} ranks, each on the GPU of the next", wanted, outcome(job))
        if kit.fake:
            where = [json.loads(job.result(rank, "../tmp/fake-gpu"))["gpu"] for rank in range(world)]
            there = [kit.devices()[numbers[0]].uuid for numbers in turned]
            result.check("the driver was told which GPU takes the place of which", where == there, f"{where}")
    if world % 2 == 0:
        half = [[2 * n, 2 * n + 1] for n in range(world // 2)]
        with Job(kit, "half", "world.py", arguments, each, gpus=each, pod_env=_names(kit, each)) as job:
            job.stop(steps // 3)
            job.move(half, gpus=each[: world // 2], pod_env=_names(kit, each[: world // 2]))
            job.stop(2 * steps // 3)
            job.move(each, gpus=each, pod_env=_names(kit, each))
            job.finish()
            found = outcome(job)
        if world == 2:  # a sum of two has one order
            same(result, f"{world} GPUs -> {world // 2} -> {world}", wanted, found)
        else:
            result.check(f"{world} GPUs -> {world // 2} -> {world}: it comes to its end", len(found) == world)
    result.sentence = f"{world} GPUs"


def _names(kit: Kit, gpus: list[list[int]]) -> list[dict[str, str]] | None:
    """Without GPUs, ranks say by a name where they are."""
    return [{names.ENV_DEVICE: f"GPU-{numbers[0]}"} for numbers in gpus] if kit.fake else None
