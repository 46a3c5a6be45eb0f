"""What a job's part of the store holds already: chunk -> place in a pack."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..protocol.manifest import Stored, content_of, is_object
from . import pack
from .backend import Backend

SLOT_BITS: Final = 16
REFRESH_SHARE: Final = 0.1
"""The part of an upload's time that the search for packs of other pods may take."""
log = logging.getLogger(__name__)


class Known:
    """Index of all packs of a job. About 130 bytes of memory per chunk (6 KiB of content on average).

    :param doomed: what a collection may be deleting (`packs/<name>`): taken as if it were gone

    `places[key]` is pack number << SLOT_BITS | slot; `packs[number]` is None until that pack is written.
    """

    def __init__(self, backend: Backend, folder: str, pool: ThreadPoolExecutor, doomed: frozenset[str]) -> None:
        self._backend = backend
        self._folder = folder
        self._pool = pool
        # A pack that a restore could not use may have an intact head. Nothing else here would notice the damage.
        damaged = {path.rsplit("/", 1)[1] for path in backend.find(f"{folder}/damaged")}
        self._seen = damaged | {name.removeprefix("packs/") for name in doomed}
        self.packs: list[Stored | None] = []
        self.chunk_counts: list[int] = []
        """Number of chunks of each pack."""
        self.places: dict[bytes, int] = {}
        self._looked = 0.0
        self._cost = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Add packs that were stored since the last refresh. Raises StoreError."""
        began = time.monotonic()
        new = [
            (path.rsplit("/", 1)[1], size)
            for path, (size, _) in sorted(self._backend.find(f"{self._folder}/packs").items())
            if size and is_object(path.rsplit("/", 1)[1]) and path.rsplit("/", 1)[1] not in self._seen
        ]
        for (name, size), head in zip(new, self._pool.map(self._head, new), strict=True):
            self._seen.add(name)
            if head is not None:
                number = self.add(head.keys)
                self.packs[number] = Stored(name, size)
        self._looked = time.monotonic()
        self._cost = self._looked - began

    def refresh_if_cheap(self) -> None:
        """`refresh`, unless the last refresh was recent in relation to its cost."""
        if time.monotonic() - self._looked >= self._cost / REFRESH_SHARE:
            self.refresh()

    def add(self, keys: list[bytes]) -> int:
        """A pack of these chunks; its number."""
        number = len(self.packs)
        self.packs.append(None)
        self.chunk_counts.append(len(keys))
        base = number << SLOT_BITS
        deque(map(self.places.setdefault, keys, range(base, base + len(keys))), maxlen=0)
        return number

    def written(self, number: int, stored: Stored) -> None:
        """Pack `number` is in the store."""
        self.packs[number] = stored
        self._seen.add(stored.name)

    def forget(self, numbers: set[int]) -> None:
        """Do not rely on these packs any more."""
        if numbers:
            self.places = {key: place for key, place in self.places.items() if place >> SLOT_BITS not in numbers}

    def _head(self, item: tuple[str, int]) -> pack.Head | None:
        """None: not usable, and so not used."""
        name, size = item
        data = self._backend.read(f"{self._folder}/packs/{name}", pack.HEAD_SIZE)
        if data is None:
            return None
        try:
            head = pack.read_head(content_of(name), data)
        except pack.PackError as error:
            log.warning("store %s: pack %s %s; it is not used again", self._backend.url, name, error)
            return None
        return head if head.size == size else None
