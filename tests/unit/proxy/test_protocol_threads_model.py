"""Exhaustive check of stops of ranks with two threads that have operations: one leads, one does not (`protocol.cut`).

A rank's programs are lists of operations, as in `test_protocol_cut_model.py`; `|` in the leading one's is a step
boundary. The rules of the agent (`boundary`, `gate`): the other thread is free until the leading one stands at a place;
then it goes on where the rank is behind. Step boundaries alone are an answer where the other thread has done nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
import state_space

from singularity_proxy.protocol.cut import Entry, all_behind_on, behind, judge, may_pass, others_will

Program = tuple[str, ...]
Programs = tuple[tuple[Program, Program], ...]
"""Per rank what the leading thread does, and what the other one does."""
Known = tuple[tuple[bool, int, int] | None, ...]
MayPass = Callable[[str, Collection[str], Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class Rank:
    """`at`: run (before operation or boundary `n`), in (inside operation `n`), stand (compares), blocked (at a step
    boundary), settled. `beside`, `k`: run and in, of the other thread. `sided`: that one has issued something."""

    at: str = "run"
    n: int = 0
    beside: str = "run"
    k: int = 0
    sees: bool = False
    late: bool = False
    sided: bool = False


@dataclass(frozen=True, slots=True)
class World:
    ranks: tuple[Rank, ...]
    said: Known
    """(waiting, n, k) of each rank's newest entry: so many are issued."""
    read: tuple[Known, ...]
    """What each rank has read of each, so far."""


def put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def ranks_of(channel: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in channel[1:])


@lru_cache(None)
def issued(programs: tuple[Program, Program], n: int, k: int) -> dict[str, tuple[int, tuple[int, ...]]]:
    done = [name for name in (*programs[0][:n], *programs[1][:k]) if name != "|"]
    return {name: (done.count(name), ranks_of(name)) for name in done}


@lru_cache(None)
def judged(programs: Programs, i: int, known: Known) -> tuple[str, frozenset[str]]:
    entries = {r: Entry(0, e[0], 0, issued(programs[r], *e[1:])) for r, e in enumerate(known) if e is not None}
    return judge(i, entries, len(programs)), all_behind_on(i, entries)


def counts(rank: Rank) -> tuple[int, int]:
    """Issued by the leading thread and by the other one."""
    return rank.n + (rank.at == "in"), rank.k + (rank.beside == "in")


def moves(world: World, programs: Programs, passes: MayPass, trusting: bool) -> Iterator[World]:
    for i, rank in enumerate(world.ranks):
        lead, other = programs[i]
        heard = world.said[i] is not None

        def to(i: int = i, rank: Rank = rank, waiting: bool | None = None, **changed: object) -> World:
            new = replace(rank, **changed)  # type: ignore[arg-type]
            moved = replace(world, ranks=put(world.ranks, i, new))
            if waiting is None:
                return moved
            entry = (waiting, *counts(new))
            return replace(moved, said=put(world.said, i, entry), read=put(world.read, i, put(world.read[i], i, entry)))

        if not rank.sees:
            yield to(sees=True)
        elif not rank.late:
            yield to(late=True)
        if rank.at in ("stand", "settled"):
            for r in range(len(programs)):
                if world.said[r] != world.read[i][r]:
                    yield replace(world, read=put(world.read, i, put(world.read[i], r, world.said[r])))
        ended = rank.n == len(lead)  # and waits for the other thread: any line of that is a place, again and again
        boundary = not ended and lead[rank.n] == "|"
        if rank.at == "run":
            if rank.sees and (rank.late or (boundary and rank.sided and not trusting)):
                yield to(at="stand", waiting=True)
            elif rank.sees and boundary:
                yield to(at="blocked")
            elif boundary:
                yield to(n=rank.n + 1)
            elif not ended:
                yield to(at="in", waiting=False if heard else None)
        elif rank.at == "in":
            if _ends(world, programs, i, lead, rank.n):
                yield to(at="run", n=rank.n + 1)
        elif rank.at == "blocked":
            # The leader lets it go on where another one is not blocked, or it is late: more often than in truth.
            yield to(at="run", n=rank.n + 1)
            if rank.late:
                yield to(at="stand", waiting=True)
        else:
            verdict, behind_on = judged(programs, i, world.read[i])
            if verdict == "settled" and rank.at == "stand":
                yield to(at="settled")
            elif verdict != "settled" and rank.at == "settled":
                yield to(at="stand")
            elif verdict == "pass" and ended:
                yield to(at="run", waiting=False)
            elif verdict == "pass":
                # Where the other thread will do what is missing, this one may wait; or it loses patience, and goes on.
                assert not others_will(behind_on, ()), "nobody else is there"
                yield to(at="run", n=rank.n + 1, waiting=False) if boundary else to(at="in", waiting=False)
        stands = rank.at in ("stand", "settled", "blocked")
        if rank.beside == "in":
            if _ends(world, programs, i, other, rank.k):
                yield to(beside="run", k=rank.k + 1)
        elif rank.k < len(other):
            if rank.at == "stand" and heard:
                own = set(other[rank.k - 1 : rank.k])
                free = passes(other[rank.k], judged(programs, i, world.read[i])[1], own)
            else:
                free = not stands
            if free:
                waiting = rank.at == "stand" if heard else None
                yield to(beside="in", sided=True, waiting=waiting)


