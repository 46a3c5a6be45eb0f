"""Room for bytes."""

from __future__ import annotations

import numpy as np


def room(size: int) -> memoryview:
    """So many bytes of no known content. They take memory only once they are written: `bytearray` writes zeros."""
    return np.empty(size, dtype=np.uint8).data
