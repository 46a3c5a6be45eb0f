"""The checkpoint manifest: a checkpoint exists if and only if its manifest exists. Written last, read strictly.

    STORE/jobs/<namespace>/<job>/<checkpoint id>.json      this manifest
    STORE/jobs/<namespace>/<job>/packs/<sha256>-<upload>   content of image files, see `singularity_proxy.store.pack`
    STORE/jobs/<namespace>/<job>/recipes/<sha256>-<upload> how one rank's files are put together from packs

An object's name is that of its content and of the upload that wrote it: once deleted, it never comes back.

A manifest is data: JSON, never pickle. Every path in it is relative, without `..`; every digest is checked on read, its
own first (`sha256`, over all its other fields).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from .decode import UnixTime, Unreadable, json_value, typed
from .messages import CHECKPOINT_ID, MessageError

FORMAT = 5
READABLE = (4, FORMAT)
"""A release restores what the release before it wrote. Format 4 names packs of version 2, format 5 those of version 3
(`singularity_proxy.store.pack`)."""
MAX_BYTES = 256 << 20
"""About 20 bytes per MiB of image."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OBJECT = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")
_ID = re.compile(CHECKPOINT_ID)


@dataclass(frozen=True)
class Stored:
    """An object of the store, by its `object_name`. `size`: bytes as stored."""

    name: str
    size: int


@dataclass(frozen=True)
class ImageFile:
    """One file of a rank's image directory (CRIU images, `work.tar`, `rank.json`). `size`: bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class RankImage:
    """Files in the recipe's order; every pack that the recipe names, by its position here."""

    rank: int
    files: list[ImageFile]
    packs: list[Stored]
    recipe: Stored


@dataclass(frozen=True)
class Requirements:
    """What a machine must have for the images to be restorable there (process engine). What the container must have is
    in each rank's `rank.json`: the files of its image that it has mapped."""

    architecture: str
    cpu_flags_digest: str
    """sha256 of the sorted CPU feature flags that the dumping machine showed; "" when unknown."""


@dataclass(frozen=True)
class Manifest:
    id: str
    namespace: str
    job: str
    attempt: int
    generation: int
    step: int
    world_size: int
    engine: str
    created_at: UnixTime
    ranks: list[RankImage]
    requirements: Requirements
    master_port: int = 29500
    labels: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT


def dumps(manifest: Manifest) -> str:
    """JSON text of a manifest."""
    return seal(asdict(manifest))


def seal(fields: dict[str, Any]) -> str:
    """JSON text of these fields and their digest, whatever they are."""
    return json.dumps({**fields, "sha256": _digest(fields)}, separators=(",", ":"))


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def loads(text: str | bytes) -> Manifest:
    """Parse and check a manifest. Raises MessageError that names the field."""
    data = json_value(text, MAX_BYTES)
    if isinstance(data, Unreadable):
        raise MessageError(f"Manifest: {data.why}")
    if isinstance(data, dict) and data.get("format") not in READABLE:  # first: other versions have other fields
        raise MessageError(
            f"Manifest.format: {ascii(data.get('format'))[:40]} is not supported, this build reads formats "
            f"{READABLE[0]} to {FORMAT}: use the version that wrote the checkpoint"
        )
    if isinstance(data, dict) and data.pop("sha256", "") != _digest(data):
        raise MessageError("Manifest.sha256: does not match: bytes of this manifest have changed since it was written")
    m = typed(Manifest, data)
    if isinstance(m, Unreadable):
        raise MessageError(m.why)
    if not is_id(m.id):
        raise MessageError(f"Manifest.id: {m.id!r} is not a checkpoint id")
    found = sorted(r.rank for r in m.ranks)
    # Check the length first: an absurd world size must not become a list of that length.
    if not found or len(found) != m.world_size or found != list(range(m.world_size)):
        raise MessageError(f"Manifest.ranks: has {found[:20]}, wants 0..{m.world_size - 1} once each")
    for rank in m.ranks:
        _check_rank(f"Manifest.ranks[{rank.rank}]", rank)
    return m


def is_digest(text: str) -> bool:
    """Whether `text` is a sha256 in lower-case hex."""
    return _DIGEST.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Whether `text` can be the id of a checkpoint: it becomes part of paths and URLs."""
    return _ID.fullmatch(text) is not None


def object_name(sha256: str, upload: str) -> str:
    """Name of an object with this content (hex), written by this upload (16 hex digits)."""
    return f"{sha256}-{upload}"


def is_object(name: str) -> bool:
    """Whether `name` can name an object: it becomes part of a path."""
    return _OBJECT.fullmatch(name) is not None


def content_of(name: str) -> str:
    """The sha256 (hex) in an object's name."""
    return name.partition("-")[0]


def _check_rank(where: str, image: RankImage) -> None:
    paths: set[str] = set()
    for file in image.files:
        parts = file.path.split("/")
        if any(p in ("", ".", "..") for p in parts) or "\0" in file.path:
            raise MessageError(f"{where}: path {file.path!r} is not a plain relative path")
        if file.path in paths:
            raise MessageError(f"{where}: path {file.path!r} is named twice")
        if file.size < 0:
            raise MessageError(f"{where}: {file.path!r} has {file.size} bytes")
        paths.add(file.path)
    for path in paths:
        folder = path
        while "/" in folder:
            folder = folder.rsplit("/", 1)[0]
            if folder in paths:
                raise MessageError(f"{where}: {folder!r} is a file and the folder of {path!r}")
    for stored in (*image.packs, image.recipe):
        if stored.size < 0 or not is_object(stored.name):
            raise MessageError(f"{where}: names an object {stored.name!r} of {stored.size} bytes: no name of one")
