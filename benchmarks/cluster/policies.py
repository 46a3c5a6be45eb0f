"""Policies for the studies, each after its source. Pure functions from a view to proposals.

They are small on purpose. They show what an idea is worth on a workload, not how a controller carries it out.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .model import DEVICES_PER_NODE
from .seam import Action, Move, Policy, Priority, Resize, Seen, View

HOUR_S = 3600.0
WORTH = 3.0
"""A move has to save this many times what it costs: estimates are wrong, and the place may be taken meanwhile."""


def regrow(view: View) -> Sequence[Action]:
    """Give a job that was admitted with fewer workers its own number back, when quota is free and nobody waits for it.

    This project's regrowth (`kueue_integration/controller/regrow/planner.py`) with one rule more: the larger job must
    not be spread over more nodes than it needs.
    """
    return _regrow(view, blind=False)


def regrow_by_quota(view: View) -> Sequence[Action]:
    """The same as the controller does it today: it looks at quota and not at nodes."""
    return _regrow(view, blind=True)


def _regrow(view: View, blind: bool) -> Sequence[Action]:
    free = {flavor: sum(nodes) for flavor, nodes in view.free.items()}
    wanted = min((max(job.least, 1) for job in view.waiting()), default=None)
    made: list[Action] = []
    for job in sorted(view.running(), key=lambda j: (-j.priority, j.arrival_s, j.id)):
        more = job.workers - job.devices
        if more <= 0 or more > free[job.flavor] or (wanted is not None and wanted <= free[job.flavor]):
            continue
        saved = job.left_s / job.rate(job.devices) - job.left_s / job.rate(job.workers)
        if saved > WORTH * job.move_s and (blind or view.packed(job, job.workers)):
            made.append(Resize(job.id, job.workers, f"{job.devices} -> {job.workers}: quota is free again"))
            free[job.flavor] -= more
    return made


LEVELS_S = (1 * HOUR_S, 10 * HOUR_S, 100 * HOUR_S)
"""Attained device seconds at which a job sinks by one level."""
STARVED = 8.0


def least_attained(view: View) -> Sequence[Action]:
    """Give those who have had the least device time the highest priority.

    Tiresias' discretised 2D-LAS (Gu et al., NSDI'19, 4.2): attained service is devices times time, in few levels. Who
    has waited more than `STARVED` times as long as it has trained is raised to the top (its PROMOTEKNOB).
    """
    made: list[Action] = []
    for job in view.jobs:
        level = -sum(job.attained_device_s >= edge for edge in LEVELS_S)
        if not job.running and job.attained_s and job.since_s > STARVED * job.attained_s:
            level = 0
        elif job.running and level < job.priority and job.since_s < HOUR_S and job.attained_device_s < LEVELS_S[-1]:
            continue  # it was raised or has just come: let it train
        if level != job.priority:
            made.append(Priority(job.id, level, f"{job.attained_device_s / HOUR_S:.1f} device hours attained"))
    return made


QUANTUM_S = HOUR_S


def time_sharing(view: View) -> Sequence[Action]:
    """Let the jobs of a queue take turns of a quantum while others of it wait.

    Gandiva's time-slicing (Xiao et al., OSDI'18, 3.1), with a quantum of an hour instead of a minute. A turn here is a
    checkpoint and a restore, not a suspended process.
    """
    waits = {job.tenant for job in view.jobs if not job.running}
    made: list[Action] = []
    for job in view.jobs:
        had_turn = job.running and job.since_s >= QUANTUM_S and job.tenant in waits
        yields = had_turn or (not job.running and job.priority < 0 and job.since_s < QUANTUM_S)
        if yields != (job.priority < 0):
            made.append(Priority(job.id, -1 if yields else 0, "its turn is over" if yields else "its turn comes"))
    return made


STEP = 1.5
"""A new size differs at least by this factor."""


def marginal_gain(view: View) -> Sequence[Action]:
    """Give each next device to the job whose completion it shortens most.

    Optimus (Peng et al., EuroSys'18, 4.1). Everyone gets its least first, in the order of arrival; jobs that cannot
    resize get all or nothing. Then devices go one by one to the largest `(left(k) - left(k + 1))`.
    """
    made: list[Action] = []
    jobs = sorted(view.jobs, key=lambda j: (j.arrival_s, j.id))
    for flavor, devices in view.devices.items():
        # One that waits may go anywhere; it is counted where Kueue looks first.
        mine = [j for j in jobs if (j.flavor or next(iter(view.devices))) == flavor]
        targets = _shares_of(mine, devices)
        wait = any(not j.running and targets.get(j.id) for j in mine)
        for job in mine:
            target = targets.get(job.id, 0)
            if job.running and target > job.devices and not view.packed(job, target):
                continue  # spread over more nodes it would be slower than the speed against workers says
            made += _to(job, target, wait)
    return made


def _shares_of(jobs: Sequence[Seen], devices: int) -> dict[int, int]:
    """Devices by job."""
    given: dict[int, int] = {}
    for job in jobs:
        least = job.least if job.least < job.most else job.workers
        if least <= devices:
            given[job.id] = least
            devices -= least
    heap = [(-_gain(j, given[j.id]), j.id, j) for j in jobs if j.id in given and given[j.id] < j.most]
    heapq.heapify(heap)
    while heap and devices > 0:
        _, _, job = heapq.heappop(heap)
        given[job.id] += 1
        devices -= 1
        if given[job.id] < job.most:
            heapq.heappush(heap, (-_gain(job, given[job.id]), job.id, job))
    return given


def _gain(job: Seen, devices: int) -> float:
    """Seconds by which one more device shortens it."""
    return job.left_s / job.rate(devices) - job.left_s / job.rate(devices + 1)


def _to(job: Seen, target: int, others_wait: bool) -> Sequence[Action]:
    if not target or job.least == job.most or target == (job.devices if job.running else job.goal):
        return ()
    if not job.running:
        return (Resize(job.id, target, f"admit with {target}"),)
    grows = target > job.devices
    if max(target, job.devices) < STEP * min(target, job.devices) or not (grows or others_wait):
        return ()
    saved = job.left_s / job.rate(job.devices) - job.left_s / job.rate(target)
    # Who shrinks must have enough left to train that others are served meanwhile.
    worth = saved if grows else job.left_s / job.rate(job.devices)
    if worth <= WORTH * job.move_s:
        return ()
    return (Resize(job.id, target, f"{job.devices} -> {target}: {saved:.0f} s"),)


def defragmentation(view: View) -> Sequence[Action]:
    """Move small jobs so that a waiting job fits in one node, and bring jobs together that are spread over too many.

    Gandiva's packing and migration (OSDI'18, 3.3), only when the gain beats the moves.
    """
    made: list[Action] = []
    for flavor, free in view.free.items():
        left = list(free)
        used: set[int] = set()
        for job in view.waiting():
            if job.one_node and job.speeds.get(flavor) and max(left, default=0) < job.goal <= sum(left):
                made += _make_room(view, flavor, job, left, used)
        for job in view.running():
            if job.flavor == flavor and not job.packed:
                made += _together(job, left)
    return made


def _make_room(view: View, flavor: str, waiting: Seen, free: list[int], used: set[int]) -> Sequence[Action]:
    on: dict[int, list[Seen]] = defaultdict(list)
    for job in view.running():
        if job.flavor == flavor and len(job.placement) == 1 and job.id not in used:
            on[next(iter(job.placement))].append(job)
    best: tuple[float, int, list[tuple[Seen, int]]] | None = None
    for node, here in on.items():
        plan = _elsewhere(sorted(here, key=lambda j: j.devices * j.move_s), node, waiting.goal - free[node], free)
        cost = sum(job.devices * job.move_s for job, _ in plan)
        if plan and (best is None or (cost, node) < best[:2]):
            best = (cost, node, plan)
    # Without the moves it would wait about as long again as it has waited.
    if best is None or waiting.goal * max(waiting.since_s, 600.0) < WORTH * best[0]:
        return ()
    for job, to in best[2]:
        free[to] -= job.devices
        used.add(job.id)
    free[best[1]] = 0  # kept for the one that waits
    return [Move(job.id, flavor, to, f"makes room for job {waiting.id} on node {best[1]}") for job, to in best[2]]


def _elsewhere(here: Sequence[Seen], node: int, need: int, free: Sequence[int]) -> list[tuple[Seen, int]]:
    """Which of the jobs of a node go to which other nodes, so that `need` devices more are free; empty: impossible."""
    room = {place: devices for place, devices in enumerate(free) if place != node and 0 < devices < DEVICES_PER_NODE}
    plan: list[tuple[Seen, int]] = []
    for job in here:
        to = min(
            (place for place, devices in room.items() if devices >= job.devices), key=lambda p: room[p], default=None
        )
        if to is None:
            continue
        room[to] -= job.devices
        plan.append((job, to))
        need -= job.devices
        if need <= 0:
            return plan
    return []


def _together(job: Seen, free: list[int]) -> Sequence[Action]:
    whole, rest = divmod(job.devices, DEVICES_PER_NODE)
    rooms = [room + job.placement.get(node, 0) for node, room in enumerate(free)]
    nodes = [node for node, room in enumerate(rooms) if room == DEVICES_PER_NODE][:whole]
    last = [node for node, room in enumerate(rooms) if room >= rest and node not in nodes] if rest else []
    # How much faster it will be is not known before. Gavel's table shows a half and more for most families.
    worth = job.left_s / job.rate(job.devices) > WORTH * job.move_s
    if len(nodes) < whole or (rest and not last) or not worth:
        return ()
    to = min(last, key=lambda node: rooms[node]) if last else None
    for node in nodes:
        free[node] = 0
    if to is not None:
        free[to] = max(0, free[to] - rest)
    return (Move(job.id, job.flavor, None if whole else to, f"was spread over {len(job.placement)} nodes"),)


AHEAD = 0.1


def tiers(view: View) -> Sequence[Action]:
    """Raise who is behind its promised fraction of device time, lower who is ahead of it.

    Singularity's tiers (arXiv 2202.07848, 2.2): Premium before Standard before Basic among those behind.
    """
    made: list[Action] = []
    for job in view.jobs:
        promised = job.tier.value
        behind = job.delivered < promised
        value = 1 + job.tier.rank if behind else (-1 if job.delivered > promised + AHEAD else 0)
        if job.running and value < job.priority and (not behind and job.delivered < promised + AHEAD / 2):
            continue  # at its promise by a hair: it would sink and rise at each look
        if value != job.priority:
            made.append(Priority(job.id, value, f"{job.tier.name}: {job.delivered:.2f} of {promised:g}"))
    return made


def introspection(view: View) -> Sequence[Action]:
    """Move a job to the flavor that does most of its work per dollar, when it has room.

    Gandiva's introspection (OSDI'18, 3.4) with a price per flavor, as in Gavel's cost policies (OSDI'20, 4.3).
    """
    if len(view.free) < 2:
        return ()
    room = {flavor: sum(nodes) for flavor, nodes in view.free.items()}
    made: list[Action] = []

    def value(job: Seen, flavor: str) -> float:
        return job.speeds.get(flavor, 0.0) / view.prices[flavor]

    def advantage(job: Seen) -> float:
        return max(value(job, flavor) for flavor in room) / max(value(job, job.flavor), 1e-9)

    for job in sorted(view.running(), key=lambda j: (-advantage(j), j.id)):
        best = max(room, key=lambda flavor: value(job, flavor))
        slower = job.speeds[best] < 0.9 * job.speeds[job.flavor]
        if best == job.flavor or slower or room[best] < job.devices or advantage(job) < 1.2:
            continue
        if job.left_s / job.rate(job.devices) > 2 * WORTH * job.move_s:
            room[best] -= job.devices
            made.append(Move(job.id, best, None, f"{advantage(job):.1f} times the work per dollar"))
    return made


def together(*policies: Policy) -> Policy:
    """One policy of several: all propose, and the arbiter lets each job move once."""

    def propose(view: View) -> Sequence[Action]:
        return [action for policy in policies for action in policy(view)]

    return propose


POLICIES: Mapping[str, Policy] = {
    "regrowth": regrow,
    "regrowth, by quota only": regrow_by_quota,
    "least attained service": least_attained,
    "time sharing": time_sharing,
    "marginal gain": marginal_gain,
    "defragmentation": defragmentation,
    "SLA tiers": tiers,
    "introspection": introspection,
    "all": together(least_attained, defragmentation, introspection, marginal_gain),
}
"""`all` has one policy each for priority, place, flavor and size."""
