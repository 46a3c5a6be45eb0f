"""Exhaustive check of the cut: every interleaving of ranks that sit in collectives, publish, read old news and decide.

A program is a list of operations per rank, each on a channel; an operation ends once all its ranks are in it, or at
once if it is asynchronous. A stop
becomes visible to each rank at any moment. The place before each operation, and the end of the list, can be stopped at.
Ranks may end after their lists; others hear of that at any moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
import state_space

from singularity_proxy.protocol.cut import Entry, behind, judge, known

Rule = Callable[[int, Mapping[int, Entry], int, Collection[int]], str]
Programs = tuple[tuple[str, ...], ...]
"""Per rank the channels of its operations; `a01` is one of ranks 0 and 1, `s01` an asynchronous one. `.` is a long
evaluation, which touches nobody."""


def ranks_of(channel: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in channel[1:])


def issued(program: tuple[str, ...], done: int) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {c: (program[:done].count(c), ranks_of(c)) for c in program[:done] if c != "."}


@dataclass(frozen=True, slots=True)
class Rank:
    """`at`: place (before operation `n`; looks whether a stop is asked for), in (inside operation `n`), wait (its entry
    says that it waits before operation `n`), settled, ended."""

    at: str = "place"
    n: int = 0
    sees: bool = False
    over: frozenset[int] = frozenset()
    """Ranks of which it knows that they have ended."""


@dataclass(frozen=True, slots=True)
class World:
    ranks: tuple[Rank, ...]
    said: tuple[tuple[bool, int] | None, ...]
    """(waiting, operations issued) of each rank's newest entry."""
    read: tuple[tuple[tuple[bool, int] | None, ...], ...]
    """What each rank has read of each, so far."""


def put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def entries(programs: Programs, known: tuple[tuple[bool, int] | None, ...]) -> dict[int, Entry]:
    return {r: Entry(0, k[0], 0, issued(programs[r], k[1])) for r, k in enumerate(known) if k is not None}


def moves(world: World, programs: Programs, rule: Rule, ends: Collection[int] = ()) -> Iterator[World]:
    for i, rank in enumerate(world.ranks):
        program = programs[i]
        if rank.at == "ended":
            continue

        def to(new: Rank, said: tuple[bool, int] | None = None, i: int = i) -> World:
            moved = replace(world, ranks=put(world.ranks, i, new))
            if said is None:
                return moved
            return replace(moved, said=put(world.said, i, said), read=put(world.read, i, put(world.read[i], i, said)))

        if not rank.sees:
            yield to(replace(rank, sees=True))
        if i in ends and rank.at == "place" and rank.n == len(program):
            yield to(replace(rank, at="ended"))
        for r, other in enumerate(world.ranks) if rank.sees else ():
            if other.at == "ended" and r not in rank.over:
                yield to(replace(rank, over=rank.over | {r}))
        if rank.at == "place":
            if rank.sees:
                yield to(replace(rank, at="wait"), (True, rank.n))
            elif rank.n < len(program):
                yield to(replace(rank, at="in"))
        elif rank.at == "in":
            channel = program[rank.n]
            number = program[: rank.n].count(channel)
            if channel[0] in ".s" or all(
                _entered(world.ranks[r], programs[r], channel) > number for r in ranks_of(channel)
            ):
                yield to(replace(rank, at="place", n=rank.n + 1))
        else:
            for r in range(len(programs)):
                if world.said[r] != world.read[i][r]:
                    yield replace(world, read=put(world.read, i, put(world.read[i], r, world.said[r])))
            verdict = _verdict(rule, i, programs, world.read[i], rank.over)
            if verdict == "pass" and rank.n == len(program) and i in ends:
                yield to(replace(rank, at="ended"), (False, rank.n))
            elif verdict == "pass" and rank.n < len(program):
                operation = program[rank.n] != "."
                yield to(replace(rank, at="in"), (False, rank.n + operation))
            elif verdict == "settled" and rank.at == "wait":
                yield to(replace(rank, at="settled"))
            elif verdict != "settled" and rank.at == "settled":
                yield to(replace(rank, at="wait"))


@lru_cache(None)
def _verdict(
    rule: Rule, i: int, programs: Programs, said: tuple[tuple[bool, int] | None, ...], over: frozenset[int]
) -> str:
    return rule(i, known(i, entries(programs, said), over), len(programs), over)


def _entered(rank: Rank, program: tuple[str, ...], channel: str) -> int:
    return program[: rank.n + (rank.at == "in")].count(channel)


