"""The checkpoint store: packs of content, recipes and manifests at a URL (file, gs, s3, az, memory).

This package has everything that reads or writes the layout of `protocol.manifest`: chunking, deduplication,
upload, verified download, the catalog of manifests, retention, archives. Not here: what a checkpoint means, when one is
taken, who may commit it. Nothing in this package knows about Kubernetes, ranks' processes or the barrier.
"""

from .catalog import Collected, Listing
from .intake import Arena
from .keys import NamespaceKeys
from .part_runs import Range
from .parts import Parts
from .store import PutResult, Store
from .stream import Socket as PagesSocket
from .trust import Trust

__all__ = [
    "Arena", "Collected", "Listing", "NamespaceKeys", "PagesSocket", "Parts", "PutResult", "Range", "Store", "Trust",
]  # fmt: skip
