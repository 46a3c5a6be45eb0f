"""What the launcher needs of a rank, whatever it lives in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from .user import User


class Rank(Protocol):
    """`slot.Slot` is one in namespaces of its own, `plain.PlainRank` an ordinary process."""

    rank: int

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, whom: User | None = None
    ) -> None:
        """Start its program. `whom`: None, as the launcher's user. Raises SlotError."""

    def signal(self, number: int) -> None:
        """Send a signal to its first process, if it has not ended. Raises SlotError."""

    def pass_on(self, number: int) -> bool:
        """The same, if that process has a handler for it; whether it has. Raises OSError."""

    def poll(self) -> int | None:
        """Its exit code (128 + signal), None while it lives."""

    def kill(self) -> None:
        """End it and everything in it, now."""
