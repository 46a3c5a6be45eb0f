"""Which packs an upload may rely on, in a store where others can write, too.

An upload finds chunks by their keys, and reads no content. A pack that somebody else put into the job's folder, with a
head that fits it, would so become a part of the next checkpoint. No restore uses its content (`pack.read_block`), but
the checkpoint would be lost. So an upload relies on two kinds of packs alone:

- those that a committed checkpoint of the job names. The digest of its manifest is on the Job, where only the
  controller writes;
- those with the seal of its own attempt. The key comes from the controller, and only the attempt's pods have it.
"""

from __future__ import annotations

import hmac
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..errors import DamageError, StoreError
from . import pack
from .chunk_index import Believed

if TYPE_CHECKING:
    from .store import Store

MOST_READ: Final = 3
"""Checkpoints whose manifests are read, the newest first: retention keeps as many."""
log = logging.getLogger(__name__)


class Trust:
    """What the pods of one attempt know.

    :param seal_key: of this attempt
    :param committed: id and manifest's digest of the job's committed checkpoints, newest first
    """

    def __init__(self, seal_key: bytes, committed: Iterable[tuple[str, str]] = ()) -> None:
        self.seal_key = seal_key
        self._committed = deque(committed)
        """Those that are not read yet."""
        self._read = 0
        self._named: set[str] = set()

    def believed(self, store: Store, namespace: str, job: str) -> Believed:
        """Manifests that cannot be read are left out: content is then stored once more.

        They are read at the first upload. What they name stays believed for the whole attempt, whose own checkpoints
        use it when they are long deleted.
        """
        while self._committed and self._read < MOST_READ:
            checkpoint, sha256 = self._committed[0]
            try:
                manifest = store.read_manifest(namespace, job, checkpoint, sha256)
            except DamageError as error:
                log.info("what checkpoint %s names is not used again: %s", checkpoint, error)
            except StoreError as error:
                log.warning("content of earlier checkpoints is stored once more: %s", error)
                break
            else:
                self._named |= {each.name for rank in manifest.ranks for each in rank.packs}
                self._read += 1
            self._committed.popleft()
        return lambda name, head: name in self._named or pack.is_sealed(head, self.seal_key)


def of_attempt(peer_key: str, committed: Iterable[tuple[str, str]]) -> Trust:
    """Of the attempt whose pods share this key.

    :param committed: id and digest of the job's own committed checkpoints, newest first
    """
    return Trust(hmac.digest(peer_key.encode(), b"seals of packs", "sha256"), committed)
