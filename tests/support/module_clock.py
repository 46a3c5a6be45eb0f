"""A module's own clock: what is put in its place is seen by that module alone, not by threads that other tests left."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Give `module` a `time` of its own with these `functions` in place of the standard ones, until the test ends."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