def _ends(world: World, programs: Programs, i: int, program: Program, number: int) -> bool:
    """May the operation that rank `i` is in end? One that begins with `s` does not wait for the others."""
    channel = program[number]
    mine = program[:number].count(channel)
    if channel[0] == "s":
        return True
    done = (issued(programs[r], *counts(world.ranks[r])).get(channel, (0, ()))[0] for r in ranks_of(channel))
    return all(count > mine for count in done)


def explore(
    programs: Programs, passes: MayPass = may_pass, trusting: bool = False
) -> tuple[int, list[World], list[World], set[tuple[tuple[int, int], ...]]]:
    """(states, stuck, wrong, where all were blocked). Stuck: that cannot be reached any more."""
    size = len(programs)
    start = World((Rank(),) * size, (None,) * size, ((None,) * size,) * size)
    wrong: list[World] = []
    cuts: set[tuple[tuple[int, int], ...]] = set()

    def blocked(world: World) -> bool:
        if not (all(rank.at == "settled" for rank in world.ranks) or _acquired_at_boundaries(world, programs)):
            return False
        cut = tuple(counts(rank) for rank in world.ranks)
        cuts.add(cut)
        now = [Entry(0, True, 0, issued(programs[r], *cut[r])) for r in range(size)]
        if any(behind(r, entry, other) for r, entry in enumerate(now) for other in now):
            wrong.append(world)
        return True

    states, stuck = state_space.explore(start, blocked, lambda world: moves(world, programs, passes, trusting))
    return states, stuck, wrong, cuts


def _acquired_at_boundaries(world: World, programs: Programs) -> bool:
    """The leader sees ranks that are blocked, whichever way, at the same count."""
    if not all(rank.at in ("blocked", "settled") for rank in world.ranks):
        return False
    steps = {programs[r][0][: rank.n + (rank.at == "blocked")].count("|") for r, rank in enumerate(world.ranks)}
    return len(steps) == 1 and any(rank.at == "blocked" for rank in world.ranks)


CASES: dict[str, Programs] = {
    "a collective beside": ((("a01", "|"), ("b01",)), (("a01", "|"), ("b01",))),
    "one that does not wait": ((("a01", "|"), ("s01",)), (("a01", "|"), ("s01",))),
    "two beside": ((("a01", "|"), ("b01", "c01")), (("a01", "|"), ("b01", "c01"))),
    "another order beside": ((("a01",), ("s01", "b01")), (("a01",), ("b01", "s01"))),
    "two steps": ((("a01", "|", "a01", "|"), ("b01",)), (("a01", "|", "a01", "|"), ("b01",))),
    "beside in one, leading in the other": ((("a01", "|"), ("s01",)), (("a01", "|", "s01"), ())),
    "nobody beside": ((("a01", "|", "a01"), ()), (("a01", "|", "a01"), ())),
}


@pytest.mark.parametrize("name", CASES)
def test_every_interleaving_ends_at_a_consistent_cut(name: str) -> None:
    states, stuck, wrong, cuts = explore(CASES[name])
    assert states > 100 and cuts
    assert not wrong, wrong[0]
    assert not stuck, stuck[0]


def test_the_check_finds_step_boundaries_that_do_not_say_enough() -> None:
    """As before: whoever is at a step boundary is blocked, whatever other threads have issued."""
    _, _, wrong, _ = explore(CASES["one that does not wait"], trusting=True)
    assert wrong


@pytest.mark.parametrize("free", [False, True])
def test_how_long_the_other_thread_is_held_is_a_matter_of_time_only(free: bool) -> None:
    """The leading thread goes on in the end, and with it the other; and what it publishes keeps all from settling."""

    def passes(channel: str, behind_on: Collection[str], own: Collection[str]) -> bool:
        return free

    for name in ("a collective beside", "another order beside"):
        _, stuck, wrong, _ = explore(CASES[name], passes)
        assert not stuck and not wrong


def test_a_thread_that_does_not_lead_goes_on_where_the_rank_is_behind() -> None:
    assert may_pass("b", {"b"}, ())
    assert may_pass("c", {"b"}, {"b"}), "it comes to b after c"
    assert not may_pass("c", {"b"}, ()) and not may_pass("b", (), {"b"})


def test_the_leading_thread_leaves_to_living_threads_what_is_theirs() -> None:
    assert others_will({"b"}, {"b", "c"})
    assert not others_will({"b", "d"}, {"b", "c"}) and not others_will((), {"b"})
