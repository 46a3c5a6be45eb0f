"""A StorageWriter of torch.distributed.checkpoint: blobs by content, and a manifest that is written last."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import memory, plain
from .blocks import Blob
from .errors import WriteError
from .folder import Folder
from .manifest import Manifest, Object, Piece, Tensor

SMALL = 256 << 10
"""Bytes. Smaller items share a blob: one file for each of a thousand biases would cost a thousand fsyncs."""
PACK = 8 << 20
"""Bytes of a shared blob at most. A changed item makes all of its blob new."""
ALIGN = 64
"""Bytes. Items of a shared blob begin at multiples of it, so that any type can be read in place."""
THREADS = 4
"""Hashing leaves the interpreter's lock, and fsync waits for the disk."""


@dataclass(frozen=True)
class Plain:
    """An object that is encoded already."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Stored:
    """Where an item is: in a blob from byte `at` on, or `value` has it."""

    kind: str
    blob: Blob | None
    at: int
    bytes: int
    value: str = ""


class BlobWriter(StorageWriter):  # type: ignore[misc]
    """Works with `torch.distributed.checkpoint.save` too, which gives it to each rank.

    :param root: of the checkpoints
    :param meta: JSON; that of rank 0 is stored
    :param folder: the same root, as the save before has left it
    :param shared: all ranks have the same root
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        step: int,
        meta: Mapping[str, Any],
        world_size: int = 1,
        folder: Folder | None = None,
        shared: bool = True,
    ) -> None:
        self.folder = folder or Folder(Path(root))
        self.written = 0
        """Bytes that this rank had to write."""
        self.id = ""
        """Of the checkpoint, on rank 0, after `finish`."""
        self.step, self._meta, self._world, self._shared = step, meta, world_size, shared

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.written, self.id = 0, ""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.folder.make()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._world = len(plans)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """:raises WriteError, UnsavableError: a blob cannot be written, an object or a tensor cannot be stored"""
        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(lambda items: self._write(items, planner), groups(plan.items)))
        self.folder.sync_blobs()
        results = [result for part in parts for result in part]
        self.folder.known = {r.storage_data.blob.name for r in results if r.storage_data.blob is not None}
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """:raises WriteError: the manifest cannot be written, or the blobs of another rank are not in this folder"""
        found = {result.index: result.storage_data for each in results for result in each}
        blobs = {stored.blob.name: stored.blob for stored in found.values() if stored.blob is not None}
        for blob in blobs.values():
            if self._shared and not self.folder.has(blob):
                raise WriteError(
                    f"root = {self.folder.root}: blob {blob.name}, which another rank has written, is not there; "
                    "give a folder that all ranks share"
                )
        identity, sequence = self.folder.next_id(self.step)
        tensors, objects = _entries(metadata, found)
        manifest = Manifest(
            identity, sequence, self.step, self._world, time.time(), torch.__version__, dict(self._meta), tensors,
            objects, blobs,
        )  # fmt: skip
        self.folder.commit(manifest)
        self.id = identity

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def storage_meta(self) -> StorageMeta | None:
        return None

    def _write(self, items: Sequence[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        """Items as one blob."""
        parts, kinds = [], []
        for item in items:
            kind, data = _data(item, planner)
            kinds.append(kind)
            parts.append(data)
        inline = [kind == plain.JSON for kind in kinds]
        starts, length = _layout([0 if inner else len(part) for part, inner in zip(parts, inline, strict=True)])
        blob = None
        if length:
            whole = parts[0]
            if len(parts) > 1:
                whole = memoryview(bytearray(length))
                for start, part, inner in zip(starts, parts, inline, strict=True):
                    if not inner:
                        whole[start : start + len(part)] = part
            blob, written = self.folder.put(whole)
            self.written += written
        elif not all(inline):
            blob, _ = self.folder.put(memoryview(b""))
        return [
            WriteResult(item.index, len(part), Stored(kind, None, 0, len(part), bytes(part).decode()))
            if inner
            else WriteResult(item.index, len(part), Stored(kind, blob, start, len(part)))
            for item, part, kind, inner, start in zip(items, parts, kinds, inline, starts, strict=True)
        ]


def groups(items: Sequence[WriteItem]) -> Iterator[list[WriteItem]]:
    """Items that share a blob: a large one has its own."""
    pack: list[WriteItem] = []
    size = 0
    for item in items:
        count = _size(item)
        if count >= SMALL:
            yield [item]
            continue
        if size + count > PACK:
            yield pack
            pack, size = [], 0
        pack.append(item)
        size += count + ALIGN
    if pack:
        yield pack


def _size(item: WriteItem) -> int:
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return 0
    return memory.elements(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize  # type: ignore[no-any-return]


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    starts, end = [], 0
    for length in lengths:
        begin = -(-end // ALIGN) * ALIGN
        starts.append(begin)
        end = begin + length
    return starts, end


def _data(item: WriteItem, planner: SavePlanner) -> tuple[str, memoryview]:
    """Kind ("" for a tensor) and bytes."""
    given = planner.resolve_data(item)
    if isinstance(given, Plain):
        return given.kind, memoryview(given.data)
    if isinstance(given, io.BytesIO):  # of a planner that is not ours
        plain.decode(plain.TORCH, given.getvalue())
        return plain.TORCH, memoryview(given.getvalue())
    memory.check(item.index.fqn, given)
    return "", memory.as_bytes(given.detach().to("cpu").contiguous())


def _entries(
    metadata: Metadata, found: Mapping[MetadataIndex, Stored]
) -> tuple[dict[str, Tensor], dict[str, Object]]:
    paths = metadata.planner_data or {}
    tensors, objects = {}, {}
    for name, each in metadata.state_dict_metadata.items():
        path = tuple(paths.get(name, (name,)))
        if isinstance(each, TensorStorageMetadata):
            pieces = []
            for chunk in each.chunks:
                stored = found[MetadataIndex(name, chunk.offsets)]
                pieces.append(Piece(tuple(chunk.offsets), tuple(chunk.sizes), _name(stored), stored.at))
            dtype = memory.name_of_dtype(each.properties.dtype)
            tensors[name] = Tensor(path, dtype, tuple(each.size), tuple(pieces))
        else:
            stored = found[MetadataIndex(name)]
            objects[name] = Object(path, stored.kind, stored.value, _name(stored), stored.at, stored.bytes)
    return tensors, objects


def _name(stored: Stored) -> str:
    return stored.blob.name if stored.blob is not None else ""
