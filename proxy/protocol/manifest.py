"""The checkpoint manifest: the one object whose existence makes a checkpoint exist. Written last, read strictly.

    STORE/chunks/<first two hex digits>/<sha256>          content-addressed, shared by all jobs of the store
    STORE/jobs/<namespace>/<job uid or name>/<checkpoint id>.json      this manifest

A manifest is data: JSON, never pickle. Every path in it is relative, without `..`, and every digest is checked on read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .messages import MessageError, from_json, to_json

FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Chunk:
    sha256: str
    size: int
    """Bytes, uncompressed."""


@dataclass(frozen=True)
class ImageFile:
    """One file of a rank's image directory (CRIU images, `work.tar`, `rank.json`)."""

    path: str
    size: int
    chunks: list[Chunk]


@dataclass(frozen=True)
class RankImage:
    rank: int
    files: list[ImageFile]


@dataclass(frozen=True)
class Requirements:
    """What a machine and a container must have for the images to be restorable there (process engine)."""

    architecture: str
    cpu_flags_digest: str
    """sha256 of the sorted CPU feature flags that the dumping machine showed; "" when unknown."""
    python: str
    """Version of the interpreter that ran the ranks."""
    image: str
    """Container image of the training container, by digest where the runtime tells one."""


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
    created_at: float
    ranks: list[RankImage]
    requirements: Requirements
    master_port: int = 29500
    labels: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT


def dumps(manifest: Manifest) -> str:
    """JSON text of a manifest."""
    return to_json(manifest)


def loads(text: str | bytes) -> Manifest:
    """Parse and check a manifest. Raises MessageError that names the field."""
    m = from_json(Manifest, text)
    if m.format != FORMAT:
        raise MessageError(f"Manifest.format: {m.format} is not supported, this build reads format {FORMAT}")
    if not is_id(m.id):
        raise MessageError(f"Manifest.id: {m.id!r} is not a checkpoint id")
    if sorted(r.rank for r in m.ranks) != list(range(m.world_size)):
        found = sorted(r.rank for r in m.ranks)
        raise MessageError(f"Manifest.ranks: has {found}, wants 0..{m.world_size - 1} once each")
    for rank in m.ranks:
        for file in rank.files:
            _check_file(f"Manifest.ranks[{rank.rank}]", file)
    return m


def is_id(text: str) -> bool:
    """Whether `text` can be the id of a checkpoint: it becomes part of paths and URLs."""
    return _ID.fullmatch(text) is not None


def _check_file(where: str, file: ImageFile) -> None:
    parts = file.path.split("/")
    if file.path.startswith("/") or any(p in ("", ".", "..") for p in parts) or "\0" in file.path:
        raise MessageError(f"{where}: path {file.path!r} is not a plain relative path")
    chunked = sum(c.size for c in file.chunks)
    if file.size < 0 or chunked != file.size:
        raise MessageError(f"{where}: {file.path!r} has {file.size} bytes but its chunks have {chunked}")
    for chunk in file.chunks:
        if chunk.size < 0 or not _DIGEST.fullmatch(chunk.sha256):
            raise MessageError(f"{where}: {file.path!r} names a chunk {chunk.sha256!r} that is not a sha256")
