"""The process that forks ranks for the tests of the state engine, for benchmarks too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from torch_nursery import Nursery  # type: ignore[import-not-found]

__all__ = ["Nursery"]
