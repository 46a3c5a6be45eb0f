"""Which operations of the script may begin, and how many are under way: communication is dropped when there are none.

A rank may have several threads with operations: the training thread, and others. An example is the thread of a
checkpoint that the script writes beside the training (`torch.distributed.checkpoint.async_save`). Every operation comes
through `enter`, which counts it, and `leave`. While no stop is requested, that is all. During a stop request, the
training thread looks for a place to stop at (`boundary`). The others wait here or go on, as `protocol.cut` says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from . import guard

POLL_S = 0.002

lock = threading.RLock()
"""Of everything here. Re-entrant: a signal handler of the script's may issue an operation."""
closed = False
"""Communication is being dropped, is not there, or is being made again."""
store_closed = 0
"""The same of the rendezvous store alone, which comes back first: identity of the thread that has closed it, or 0."""
standing = False
"""The leading thread is at a place where the rank can stop."""
blocked = False
"""... and has published that: other threads must not write to the store, because rank 0 may be copying it."""
sided = False
"""A thread that does not lead has issued an operation since the last stop: step boundaries do not say enough."""
lead = 0
"""Identity of the thread that took the last step; before the first, of the one that met the other ranks."""
blocks = 0
"""So many times operations that are to be issued as one have begun, and not ended."""
issued: dict[str, int] = {}
"""Channel -> operations issued on it; its group's creation is the first."""
members: dict[str, tuple[int, ...]] = {}
"""Channel -> global ranks that take part."""
owners: dict[str, int] = {}
"""Channel -> identity of the thread, not the leading one, that issued its last operation."""
_inside = 0
_store_inside = 0
identity = threading.get_ident
_main = threading.main_thread().ident
_rank: Any = None


def watch(rank: Any) -> None:
    """`rank`, a `Boundary` or None, gets the stop requests."""
    global _rank, lead
    _rank, lead = rank, identity()


def side() -> bool:
    """Is this a thread of the script's own, beside the one that trains? Threads of C++, as autograd's, are not."""
    me = identity()
    if me in (lead, _main):
        return False
    return any(
        thread.ident == me and not isinstance(thread, threading._DummyThread) for thread in threading.enumerate()
    )


def lives(identity: int) -> bool:
    return any(thread.ident == identity for thread in threading.enumerate())


def channels() -> dict[str, tuple[int, tuple[int, ...]]]:
    """What this rank has issued on every group and to every peer, as `protocol.cut` compares it."""
    with lock:
        return {name: (count, members[name]) for name, count in issued.items()}


def known(channel: str, ranks: tuple[int, ...]) -> None:
    """`ranks`, global ones, take part in what will be issued on `channel`."""
    with lock:
        members[channel] = ranks
        issued.setdefault(channel, 0)


class Ticket:
    """An operation that is about to be issued on `channel`; "": on none that is compared.

    :param opens: it is the begin of several that are issued as one
    """

    __slots__ = ("channel", "counted", "opens")

    def __init__(self, channel: str, opens: bool = False) -> None:
        self.channel = channel
        self.opens = opens
        self.counted = False

    def count(self, beside: bool = False) -> None:
        """From now on it counts as issued, and is under way. Once.

        :param beside: by a thread that does not lead
        """
        global _inside, sided, blocks
        with lock:
            if self.counted:
                return
            self.counted = True
            _inside += 1
            blocks += self.opens
            if self.channel:
                issued[self.channel] = issued.get(self.channel, 0) + 1
            if beside:
                sided = True
                owners[self.channel] = identity()


def enter(channel: str, place: bool = True, free: bool = False, opens: bool = False) -> None:
    """Returns when an operation on `channel` may be issued; it is under way until `leave`.

    :param place: the leading thread may stop here
    :param free: nobody may be stopped here, between `opens` and `leave(closes=True)`
    """
    ticket: Any = None
    for _ in (1, 2, 3):
        try:
            ticket = ticket or Ticket(channel, opens)
            beside = side()
            with lock:
                if not closed and (_rank is None or not _rank.asked()):
                    ticket.count(beside)
                    return
            if beside:
                _rank.hold(ticket, free)
            else:
                _rank.pass_by(ticket, place and not free)
            if ticket.counted:
                return
        except Exception as error:
            guard.took(error, "before an operation of the script")
            if ticket is not None and ticket.counted:
                return
    _force(channel, opens)


def _force(channel: str, opens: bool) -> None:
    """`enter` without any help: nothing that could fail again."""
    global _inside, blocks
    with lock:
        _inside += 1
        blocks += opens
        if channel in issued:
            issued[channel] += 1


def leave(closes: bool = False) -> None:
    """What `enter` or `begin` has let begin has been issued, or has ended."""
    global _inside, blocks
    with lock:
        _inside -= 1
        blocks -= closes


def begin() -> None:
    """Begin an action that uses communication, and for which a stop has to wait."""
    global _inside
    with lock:
        _inside += 1


def enter_store() -> None:
    """Returns when an operation on the store may begin; it is under way until `leave_store`."""
    global _store_inside
    failed = False
    while True:
        try:
            held = blocked and not failed and side()
            with lock:
                if not held and store_closed in (0, identity()):
                    _store_inside += 1
                    return
            time.sleep(POLL_S)
        except Exception as error:
            failed = True
            guard.took(error, "before an operation on the store")


def leave_store() -> None:
    global _store_inside
    with lock:
        _store_inside -= 1


def idle() -> bool:
    """Is no operation under way?"""
    return _inside <= 0


def store_idle() -> bool:
    return _store_inside <= 0


def forget() -> None:
    """All groups are gone."""
    global sided
    with lock:
        issued.clear()
        members.clear()
        owners.clear()
        sided = False


def drop(gone: Collection[str]) -> None:
    """These channels are gone on all ranks, and the messages of their groups with them."""
    with lock:
        for name in [name for name in issued if name in gone or name.rpartition(":")[0] in gone]:
            for known_by in (issued, members, owners):
                known_by.pop(name, None)


def renew() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global lock, closed, store_closed, standing, blocked, blocks, _inside, _store_inside
    lock = threading.RLock()
    closed = standing = blocked = False
    store_closed = blocks = _inside = _store_inside = 0
