"""What a job's part of the store holds already: chunk -> place in a pack."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..protocol.manifest import Stored, content_of, is_object
from . import chunking, pack, sealing
from .backend import Backend
from .key_index import KeyIndex

SLOT_BITS: Final = 16
REFRESH_SHARE: Final = 0.1
"""The part of an upload's time that the search for packs of other pods may take."""
log = logging.getLogger(__name__)


Believed = Callable[[str, bytes], bool]
"""Whether an upload may rely on the pack with this name and with these bytes at its beginning."""


class Known:
    """Index of the packs of a job. 33 bytes of memory per chunk (90 KiB of dense content on average, 6 KiB of other
    content).

    :param doomed: what a collection may be deleting (`packs/<name>`): taken as if it were gone
    :param believed: packs of which it says no are not used
    :param key_of: data keys; :param reused: ids of those whose packs are used, "" for packs that are not encrypted

    A place is pack number << SLOT_BITS | slot; `packs[number]` is None until that pack is written.
    """

    def __init__(
        self,
        backend: Backend,
        folder: str,
        pool: ThreadPoolExecutor,
        doomed: frozenset[str],
        believed: Believed,
        key_of: sealing.KeyOf = sealing.no_key,
        reused: frozenset[str] = frozenset(("",)),
    ) -> None:
        self._backend = backend
        self._key_of, self._reused = key_of, reused
        self._believed = believed
        self._folder = folder
        self._pool = pool
        # A pack that a restore could not use may have an intact head. Nothing else here would notice the damage.
        damaged = {path.rsplit("/", 1)[1] for path in backend.find(f"{folder}/damaged")}
        self._seen = damaged | {name.removeprefix("packs/") for name in doomed}
        self.packs: list[Stored | None] = []
        self.chunk_counts: list[int] = []
        """Number of chunks of each pack."""
        self.places = KeyIndex()
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
        foreign: list[str] = []
        for (name, size), head in zip(new, self._pool.map(self._head, new), strict=True):
            self._seen.add(name)
            if isinstance(head, pack.Head):
                number = self.add(head.keys)
                self.packs[number] = Stored(name, size)
            elif head is False:
                foreign.append(name)
        if foreign:
            log.warning(
                "store %s: %d packs are not used again: none of the newest committed checkpoints names them, and this "
                "attempt did not write them. Older checkpoints need some, and an upload that was broken off leaves "
                "some; else somebody else wrote them. The first is %s",
                self._backend.url, len(foreign), foreign[0],
            )  # fmt: skip
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
        self.places.add(keys, number << SLOT_BITS)
        return number

    def written(self, number: int, stored: Stored) -> None:
        """Pack `number` is in the store."""
        self.packs[number] = stored
        self._seen.add(stored.name)

    def forget(self, numbers: set[int]) -> None:
        """Do not rely on these packs any more."""
        if numbers:
            self.places.forget(numbers, SLOT_BITS)

    def _head(self, item: tuple[str, int]) -> pack.Head | bool:
        """True: not usable. False: not to be believed."""
        name, size = item
        data = self._backend.read(f"{self._folder}/packs/{name}", pack.HEAD_SIZE)
        if data is None or sealing.key_id(data) not in self._reused:
            return True
        try:
            head = pack.read_head(content_of(name), data, self._key_of)
            plain = pack.plain_head(data, self._key_of)
        except pack.PackError as error:
            log.warning("store %s: pack %s %s; it is not used again", self._backend.url, name, error)
            return True
        # The keys of older versions are other digests: nothing is found by them.
        if head.size != size or head.digest != chunking.DIGEST:
            return True
        return head if self._believed(name, plain) else False
