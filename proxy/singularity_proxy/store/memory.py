"""Room for bytes."""

from __future__ import annotations


def load() -> None:
    """Import numpy now. Uploads need it and fetches do not: it is a sixth of what a sidecar imports, and a restore does
    not wait for it."""
    import numpy  # noqa: F401


def room(size: int) -> memoryview:
    """A buffer of this many bytes with undefined content. It takes memory only once it is written; `bytearray` would
    write zeros at once."""
    import numpy as np

    return np.empty(size, dtype=np.uint8).data
