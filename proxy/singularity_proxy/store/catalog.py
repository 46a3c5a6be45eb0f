"""The manifests of a store: list, newest valid, pins, retention, garbage collection.

Safe by order: a manifest is deleted before its packs. A pack is deleted only when no manifest of the job names it and
no upload can come to name it (see `locks`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CheckpointNotFoundError, CorruptChunkError, StoreError
from ..protocol.manifest import Manifest, Stored
from . import download, layout, layout_map, locks, pack
from .backend import TEMPORARY
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
    """Nothing removes it: somebody has pinned it, or `held` is not empty."""
    sha256: str = ""
    """Of the manifest's bytes."""
    held: tuple[str, ...] = ()
    """Who needs it (`layout.hold_path`)."""


@dataclass(frozen=True)
class Collected:
    """What a collection did. `running`: uploads because of which nothing was deleted."""

    deleted: int
    freed: int
    """Bytes."""
    running: list[str]
    unfinished: bool = False
    """Its time limit was reached; the next collection goes on."""


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
    for name in _ids(files, folder):
        held = holders(files, folder, name)
        pinned = bool(held) or f"{folder}/pins/{name}" in files
        try:
            manifest, sha256 = store.read_digest(namespace, job, name)
            good.append(Listing(name, manifest, pinned=pinned, sha256=sha256, held=held))
        except CheckpointNotFoundError:
            continue  # deleted meanwhile
        except StoreError as error:
            bad.append(Listing(name, None, str(error), pinned, held=held))
    good.sort(key=_number, reverse=True)
    return good + sorted(bad, key=lambda b: b.id, reverse=True)


def holders(files: Iterable[str], folder: str, checkpoint: str) -> tuple[str, ...]:
    """Who holds a checkpoint, among the files of its job's folder."""
    start = f"{folder}/pins/{checkpoint}."
    found = (path.removeprefix(start) for path in files if path.startswith(start))
    return tuple(sorted(name for name in found if TEMPORARY not in name))


def _number(listing: Listing) -> tuple[int, str]:
    """Grows from checkpoint to checkpoint of a job. The times are those of the nodes, whose clocks differ."""
    assert listing.manifest is not None
    return listing.manifest.generation, listing.id


def last_use(store: Store, namespace: str, job: str, ranks: Iterable[int]) -> dict[str, int]:
    """Packs of these ranks' images in the newest checkpoint -> how many chunks of it one of the ranks uses at most.
    Empty if that is not known."""
    used: dict[str, int] = {}
    folder, keys = layout.job_folder(namespace, job), store.keys(namespace, job)
    with contextlib.suppress(StoreError, CorruptChunkError):
        newest = next((each.manifest for each in list_checkpoints(store, namespace, job)), None)
        for image in newest.ranks if newest else ():
            if image.rank in ranks:
                own = Counter[str]()
                runs = download.read_recipe(store.backend, folder, keys, image, "the last checkpoint")
                for run in itertools.chain(*runs):
                    if run.pack != layout_map.ZEROS:
                        own[image.packs[run.pack - 1].name] += run.count
                used.update({name: max(count, used.get(name, 0)) for name, count in own.items()})
    return used


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
    """Which object of a checkpoint is missing among `files` of its job's folder; "" if none is."""
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
    keys = store.keys(manifest.namespace, manifest.job)
    where = f"checkpoint {manifest.id}"
    problems: list[str] = []
    for rank in manifest.ranks:
        try:
            download.read_recipe(store.backend, folder, keys, rank, f"{where}, rank {rank.rank}")
        except CorruptChunkError as error:
            problems.append(str(error))
    for size in {rank.recipe.name: rank.recipe.size for rank in manifest.ranks}.values():
        count.add(size)

    def check(stored: Stored) -> str:
        try:
            head, data = download.read_pack(store.backend, folder, keys, stored, where)
            for number in range(len(head.blocks)):
                pack.read_block(head, number, data)
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
    manifests: dict[str, frozenset[str]] = {}
    files = store.backend.find(folder)
    _forget_damage(store, folder, files)
    needed = _needed(store, namespace, job, files, manifests)
    garbage = {name: size for name, size in _stored(files, folder).items() if name not in needed}
    if not garbage:
        _forget_marks(store, folder, files)
        return Collected(0, 0, locks.running_pods(files, folder))
    ends = time.monotonic() + locks.COLLECTION_S
    mark, running = locks.mark(store.backend, folder, garbage)
    deleted = freed = 0
    try:
        if running.pods:
            locks.withdraw(store.backend, folder, mark)
            return Collected(0, 0, running.pods)
        # A manifest is written before its upload's announcement is removed. So the manifests of all uploads that were
        # not seen running are here.
        needed |= _needed(store, namespace, job, store.backend.find(folder), manifests)
    except BaseException:
        with contextlib.suppress(StoreError):
            locks.withdraw(store.backend, folder, mark)
        raise
    # From here on the mark stays after any error: a delete without an answer may still be carried out.
    backend = store.backend.until(ends=ends)
    for name, size in garbage.items():
        if name in needed or any(upload in name for upload in running.imports):
            continue
        if time.monotonic() >= ends:
            return Collected(deleted, freed, [], unfinished=True)
        backend.delete(f"{folder}/{name}")
        deleted, freed = deleted + 1, freed + size
    locks.withdraw(store.backend, folder, mark)
    _forget_marks(store, folder, files)
    return Collected(deleted, freed, [])


