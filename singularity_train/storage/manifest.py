"""The manifest: what a checkpoint holds and where, as JSON. It is written last; its own digest is its last field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .blocks import BLOCK, HASH, Blob, digest, name_of
from .errors import DamagedError, FormatError

FORMAT = "singularity-state"
VERSION = 1
ENGINE = "state"
_MARK = b', "digest": "'


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, row-major, in a blob.

    :param at: bytes of the blob before it
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    blob: str
    at: int


@dataclass(frozen=True)
class Tensor:
    """:param path: keys from the top of the state down to it
    :param dtype: as torch calls it, without `torch.`
    """

    path: tuple[str | int, ...]
    dtype: str
    size: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Object:
    """A value that is no tensor: `value` is JSON text, or `blob` has it in torch's format from byte `at` on."""

    path: tuple[str | int, ...]
    kind: str
    value: str
    blob: str
    at: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """:param sequence: rises with each checkpoint of a folder
    :param created: Unix seconds
    :param tensors: by the dotted name that torch.distributed.checkpoint gives
    """

    id: str
    sequence: int
    step: int
    world_size: int
    created: float
    torch: str
    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    objects: Mapping[str, Object]
    blobs: Mapping[str, Blob]


def to_bytes(manifest: Manifest) -> bytes:
    head = {"format": FORMAT, "version": VERSION, "engine": ENGINE, "hash": HASH, "block_bytes": BLOCK}
    blobs = {name: {"bytes": blob.bytes, "blocks": blob.blocks} for name, blob in manifest.blobs.items()}
    text = json.dumps({**head, **asdict(manifest), "blobs": blobs}, allow_nan=False)[:-1].encode()
    return text + _MARK + digest(text).encode() + b'"}\n'


def from_bytes(data: bytes, where: str) -> Manifest:
    """:param where: path of the file, for the message
    :raises FormatError: of another program, engine or version
    :raises DamagedError: not the bytes that were written
    """
    fix = "remove its folder to go on from the checkpoint before"
    text, mark, rest = data.rpartition(_MARK)
    try:
        fields = json.loads(data)
    except ValueError:
        raise DamagedError(f"{where}: the manifest is damaged: it is not JSON; {fix}") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise FormatError(f"{where}: this is no manifest of {FORMAT!r}; give a folder that Checkpoints has written")
    if fields.get("engine") != ENGINE:
        raise FormatError(f"{where}: engine = {fields.get('engine')!r}: this library reads {ENGINE!r} only")
    known = (VERSION, HASH, BLOCK)
    if (fields.get("version"), fields.get("hash"), fields.get("block_bytes")) != known:
        raise FormatError(
            f"{where}: version = {fields.get('version')!r}, hash = {fields.get('hash')!r}, block_bytes = "
            f"{fields.get('block_bytes')!r}: this library reads {known}; read it with the version that wrote it"
        )
    if not mark or rest.strip() != digest(text).encode() + b'"}':
        raise DamagedError(f"{where}: the manifest is damaged: its digest is another; {fix}")
    try:
        made = _made(fields)
        _check(made)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{where}: the manifest is damaged: {error}; {fix}") from error
    return made


def _made(fields: dict[str, Any]) -> Manifest:
    tensors = {
        name: Tensor(
            tuple(each["path"]),
            each["dtype"],
            tuple(each["size"]),
            tuple(Piece(tuple(p["offsets"]), tuple(p["sizes"]), p["blob"], p["at"]) for p in each["pieces"]),
        )
        for name, each in fields["tensors"].items()
    }
    objects = {
        name: Object(tuple(each["path"]), each["kind"], each["value"], each["blob"], each["at"], each["bytes"])
        for name, each in fields["objects"].items()
    }
    blobs = {name: Blob(name, each["bytes"], tuple(each["blocks"])) for name, each in fields["blobs"].items()}
    return Manifest(
        fields["id"], fields["sequence"], fields["step"], fields["world_size"], fields["created"], fields["torch"],
        fields["meta"], tensors, objects, blobs,
    )  # fmt: skip


def _check(manifest: Manifest) -> None:
    """:raises ValueError: a reference leads nowhere"""
    for name, blob in manifest.blobs.items():
        if name != name_of(blob.blocks) or len(blob.blocks) != math.ceil(blob.bytes / BLOCK):
            raise ValueError(f"blob {name} has other blocks than its name says")
    for name, tensor in manifest.tensors.items():
        for piece in tensor.pieces:
            blob = manifest.blobs[piece.blob]
            if piece.at < 0 or piece.at > blob.bytes:
                raise ValueError(f"tensor {name} begins at byte {piece.at} of a blob of {blob.bytes}")
    for name, each in manifest.objects.items():
        if each.blob and each.at + each.bytes > manifest.blobs[each.blob].bytes:
            raise ValueError(f"object {name} ends behind the end of its blob")
