"""A checkpoint as one tar archive: `manifest.json`, then `keys/`, `recipes/` and `packs/` as in the store.

What is encrypted stays so, and the archive has the wrapped data keys: who takes it in has the namespace's key.

An archive may come from anywhere. Names, sizes, kinds and digests are checked against the manifest, and nothing is
unpacked to a path that the archive chose. The checkpoint exists only when everything was there.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Final

from ..errors import CorruptChunkError, StoreError
from ..protocol import manifest as mf
from ..protocol.manifest import Manifest, Stored
from ..protocol.messages import MessageError
from . import catalog, keys, layout, locks, pack, sealing
from .progress import Count, Progress

if TYPE_CHECKING:
    from .store import Store

MANIFEST: Final = "manifest.json"
MOST_KEYS: Final = 1000
LARGEST_RECIPE: Final = 1 << 30
LARGEST_PACK: Final = pack.HEAD_SIZE + 2 * pack.CONTENT_SIZE
"""Bytes."""


def write(store: Store, manifest: Manifest, target: BinaryIO, progress: Progress) -> int:
    """See `Store.export`."""
    wanted = catalog.objects(manifest)
    count = Count(progress, sum(wanted.values()))
    folder = layout.job_folder(manifest.namespace, manifest.job)
    total = 0
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes) -> None:
            nonlocal total
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = int(manifest.created_at)
            tar.addfile(info, io.BytesIO(data))
            total += len(data)

        add(MANIFEST, mf.dumps(manifest).encode())
        of_job = store.keys(manifest.namespace, manifest.job)
        for name in (f"{keys.FOLDER}/{one}.{by}" for one, by in of_job.wrapped()):
            add(name, store.backend.read(f"{folder}/{name}", keys.MOST_BYTES) or b"")
        for (kind, name), size in wanted.items():
            where = f"checkpoint {manifest.id}"
            data = store.backend.read(layout.object_path(folder, kind, name))
            if data is None:
                raise CorruptChunkError(kind[:-1], name, where, "is missing")
            problem = _problem(kind, name, size, data, of_job.of)
            if problem:
                raise CorruptChunkError(kind[:-1], name, where, problem)
            add(f"{kind}/{name}", data)
            count.add(size)
    return total


def read(store: Store, source: BinaryIO, namespace: str, job: str, progress: Progress) -> Manifest:
    """See `Store.import_`."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            manifest = _manifest(tar, tar.next())
            manifest = replace(manifest, namespace=namespace or manifest.namespace, job=job or manifest.job)
            folder = layout.job_folder(manifest.namespace, manifest.job)
            path = layout.manifest_path(manifest.namespace, manifest.job, manifest.id)
            if store.backend.read(path) is not None:
                raise StoreError(
                    f"store {store.url}: job {manifest.namespace}/{manifest.job} has a checkpoint {manifest.id!r} "
                    "already: import it under another job"
                )
            upload = locks.draw()
            name = locks.import_upload(upload)
            locks.announce(store.backend, folder, name)
            try:
                made = _renamed(manifest, upload)
                _objects(store, tar, manifest, folder, upload, progress)
                store.backend.write(path, mf.dumps(made).encode(), new=True)
            finally:
                locks.withdraw(store.backend, folder, name)
            return made
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise StoreError(f"the archive cannot be read: {type(error).__name__}: {error}") from error


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> Manifest:
    if member is None or member.name != MANIFEST:
        raise StoreError(f"the archive does not begin with {MANIFEST}: it is no exported checkpoint")
    try:
        return mf.loads(_content(tar, member, mf.MAX_BYTES))
    except MessageError as error:
        raise StoreError(f"the archive's {MANIFEST} is not valid: {error}") from None


def _renamed(manifest: Manifest, upload: str) -> Manifest:
    """The same with objects that this upload writes. A collection may be deleting objects here that have the archive's
    names."""

    def new(stored: Stored) -> Stored:
        return replace(stored, name=mf.object_name(mf.content_of(stored.name), upload))

    ranks = [replace(rank, packs=[*map(new, rank.packs)], recipe=new(rank.recipe)) for rank in manifest.ranks]
    return replace(manifest, ranks=ranks)


def _objects(
    store: Store, tar: tarfile.TarFile, manifest: Manifest, folder: str, upload: str, progress: Progress
) -> None:
    count = Count(progress, sum(catalog.objects(manifest).values()))
    wanted = {f"{kind}/{name}": (kind, name, size) for (kind, name), size in catalog.objects(manifest).items()}
    of_job, data_keys = store.keys(manifest.namespace, manifest.job), set[str]()
    while (member := tar.next()) is not None:
        if keys.is_wrapped(member.name.removeprefix(f"{keys.FOLDER}/")) and member.name not in data_keys:
            data_keys.add(member.name)
            if len(data_keys) > MOST_KEYS:
                raise StoreError(f"the archive has more than {MOST_KEYS} keys: refused")
            store.backend.write(f"{folder}/{member.name}", _content(tar, member, keys.MOST_BYTES), new=True)
            continue
        if member.name not in wanted:
            raise StoreError(f"the archive holds {member.name!r}, twice or without need: refused")
        kind, name, size = wanted.pop(member.name)
        data = _content(tar, member, min(size, LARGEST_RECIPE if kind == "recipes" else LARGEST_PACK))
        problem = _problem(kind, name, size, data, of_job.of)
        if problem:
            raise CorruptChunkError(kind[:-1], name, "the archive", problem)
        store.backend.write(layout.object_path(folder, kind, mf.object_name(mf.content_of(name), upload)), data)
        count.add(size)
    if wanted:
        raise StoreError(f"the archive lacks {next(iter(wanted))} ({len(wanted)} objects): it is not complete")


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    if not member.isreg():
        raise StoreError(f"the archive's {member.name!r} is not a regular file: refused")
    if not 0 <= member.size <= most:
        raise StoreError(f"the archive's {member.name!r} has {member.size} bytes, more than {most}: refused")
    file = tar.extractfile(member)
    assert file is not None, "a regular file"
    data = file.read()
    if len(data) != member.size:
        raise StoreError(f"the archive ends within {member.name!r}")
    return data


def _problem(kind: layout.Kind, name: str, size: int, data: bytes, key_of: sealing.KeyOf) -> str:
    """What is wrong with an object; "" if it is what its name says. Raises KeyLostError, DamageError, StoreError."""
    if len(data) != size:
        return f"has {len(data)} bytes instead of {size}"
    if kind == "recipes":
        return "" if hashlib.sha256(data).hexdigest() == mf.content_of(name) else "does not match its digest"
    try:
        head = pack.read_head(mf.content_of(name), data, key_of)
        for number in range(len(head.blocks)):
            pack.read_block(head, number, data)
    except pack.PackError as error:
        return str(error)
    return "" if head.size == size else "is longer than its head says"
