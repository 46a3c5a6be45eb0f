"""A stored state that somebody has damaged."""

from __future__ import annotations

import json
from pathlib import Path


def spoil(root: Path, checkpoint: Path, other: Path | None, damage: str) -> None:
    """:param other: a checkpoint that keeps its blobs
    :param damage: manifest, lost, torn or changed
    """
    manifest = checkpoint / "manifest.json"
    if damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-20])
        return
    both = [json.loads((each / "manifest.json").read_text())["blobs"] for each in (checkpoint, other) if each]
    path = root / "blobs" / sorted({*both[0]}.difference(*both[1:]))[0]
    data = path.read_bytes()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "torn" else data[:-1] + bytes([data[-1] ^ 1]))
