"""Seconds per mini-batch: with the agent against without, and on half the cores against all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from localcluster.prepare import Prepared, prepare

from .model import Group, Measured, Options, Say, Spec
from .stats import median, median_ratio, spread
from .world import Block, World

BLOCK_S = 0.25
Pairs = list[tuple[Block, Block]]


def in_turns(first: World, second: World, pairs: int) -> Pairs:
    """Blocks of about BLOCK_S in the order A B B A A B ..., side by side."""
    first.block(10), second.block(10)
    steps = max(3, round(BLOCK_S / second.block(10).seconds))
    found: Pairs = []
    for turn in range(pairs):
        if turn % 2:
            b, a = second.block(steps), first.block(steps)
        else:
            a, b = first.block(steps), second.block(steps)
        found.append((a, b))
    return found


def overhead(made: Prepared, ranks: int, pairs: int) -> Pairs:
    """Half of the pairs with one couple of processes, half with another: memory layouts differ by a per cent too."""
    found: Pairs = []
    for _ in range(2):
        with World(made, ranks, agent=True) as ours, World(made, ranks, agent=False) as plain:
            found += in_turns(ours, plain, pairs // 2)
    return found


def seconds(pairs: Pairs) -> list[tuple[float, float]]:
    return [(a.seconds, b.seconds) for a, b in pairs]


def cpu(pairs: Pairs) -> list[tuple[float, float]]:
    return [(a.cpu, b.cpu) for a, b in pairs]


def measure_overhead(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    by_ranks: dict[int, Pairs] = {}
    for ranks in (1, 2, 4):
        by_ranks[ranks] = overhead(made, ranks, 16 if options.quick else 120)
        say(f"{ranks} ranks: {words(by_ranks[ranks])}")
    worst = max(median_ratio(seconds(pairs)) for pairs in by_ranks.values())
    each = "; ".join(f"{ranks} ranks {words(pairs)}" for ranks, pairs in by_ranks.items())
    runs = [{"ranks": r, "seconds": seconds(pairs), "cpu_seconds": cpu(pairs)} for r, pairs in by_ranks.items()]
    text = f"the same script without the agent: {each}; the worst of the three counts"
    return {"steady_overhead_pct": Measured(100 * (worst - 1), runs, text)}


def words(pairs: Pairs) -> str:
    usual = 1000 * median(b.seconds for _, b in pairs)
    return f"{percent(seconds(pairs))} of {usual:.3g} ms, CPU time {percent(cpu(pairs))}"


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
        pairs = in_turns(half, full, 8 if options.quick else 30)
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
        Spec("half_pods_slowdown", "", "<= 1.03", "2 ranks on half the cores against twice the time"),
    ],
    measure,
)
