"""Which proposals are carried out: the limits that hold whatever a policy proposes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .active import Active, State
from .model import DEVICES_PER_NODE, Limits
from .seam import Action, Move, Priority, Resize

HOUR_S = 3600.0


def allowed(
    actions: Sequence[Action], jobs: Mapping[int, Active], limits: Limits, now: float, refused: Counter[str]
) -> Iterator[Action]:
    """Yield what may be done, at most one move of a job; count the others in `refused` by cause.

    `jobs` is read again for each action, so the caller carries out each before it asks for the next.
    """
    moved: set[int] = set()
    leaving = sum(active.state is State.LEAVING for active in jobs.values())
    running = sum(active.state is State.RUNNING for active in jobs.values())
    room = max(1, int(running * limits.at_once)) - leaving
    for action in actions:
        active = jobs.get(action.id)
        cause = "" if active is not None else "no such job"
        if active is not None and not isinstance(action, Priority):
            cause = "a second move" if action.id in moved else _nonsense(action, active)
            if not cause and active.state is not State.WAITING:
                cause = _too_soon(active, limits, now) or ("too many leave" if room <= 0 else "")
                room -= not cause
            if not cause:
                moved.add(action.id)
        if cause:
            refused[cause] += 1
        else:
            yield action


def _nonsense(action: Resize | Move, active: Active) -> str:
    job = active.job
    if isinstance(action, Resize):
        wide = job.one_node and action.devices > DEVICES_PER_NODE
        return "size out of bounds" if wide or not job.least <= action.devices <= job.most else ""
    if job.speeds.get(action.flavor, 0) <= 0:
        return "cannot run there"
    return "" if active.state is State.RUNNING else "does not run"


def _too_soon(active: Active, limits: Limits, now: float) -> str:
    if active.state is not State.RUNNING:
        return "does not run"
    if now - active.run_since < limits.least_run_s:
        return "has just come"
    recent = sum(now - at < HOUR_S for at in active.moves)
    return "moved too often" if recent >= limits.moves_per_hour else ""
