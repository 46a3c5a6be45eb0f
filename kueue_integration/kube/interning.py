"""One copy of each key and each short text for all objects that an informer holds; how many is bounded.

Not `sys.intern`: Python 3.12 never frees what it has seen, and whoever may edit one Job decides what it sees.
"""

from __future__ import annotations

from typing import Any

MAX_STRINGS = 20_000
MAX_KEY, MAX_VALUE = 64, 31
"""Characters. Longer ones are of one object only: uids, messages."""


class Strings:
    """Shared copies of keys of at most MAX_KEY and values of at most MAX_VALUE characters. For one thread.

    It forgets all of them when there are too many: later objects then share anew.
    """

    def __init__(self, most: int = MAX_STRINGS) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def shared(self, value: Any) -> Any:
        """A copy of JSON data, made with shared strings."""
        if isinstance(value, dict):
            return {self._one(key, MAX_KEY): self.shared(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.shared(each) for each in value]
        return self._one(value, MAX_VALUE) if isinstance(value, str) else value

    def _one(self, text: str, most_chars: int) -> str:
        if len(text) > most_chars:
            return text
        if len(self._known) >= self._most:
            self._known.clear()
        return self._known.setdefault(text, text)
