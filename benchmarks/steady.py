"""Seconds per mini-batch: with the agent against without, and on half the cores against all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from localcluster.config import cache_dir
from localcluster.images import rootfs
from localcluster.prepare import Prepared, prepare

from .model import Group, Measured, Options, Say, Spec
from .stats import median, median_ratio, spread
from .world import Block, World

BLOCK_S = 0.25
PROCESSES = 2
Pairs = list[tuple[Block, Block]]
Turn = Callable[[int], Block]
"""Makes so many steps."""


def in_turns(sides: Sequence[Turn], rounds: int) -> list[tuple[Block, ...]]:
    """Blocks of about BLOCK_S, one of each side per round; the order goes round and is turned about (A B C, C B A)."""
    warm = [side(10) for _ in range(2) for side in sides]
    steps = max(3, round(BLOCK_S / warm[-1].seconds))
    found = []
    for number in range(rounds):
        first = number // 2 % len(sides)
        order = [*range(first, len(sides)), *range(first)]
        blocks = {place: sides[place](steps) for place in (reversed(order) if number % 2 else order)}
        found.append(tuple(blocks[place] for place in range(len(sides))))
    return found


@dataclass(frozen=True)
class Overhead:
    """Pairs of blocks: with the agent and without; and, for what this machine can tell, without and without."""

    ours: Pairs
    control: Pairs


def overhead(made: Prepared, ranks: int, rounds: int) -> Overhead:
    """The agent is taken out of the running ranks and put back. Two processes of the same script, both without us,
    differ by more than the effect to be measured. In PROCESSES parts, as one process's memory layout may favour a
    side."""
    found: list[tuple[Block, ...]] = []
    for _ in range(PROCESSES):
        with World(made, ranks, agent=True) as world:
            world.block(5)
            found += in_turns([switched(world, on) for on in (True, False, False)], rounds // PROCESSES)
            if len(set(world.counts())) != 1 or world.counts()[0] < 5 + rounds // PROCESSES:
                raise RuntimeError(f"the agent counted {world.counts()} boundaries: it was not switched on")
    return Overhead([(a, b) for a, b, _ in found], [(c, b) for _, b, c in found])


def switched(world: World, on: bool) -> Turn:
    def block(steps: int) -> Block:
        world.switch(on)
        return world.block(steps)

    return block


def seconds(pairs: Pairs) -> list[tuple[float, float]]:
    return [(a.seconds, b.seconds) for a, b in pairs]


def cpu(pairs: Pairs) -> list[tuple[float, float]]:
    return [(a.cpu, b.cpu) for a, b in pairs]


OLDER = "2.8.0"
"""A torch whose process groups are ours, around its own."""


def older(made: Prepared, say: Say) -> Prepared:
    """The same in Debian 12, for which there are wheels of OLDER (`make matrix-torch`)."""
    root = rootfs.debian(cache_dir(), say, *rootfs.DEBIAN_12)
    torch = rootfs.torch(cache_dir(), say, (f"torch=={OLDER}", "numpy"), root, rootfs.DEBIAN_12_PYTHON)
    return replace(made, rootfs=root, torch=torch)


def measure_overhead(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    return {
        "steady_overhead_pct": _overhead(made, options, say),
        "steady_overhead_torch28_pct": _overhead(older(made, say), options, say),
    }


def _overhead(made: Prepared, options: Options, say: Say) -> Measured:
    by_ranks: dict[int, Overhead] = {}
    for ranks in (1, 2, 4):
        by_ranks[ranks] = overhead(made, ranks, 24 if options.quick else 120)
        say(f"{ranks} ranks: {words(by_ranks[ranks])}")
    worst = max(median_ratio(seconds(found.ours)) for found in by_ranks.values())
    each = "; ".join(f"{ranks} ranks {words(found)}" for ranks, found in by_ranks.items())
    runs = [
        {"ranks": r, "seconds": seconds(x.ours), "cpu_seconds": cpu(x.ours), "control": seconds(x.control),
         "control_cpu": cpu(x.control)}
        for r, x in by_ranks.items()
    ]  # fmt: skip
    text = f"the same processes with the agent taken out: {each}; the worst of the three counts"
    return Measured(100 * (worst - 1), runs, text)


def words(found: Overhead) -> str:
    usual = 1000 * median(b.seconds for _, b in found.ours)
    control = f"without against without {percent(seconds(found.control))}, CPU time {percent(cpu(found.control))}"
    return f"{percent(seconds(found.ours))} of {usual:.3g} ms, CPU time {percent(cpu(found.ours))} ({control})"


def percent(pairs: Sequence[tuple[float, float]]) -> str:
    """Median of the extra and its standard error, estimated from the quartiles (1.25 * 1.48 * spread / sqrt n)."""
    ratios = [100 * (a / b - 1) for a, b in pairs]
    error = 1.86 * spread(ratios) / len(ratios) ** 0.5
    return f"{median(ratios):+.2f} % (+- {error:.2f})"


def measure_half(options: Options, say: Say) -> Mapping[str, Measured]:
    """Two ranks on one core against two ranks on two: a pod is as much CPU as it asks for."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError("half_pods_slowdown needs two cores")
    made = prepare(say)
    with (
        World(made, 2, agent=True, cores=[cores[0], cores[0]]) as half,
        World(made, 2, agent=True, cores=cores) as full,
    ):
        pairs = [(a, b) for a, b in in_turns((half.block, full.block), 8 if options.quick else 30)]
    ratios = [a / (2 * b) for a, b in seconds(pairs)]
    text = f"twice the time of 2 ranks on 2 cores; spread {spread(ratios):.2g}"
    return {"half_pods_slowdown": Measured(median(ratios), seconds(pairs), text)}


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    return {**measure_overhead(options, say), **measure_half(options, say)}


GROUP = Group(
    "steady",
    "root, training root file system, 2 cores",
    [
        Spec("steady_overhead_pct", "%", "<= 0.3", "seconds per mini-batch with against without the agent"),
        Spec("steady_overhead_torch28_pct", "%", "<= 0.3", f"the same with torch {OLDER}"),
        Spec("half_pods_slowdown", "", "<= 1.03", "2 ranks on half the cores against twice the time"),
    ],
    measure,
)
