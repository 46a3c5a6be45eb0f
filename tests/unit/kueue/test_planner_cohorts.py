"""Cohorts with limits: what is free for a queue, and who waits for it in another one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import planner_scene as scene
from planner_scene import GPU, NOW

from kueue_integration.planner import free
from kueue_integration.planner.job import Job, Workload
from kueue_integration.planner.model import Queue
from kueue_integration.planner.policies import regrow

KEY = ("a100", GPU)


def queue(name: str, devices: int, lends: int | None = None) -> Queue:
    """A queue of cohort c; `lends`: its lendingLimit."""
    found = scene.queue(name, devices, cohort="c")
    limit = {} if lends is None else {KEY: Fraction(lends)}
    return replace(found, groups=[replace(found.groups[0], most_lent=limit)])


def other(name: str, queue: str, *, holds: int = 0, asks: int = 0, priority: int = 10) -> Workload:
    """A Workload of somebody else that holds quota, or waits for it."""
    held = {KEY: Fraction(holds)} if holds else None
    wants = {GPU: Fraction(asks or holds)}
    return Workload("team", name, f"wl-{name}", queue, priority, NOW - 50, holds=held, asks=wants, waits=held is None)


def small() -> Job:
    return scene.job(wanted=4)


def regrown(*others: Workload, queues: tuple[Queue, ...]) -> bool:
    return bool(regrow.propose(scene.snapshot(small(), queues=queues, others=others), True, 0.0))


def test_quota_that_another_queue_lends_to_nobody_is_not_free():
    """The borrower has all that `training` has left. What `guarded` does not use is its own."""
    borrower = other("borrows", "guest", holds=2)
    queues = queue("training", 4), queue("guarded", 4, lends=0), queue("guest", 0)
    assert not regrown(borrower, queues=queues)
    assert regrown(borrower, queues=(queues[0], queue("guarded", 4), queues[2]))
    assert regrown(borrower, queues=(queue("training", 4, lends=0), queue("guarded", 4), queues[2]))


def test_what_is_kept_of_quota_that_is_lent_to_nobody_is_not_taken_from_others():
    queues = queue("training", 4), queue("guarded", 4, lends=0)
    seen = scene.snapshot(scene.job(), queues=queues)
    wish = {"guarded": {KEY: Fraction(4)}}
    assert free.room(seen, queues[0], wish)[KEY] == 2
    assert free.room(seen, queues[1], wish)[KEY] == 0
    assert free.room(seen, queues[0], {"guarded": {KEY: Fraction(5)}})[KEY] == 1
