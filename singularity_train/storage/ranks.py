"""What the ranks of a save agree on, over a group of their own: the first failure reaches all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .errors import LostRankError, StateStorageError

T = TypeVar("T")


class Ranks:
    """:param group: the ranks that save; None: all ranks, or this process where torch.distributed is not in use
    :param timeout_s: longest wait for the slowest rank
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lost = ""
        self._group: Any = None
        self.rank, self.size = 0, 1
        if group is None and not (dist.is_available() and dist.is_initialized()):
            return
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.size = len(members)
        self.rank = members.index(dist.get_rank())
        if self.size > 1:
            # Collectives of training go on while a save is under way: on one group they would be taken for each other.
            limit, among = timedelta(seconds=timeout_s), group is not None
            self._group = dist.new_group(members, timeout=limit, backend="gloo", use_local_synchronization=among)
            self._leader = members[0]

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def highest(self, value: int) -> int:
        """:raises LostRankError: a rank went away, or came too late"""
        if self._group is None:
            return value
        number = torch.tensor([value])
        self._talk(lambda: dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self._group))
        return int(number)

    def scatter(
        self, given: Any, decide: Callable[[list[Any]], Sequence[T]], failed: Callable[[], None] = lambda: None
    ) -> T:
        """Each rank's own part of what rank 0 decides from what all ranks have given.

        :param given: any value that can be pickled, or the exception that kept this rank from having one
        :param failed: called on rank 0 after a failure, before the ranks hear of it
        :raises StateStorageError: that of a rank, or of `decide`; LostRankError: a rank went away, or came too late
        """
        mine: list[Any] = [None]
        gathered: list[Any] | None = [None] * self.size if self.leads else None
        sent = _named(given, self.rank, self.size) if isinstance(given, Exception) else given
        if self._group is None:
            gathered = [sent]
        else:
            self._talk(lambda: dist.gather_object(sent, gathered, dst=self._leader, group=self._group))
        parts: list[Any] | None = None
        if gathered is not None:
            parts = self._decided(gathered, decide, failed)
        if self._group is None:
            mine = parts or []
        else:
            self._talk(lambda: dist.scatter_object_list(mine, parts, src=self._leader, group=self._group))
        if isinstance(mine[0], Exception):
            raise mine[0] from (given if isinstance(given, Exception) else None)
        found: T = mine[0]
        return found

    def agree(self, given: Any, decide: Callable[[list[Any]], T], failed: Callable[[], None] = lambda: None) -> T:
        """The same for all ranks."""
        return self.scatter(given, lambda values: [decide(values)] * self.size, failed)

    def all_decide(self, given: Any, decide: Callable[[list[Any]], T]) -> T:
        """The same as `agree` where `decide` is a pure function: each rank calls it, with half the messages.

        :raises StateStorageError: that of the first rank that has one, or of `decide`; LostRankError
        """
        sent = _named(given, self.rank, self.size) if isinstance(given, Exception) else given
        gathered: list[Any] = [sent]
        if self._group is not None:
            gathered = [None] * self.size
            self._talk(lambda: dist.all_gather_object(gathered, sent, group=self._group))
        error = next((each for each in gathered if isinstance(each, Exception)), None)
        if error is not None:
            raise error from (given if isinstance(given, Exception) else None)
        try:
            return decide(gathered)
        except Exception as raised:
            raise _named(raised, 0, self.size) from raised

    def close(self) -> None:
        if self._group is not None:
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self._group)
            self._group = None

    def _decided(
        self, gathered: list[Any], decide: Callable[[list[Any]], Sequence[T]], failed: Callable[[], None]
    ) -> list[Any]:
        error = next((each for each in gathered if isinstance(each, Exception)), None)
        if error is None:
            try:
                return list(decide(gathered))
            except Exception as raised:
                error = _named(raised, 0, self.size)
        with contextlib.suppress(Exception):
            failed()
        return [error] * self.size

    def _talk(self, call: Callable[[], Any]) -> None:
        if self._lost:
            raise LostRankError(self._lost)
        try:
            call()
        except Exception as error:
            self._lost = (
                f"rank {self.rank} of {self.size} lost another rank, or waited {self.timeout_s:g} s for it: "
                f"{str(error)[:200]}; the checkpoint before is intact; start the job again"
            )
            # The others wait for this rank. Its connections end here, so that they need not wait for their timeout.
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self._group)
            raise LostRankError(self._lost) from error


def _named(error: Exception, rank: int, size: int) -> StateStorageError:
    """Of the same class, with the rank in front."""
    where = f"rank {rank}: " if size > 1 else ""
    if isinstance(error, StateStorageError):
        return type(error)(f"{where}{error}")
    made = StateStorageError(f"{where}{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
