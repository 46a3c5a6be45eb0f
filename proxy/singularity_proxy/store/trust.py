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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import DamageError, StoreError
from . import pack
from .chunk_index import Believed

if TYPE_CHECKING:
    from .store import Store

MOST_READ: Final = 3
"""Checkpoints whose manifests are read, the newest first: retention keeps as many."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trust:
    """What the pods of one attempt know.

    `seal_key`: of this attempt.
    `committed`: id and manifest's digest of the job's committed checkpoints, newest first.
    """

    seal_key: bytes
    committed: tuple[tuple[str, str], ...] = ()

    def believed(self, store: Store, namespace: str, job: str) -> Believed:
        """Manifests that cannot be read are left out: content is then stored once more."""
        named: set[str] = set()
        read = 0
        for checkpoint, sha256 in self.committed:
            try:
                manifest = store.read_manifest(namespace, job, checkpoint, sha256)
            except DamageError as error:
                log.info("what checkpoint %s names is not used again: %s", checkpoint, error)
                continue
            except StoreError as error:
                log.warning("content of earlier checkpoints is stored once more: %s", error)
                break
            named |= {each.name for rank in manifest.ranks for each in rank.packs}
            read += 1
            if read == MOST_READ:
                break
        return lambda name, head: name in named or pack.is_sealed(head, self.seal_key)


def of_attempt(peer_key: str, committed: Iterable[tuple[str, str]]) -> Trust:
    """Of the attempt whose pods share this key.

    :param committed: id and digest of the job's own committed checkpoints, newest first
    """
    return Trust(hmac.digest(peer_key.encode(), b"seals of packs", "sha256"), tuple(committed))
