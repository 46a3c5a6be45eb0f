"""Save and load the state of a job, whatever its number of ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from ..environment import bring_of_environment
from . import match
from .errors import ArgumentError, StateStorageError, UnsavableError
from .folder import Folder
from .manifest import Manifest
from .memory import Stage
from .planner import LoadPlanner, SavePlanner
from .ranks import Ranks
from .reader import BlobReader
from .writer import BlobWriter

SAME, CHANGED, FAILED = 0, 1, 2
"""What has become of a rank's plan since the save before; all ranks act on the highest."""


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint.

    :param meta: what `save` was given on rank 0
    :param path: of its manifest
    """

    id: str
    step: int
    meta: Mapping[str, Any]
    path: Path


@dataclass(frozen=True)
class Figures:
    """Of the last save of this rank: seconds for which training was held up, and bytes that had to be written."""

    blocked_s: float
    written: int


@dataclass(frozen=True)
class _Plan:
    """:param local: what this rank could write; :param own: what it does write"""

    local: SavePlan
    own: SavePlan
    metadata: Metadata | None


@dataclass(frozen=True)
class _Begun:
    planner: SavePlanner
    plan: _Plan
    writer: BlobWriter
    failed: Exception | None


@dataclass(frozen=True)
class _Written:
    step: int
    objects: Mapping[str, str]
    results: list[WriteResult]


class Checkpoints:
    """The checkpoints of one job. All ranks make it, and call `save`, `save_async` and `load` in the same order.

    :param root: a folder that all ranks share, of this job alone; made by the first save
    :param group: the ranks that save; None: all of them
    :param keep: how many checkpoints stay; older ones go after a newer one is committed
    :param timeout_s: longest wait for the slowest rank
    :param shared: False: each rank has a folder of its own. What it writes lies there; rank 0's has the manifest.
        Together in one folder they are the checkpoint
    :raises ArgumentError: `keep` or `timeout_s` is too small
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        group: dist.ProcessGroup | None = None,
        keep: int = 2,
        timeout_s: float = 1800,
        shared: bool = True,
    ) -> None:
        if keep < 1:
            raise ArgumentError(f"keep = {keep}: at least the newest checkpoint stays; give 1 or more")
        if timeout_s <= 0:
            raise ArgumentError(f"timeout_s = {timeout_s}: give a number above 0")
        self.root = Path(root)
        self.figures: Figures | None = None
        self._folder, self._keep, self._shared = Folder(self.root), keep, shared
        self._ranks, self._stage = Ranks(group, timeout_s), Stage()
        self._plan: _Plan | None = None
        self._pool = ThreadPoolExecutor(1, "state-save")
        self._last: Future[str] | None = None
        self._read: Manifest | None = None
        """The last one that was read and checked: a load mostly comes next."""

    def turn_to(self, root: Path) -> None:
        """Use another folder from now on, which has nothing of the one before."""
        self.wait()
        self.root, self._folder, self._read = root, Folder(root), None

    def save(self, state: Mapping[str, Any], meta: Mapping[str, Any], *, step: int) -> str:
        """Store `state`; its id. When it returns, the checkpoint is committed on disk.

        :param state: nested; what it has under one key is the same on all ranks, or a shard of it
        :param meta: JSON
        :raises StateStorageError: on all ranks, with the rank where it happened; the checkpoint before is intact
        """
        begun = self._begin(state, meta, step, staged=False)
        return self._finish(begun)

    def save_async(self, state: Mapping[str, Any], meta: Mapping[str, Any], *, step: int) -> Future[str]:
        """The same, but training goes on as soon as the state is copied; a save under way is waited for.

        :raises StateStorageError: on all ranks: the state cannot be stored. What goes wrong later is in the future.
        """
        begun = self._begin(state, meta, step, staged=True)
        self._last = self._pool.submit(self._finish, begun)
        return self._last

    def latest(self) -> Saved | None:
        """The newest committed checkpoint. Not collective.

        :raises DamagedError, FormatError: its manifest cannot be used
        """
        ids = self._folder.ids()
        return self.get(ids[-1]) if ids else None

    def ids(self) -> list[str]:
        """Of the committed checkpoints, the oldest first. Not collective."""
        return self._folder.ids()

    def get(self, checkpoint: str) -> Saved:
        """:raises DamagedError, FormatError: there is no such checkpoint, or it cannot be used"""
        manifest = self._read = self._folder.manifest(checkpoint)
        return Saved(manifest.id, manifest.step, manifest.meta, self._folder.path(checkpoint))

    def load(self, saved: Saved, state: MutableMapping[str, Any], *, optional: Collection[str] = ()) -> int:
        """Fill `state` in place, on all ranks; how many bytes this rank read.

        A first key that `state` lacks is not loaded. After an error, part of `state` may be filled.

        :param optional: first keys of which the checkpoint may have more or fewer entries
        :raises StateStorageError: on all ranks: MismatchError, DamagedError, FormatError, LostRankError
        """
        self.wait()
        planner = LoadPlanner(allow_partial_load=True)
        known = self._read if self._read is not None and self._read.id == saved.id else None
        reader = BlobReader(self.root, saved.id, known, bring_of_environment(self.root))
        filled = dict(state)
        asked: Any
        try:
            planner.set_up_planner(filled, reader.read_metadata(), self._ranks.leads)
            match.compare(planner.state_dict, reader.manifest, optional)
            reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)
            asked = (saved.id, set(planner.state_dict))
        except Exception as error:
            asked = error

        def same(given: list[tuple[str, set[str]]]) -> None:
            other = next((rank for rank, (identity, _) in enumerate(given) if identity != saved.id), None)
            if other is not None:
                raise ArgumentError(f"saved.id: rank 0 has {saved.id}, rank {other} {given[other][0]}; give one to all")
            match.nothing_more(set().union(*(names for _, names in given)), reader.manifest, optional)

        self._ranks.all_decide(asked, same)
        state.update(filled)
        return reader.bytes_read

    def wait(self) -> None:
        """Until no save is under way. Its outcome is in its future."""
        if self._last is not None:
            self._last.exception()
            self._last = None

    def close(self) -> None:
        """Wait for a save under way, then end what it needs."""
        self.wait()
        self._pool.shutdown()
        self._ranks.close()

    # --- a save -----------------------------------------------------------------------------------------------------
    def _begin(self, state: Mapping[str, Any], meta: Mapping[str, Any], step: int, staged: bool) -> _Begun:
        """What training waits for: one number from all ranks, and the copy."""
        self.wait()
        began = time.perf_counter()
        planner = SavePlanner()
        local: Any
        change = FAILED
        try:
            _check(meta, step)
            self._folder.make()
            planner.set_up_planner(dict(state), None, self._ranks.leads)
            local = planner.create_local_plan()
            change = SAME if self._plan is not None and _same(local, self._plan.local) else CHANGED
        except ValueError as error:
            local = _doubled(error)
        except Exception as error:
            local = error
        highest = self._ranks.highest(change)
        if highest != SAME or self._plan is None:
            self._plan = self._ranks.scatter(local, lambda plans: self._planned(planner, plans))
        failed = None
        if staged:
            try:
                planner.stage(planner.finish_plan(self._plan.own), self._stage)
            except Exception as error:
                failed = error
        writer = BlobWriter(self.root, step, meta, self._ranks.size, self._folder, self._shared)
        self.figures = Figures(time.perf_counter() - began, 0)
        return _Begun(planner, self._plan, writer, failed)

    def _planned(self, planner: SavePlanner, plans: list[SavePlan]) -> list[_Plan]:
        own, metadata = planner.create_global_plan(plans)
        return [
            _Plan(local, mine, metadata if rank == 0 else None)
            for rank, (local, mine) in enumerate(zip(plans, own, strict=True))
        ]

    def _finish(self, begun: _Begun) -> str:
        written: Any
        try:
            if begun.failed is not None:
                raise begun.failed
            results = begun.writer.write_data(begun.plan.own, begun.planner).wait()
            written = _Written(begun.writer.step, begun.planner.digests(), results)
        except Exception as error:
            written = error
        assert self.figures is not None
        self.figures = Figures(self.figures.blocked_s, begun.writer.written)
        # What a save that failed has left is removed while all ranks wait: it may be why the disk is full.
        return self._ranks.agree(
            written, lambda given: self._commit(begun, given), failed=lambda: self._folder.sweep(self._keep)
        )

    def _commit(self, begun: _Begun, given: list[_Written]) -> str:
        steps = [each.step for each in given]
        if len(set(steps)) > 1:
            raise ArgumentError(f"step = {steps} by rank: all ranks save the same step")
        _check_objects(given)
        begun.writer.finish(begun.plan.metadata, [each.results for each in given])
        self._folder.sweep(self._keep)
        return begun.writer.id


