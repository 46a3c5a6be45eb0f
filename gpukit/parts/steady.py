"""The time of a mini-batch with and without the agent, in pairs; and that it synchronises with the GPU nowhere."""

from __future__ import annotations

import statistics
import subprocess
import sys

from ..job import PROGRAMS, Job
from ..kit import Kit, PartError, Result, environment

AIM = 0.003
"""Of the time of a mini-batch."""


def run(kit: Kit, result: Result) -> None:
    pairs, steps, width = kit.pick((6, 400, 2048), (1, 30, 32))
    ratios = []
    for number in range(pairs):
        arguments = (steps, width)
        # Whichever comes first gets the cooler GPU: they take turns.
        if number % 2:
            alone = _alone(kit, number, arguments)
            watched = _watched(kit, number, arguments, result)
        else:
            watched = _watched(kit, number, arguments, result)
            alone = _alone(kit, number, arguments)
        ratios.append(watched / alone)
        if not kit.fake:
            result.note(f"pair {number + 1}: {alone:.4f} ms alone, {watched:.4f} ms with the agent")
    if not kit.fake:
        cost = statistics.median(ratios) - 1
        result.figure("the agent costs, of a mini-batch", cost)
        result.figure("lowest and highest of the pairs", f"{min(ratios) - 1:.5f} to {max(ratios) - 1:.5f}")
        result.check(f"it costs less than {AIM:.1%}", cost < AIM, f"{cost:.3%}")
    result.sentence = f"{pairs} pairs of {steps} mini-batches"


def _alone(kit: Kit, number: int, arguments: tuple[int, int]) -> float:
    folder = kit.folder / f"alone-{number}"
    folder.mkdir()
    argv = [sys.executable, str(PROGRAMS / "steady.py"), *map(str, arguments)]
    done = subprocess.run(
        argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=max(1.0, kit.left)
    )
    if done.returncode:
        raise PartError(f"without the agent the program ended with code {done.returncode}: {done.stderr[-500:]}")
    return float((folder / "milliseconds").read_text())


def _watched(kit: Kit, number: int, arguments: tuple[int, int], result: Result) -> float:
    with Job(kit, f"watched-{number}", "steady.py", arguments, [[0]]) as job:
        job.finish()
        problem = job.result(0, "synchronised")
        if number == 0:
            result.check("no step synchronises with the GPU because of the agent", not problem, problem)
        return float(job.result(0, "milliseconds"))
