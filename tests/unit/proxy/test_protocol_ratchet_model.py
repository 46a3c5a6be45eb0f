"""Exhaustive check of the barrier: every interleaving of two or three ranks, their pages, old views and old headers.

A rank's step and boundary are cut into the single loads and stores of `agent.boundary`; pages of other pods get
STOP_AT and REQUEST later than the leader's, one word at a time; the leader decides on reports of any age. The steps
contain a collective: nobody ends step c + 1 before everybody is in it. A rank may end well at any step; the others need
it no more then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import state_space

from singularity_proxy.protocol import page, ratchet
from singularity_proxy.protocol.ratchet import Decision, RankView

G = page.generation(1, 1)
Rule = Callable[[list[RankView], int, int], Decision]


@dataclass(frozen=True, slots=True)
class Rank:
    """`at`: step (in its collective; what comes before it touches nothing shared), load (REQUEST next), bound (STOP_AT
    next), poll, frozen; ending (its interpreter shuts down), ended."""

    at: str = "step"
    count: int = 0
    blocked: bool = False
    may_end: bool = False

    @property
    def state(self) -> int:
        return {"ending": page.STATE_FINISHED, "ended": page.STATE_ENDED}.get(self.at, page.STATE_RUNNING)

    @property
    def over(self) -> bool:
        return self.at in ("ending", "ended")


@dataclass(frozen=True, slots=True)
class Header:
    stop_at: int = 0
    request: bool = False
    acquired: bool = False
    finished: bool = False


@dataclass(frozen=True, slots=True)
class World:
    ranks: tuple[Rank, ...]
    headers: tuple[Header, ...]
    """Of each pod's page."""
    heard: tuple[tuple[int, bool, int], ...]
    """What the leader's next decision will be based on, per rank; as old as it may be."""
    leader: Header = Header()


def _put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def _rank_moves(world: World, i: int, pod: int) -> Iterator[World]:
    rank, header = world.ranks[i], world.headers[pod]

    def to(new: Rank) -> World:
        return replace(world, ranks=_put(world.ranks, i, new))

    if rank.at == "step":
        # The collective of step count + 1 ends when everyone has entered it.
        if all(r.over or r.count > rank.count or (r.count == rank.count and r.at == "step") for r in world.ranks):
            yield to(replace(rank, at="load", count=rank.count + 1))
        if rank.may_end:
            yield to(replace(rank, at="ending"))
    elif rank.at == "ending":
        yield to(replace(rank, at="ended"))
    elif rank.at == "load":
        yield to(replace(rank, at="bound" if header.request else "step"))
    elif rank.at == "bound":
        if rank.count < header.stop_at:
            yield to(replace(rank, at="step", blocked=False))
        else:
            yield to(replace(rank, at="poll", blocked=True))
    elif rank.at == "poll":
        if header.acquired:
            yield to(replace(rank, at="frozen"))
        elif rank.count < header.stop_at:
            yield to(replace(rank, at="step", blocked=False))


def _moves(world: World, pods: tuple[int, ...], rule: Rule) -> Iterator[World]:
    for i, pod in enumerate(pods):
        yield from _rank_moves(world, i, pod)
        now = (world.ranks[i].count, world.ranks[i].blocked, world.ranks[i].state)
        if world.leader.request and not world.leader.acquired and now != world.heard[i]:
            yield replace(world, heard=_put(world.heard, i, now))
    decided = _decide(world, rule)
    if decided != world:
        yield decided
    for pod, header in enumerate(world.headers):
        leader = world.leader
        if leader.acquired and header.stop_at == leader.stop_at and header.request and not header.acquired:
            yield replace(world, headers=_put(world.headers, pod, replace(header, acquired=True)))
        elif header.stop_at != leader.stop_at:
            yield replace(world, headers=_put(world.headers, pod, replace(header, stop_at=leader.stop_at)))
        elif leader.request and not header.request:
            yield replace(world, headers=_put(world.headers, pod, replace(header, request=True)))


def _decide(world: World, rule: Rule) -> World:
    if world.leader.acquired or world.leader.finished:
        return world
    views = [RankView(count, G if blocked else 0, state) for count, blocked, state in world.heard]
    decision = rule(views, G, world.leader.stop_at)
    return replace(world, leader=Header(decision.stop_at, True, decision.acquired, decision.finished))


@dataclass
class Result:
    states: int
    stuck: list[World]
    """Reachable states from which "all frozen", or ended, cannot be reached any more."""
    frozen: set[tuple[int, ...]]
    """Counters of those that have not ended."""
    wrong: list[World]
    """Acquired, but some rank is neither blocked at stop_at nor ended; or finished, and some rank goes on."""


def _explore(pods: tuple[int, ...], rule: Rule, longest: int, ends: tuple[bool, ...] = ()) -> Result:
    """Search all states in which no counter exceeds `longest`; states beyond it count as able to end.

    :param ends: which ranks may end at any step
    """
    n = len(pods)
    ranks = tuple(Rank(may_end=may) for may in ends or (False,) * n)
    start = World(ranks, (Header(),) * (max(pods) + 1), ((0, False, page.STATE_RUNNING),) * n)
    result = Result(0, [], set(), [])

    def ended(world: World) -> bool:
        going = [r for r in world.ranks if r.at != "ended"]
        if world.leader.acquired and not all(
            r.at in ("poll", "frozen") and r.count == world.leader.stop_at for r in going
        ):
            result.wrong.append(world)
        if world.leader.finished and not all(r.over for r in world.ranks):
            result.wrong.append(world)
        if all(r.at == "frozen" for r in going):
            result.frozen.add(tuple(r.count for r in going))
            return True
        return max(r.count for r in world.ranks) > longest

    result.states, result.stuck = state_space.explore(start, ended, lambda world: _moves(world, pods, rule))
    return result


