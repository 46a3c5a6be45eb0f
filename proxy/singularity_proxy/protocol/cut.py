"""Where the ranks of a program may stop if they do not reach step boundaries together: the rule, as a pure function.

A *place* is where a rank could be stopped. It is a step boundary, the entry of a collective or of a send or receive, or
any line of the script outside of these. At each place a rank publishes what it has issued so far:

    channel -> how many operations on it, and which ranks take part

A process group is a channel of its members (each collective counts one, its creation the first). The messages from one
rank to another in a group are a channel of these two. A set of places, one per rank, is a *consistent cut* if every
channel has the same count at all its ranks. Then all issued operations can end, and nothing crosses the cut. Consistent
cuts form a lattice, so "whoever is behind goes on to the next place" ends at the first one that everybody can still
reach.

    pass      somebody has issued what we have not, and may wait for us in it; or somebody has not been heard of since
              the stop was asked for, and may sit in anything: on to the next place
    wait      we are not behind, but somebody else is, or has gone on
    settled   everybody waits, and nobody is behind: this is the cut

Several threads of a rank may have operations (a checkpoint that is written beside the training). The training thread
leads: it waits at the rank's place and judges. While it waits, any other thread waits before its next operation, and
goes on if the rank is behind there (`may_pass`). The leading thread lets such threads do their own operations
(`others_will`), but not for ever: they may wait for it.

No deadlock: a rank inside an operation has published it, or has published nothing yet. In both cases its partners go on
until they are in the operation, too. Published counts only grow. The leader's ratchet (`protocol.ratchet`) decides on
"acquired", so a rank that reported itself blocked takes that back only with the leader's knowledge.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Channels = Mapping[str, tuple[int, tuple[int, ...]]]
"""Name -> (operations issued, global ranks that take part). Names are the same at all of these."""


@dataclass(frozen=True)
class Entry:
    """What one rank has published last."""

    epoch: int
    """How often it has destroyed all its process groups; names of channels may come again after that."""
    waiting: bool
    """True: the rank is at a place and has issued exactly this. False: it has gone on, and its present operation counts
    as issued."""
    count: int
    """Its step boundaries."""
    channels: Channels

    def to_json(self) -> str:
        channels = {name: [count, list(ranks)] for name, (count, ranks) in self.channels.items()}
        return json.dumps([self.epoch, self.waiting, self.count, channels])

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        epoch, waiting, count, channels = json.loads(text)
        return cls(epoch, waiting, count, {name: (n, tuple(ranks)) for name, (n, ranks) in channels.items()})


EVERYTHING = "*"
"""In place of a channel: the other rank has destroyed all groups that this one has still."""


def behind_on(rank: int, mine: Entry, other: Entry) -> frozenset[str]:
    """Channels on which `other` has issued something that `rank` has to issue, too."""
    if mine.epoch != other.epoch:
        return frozenset({EVERYTHING} if mine.epoch < other.epoch else ())
    return frozenset(
        name
        for name, (count, ranks) in other.channels.items()
        if rank in ranks and mine.channels.get(name, (0, ()))[0] < count
    )


def behind(rank: int, mine: Entry, other: Entry) -> bool:
    """Has `other` issued something that `rank` has to issue, too?"""
    return bool(behind_on(rank, mine, other))


def all_behind_on(rank: int, entries: Mapping[int, Entry]) -> frozenset[str]:
    """Channels on which anybody is ahead of `rank`."""
    return frozenset().union(*(behind_on(rank, entries[rank], other) for other in entries.values()))


def may_pass(channel: str, behind_on: Collection[str], own: Collection[str]) -> bool:
    """May a thread that does not lead issue its operation on `channel`, while the leading one waits?

    :param own: channels whose last operation in this rank was this thread's
    """
    return channel in behind_on or any(name in own for name in behind_on)


def others_will(behind_on: Collection[str], owned: Collection[str]) -> bool:
    """Is the rank behind only on channels of living threads that do not lead?"""
    return bool(behind_on) and all(name in owned for name in behind_on)


def judge(
    rank: int, entries: Mapping[int, Entry], world: int, ended: Collection[int] = ()
) -> Literal["pass", "wait", "settled"]:
    """What `rank` does, which waits at a place and has published that.

    :param entries: the newest entry of each known rank
    :param ended: ranks that have ended. What they have issued counts still, and nobody waits for them
    """
    mine = entries[rank]
    going = {other: entry for other, entry in entries.items() if other not in ended}
    if len(going) < world - len(ended) or any(behind(rank, mine, other) for other in entries.values()):
        return "pass"
    if not all(entry.waiting for entry in going.values()):
        return "wait"
    somebody = any(behind(r, entry, other) for r, entry in going.items() for other in entries.values())
    return "wait" if somebody else "settled"


def known(rank: int, entries: Mapping[int, Entry], ended: Collection[int]) -> dict[int, Entry]:
    """Entries without those of ranks that have ended and had destroyed their groups before: whoever has groups still
    is behind nobody who could wait."""
    epoch = entries[rank].epoch
    return {other: entry for other, entry in entries.items() if other not in ended or entry.epoch == epoch}
