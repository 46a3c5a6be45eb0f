"""Which ranks live in which pod: contiguous blocks, as even as possible, the first pods take the remainder.

A pure function of (index, workers, world size), so that controller, sidecar and tests agree without talking.
"""

from __future__ import annotations


def ranks_of(index: int, workers: int, world_size: int) -> list[int]:
    """Global ranks of pod `index`, ascending; never empty. Raises ValueError that names the argument."""
    if workers < 1:
        raise ValueError(f"workers = {workers}: a job has at least one pod")
    if world_size < workers:
        raise ValueError(f"world_size = {world_size}: smaller than workers = {workers}, a pod would have no rank")
    if not 0 <= index < workers:
        raise ValueError(f"index = {index}: not in 0..{workers - 1}")
    each, extra = divmod(world_size, workers)
    first = index * each + min(index, extra)
    return list(range(first, first + each + (1 if index < extra else 0)))


def index_of(rank: int, workers: int, world_size: int) -> int:
    """Index of the pod in which `rank` lives. Raises ValueError that names the argument."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank = {rank}: not in 0..{world_size - 1}")
    return next(i for i in range(workers) if rank in ranks_of(i, workers, world_size))
