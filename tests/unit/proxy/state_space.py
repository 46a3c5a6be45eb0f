"""Every state that a model can come to, and those from which it cannot come to a good end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

World = TypeVar("World", bound=Hashable)


def explore(
    start: World, ended: Callable[[World], bool], moves: Callable[[World], Iterable[World]]
) -> tuple[int, list[World]]:
    """(states, stuck). Stuck: no state that has `ended` can be reached any more.

    :param ended: asked once of each state; from one that has ended no move is made
    """
    before: dict[World, list[World]] = {start: []}
    todo, fine = [start], []
    while todo:
        world = todo.pop()
        if ended(world):
            fine.append(world)
            continue
        for after in moves(world):
            if after not in before:
                before[after] = []
                todo.append(after)
            before[after].append(world)
    alive = set(fine)
    while fine:
        for world in before[fine.pop()]:
            if world not in alive:
                alive.add(world)
                fine.append(world)
    return len(before), [world for world in before if world not in alive]
