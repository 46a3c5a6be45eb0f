"""A committed checkpoint in the formats of others, so that nobody is locked in.

safetensors is written here and not by its package. The format is a length, a JSON header and the bytes
(https://github.com/huggingface/safetensors#format). So only one tensor at a time is in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from . import memory
from .errors import ArgumentError, UnsavableError, of_write
from .folder import Folder
from .planner import LoadPlanner
from .reader import BlobReader

SAFETENSORS: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
"""Names of types: torch's, and those of the format."""


_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Exported:
    """:param left_out: objects that the format cannot hold"""

    checkpoint: str
    step: int
    tensors: int
    left_out: tuple[str, ...]


def export(
    root: str | os.PathLike[str],
    output: str | os.PathLike[str],
    format: str,
    *,
    checkpoint: str | None = None,
    only: str | None = None,
    writers: Mapping[str, Writer] | None = None,
) -> Exported:
    """Write a checkpoint to `output`, which must not be there yet. It appears whole or not at all.

    :param root: of the checkpoints
    :param format: `safetensors` (a file), `torch` (a file of torch.save) or `dcp` (a folder)
    :param checkpoint: its id; None: the newest
    :param only: a first key of the state, such as `model`; what is below it is exported without it
    :param writers: by format; default: those of this module
    :raises ArgumentError: no such format, checkpoint or key, or `output` is there
    :raises DamagedError, FormatError: the checkpoint cannot be used; UnsavableError: the format lacks a type
    """
    known = WRITERS if writers is None else writers
    write = known.get(format)
    if write is None:
        raise ArgumentError(f"format = {format!r}: give one of {', '.join(known)}")
    target = Path(output)
    if target.exists():
        raise ArgumentError(f"output = {target}: it is there already; give a new path")
    folder = Folder(Path(root))
    ids = folder.ids()
    if checkpoint is None and not ids:
        raise ArgumentError(f"root = {root}: it has no committed checkpoint; give the folder that has them")
    if checkpoint is not None and checkpoint not in ids:
        raise ArgumentError(f"checkpoint = {checkpoint!r}: {root} has {', '.join(ids) or 'none'}")
    source = Source(BlobReader(root, checkpoint or ids[-1]), only)
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        left_out = write(source, temporary)
        temporary.rename(target)
    except OSError as error:
        raise of_write(target, error) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
    manifest = source.reader.manifest
    return Exported(manifest.id, manifest.step, len(source.tensors), tuple(left_out))


class Source:
    """Entries of a checkpoint by their names in the export.

    :raises ArgumentError: nothing is below `only`
    """

    def __init__(self, reader: BlobReader, only: str | None) -> None:
        self.reader = reader
        manifest = reader.manifest
        self._metadata = reader.read_metadata()
        self.tensors = _below(only, {name: each.path for name, each in manifest.tensors.items()})
        self.objects = _below(only, {name: each.path for name, each in manifest.objects.items()})
        if not self.tensors and not self.objects:
            tops = sorted({name.partition(".")[0] for name in (*manifest.tensors, *manifest.objects)})
            raise ArgumentError(f"only = {only!r}: the checkpoint has {', '.join(tops)}")

    def tensor(self, name: str) -> torch.Tensor:
        """Whole, on the CPU."""
        saved = self.tensors[name][0]
        entry = self.reader.manifest.tensors[saved]
        made = torch.empty(entry.size, dtype=memory.dtype_of_name(entry.dtype))
        planner = LoadPlanner(flatten_state_dict=False)
        planner.set_up_planner({saved: made}, self._metadata, True)
        self.reader.read_data(planner.create_local_plan(), planner)
        return made

    def nested(self) -> dict[Any, Any]:
        """All of it, as it was given to `save`."""
        state: dict[Any, Any] = {}
        for name, (_, path) in self.tensors.items():
            _put(state, path, self.tensor(name))
        for saved, path in self.objects.values():
            _put(state, path, self.reader.value(saved))
        return state


def _below(only: str | None, paths: Mapping[str, _Path]) -> dict[str, tuple[str, _Path]]:
    """Name in the export -> name in the checkpoint, and path in the export."""
    found = {}
    for name, path in paths.items():
        if only is None or path[0] == only:
            short = path if only is None else path[1:] or path
            found[".".join(map(str, short))] = (name, short)
    return found


def _put(state: dict[Any, Any], path: Iterable[str | int], value: Any) -> None:
    """Numbers are places in a list."""
    *above, last = path
    place: Any = state
    for key, below in zip(above, [*above[1:], last], strict=True):
        empty: Any = [] if isinstance(below, int) else {}
        place = _slot(place, key, empty)
    _slot(place, last, None)
    place[last] = value


def _slot(place: Any, key: str | int, empty: Any) -> Any:
    if isinstance(place, list):
        place.extend([None] * (int(key) + 1 - len(place)))
        place[int(key)] = empty if place[int(key)] is None else place[int(key)]
    else:
        place.setdefault(key, empty)
    return place[key]


def _as_torch(source: Source, path: Path) -> list[str]:
    with path.open("xb") as file:
        torch.save(source.nested(), file)
        file.flush()
        os.fsync(file.fileno())
    return []


def _as_dcp(source: Source, path: Path) -> list[str]:
    state = source.nested()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process only
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path), no_dist=True)
    return []


def _as_safetensors(source: Source, path: Path) -> list[str]:
    entries = {name: source.reader.manifest.tensors[saved] for name, (saved, _) in source.tensors.items()}
    shapes = {name: (entry.dtype, entry.size) for name, entry in entries.items()}
    _write_safetensors(shapes, source.tensor, source.reader.manifest.step, path)
    return sorted(source.objects)


def safetensors(tensors: Mapping[str, torch.Tensor], step: int, path: Path) -> None:
    """Write tensors that are in memory. :raises UnsavableError: the format lacks a type"""
    shapes = {name: (memory.name_of_dtype(each.dtype), tuple(each.shape)) for name, each in tensors.items()}
    _write_safetensors(shapes, lambda name: tensors[name].contiguous(), step, path)


def _write_safetensors(
    shapes: Mapping[str, tuple[str, tuple[int, ...]]], tensor: Callable[[str], torch.Tensor], step: int, path: Path
) -> None:
    """:param shapes: type and size by name; `tensor` is asked for one at a time"""
    unknown = sorted({dtype for dtype, _ in shapes.values()} - SAFETENSORS.keys())
    if unknown:
        raise UnsavableError(f"format = 'safetensors': it has no type for {', '.join(unknown)}; use 'torch' or 'dcp'")
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "step": str(step)}}
    width = {name: memory.dtype_of_name(dtype).itemsize for name, (dtype, _) in shapes.items()}
    # Wide types first, then every tensor begins where its type may.
    order = sorted(shapes, key=lambda name: (-width[name], name))
    end = 0
    for name in order:
        dtype, size = shapes[name]
        place = [end, end := end + memory.elements(size) * width[name]]
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": list(size), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(memory.as_bytes(tensor(name)))
        file.flush()
        os.fsync(file.fileno())


Writer = Callable[["Source", Path], list[str]]
"""Writes a file or a folder; answers with the objects that it had to leave out."""
WRITERS: Mapping[str, Writer] = {
    "safetensors": _as_safetensors,
    "dcp": _as_dcp,
    "torch": _as_torch,
}
"""Of the formats that take any state."""