def explore(
    programs: Programs, rule: Rule = judge, ends: Collection[int] = ()
) -> tuple[int, list[World], list[World], set[tuple[int, ...]]]:
    """(states, stuck, wrong, where they settled). Stuck: all settled, or ended, cannot be reached any more.

    :param ends: ranks that may end after their lists
    """
    n = len(programs)
    start = World((Rank(),) * n, (None,) * n, ((None,) * n,) * n)
    wrong: list[World] = []
    cuts: set[tuple[int, ...]] = set()

    def settled(world: World) -> bool:
        if not all(rank.at in ("settled", "ended") for rank in world.ranks):
            return False
        if all(rank.at == "ended" for rank in world.ranks):
            return True
        cuts.add(tuple(rank.n for rank in world.ranks))
        now = {r: Entry(0, True, 0, issued(programs[r], rank.n)) for r, rank in enumerate(world.ranks)}
        going = {r: entry for r, entry in now.items() if world.ranks[r].at != "ended"}
        if any(behind(r, entry, other) for r, entry in going.items() for other in now.values()):
            wrong.append(world)
        return True

    states, stuck = state_space.explore(start, settled, lambda world: moves(world, programs, rule, ends))
    return states, stuck, wrong, cuts


CASES = {
    "same order": (("a01", "a01", "a01"), ("a01", "a01", "a01")),
    "one rank evaluates": (("a01", ".", ".", "a01"), ("a01", "a01")),
    "two groups of one pair": (("a01", "b01", "a01"), ("a01", "b01", "a01")),
    "a third rank apart": (("a01",), ("a01",), ()),
    "messages": (("s01", "a01", "s01"), ("a01", "s01", "s01")),
    "nothing in common": (("a0", "a0"), ("b1",)),
}


LONG = {
    "chain of pairs": (("a01",), ("a01", "b12"), ("b12",)),
    "longer chain": (("a01", "a01"), ("a01", "b12", "a01"), ("b12",)),
    "ring": (("a01", "c02"), ("a01", "b12"), ("b12", "c02")),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.full) for name in LONG)])
def test_every_interleaving_ends_at_a_consistent_cut(name: str) -> None:
    states, stuck, wrong, cuts = explore({**CASES, **LONG}[name])
    assert states > 100 and cuts
    assert not wrong, wrong[0]
    assert not stuck, stuck[0]


ENDS: dict[str, tuple[Programs, tuple[int, ...]]] = {
    "the others evaluate": ((("a01", ".", "."), ("a01",)), (1,)),
    "the first ends": ((("a01",), ("a01", ".")), (0,)),
    "a pair is left": ((("b01",), ("b01",), ()), (2,)),
    "any may end": ((("a01", "."), ("a01",)), (0, 1)),
}


@pytest.mark.parametrize("name", ENDS)
def test_whoever_has_not_ended_comes_to_a_consistent_cut(name: str) -> None:
    programs, ends = ENDS[name]
    _, stuck, wrong, cuts = explore(programs, ends=ends)
    assert cuts
    assert not wrong, wrong[0]
    assert not stuck, stuck[0]


def _waits_for_ranks_that_have_ended(
    rank: int, entries: Mapping[int, Entry], world: int, ended: Collection[int]
) -> str:
    return judge(rank, entries, world)


def test_the_check_finds_who_waits_for_a_rank_that_has_ended() -> None:
    programs, ends = ENDS["the others evaluate"]
    assert explore(programs, _waits_for_ranks_that_have_ended, ends)[1]


def test_what_a_rank_has_issued_before_its_end_counts_unless_it_has_destroyed_its_groups() -> None:
    mine = Entry(0, True, 3, {"a": (1, (0, 1))})
    ended = Entry(0, False, 3, {"a": (2, (0, 1))})
    assert judge(0, known(0, {0: mine, 1: ended}, {1}), 2, {1}) == "pass"
    assert judge(0, known(0, {0: mine, 1: replace(ended, epoch=1, channels={})}, {1}), 2, {1}) == "settled"
    assert judge(0, {0: mine}, 2, {1}) == "settled"
    assert judge(0, {0: mine}, 2) == "pass"


def _waits_for_the_unknown(rank: int, entries: Mapping[int, Entry], world: int, ended: Collection[int]) -> str:
    """Overlooks that a rank which has said nothing may sit in an operation that needs us."""
    return judge(rank, entries, world) if len(entries) == world else "wait"


def _takes_any_place(rank: int, entries: Mapping[int, Entry], world: int, ended: Collection[int]) -> str:
    """Overlooks that somebody is behind."""
    return "settled" if len(entries) == world else "pass"


def test_the_check_finds_a_deadlock() -> None:
    _, stuck, wrong, _ = explore(CASES["same order"], _waits_for_the_unknown)
    assert stuck and not wrong


def test_the_check_finds_a_cut_that_is_none() -> None:
    *_, wrong, _ = explore(CASES["messages"], _takes_any_place)
    assert wrong


def test_the_cut_may_be_anywhere_it_is_consistent() -> None:
    *_, cuts = explore((("a01", "a01"), ("a01", "a01")))
    assert cuts == {(0, 0), (1, 1), (2, 2)}


def test_an_entry_survives_its_way_through_the_store() -> None:
    entry = Entry(2, True, 7, {"0/gloo/0": (41, (0, 1)), "0/gloo/0:0>1": (3, (0, 1))})
    assert Entry.from_json(entry.to_json()) == entry


def test_a_rank_that_has_destroyed_its_groups_is_ahead_of_one_that_has_not() -> None:
    old, new = Entry(0, True, 1, {"0": (41, (0, 1))}), Entry(1, True, 1, {})
    assert behind(0, old, new) and not behind(1, new, old)
