"""The trial of an attempt: can its ranks be saved? Once, when they have trained a little, and only if it is cheap.

The ranks stop at a barrier, are dumped to nowhere, and go on. So what keeps a program from being saved is known before
somebody stops it. There is no trial where a checkpoint of the attempt has shown it already, or where the ranks would
stand still for more than LIMIT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from ..protocol import names, page
from ..protocol.messages import Gpus, Weight
from . import state_machine
from .leader import Leader
from .peers import PodReport
from .state_machine import Heard, Outcome, State

LIMIT_S: Final = 36.0
"""One percent of an attempt's first hour."""
LOOK_S: Final = 1.0
"""Between two looks, or less where the trial comes early, but not less than LEAST_S."""
LEAST_S: Final = 0.05
WEIGH_S: Final = 60.0
"""As long may the pods take to say what their ranks hold."""
PAGES: Final = 1 << 30
"""Bytes in a second that CRIU gives to a server that drops them: half of what one core of a slow machine does."""
DISK: Final = 256 << 20
"""... that a rank writes of its state to the disk of its node."""
OUT: Final = 2 << 30
BACK: Final = 4 << 30
"""... that a driver moves from GPUs to memory, and back."""
ALWAYS_S: Final = 2.0
"""Barrier, CRIU's start and end, and the ranks' way back to each other."""


async def run(leader: Leader, engine: str, after_s: float) -> None:
    """Returns when there is nothing left to find out.

    :param after_s: seconds of training before the trial
    """
    pause = min(LOOK_S, max(after_s, LEAST_S))
    began = asked = 0.0
    while not leader.shown:
        now = time.monotonic()
        if not trains(leader.state, leader.heard):
            began = 0.0
        elif not began:
            began = now
        elif not asked and now - began >= after_s:
            asked = now
            leader.weigh()
        elif asked and (weighed(leader.heard) or now - asked >= WEIGH_S):
            why = obstacle(leader.heard, engine)
            if why:
                leader.tell_outcome(Outcome("not tried", why=why))
            else:
                leader.try_save(LIMIT_S)
            return
        await asyncio.sleep(pause)


def trains(state: State, heard: Mapping[int, Heard]) -> bool:
    """All pods run their ranks, and these have made a step, or are of a program that may make none. Nobody waits for a
    rank that has ended, but some must be left."""
    reports = [item.report for item in heard.values()]
    if state.phase != "run" or len(reports) < state.workers or not all(report.started for report in reports):
        return False
    going = [view for view in state_machine.world(state, heard) if view.state != page.STATE_ENDED]
    steps = all(report.first_step_ago_s is not None for report in reports if not _ended(report))
    return bool(going) and not state.broken and (steps or all(view.state in page.FREE for view in going))


def _ended(report: PodReport) -> bool:
    return all(words.state == page.STATE_ENDED for words in report.ranks)


def weighed(heard: Mapping[int, Heard]) -> bool:
    """All pods have said what their ranks hold."""
    return all(item.report.weight is not None for item in heard.values())


def obstacle(heard: Mapping[int, Heard], engine: str) -> str:
    """Why there is to be no trial, "" if there may be one."""
    longest = 0.0
    for index, item in sorted(heard.items()):
        weight, gpus = item.report.weight, item.report.gpus
        if weight is None:
            return f"pod {index} did not say what its ranks hold in memory"
        harm = _harm(weight, _on_gpus(gpus)) if engine != names.ENGINE_STATE else ""
        if harm:
            return f"pod {index}: {harm}"
        longest = max(longest, stopped_s(weight, gpus, engine))
    if longest <= LIMIT_S:
        return ""
    return f"a trial would stop the ranks for about {longest:.0f} s, and may take {LIMIT_S:.0f} s"


def stopped_s(weight: Weight, gpus: Gpus | None, engine: str) -> float:
    """For about how long a trial stops the ranks of a pod: rather too long than too short."""
    lent = _on_gpus(gpus)
    held = weight.memory + lent
    if engine == names.ENGINE_STATE:
        return ALWAYS_S + held / DISK  # what they save is at most what they hold
    beside = held / DISK if engine == names.ENGINE_BOTH else 0.0
    return ALWAYS_S + beside + held / PAGES + lent / OUT + lent / BACK


def _on_gpus(gpus: Gpus | None) -> int:
    """At most so many bytes are in use on the GPUs of a pod."""
    return 0 if gpus is None else gpus.count * gpus.memory_peak


def _harm(weight: Weight, lent: int) -> str:
    """What lies on GPUs is moved into memory. Where that has no room for it, the kernel would kill a rank."""
    if weight.limit is None or weight.memory + lent <= weight.limit:
        return ""
    limit, needed = weight.limit / 2**20, (weight.memory + lent) / 2**20
    return (
        f"a checkpoint moves what lies on its GPUs into memory, which then holds up to {needed:.0f} MiB; the limit of "
        f"the container is {limit:.0f} MiB"
    )