def check(state: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Whether `save` could store it, as far as this rank alone can know. Nothing is written or copied.

    :raises ArgumentError, UnsavableError: it names what cannot be stored
    """
    _check(meta, 0)
    planner = SavePlanner()
    try:
        planner.set_up_planner(dict(state), None, True)
    except ValueError as error:
        raise _doubled(error) from error
    planner.create_local_plan()


def _doubled(error: ValueError) -> StateStorageError:
    """Also two keys that are the same name once they are joined by dots."""
    return error if isinstance(error, StateStorageError) else UnsavableError(f"state: {error}; rename one of them")


def _check(meta: Mapping[str, Any], step: int) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ArgumentError(f"step = {step!r}: give a whole number from 0 on")
    try:
        json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"meta: it is not JSON ({error}); give numbers, strings, lists and dictionaries") from error


def _same(one: SavePlan, other: SavePlan) -> bool:
    return bool(one.items == other.items and one.planner_data == other.planner_data)


def _check_objects(given: list[_Written]) -> None:
    """Only one rank's object is stored under a key; another one would be lost without a word.

    :raises UnsavableError: names key and ranks
    """
    seen: dict[str, tuple[int, str]] = {}
    for rank, each in enumerate(given):
        for name, digest in each.objects.items():
            first, known = seen.setdefault(name, (rank, digest))
            if known != digest:
                raise UnsavableError(
                    f"state[{name!r}]: ranks {first} and {rank} have other values; "
                    "put what differs under keys of its own"
                )
