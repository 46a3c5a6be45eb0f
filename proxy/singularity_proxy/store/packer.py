"""Fills packs with new chunks, one pack after the other."""

from __future__ import annotations

from collections.abc import Callable

from .draft import Draft


class Packer:
    """:param draft: gives an empty one, :param store: takes one. One thread"""

    def __init__(self, draft: Callable[[], Draft], store: Callable[[Draft], None]) -> None:
        self._new, self._store = draft, store
        self._draft: Draft | None = None
        self._held: set[bytes] = set()
        """Keys of what the draft holds."""
        self.stored = 0
        """Bytes of content handed to `store`."""

    def room(self, key: bytes, size: int) -> memoryview | None:
        """Where the caller puts this chunk, before anything else is called. None: the draft has it."""
        if key in self._held:
            return None
        if self._draft is not None and self._draft.full:
            self.flush()
        self._draft = self._draft or self._new()
        self._held.add(key)
        return self._draft.add([key], [size])

    def flush(self) -> None:
        """Everything is handed on."""
        draft = self.drop()
        if draft is not None:
            self.stored += draft.size
            self._store(draft)

    def drop(self) -> Draft | None:
        """What is not handed on yet is the caller's."""
        draft, self._draft, self._held = self._draft, None, set()
        return draft