def _stored(files: dict[str, tuple[int, float]], folder: str) -> dict[str, int]:
    """`packs/<name>` and `recipes/<name>` of all objects, with their sizes."""
    names = ((path.removeprefix(f"{folder}/"), size) for path, (size, _) in files.items())
    return {name: size for name, size in names if name.startswith(("packs/", "recipes/"))}


def _needed(
    store: Store,
    namespace: str,
    job: str,
    files: dict[str, tuple[int, float]],
    manifests: dict[str, frozenset[str]],
) -> set[str]:
    """What the manifests among `files` name. `manifests`: those read before, which never change. Raises StoreError."""
    found: set[str] = set()
    for checkpoint in _ids(files, layout.job_folder(namespace, job)):
        if checkpoint not in manifests:
            try:
                wanted = objects(store.read_manifest(namespace, job, checkpoint))
            except CheckpointNotFoundError:
                continue  # deleted meanwhile
            except StoreError as error:
                raise StoreError(f"nothing was deleted, what it needs is not known: {error}. Delete it first") from None
            manifests[checkpoint] = frozenset(f"{kind}/{name}" for kind, name in wanted)
        found |= manifests[checkpoint]
    return found


def _ids(files: dict[str, tuple[int, float]], folder: str) -> list[str]:
    """Of the manifests among the files of a job's folder."""
    names = (path.removeprefix(folder + "/") for path in files)
    return [name.removesuffix(".json") for name in names if "/" not in name and name.endswith(".json")]


def _forget_damage(store: Store, folder: str, files: dict[str, tuple[int, float]]) -> None:
    """Of packs that are deleted. A pack that still exists stays marked as damaged: an upload may be about to check."""
    for path in files:
        start, _, name = path.rpartition("/")
        if start == f"{folder}/damaged" and f"{folder}/packs/{name}" not in files:
            store.backend.delete(path)


def _forget_marks(store: Store, folder: str, files: dict[str, tuple[int, float]]) -> None:
    """Remove the marks of collections that died, of which nothing is left to delete."""
    if not any(path.startswith(f"{folder}/locks/") for path in files):
        return
    marks = locks.marks(store.backend, folder)
    left = _stored(store.backend.find(folder), folder) if marks else {}  # after the marks: nothing comes back
    for mark, names in marks.items():
        if not any(name in left for name in names):
            locks.withdraw(store.backend, folder, mark)
