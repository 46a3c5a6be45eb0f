"""The manifests of a store: list, newest valid, pins, retention, garbage collection.

Safe by order: a manifest goes before its packs, and packs go only when no manifest of the job names them and no upload
that could come to name them is under way (see `locks`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CheckpointNotFoundError, CorruptChunkError, StoreError
from ..protocol.manifest import Manifest, Stored
from . import download, layout, locks, pack
from .progress import Count, Progress

if TYPE_CHECKING:
    from .store import Store


@dataclass(frozen=True)
class Listing:
    """One manifest file; `problem` says why it cannot be used ("" if it can)."""

    id: str
    manifest: Manifest | None
    problem: str = ""
    pinned: bool = False


@dataclass(frozen=True)
class Collected:
    """What a collection did. `running`: uploads because of which nothing was deleted."""

    deleted: int
    freed: int
    """Bytes."""
    running: list[str]
    unfinished: bool = False
    """Time was up; the next collection goes on."""


def jobs(store: Store) -> list[tuple[str, str]]:
    """See `Store.jobs`."""
    found = {tuple(path.split("/")[1:3]) for path in store.backend.find(layout.JOBS) if path.count("/") >= 3}
    return sorted((ns, job) for ns, job in found)


def list_checkpoints(store: Store, namespace: str, job: str) -> list[Listing]:
    """See `Store.list_checkpoints`."""
    good: list[Listing] = []
    bad: list[Listing] = []
    folder = layout.job_folder(namespace, job)
    files = store.backend.find(folder)
    for path in files:
        name = path.removeprefix(folder + "/")
        if "/" in name or not name.endswith(".json"):
            continue
        name = name.removesuffix(".json")
        pinned = f"{folder}/pins/{name}" in files
        try:
            good.append(Listing(name, store.read_manifest(namespace, job, name), pinned=pinned))
        except CheckpointNotFoundError:
            continue  # deleted meanwhile
        except StoreError as error:
            bad.append(Listing(name, None, str(error), pinned))
    good.sort(key=_age_key, reverse=True)
    return good + sorted(bad, key=lambda b: b.id, reverse=True)


def _age_key(listing: Listing) -> tuple[float, int]:
    assert listing.manifest is not None
    return listing.manifest.created_at, listing.manifest.generation


def latest_valid(store: Store, namespace: str, job: str) -> tuple[Manifest | None, list[Listing]]:
    """See `Store.latest_valid`. Looks whether every object is there with its size; content is verified when fetched."""
    skipped: list[Listing] = []
    best: Manifest | None = None
    files = store.backend.find(layout.job_folder(namespace, job))
    for listing in list_checkpoints(store, namespace, job):
        if listing.manifest is None:
            skipped.append(listing)
        elif best is None:
            problem = missing(listing.manifest, files)
            if problem:
                skipped.append(Listing(listing.id, listing.manifest, problem, listing.pinned))
            else:
                best = listing.manifest
    return best, skipped


def missing(manifest: Manifest, files: dict[str, tuple[int, float]]) -> str:
    """What of a checkpoint is not among `files` of its job's folder; "" if nothing."""
    folder = layout.job_folder(manifest.namespace, manifest.job)
    problems: list[str] = []
    wanted = objects(manifest)
    for (kind, name), size in wanted.items():
        found = files.get(f"{folder}/{kind}/{name}")
        if found is None:
            problems.append(f"{kind[:-1]} {name} is missing")
        elif found[0] != size:
            problems.append(f"{kind[:-1]} {name} has {found[0]} bytes instead of {size}")
    return f"{problems[0]} ({len(problems)} of {len(wanted)} objects cannot be used)" if problems else ""


def objects(manifest: Manifest) -> dict[tuple[layout.Kind, str], int]:
    """Every object that a checkpoint needs, with its size in bytes."""
    found: dict[tuple[layout.Kind, str], int] = {}
    for rank in manifest.ranks:
        found[("recipes", rank.recipe.name)] = rank.recipe.size
        for stored in rank.packs:
            found[("packs", stored.name)] = stored.size
    return found


def verify(store: Store, manifest: Manifest, progress: Progress) -> list[str]:
    """See `Store.verify`."""
    count = Count(progress, sum(objects(manifest).values()))
    folder = layout.job_folder(manifest.namespace, manifest.job)
    where = f"checkpoint {manifest.id}"
    problems: list[str] = []
    for rank in manifest.ranks:
        try:
            download.read_recipe(store.backend, folder, rank, f"{where}, rank {rank.rank}")
        except CorruptChunkError as error:
            problems.append(str(error))
    for size in {rank.recipe.name: rank.recipe.size for rank in manifest.ranks}.values():
        count.add(size)

    def check(stored: Stored) -> str:
        try:
            head, data = download.read_pack(store.backend, folder, stored, where)
            for block in head.blocks:
                pack.read_block(block, data)
        except CorruptChunkError as error:
            return str(error)
        except pack.PackError as error:
            return str(CorruptChunkError("pack", stored.name, where, str(error)))
        finally:
            count.add(stored.size)
        return ""

    packs = list(dict.fromkeys(p for r in manifest.ranks for p in r.packs))
    with store.pool("store-verify") as pool:
        return problems + [text for text in pool.map(check, packs) if text]


def prune(store: Store, namespace: str, job: str, keep: int, pinned: frozenset[str]) -> list[str]:
    """See `Store.prune`. Raises StoreError. Manifests that cannot be read are left alone and do not count."""
    if keep < 1:
        raise StoreError(f"keep = {keep}: at least one checkpoint has to stay")
    usable = [x for x in list_checkpoints(store, namespace, job) if x.manifest is not None]
    doomed = [x.id for x in usable[keep:] if x.id not in pinned and not x.pinned]
    for checkpoint in doomed:
        store.backend.delete(layout.manifest_path(namespace, job, checkpoint))
    return doomed


def collect_garbage(store: Store, namespace: str, job: str) -> Collected:
    """See `Store.collect_garbage`."""
    folder = layout.job_folder(namespace, job)
    began = time.monotonic()
    name, running = locks.announce_collection(store.backend, folder)
    try:
        if running:
            return Collected(0, 0, running)
        files = store.backend.find(folder)
        live: set[str] = set()
        for listing in list_checkpoints(store, namespace, job):
            if listing.manifest is None:
                raise StoreError(f"nothing was deleted, what it needs is not known: {listing.problem}. Delete it first")
            live.update(f"{folder}/{kind}/{object_}" for kind, object_ in objects(listing.manifest))
        deleted = freed = 0
        for path, (size, _) in files.items():
            if not path.startswith((f"{folder}/packs/", f"{folder}/recipes/")) or path in live:
                continue
            if time.monotonic() - began > locks.COLLECTION_S:
                return Collected(deleted, freed, [], unfinished=True)
            store.backend.delete(path)
            deleted, freed = deleted + 1, freed + size
        return Collected(deleted, freed, [])
    finally:
        locks.withdraw(store.backend, folder, name)
