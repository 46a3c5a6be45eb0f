"""Room for bytes."""

from __future__ import annotations

import numpy as np


def room(size: int) -> memoryview:
    """A buffer of this many bytes with undefined content. It takes memory only once it is written; `bytearray` would
    write zeros at once."""
    return np.empty(size, dtype=np.uint8).data