def _highest_counter_only(ranks: list[RankView], generation: int, stop_at: int) -> Decision:
    """The rule before it was mended: a rank inside the next step is overlooked."""
    top = max(r.count for r in ranks)
    target = top + 1 if stop_at == 0 else max(stop_at, top)
    return Decision(target, all(r.blocked == generation and r.count == target for r in ranks))


def _too_eager(ranks: list[RankView], generation: int, stop_at: int) -> Decision:
    """Acquires when all are blocked, without looking where."""
    good = ratchet.decide(ranks, generation, stop_at)
    return Decision(good.stop_at, all(r.blocked == generation for r in ranks))


@pytest.mark.parametrize(
    ("pods", "longest"),
    [((0, 0), 4), ((0, 1), 3), ((0, 0, 0), 2), ((0, 0, 1), 2)],
    ids=["one pod", "two pods", "three ranks", "three ranks, two pods"],
)
def test_every_interleaving_ends_with_all_ranks_at_one_step(pods: tuple[int, ...], longest: int) -> None:
    result = _explore(pods, ratchet.decide, longest)
    assert result.states > 1000 and result.frozen, "the search must have seen something"
    assert not result.wrong, result.wrong[0]
    assert not result.stuck, result.stuck[0]
    assert all(len(set(counts)) == 1 for counts in result.frozen)


@pytest.mark.parametrize(
    ("pods", "longest", "ends"),
    [
        ((0, 1), 2, (True, False)),
        ((0, 1), 2, (False, True)),
        ((0, 1), 1, (True, True)),
        ((0, 0, 0), 1, (False, True, True)),
        ((0, 0, 1), 1, (False, True, False)),
        ((0, 0, 1), 1, (True, True, True)),
    ],
)
def test_whoever_has_not_ended_stops_at_one_step(pods: tuple[int, ...], longest: int, ends: tuple[bool, ...]) -> None:
    result = _explore(pods, ratchet.decide, longest, ends)
    assert not result.wrong, result.wrong[0]
    assert not result.stuck, result.stuck[0]
    assert {len(counts) for counts in result.frozen} == set(range(ends.count(False), len(pods) + 1))
    assert all(len(set(counts)) <= 1 for counts in result.frozen)


def _ended_is_running(ranks: list[RankView], generation: int, stop_at: int) -> Decision:
    return ratchet.decide([RankView(r.count, r.blocked, page.STATE_RUNNING) for r in ranks], generation, stop_at)


def _about_to_end_is_ended(ranks: list[RankView], generation: int, stop_at: int) -> Decision:
    over = {page.STATE_FINISHED: page.STATE_ENDED}
    return ratchet.decide(
        [RankView(r.count, r.blocked, over.get(r.state, r.state)) for r in ranks], generation, stop_at
    )


def test_the_check_finds_who_waits_for_a_rank_that_has_ended() -> None:
    assert _explore((0, 1), _ended_is_running, 1, (False, True)).stuck


def test_the_check_finds_a_rank_that_is_taken_for_ended() -> None:
    assert _explore((0, 1), _about_to_end_is_ended, 1, (False, True)).wrong


def test_the_check_finds_the_deadlock_of_the_old_rule() -> None:
    result = _explore((0, 1), _highest_counter_only, 2)
    assert result.stuck and not result.wrong


def test_the_check_finds_a_wrong_acquisition() -> None:
    result = _explore((0, 1), _too_eager, 2)
    assert result.wrong


@pytest.mark.parametrize("state", [page.STATE_ABSENT, page.STATE_FROZEN])
def test_only_running_ranks_acquire(state: int) -> None:
    views = [RankView(3, G, page.STATE_RUNNING), RankView(3, G, state)]
    assert not ratchet.decide(views, G, 3).acquired


@pytest.mark.parametrize("other", page.OVER)
def test_a_world_that_has_ended_has_no_barrier(other: int) -> None:
    views = [RankView(3, G, other), RankView(3, G, page.STATE_FINISHED)]
    assert ratchet.decide(views, G, 3) == Decision(stop_at=3, finished=True)


def test_who_has_ended_is_not_waited_for_wherever_it_was() -> None:
    ended, ending = RankView(9, 0, page.STATE_ENDED), RankView(9, 0, page.STATE_FINISHED)
    waits = RankView(3, G, page.STATE_RUNNING)
    assert ratchet.decide([waits, ended], G, 3) == Decision(stop_at=3, acquired=True)
    assert ratchet.decide([waits, ending], G, 3) == Decision(stop_at=3), "it is saved neither as ended nor as running"


def test_old_generation_does_not_count_and_an_empty_world_never_acquires() -> None:
    assert not ratchet.decide([RankView(3, G - 1, page.STATE_RUNNING)], G, 3).acquired
    assert not ratchet.decide([], G, 0).acquired
