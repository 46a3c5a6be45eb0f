"""What people ask a store about a job's checkpoints, as plain JSON data: list, show, verify, take out, delete old ones.

One implementation for two places: in the caller's own process, or as `python -m proxy.store` in a pod that alone
reaches the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import CheckpointNotFoundError, DamageError, ProxyError, StoreError
from ..protocol import names
from ..protocol.manifest import Manifest
from ..protocol.state_image import lay_together
from . import catalog, keys
from .catalog import Listing
from .progress import Progress, ignore
from .store import Store

Json = dict[str, Any]


def ls(store: Store, namespace: str, job: str) -> list[Json]:
    """One entry per manifest, newest first; `problem` is "" for one that can be read. Raises StoreError."""
    return [_entry(listing) for listing in store.list_checkpoints(namespace, job)]


def show(store: Store, namespace: str, job: str, checkpoint: str, sha256: str | None = None) -> Json:
    """The manifest without its packs: sizes per rank, requirements. Raises StoreError, also if the digest differs."""
    manifest, found = store.read_digest(namespace, job, checkpoint, sha256)
    ranks = [{"rank": r.rank, "files": len(r.files), "bytes": sum(f.size for f in r.files)} for r in manifest.ranks]
    return {
        **_entry(Listing(manifest.id, manifest, sha256=found)),
        "engine": manifest.engine,
        "requirements": asdict(manifest.requirements),
        "ranks": sorted(ranks, key=lambda rank: rank["rank"]),
    }


def verify(
    store: Store, namespace: str, job: str, checkpoint: str, progress: Progress, sha256: str | None = None
) -> Json:
    """Read back every byte that the checkpoint names. `problems` is empty when all of it is as it was written.

    :param sha256: digest of the committed manifest; a different digest is a problem
    :raises StoreError: the manifest itself is not there or not valid
    """
    try:
        manifest = store.read_manifest(namespace, job, checkpoint, sha256)
    except DamageError as error:
        if isinstance(error, CheckpointNotFoundError):
            raise
        return {"id": checkpoint, "objects": 0, "bytes": 0, "problems": [str(error)]}
    return {
        "id": manifest.id,
        "objects": len(catalog.objects(manifest)),
        "bytes": content_size(manifest),
        "problems": sorted(store.verify(manifest, progress)),
    }


def export(
    store: Store,
    namespace: str,
    job: str,
    checkpoint: str,
    file: str,
    progress: Progress,
    sha256: str | None = None,
) -> Json:
    """Write a checkpoint to the archive `file`, which appears when it is complete. Raises StoreError.

    :param sha256: digest of the committed manifest; a manifest with a different digest is not exported
    """
    manifest = store.read_manifest(namespace, job, checkpoint, sha256)
    target = Path(file)
    draft = target.with_name(target.name + ".part")
    try:
        with draft.open("wb") as opened:
            size = store.export(manifest, opened, progress)
        draft.replace(target)
    except OSError as error:
        raise StoreError(f"cannot write {draft}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return {"id": manifest.id, "file": file, "bytes": size}


def fetch(
    store: Store,
    namespace: str,
    job: str,
    checkpoint: str,
    folder: str,
    progress: Progress,
    sha256: str | None = None,
) -> Json:
    """Write a checkpoint of the state engine to `folder`, as `singularity_train` reads it: every rank's part, verified.

    :param folder: a new one
    :param sha256: digest of the committed manifest; a manifest with a different digest is not fetched
    :raises StoreError: also for a checkpoint of another engine, whose images hold no tensors that others could read
    """
    manifest = store.read_manifest(namespace, job, checkpoint, sha256)
    if manifest.engine not in (names.ENGINE_STATE, names.ENGINE_BOTH):
        raise StoreError(
            f"checkpoint {checkpoint} is one of engine {manifest.engine!r}: images of processes, which only their own "
            "job can go on from. Frameworks read those of engines 'state' and 'both'"
        )
    target = Path(folder)
    if target.exists():
        raise StoreError(f"folder = {folder!r}: it is there already; give a new one")
    images = target.with_name(f"{target.name}.images")
    try:
        images.mkdir(parents=True)
        ranks = {rank.rank: images / f"rank-{rank.rank}" for rank in manifest.ranks}
        beside = f"{names.STATE_PART}/" if manifest.engine == names.ENGINE_BOTH else ""
        size = store.fetch_ranks(manifest, ranks, progress=progress, wanted=lambda path: path.startswith(beside))
        lay_together(images, target)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(images, ignore_errors=True)
    return {"id": manifest.id, "step": manifest.step, "folder": folder, "bytes": size}


def take(store: Store, namespace: str, job: str, file: str, progress: Progress) -> Json:
    """Import the archive `file`; "" for namespace and job: those from which it was exported. Raises StoreError."""
    try:
        with Path(file).open("rb") as opened:
            manifest = store.import_(opened, namespace, job, progress)
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error}") from error
    return {"id": manifest.id, "namespace": manifest.namespace, "job": manifest.job}


def hold(store: Store, namespace: str, job: str, checkpoint: str, holder: str, sha256: str | None = None) -> Json:
    """Keep a checkpoint for `holder`, if all of it is there; what `ls` says of it. See `Store.hold`."""
    manifest, found = store.hold(namespace, job, checkpoint, holder, sha256)
    return _entry(Listing(manifest.id, manifest, pinned=True, sha256=found, held=(holder,)))


def gc(
    store: Store, namespace: str, job: str, keep: int, live: Iterable[str], delete: bool, ended: bool = False
) -> Json:
    """Drop all but the newest `keep` checkpoints of a job, but never one of `live` or a pinned one. Then delete the
    content that no checkpoint needs.

    Without `delete`, it only reports what would be deleted. `uploads`: uploads that are under way, because of which no
    content was deleted. `ended`: see `Store.end_all_uploads`. Raises StoreError.
    """
    if keep < 1:
        raise StoreError(f"keep = {keep}: at least one checkpoint has to stay")
    kept_for_jobs = frozenset(live)
    usable = [x for x in store.list_checkpoints(namespace, job) if x.manifest is not None]
    doomed = [x.id for x in usable[keep:] if x.id not in kept_for_jobs and not x.pinned]
    stay = [x.id for x in usable if x.id not in doomed]
    if not delete:
        return {"deleted": False, "checkpoints": doomed, "stay": stay, "bytes_freed": 0, "uploads": []}
    if ended:
        store.end_all_uploads(namespace, job)
    gone = store.prune(namespace, job, keep, kept_for_jobs)
    done = store.collect_garbage(namespace, job)
    return {
        "deleted": True, "checkpoints": gone, "stay": stay, "bytes_freed": done.freed, "uploads": done.running,
    }  # fmt: skip


def answer(url: str, question: Sequence[str], progress: Progress = ignore) -> Json:
    """`{"result": ...}`, or `{"error": sentence}`. `question` is what follows the URL on the command line."""
    try:
        return {"result": _ask(Store(url, keys=keys.from_env()), [*question], progress)}
    except ProxyError as error:
        return {"error": str(error)}


def _ask(store: Store, question: list[str], progress: Progress) -> Any:
    if not question:
        raise StoreError("ask ls, show, verify or gc")
    command, *rest = question
    if command in ("pin", "unpin") and len(rest) == 3:
        store.pin(rest[0], rest[1], rest[2], command == "pin")
        return {"id": rest[2], "pinned": command == "pin"}
    if command == "hold" and len(rest) in (4, 5):
        return hold(store, *rest)
    if command == "release" and len(rest) == 4:
        store.release(rest[0], rest[1], rest[2], rest[3])
        return {"id": rest[2], "released": rest[3]}
    if command == "rewrap" and len(rest) == 2:
        return {"data_keys": store.keys(rest[0], rest[1]).rewrap()}
    if command == "probe" and len(rest) <= 1:
        store.probe(*rest)
        return {"url": store.url}
    if command == "ls" and len(rest) == 2:
        return ls(store, *rest)
    if command == "show" and len(rest) in (3, 4):
        return show(store, *rest)
    if command == "verify" and len(rest) in (3, 4):
        return verify(store, rest[0], rest[1], rest[2], progress, *rest[3:])
    if command == "export" and len(rest) in (4, 5):
        return export(store, rest[0], rest[1], rest[2], rest[3], progress, *rest[4:])
    if command == "fetch" and len(rest) in (4, 5):
        return fetch(store, rest[0], rest[1], rest[2], rest[3], progress, *rest[4:])
    if command == "import" and len(rest) == 3:
        return take(store, rest[0], rest[1], rest[2], progress)
    if command == "gc" and len(rest) >= 4 and rest[2].isdigit() and rest[3] in ("plan", "delete", "delete-ended"):
        what = rest[3]
        return gc(store, rest[0], rest[1], int(rest[2]), rest[4:], what != "plan", ended=what == "delete-ended")
    raise StoreError(
        f"{' '.join(question)!r}: ask `ls NAMESPACE JOB`, `show NAMESPACE JOB ID [SHA256]`, `verify NAMESPACE JOB ID "
        "[SHA256]`, `export NAMESPACE JOB ID FILE [SHA256]`, `fetch NAMESPACE JOB ID FOLDER [SHA256]`, "
        "`import NAMESPACE JOB FILE`, `hold NAMESPACE JOB ID HOLDER [SHA256]`, `release NAMESPACE JOB ID HOLDER`, "
        "`rewrap NAMESPACE JOB` or "
        "`gc NAMESPACE JOB KEEP plan|delete|delete-ended [LIVE_ID ...]`"
    )


def _entry(listing: Listing) -> Json:
    manifest = listing.manifest
    if manifest is None:
        return {"id": listing.id, "problem": listing.problem}
    return {
        "id": manifest.id,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "created_at": manifest.created_at,
        "bytes": content_size(manifest),
        "labels": dict(manifest.labels),
        "sha256": listing.sha256,
        "pinned": listing.pinned,
        "held_by": list(listing.held),
        "problem": listing.problem,
    }


def content_size(manifest: Manifest) -> int:
    """Bytes of the images as they were dumped."""
    return sum(file.size for rank in manifest.ranks for file in rank.files)
