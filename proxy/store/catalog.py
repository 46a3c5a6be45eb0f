"""The manifests of a store: list, newest valid, retention, garbage collection.

Safe by order: a manifest goes before its chunks, and chunks go only when no manifest in the whole store names them
and nobody can be about to name them (grace period, see `store.REUSE_AGE_S`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import StoreError
from ..protocol import manifest as mf
from ..protocol.manifest import Manifest
from ..protocol.messages import MessageError
from . import layout
from .backend import TEMPORARY

if TYPE_CHECKING:
    from .store import Store

MIN_GRACE_S: Final = 2 * 6 * 3600.0
"""Twice `store.REUSE_AGE_S`: a chunk that an upload relies on is always younger than any allowed grace period."""


@dataclass(frozen=True)
class Listing:
    """One manifest file; `problem` says why it cannot be used ("" if it can)."""

    id: str
    manifest: Manifest | None
    problem: str = ""


def list_checkpoints(store: Store, namespace: str, job: str) -> list[Listing]:
    """See `Store.list_checkpoints`."""
    good: list[Listing] = []
    bad: list[Listing] = []
    for path in store.backend.find(layout.job_folder(namespace, job)):
        if not path.endswith(".json"):
            continue
        name = path.rsplit("/", 1)[1].removesuffix(".json")
        try:
            good.append(Listing(name, store.read_manifest(namespace, job, name)))
        except StoreError as error:
            bad.append(Listing(name, None, str(error)))
    good.sort(key=_age_key, reverse=True)
    return good + sorted(bad, key=lambda b: b.id, reverse=True)


def _age_key(listing: Listing) -> tuple[float, int]:
    assert listing.manifest is not None
    return listing.manifest.created_at, listing.manifest.generation


def latest_valid(store: Store, namespace: str, job: str) -> tuple[Manifest | None, list[Listing]]:
    """See `Store.latest_valid`. Looks whether every chunk is there with its size; content is verified when fetched."""
    skipped: list[Listing] = []
    best: Manifest | None = None
    for listing in list_checkpoints(store, namespace, job):
        if listing.manifest is None:
            skipped.append(listing)
        elif best is None:
            problem = _missing(store, listing.manifest)
            if problem:
                skipped.append(Listing(listing.id, listing.manifest, problem))
            else:
                best = listing.manifest
    return best, skipped


def _missing(store: Store, manifest: Manifest) -> str:
    wanted = {c.sha256: c.size for r in manifest.ranks for f in r.files for c in f.chunks}

    def check(item: tuple[str, int]) -> str:
        found = store.backend.size_and_age(layout.chunk_path(item[0]))
        if found is None:
            return f"chunk {item[0]} is missing"
        return "" if found[0] == item[1] else f"chunk {item[0]} has {found[0]} bytes instead of {item[1]}"

    with ThreadPoolExecutor(8, thread_name_prefix="store-check") as pool:
        problems = [p for p in pool.map(check, wanted.items()) if p]
    return f"{problems[0]} ({len(problems)} of {len(wanted)} chunks cannot be used)" if problems else ""


def prune(store: Store, namespace: str, job: str, keep: int, pinned: frozenset[str]) -> list[str]:
    """See `Store.prune`. Raises StoreError. Manifests that cannot be read are left alone and do not count."""
    if keep < 1:
        raise StoreError(f"keep = {keep}: at least one checkpoint has to stay")
    usable = [x for x in list_checkpoints(store, namespace, job) if x.manifest is not None]
    doomed = [x.id for x in usable[keep:] if x.id not in pinned]
    for checkpoint in doomed:
        store.backend.delete(layout.manifest_path(namespace, job, checkpoint))
    return doomed


def collect_garbage(store: Store, grace_s: float) -> int:
    """See `Store.collect_garbage`. Raises StoreError if one manifest cannot be read: its chunks are unknown."""
    if grace_s < MIN_GRACE_S:
        raise StoreError(f"grace_s = {grace_s:g}: at least {MIN_GRACE_S:g}, an upload in progress must finish in it")
    # Chunks first, manifests second: a checkpoint committed in between is seen as live.
    chunks = store.backend.find(layout.CHUNKS)
    live: set[str] = set()
    for path in store.backend.find(layout.JOBS):
        if not path.endswith(".json"):
            continue
        data = store.backend.read(path)
        if data is None:
            continue
        try:
            manifest = mf.loads(data)
        except MessageError as error:
            raise StoreError(f"store {store.url}: {path} cannot be read ({error}): delete or repair it") from error
        live.update(c.sha256 for r in manifest.ranks for f in r.files for c in f.chunks)
    freed = 0
    for path, (size, age) in chunks.items():
        name = path.rsplit("/", 1)[1]
        if age <= grace_s or (name in live and TEMPORARY not in name):
            continue
        now = store.backend.size_and_age(path)
        if now is not None and now[1] > grace_s:  # an upload may have made it young since the listing
            store.backend.delete(path)
            freed += size
    return freed
