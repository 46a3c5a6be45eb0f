"""The groups that the script has made: all their backends are dropped together, and made again in the same order."""

from __future__ import annotations

from typing import Any

from . import gate, shared_device
from .store import stores

# Strong references: a Python subclass of a pybind class loses its overrides when only C++ still holds it.
backends: list[Any] = []
epoch = 0
"""How often the script has destroyed all its groups."""


def forget() -> None:
    """The script has destroyed all its groups."""
    global epoch
    epoch += 1
    for backend in backends:
        backend.inner = None
    for known in stores:
        known.inner = None
    backends.clear()
    stores.clear()
    gate.forget()
    shared_device.close()


def drop() -> None:
    """Let go of every backend. Nothing is under way. The caller collects garbage."""
    for backend in backends:
        backend.inner = None
    shared_device.close()


def rebuild(generation: int) -> None:
    """Make every backend again, in the order of their creation. The store is there already. After an error those that
    were made stay; to be called again then."""
    for backend in backends:
        if backend.built_for != generation:
            backend.inner = None
            backend.inner = backend.make(generation)
            backend.built_for = generation
