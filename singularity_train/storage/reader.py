"""A StorageReader of torch.distributed.checkpoint: each rank reads the blocks that it needs and checks them."""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from ..environment import Bring
from . import memory, needs, plain
from .blocks import BLOCK, Blob, runs
from .errors import DamagedError
from .folder import BLOBS, Folder
from .manifest import Manifest, Object, Piece, Tensor

PART = 32 * BLOCK
"""Bytes. Longer reads are shared by threads."""


class TakesValues(Protocol):
    """A planner of ours: it takes an object as it is, where torch's own takes bytes of torch.save."""

    def load_value(self, item: ReadItem, value: Any) -> None: ...


class BlobReader(StorageReader):  # type: ignore[misc]
    """Works with `torch.distributed.checkpoint.load` too.

    :param root: of the checkpoints
    :param checkpoint: its id
    :param bring: called with the parts of files that this rank is about to read; they are there when it returns
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        checkpoint: str,
        manifest: Manifest | None = None,
        bring: Bring | None = None,
    ) -> None:
        self.folder = Folder(Path(root))
        self.bytes_read = 0
        self._id, self._known, self._bring = checkpoint, manifest, bring

    @property
    def manifest(self) -> Manifest:
        """:raises DamagedError, FormatError: it cannot be used"""
        if self._known is None:
            self._known = self.folder.manifest(self._id)
        return self._known

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.bytes_read = 0

    def read_metadata(self) -> Metadata:
        """:raises DamagedError, FormatError: it cannot be used"""
        found: dict[str, Any] = {}
        for name, tensor in self.manifest.tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in tensor.pieces]
            properties = TensorProperties(dtype=memory.dtype_of_name(tensor.dtype))
            found[name] = TensorStorageMetadata(properties, torch.Size(tensor.size), chunks)
        found |= {name: BytesStorageMetadata() for name in self.manifest.objects}
        entries: dict[str, Tensor | Object] = {**self.manifest.tensors, **self.manifest.objects}
        return Metadata(found, planner_data={name: each.path for name, each in entries.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """:raises DamagedError: a blob is not there, cannot be brought, or is not what was written"""
        if self._bring is not None:
            try:
                self._bring((f"{BLOBS}/{name}", *span) for name, span in needs.of(plan.items, self.manifest))
            except OSError as error:
                raise DamagedError(
                    f"checkpoint {self._id}: what this rank needs of it cannot be fetched: {error}; start the job again"
                ) from error
        by_blob: dict[str, list[tuple[ReadItem, Tensor, Piece]]] = defaultdict(list)
        pieces = {(n, p.offsets): (t, p) for n, t in self.manifest.tensors.items() for p in t.pieces}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_object(item, planner)
            else:
                tensor, piece = pieces[item.storage_index.fqn, tuple(item.storage_index.offset)]
                by_blob[piece.blob].append((item, tensor, piece))
        tasks = [task for name, wanted in by_blob.items() for task in self._tasks(name, wanted, planner)]
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            self.bytes_read += sum(pool.map(lambda task: task(), tasks))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    # --- objects ----------------------------------------------------------------------------------------------------
    def value(self, name: str) -> Any:
        """Of an object. :raises DamagedError: its bytes are not those that were written"""
        each: Object = self.manifest.objects[name]
        if not each.blob:
            return plain.decode(each.kind, each.value.encode())
        data = bytearray(each.bytes)
        self.bytes_read += self.folder.read_into(self.manifest.blobs[each.blob], each.at, memoryview(data))
        return plain.decode(each.kind, bytes(data))

    def _load_object(self, item: ReadItem, planner: Any) -> None:
        value = self.value(item.storage_index.fqn)
        if hasattr(planner, "load_value"):
            planner.load_value(item, value)
            return
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        planner.load_bytes(item, file)

    # --- tensors ----------------------------------------------------------------------------------------------------
    def _tasks(
        self, name: str, wanted: Sequence[tuple[ReadItem, Tensor, Piece]], planner: LoadPlanner
    ) -> Iterator[Callable[[], int]]:
        blob = self.manifest.blobs[name]
        if needs.is_pack(len(wanted), blob):
            yield lambda: self._read_pack(blob, wanted, planner)
            return
        for item, tensor, piece in wanted:
            yield from self._read_box(blob, item, tensor, piece, planner)

    def _read_pack(self, blob: Blob, wanted: Sequence[tuple[ReadItem, Tensor, Piece]], planner: LoadPlanner) -> int:
        """Many small tensors of one blob: it is read once."""
        whole = torch.empty(blob.bytes, dtype=torch.uint8)
        got = self.folder.read_into(blob, 0, memory.as_bytes(whole))
        for item, tensor, piece in wanted:
            dtype = memory.dtype_of_name(tensor.dtype)
            count = memory.elements(piece.sizes) * dtype.itemsize
            stored = whole[piece.at : piece.at + count].view(dtype).reshape(piece.sizes)
            _place(item, stored, planner)
        return got

    def _read_box(
        self, blob: Blob, item: ReadItem, tensor: Tensor, piece: Piece, planner: LoadPlanner
    ) -> Iterator[Callable[[], int]]:
        dtype = memory.dtype_of_name(tensor.dtype)
        starts, length = runs(piece.sizes, item.storage_offsets, item.lengths)
        if not starts:
            return
        target = planner.resolve_tensor(item).detach()
        direct = target.is_contiguous() and target.device.type == "cpu" and target.dtype == dtype
        if len(starts) == 1 and direct:
            view = memory.as_bytes(target)
            first = piece.at + starts[0] * dtype.itemsize
            for at in _cuts(first, len(view)):
                end = min(len(view), -(-(first + at + 1) // PART) * PART - first)
                yield lambda at=at, end=end: self.folder.read_into(blob, first + at, view[at:end])  # type: ignore[misc]
            return
        yield lambda: self._read_runs(blob, item, piece, dtype, starts, length, planner)

    def _read_runs(
        self,
        blob: Blob,
        item: ReadItem,
        piece: Piece,
        dtype: torch.dtype,
        starts: Sequence[int],
        length: int,
        planner: LoadPlanner,
    ) -> int:
        """A box whose runs lie apart, or one that goes to an accelerator."""
        size = dtype.itemsize
        if needs.apart(starts, length * size):
            box = torch.empty(tuple(item.lengths), dtype=dtype)
            view = memory.as_bytes(box)
            got = 0
            for number, start in enumerate(starts):
                part = view[number * length * size : (number + 1) * length * size]
                got += self.folder.read_into(blob, piece.at + start * size, part)
        else:  # runs of a few bytes: the blocks between them are needed anyhow
            first, count = starts[0], starts[-1] + length - starts[0]
            span = torch.empty(count, dtype=dtype)
            got = self.folder.read_into(blob, piece.at + first * size, memory.as_bytes(span))
            strides = [memory.elements(piece.sizes[at + 1 :]) for at in range(len(piece.sizes))]
            box = span.as_strided(tuple(item.lengths), strides)
        target = planner.resolve_tensor(item).detach()
        target.copy_(box)
        planner.commit_tensor(item, target)
        return got


def _cuts(first: int, count: int) -> list[int]:
    """Offsets from byte `first` of a blob where to cut `count` bytes, so that no block is read twice."""
    edges = range((first // PART + 1) * PART, first + count, PART)
    return [0, *(edge - first for edge in edges)]


def _place(item: ReadItem, stored: torch.Tensor, planner: LoadPlanner) -> None:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        stored = stored.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(stored)
    planner.commit_tensor(item, target)
