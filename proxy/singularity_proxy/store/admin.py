"""What people ask a store about a job's checkpoints, as plain JSON data: list, show, verify, take out, delete old ones.

One implementation for two places: in the caller's own process, or as `python -m proxy.store` in a pod that alone
reaches the store. `QUESTIONS` is all that can be asked; a question's words are the arguments of its function.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
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
STREAM = "-"
"""As a file: standard output or input."""


def jobs(store: Store, namespace: str) -> list[str]:
    """Names of the jobs of a namespace that the store has anything of. Raises StoreError."""
    return sorted(job for found, job in store.jobs() if found == namespace)


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
    store: Store, namespace: str, job: str, checkpoint: str, sha256: str | None = None, *, progress: Progress = ignore
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
    sha256: str | None = None,
    *,
    progress: Progress = ignore,
) -> Json:
    """Write a checkpoint to the archive `file`, which appears when it is complete. Raises StoreError.

    :param sha256: digest of the committed manifest; a manifest with a different digest is not exported
    """
    manifest = store.read_manifest(namespace, job, checkpoint, sha256)
    if file == STREAM:
        return {"id": manifest.id, "file": file, "bytes": store.export(manifest, sys.stdout.buffer, progress)}
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
    sha256: str | None = None,
    *,
    progress: Progress = ignore,
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


def take(store: Store, namespace: str, job: str, file: str, *, progress: Progress = ignore) -> Json:
    """Import the archive `file`; "" for namespace and job: those from which it was exported. Raises StoreError."""
    try:
        with sys.stdin.buffer if file == STREAM else Path(file).open("rb") as opened:
            manifest = store.import_(opened, namespace, job, progress)
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error}") from error
    return {"id": manifest.id, "namespace": manifest.namespace, "job": manifest.job}


def hold(store: Store, namespace: str, job: str, checkpoint: str, holder: str, sha256: str | None = None) -> Json:
    """Keep a checkpoint for `holder`, if all of it is there; what `ls` says of it. See `Store.hold`."""
    manifest, found = store.hold(namespace, job, checkpoint, holder, sha256)
    return _entry(Listing(manifest.id, manifest, pinned=True, sha256=found, held=(holder,)))


def release(store: Store, namespace: str, job: str, checkpoint: str, holder: str) -> Json:
    """End a hold, whether there is one or not. Raises StoreError."""
    store.release(namespace, job, checkpoint, holder)
    return {"id": checkpoint, "released": holder}


def pin(store: Store, namespace: str, job: str, checkpoint: str) -> Json:
    """Keep a checkpoint from retention and `gc`. Raises StoreError."""
    store.pin(namespace, job, checkpoint, True)
    return {"id": checkpoint, "pinned": True}


def unpin(store: Store, namespace: str, job: str, checkpoint: str) -> Json:
    """Let retention and `gc` have a checkpoint again. Raises StoreError."""
    store.pin(namespace, job, checkpoint, False)
    return {"id": checkpoint, "pinned": False}


def rewrap(store: Store, namespace: str, job: str) -> Json:
    """Wrap a job's data keys by the namespace's newest key alone. Raises StoreError."""
    return {"data_keys": store.keys(namespace, job).rewrap()}


def probe(store: Store, namespace: str = "") -> Json:
    """See `Store.probe`."""
    store.probe(namespace)
    return {"url": store.url}


def gc(store: Store, namespace: str, job: str, keep: str, what: str, *live: str) -> Json:
    """Drop all but the newest `keep` checkpoints of a job, but never one of `live` or a pinned one. Then delete the
    content that no checkpoint needs.

    `uploads` of the answer: uploads that are under way, because of which no content was deleted. Raises StoreError.

    :param what: `plan` only reports what would be deleted; `delete`; `delete-ended`: see `Store.end_all_uploads`
    """
    if not keep.isdigit() or int(keep) < 1:
        raise StoreError(f"keep = {keep}: at least one checkpoint has to stay")
    if what not in ("plan", "delete", "delete-ended"):
        raise StoreError(f"what = {what!r}: give plan, delete or delete-ended")
    usable = [x for x in store.list_checkpoints(namespace, job) if x.manifest is not None]
    doomed = [x.id for x in usable[int(keep) :] if x.id not in live and not x.pinned]
    stay = [x.id for x in usable if x.id not in doomed]
    if what == "plan":
        return {"deleted": False, "checkpoints": doomed, "stay": stay, "bytes_freed": 0, "uploads": []}
    if what == "delete-ended":
        store.end_all_uploads(namespace, job)
    gone = store.prune(namespace, job, int(keep), frozenset(live))
    done = store.collect_garbage(namespace, job)
    return {
        "deleted": True, "checkpoints": gone, "stay": stay, "bytes_freed": done.freed, "uploads": done.running,
    }  # fmt: skip


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "jobs": jobs, "ls": ls, "show": show, "verify": verify, "export": export, "fetch": fetch, "import": take,
    "hold": hold, "release": release, "pin": pin, "unpin": unpin, "rewrap": rewrap, "probe": probe, "gc": gc,
}  # fmt: skip


def answer(url: str, question: Sequence[str], progress: Progress | None = None) -> Json:
    """`{"result": ...}`, or `{"error": sentence}`. `question` is what follows the URL on the command line."""
    try:
        return {"result": _ask(Store(url, keys=keys.from_env()), question, progress or ignore)}
    except ProxyError as error:
        return {"error": str(error)}


def _ask(store: Store, question: Sequence[str], progress: Progress) -> Any:
    function = QUESTIONS.get(question[0]) if question else None
    if function is None:
        raise StoreError(f"{' '.join(question)!r}: ask {', '.join(QUESTIONS)}")
    parameters = inspect.signature(function).parameters.values()
    words = [p for p in parameters if p.kind is not p.KEYWORD_ONLY][1:]
    least, most = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in words), len(words)
    if len(question) <= least or (len(question) > 1 + most and words[-1].kind is not words[-1].VAR_POSITIONAL):
        shown = " ".join(p.name.upper() if i < least else f"[{p.name.upper()}]" for i, p in enumerate(words))
        raise StoreError(f"{' '.join(question)!r}: ask `{question[0]} {shown}`")
    more = {"progress": progress} if any(p.name == "progress" for p in parameters) else {}
    return function(store, *question[1:], **more)


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
