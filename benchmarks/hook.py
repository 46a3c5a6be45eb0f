"""What one step boundary and one collective cost the rank while nobody asks for a stop."""

from __future__ import annotations

from collections.abc import Mapping

from localcluster.prepare import prepare

from .model import Group, Measured, Options, Say, Spec
from .stats import median, spread
from .world import World

CALLS = 100_000
COLLECTIVES = 2_000


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    return {**boundary(options, say), **collective(options, say)}


def collective(options: Options, say: Say) -> Mapping[str, Measured]:
    """CPU time of an all-reduce of one rank with itself, with the agent and without, in turns; and without, twice."""
    calls = COLLECTIVES // 10 if options.quick else COLLECTIVES
    made = prepare(say)
    runs = []
    with World(made, 1, agent=True) as ours, World(made, 1, agent=False) as plain, World(made, 1, agent=False) as other:
        worlds = {"ours": ours, "plain": plain, "other": other}
        for world in worlds.values():
            world.collective(calls)
        for turn in range(31):
            order = list(worlds) if turn % 2 else list(worlds)[::-1]
            taken = {name: worlds[name].collective(calls) / 1000 for name in order}
            runs.append([taken["ours"], taken["plain"], taken["other"]])
    added, control = [a - b for a, b, _ in runs], [c - b for _, b, c in runs]
    text = (
        f"{median(b for _, b, _ in runs):.3g} us without the agent; spread {spread(added):.2g}; "
        f"without against without {median(control):+.2g} us"
    )
    return {"collective_hook_us": Measured(median(added), runs, text)}


def boundary(options: Options, say: Say) -> Mapping[str, Measured]:
    """In a real rank, through torch's own table of hooks; an empty table takes turns with it and is taken off."""
    calls = CALLS // 10 if options.quick else CALLS
    with World(prepare(say), 1, agent=True) as world:
        world.block(5)  # the first step makes the process the rank
        if world.counts() != [5]:
            raise RuntimeError(f"the agent counted {world.counts()} boundaries of 5 steps: it is not switched on")
        runs = [world.hook(calls) for _ in range(11)]
        if world.counts() != [5 + 11 * calls]:
            raise RuntimeError("the agent's hook was not what was measured: its counter did not follow")
    pairs = [[run["agent"] / 1000, run["empty"] / 1000] for run in runs]
    net = [agent - empty for agent, empty in pairs]
    return {"boundary_hook_us": Measured(median(net), pairs, f"an empty table of hooks; spread {spread(net):.2g}")}


GROUP = Group(
    "hook",
    "root, training root file system",
    [
        Spec("boundary_hook_us", "us", "<= 1", "host cost of one step boundary when nothing is asked"),
        Spec("collective_hook_us", "us", "", "CPU time added to one all-reduce when nothing is asked"),
    ],
    measure,
)
