"""`Store`: put image directories, write and read manifests, fetch ranks' images back, every byte verified."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import CheckpointNotFoundError, DamageError, StoreError
from ..protocol import manifest as mf
from ..protocol.image_room import Room
from ..protocol.manifest import Manifest, RankImage
from ..protocol.messages import MessageError
from . import archive, beneath, catalog, download, images, layout, locks, stream, upload
from .backend import PATIENCE_S, Backend
from .keys import JobKeys, NamespaceKeys
from .parts import Parts
from .progress import Count, Progress, ignore
from .trust import Trust

THREADS: Final = 4
PROBE_S: Final = 10.0


@dataclass(frozen=True)
class PutResult:
    """`bytes`: all bytes of the files. `bytes_ahead`: of these, the bytes that came as pages. `bytes_stored`: bytes
    that this call had to write."""

    images: list[RankImage]
    bytes: int
    bytes_stored: int
    bytes_ahead: int = 0


def _never() -> bool:
    return False


def _any_file(path: str) -> bool:
    return True


def _any_pack(name: str, head: bytes) -> bool:
    return True


class Store:
    """A checkpoint store. Thread-safe. Everything belongs to one job's folder; jobs share nothing.

    Memory while it moves data: at most `threads + 1` packs of 8 MiB, each twice where a network takes it. Also 4 MiB of
    a file, and 4 MiB for each rank that streams. Also 33 bytes for each chunk that
    the job has in the store, 20 for each chunk of the images, and 200 for each new chunk of a rank's files that another
    pod stores first.

    :param url: a URL of `backend.SCHEMES`, for example `file:///mnt/checkpoints`
    :param patience_s: seconds during which a failing operation is tried again
    :param keys: of the namespace: what is written is encrypted, and what was encrypted with one can be read
    :raises StoreError: unknown scheme, or the client library for it is missing
    """

    def __init__(
        self, url: str, threads: int = THREADS, patience_s: float = PATIENCE_S, keys: NamespaceKeys | None = None
    ) -> None:
        self.url = url
        self.namespace_keys = keys
        self.backend = Backend(url, patience_s)
        self._threads = threads

    def pool(self, name: str) -> ThreadPoolExecutor:
        """A pool with this store's number of threads."""
        return ThreadPoolExecutor(self._threads, thread_name_prefix=name)

    def keys(self, namespace: str, job: str) -> JobKeys:
        """The data keys of a job."""
        return JobKeys(self.backend, layout.job_folder(namespace, job), self.namespace_keys)

    # --- writing --------------------------------------------------------------------------------------------------
    def put_ranks(
        self,
        namespace: str,
        job: str,
        checkpoint_id: str,
        folders: Mapping[int, str | Path],
        part: tuple[int, int] = (0, 1),
        cancelled: Callable[[], bool] = _never,
        progress: Progress = ignore,
        growing: Callable[[], bool] = _never,
        below: str | Path = "",
        pages: stream.Socket | None = None,
        trust: Trust | None = None,
    ) -> PutResult:
        """Store every file below each rank's folder; what the job's folder holds already is not written again.

        When it returns, everything is durable. It stays safe from garbage collection until `write_manifest` is called
        for the checkpoint, or `end_uploads`. Another call continues an upload that was broken off.

        :param below: a folder above all of `folders` that nobody else can replace; no link below it is followed.
            Default: the innermost folder above them, or the folder itself if there is only one
        :param part: (i, n): this is pod i of n that upload at the same time
        :param progress: counts bytes of the images: those that the store has
        :param pages: where launchers bring pages while `growing()`, which is asked for nothing else. It is closed in
            the end
        :param trust: which packs of the job's folder count as stored already; None: all, where nobody else writes
        :raises StoreError: not a directory, a file that is neither regular nor a directory, a failed write, or
            `cancelled()` turned true
        """
        folder = layout.job_folder(namespace, job)
        count = Count(progress, 0)
        upload_name = locks.draw()
        name = locks.pod_upload(layout.checked_id(checkpoint_id), part[0], upload_name)
        paths = {rank: Path(path).absolute() for rank, path in folders.items()}
        top = Path(below or os.path.commonpath(paths.values())).absolute()
        stop = threading.Event()
        backend = self.backend.until(lambda: stop.is_set() or cancelled())
        try:
            # The ranks of a periodic checkpoint wait for this, and for no answer of the store.
            intake = pages.received(growing, backend.cancelled) if pages is not None else None
            doomed = locks.announce(backend, folder, name)
            believed = trust.believed(self, namespace, job) if trust else _any_pack
            with self.pool("store-put") as pool:
                try:
                    work = upload.Upload(
                        backend, folder, upload_name, doomed, believed, trust.seal_key if trust else b"",
                        self.keys(namespace, job), beneath.Beneath(top), pool, self._threads, part, backend.cancelled,
                        count,
                    )  # fmt: skip
                    work.give_up(catalog.last_use(self, namespace, job, paths))
                    ahead = 0
                    if pages is not None and intake is not None:
                        pages_of = stream.Stream(work, intake, top, pages.spill)
                        pages_of.follow(growing)
                        ahead = pages_of.stored
                    lists = {rank: images.walk(work.beneath, path) for rank, path in paths.items()}
                    images.require_own(file for files in lists.values() for file in files)
                    total = sum(f.size for files in lists.values() for f in files)
                    total += sum(f.size for files in work.streamed.values() for f in files.values())
                    count.expect(total)
                    work.put_spill()
                    for rank, files in lists.items():
                        work.put(rank, files)
                    made = work.finish()
                except BaseException:
                    stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise
        except BaseException:
            stop.set()  # one try is enough
            with contextlib.suppress(StoreError):
                locks.withdraw(backend, folder, name)
            raise
        finally:
            self.backend.retries += backend.retries
            if pages is not None:
                pages.close()
        return PutResult(made, total, work.stored, ahead)

    def write_manifest(self, manifest: Manifest, cancelled: Callable[[], bool] = _never) -> str:
        """Write the manifest, atomically: from here on the checkpoint exists. Raises StoreError.

        Returns the sha256 of the bytes written. The commit of the checkpoint names this digest, and `read_manifest`
        compares it.

        An existing manifest with this id stays, and is an error unless it is identical. The uploads that pods have
        announced for it count as ended.

        :param cancelled: once true, no manifest appears any more, except one that the store had already received
        """
        text = mf.dumps(manifest)
        mf.loads(text)  # never write what no reader would accept
        data = text.encode()
        backend = self.backend.until(cancelled)
        try:
            path = layout.manifest_path(manifest.namespace, manifest.job, manifest.id)
            backend.write(path, data, late=False, new=True)
            with contextlib.suppress(StoreError):  # it is there; garbage waits for the next commit or attempt
                folder = layout.job_folder(manifest.namespace, manifest.job)
                for name in locks.pod_uploads(backend, folder, manifest.id):
                    locks.withdraw(backend, folder, name)
        finally:
            self.backend.retries += backend.retries
        return hashlib.sha256(data).hexdigest()

    def uploads(self, namespace: str, job: str) -> list[str]:
        """The pods' uploads that have not announced their end. Each has a name that is never used again. Raises
        StoreError."""
        return locks.pod_uploads(self.backend, layout.job_folder(namespace, job))

    def end_all_uploads(self, namespace: str, job: str) -> None:
        """To be called when no pod of the job runs, in any cluster, and no import: every announced upload has ended.

        Raises StoreError.
        """
        self.withdraw_uploads(namespace, job, locks.uploads(self.backend, layout.job_folder(namespace, job)))

    def withdraw_uploads(self, namespace: str, job: str, names: Iterable[str]) -> None:
        """These uploads (of `uploads`) will not be committed any more. Raises StoreError."""
        for name in names:
            locks.withdraw(self.backend, layout.job_folder(namespace, job), name)

    def end_uploads(self, namespace: str, job: str, checkpoint_id: str, part: int) -> None:
        """Everything that this part has uploaded for the checkpoint so far is committed, or never will be. Raises
        StoreError."""
        folder = layout.job_folder(namespace, job)
        self.withdraw_uploads(
            namespace, job, locks.pod_uploads(self.backend, folder, layout.checked_id(checkpoint_id), part)
        )

    def probe(self, namespace: str = "", job: str = "") -> None:
        """Write, read back and delete a small file. Raises StoreError that says what to do, KeyLostError.

        :param namespace: the file is among what belongs to it, where the caller may write nowhere else
        :param job: has its data key afterwards. So pods that upload for the first time at the same time have the same
        """
        if self.namespace_keys is not None:
            self.namespace_keys.newest()
        name, data = f"{layout.namespace_folder(namespace)}probe-{uuid.uuid4().hex}", os.urandom(16)
        backend = Backend(self.url, min(PROBE_S, self.backend.patience_s))
        try:
            backend.write(name, data)
            back = backend.read(name)
            backend.delete(name)
        except StoreError as error:
            raise type(error)(f"{error}. Give a store that the pods can write, with its volume or key") from error
        if back != data:
            raise StoreError(f"store {self.url}: a file just written reads back differently: not a usable store")
        if job:
            self.keys(namespace, job).writing()

    # --- reading --------------------------------------------------------------------------------------------------
    def read_manifest(self, namespace: str, job: str, checkpoint_id: str, sha256: str | None = None) -> Manifest:
        """Read and check a manifest.

        :param sha256: the committed digest: content with another digest is not parsed. None: only the digest inside the
            manifest is checked, which anybody who can write to the store can forge.
        :raises CheckpointNotFoundError: there is none
        :raises DamageError: its bytes do not have this digest, also when they are read a second time
        :raises StoreError: it is not valid, or the store fails
        """
        return self.read_digest(namespace, job, checkpoint_id, sha256)[0]

    def read_digest(
        self, namespace: str, job: str, checkpoint_id: str, sha256: str | None = None
    ) -> tuple[Manifest, str]:
        """A manifest as `read_manifest` returns it, and the sha256 of its bytes. Raises the same errors."""
        path = layout.manifest_path(namespace, job, checkpoint_id)

        def read() -> bytes:
            found = self.backend.read(path, mf.MAX_BYTES + 1)
            if found is None:
                raise CheckpointNotFoundError(
                    f"store {self.url}: no checkpoint {checkpoint_id!r} of job {namespace}/{job}"
                )
            made = hashlib.sha256(found).hexdigest()
            if sha256 is not None and made != sha256:
                raise DamageError(
                    f"store {self.url}: {path} is not the manifest that was committed: its sha256 is {made}, committed "
                    f"was {sha256}. It was damaged or replaced since"
                )
            return found

        data = read() if sha256 is None else download.twice(read)
        try:
            manifest = mf.loads(data)
        except MessageError as error:
            raise StoreError(f"store {self.url}: {path} is not a valid manifest: {error}") from error
        if (manifest.id, manifest.namespace, manifest.job) != (checkpoint_id, namespace, job):
            raise StoreError(
                f"store {self.url}: {path} is the manifest of {manifest.namespace}/{manifest.job} {manifest.id!r}: "
                "it was copied or renamed"
            )
        return manifest, hashlib.sha256(data).hexdigest()

    def fetch_ranks(
        self,
        manifest: Manifest,
        targets: Mapping[int, str | Path],
        cancelled: Callable[[], bool] = _never,
        progress: Progress = ignore,
        room: Room | None = None,
        wanted: Callable[[str], bool] = _any_file,
    ) -> int:
        """Write each rank's files below its target and return their bytes. Every byte is verified.

        :param wanted: which files, by path
        :param room: what may be written; None: nobody knows
        :raises RestoreRefusedError: more than the limit of the volume leaves. Nothing of a file was fetched then
        :raises CorruptChunkError: an object is missing or altered
        :raises StoreError: anything else
        """
        folder = layout.job_folder(manifest.namespace, manifest.job)
        paths = {rank: Path(path) for rank, path in targets.items()}
        keys = self.keys(manifest.namespace, manifest.job)
        return download.fetch(
            self.backend, folder, keys, manifest, paths, self._threads, cancelled, progress, room, wanted
        )

    def parts(
        self,
        manifest: Manifest,
        target: Path,
        wanted: Callable[[str], bool],
        room: Callable[[], Room] | None = None,
    ) -> Parts:
        """The ranks' files whose path is `wanted`, as one folder that is fetched in parts. Every byte is verified.

        :raises CorruptChunkError: a recipe is missing or altered
        :raises StoreError: anything else
        """
        keys = self.keys(manifest.namespace, manifest.job)
        return Parts(self.backend, keys, manifest, target, wanted, self.pool("store-part").submit, room)

    def verify(self, manifest: Manifest, progress: Progress = ignore) -> list[str]:
        """Read everything a checkpoint needs and check it; what is wrong, in sentences. Raises StoreError."""
        return catalog.verify(self, manifest, progress)

    # --- catalog --------------------------------------------------------------------------------------------------
    def jobs(self) -> list[tuple[str, str]]:
        """(namespace, job) of every job that has something here. Raises StoreError."""
        return catalog.jobs(self)

    def list_checkpoints(self, namespace: str, job: str) -> list[catalog.Listing]:
        """Every manifest of a job, newest first; unreadable ones last, with the reason. Raises StoreError."""
        return catalog.list_checkpoints(self, namespace, job)

    def latest_valid(self, namespace: str, job: str) -> tuple[Manifest | None, list[catalog.Listing]]:
        """The newest manifest whose objects all exist, and the newer manifests that were skipped, each with the
        reason."""
        return catalog.latest_valid(self, namespace, job)

    def pin(self, namespace: str, job: str, checkpoint_id: str, pinned: bool = True) -> None:
        """Keep a checkpoint from being pruned, or no longer, whoever holds it. Raises CheckpointNotFoundError,
        StoreError."""
        path = layout.pin_path(namespace, job, checkpoint_id)
        if pinned:
            self.read_manifest(namespace, job, checkpoint_id)
            self.backend.write(path, b"")
            return
        self.backend.delete(path)
        folder = layout.job_folder(namespace, job)
        for holder in catalog.holders(self.backend.find(f"{folder}/pins"), folder, checkpoint_id):
            self.backend.delete(f"{path}.{holder}")

    def hold(
        self, namespace: str, job: str, checkpoint_id: str, holder: str, sha256: str | None = None
    ) -> tuple[Manifest, str]:
        """Keep a checkpoint for `holder` (`layout.hold_path`) until `release`; the manifest and its digest.

        The hold is there before anything is looked at, and it goes again if the checkpoint cannot be used. Objects are
        looked for, their content is not read.

        :param sha256: digest of the committed manifest
        :raises DamageError: not the manifest that was committed, or an object is missing (CheckpointNotFoundError:
            there is no manifest)
        :raises StoreError: a bad name, or the store fails
        """
        path = layout.hold_path(namespace, job, checkpoint_id, holder)
        there = self.backend.read(path) is not None
        self.backend.write(path, b"")
        try:
            manifest, found = self.read_digest(namespace, job, checkpoint_id, sha256)
            problem = catalog.missing(manifest, self.backend.find(layout.job_folder(namespace, job)))
            if problem:
                raise DamageError(f"store {self.url}: checkpoint {checkpoint_id}: {problem}")
        except BaseException:
            if not there:
                with contextlib.suppress(StoreError):
                    self.release(namespace, job, checkpoint_id, holder)
            raise
        return manifest, found

    def release(self, namespace: str, job: str, checkpoint_id: str, holder: str) -> None:
        """`holder` does not need the checkpoint any more. Raises StoreError."""
        self.backend.delete(layout.hold_path(namespace, job, checkpoint_id, holder))

    def prune(self, namespace: str, job: str, keep: int, pinned: frozenset[str] = frozenset()) -> list[str]:
        """Delete all but the newest `keep` manifests of a job, never a pinned one. Returns the deleted ids."""
        return catalog.prune(self, namespace, job, keep, pinned)

    def drop(self, namespace: str, job: str, checkpoints: Iterable[str]) -> None:
        """Delete manifests, also those that cannot be read. Raises StoreError."""
        for checkpoint in checkpoints:
            self.backend.delete(layout.manifest_path(namespace, job, checkpoint))

    def collect_garbage(self, namespace: str, job: str) -> catalog.Collected:
        """Delete what no manifest of the job names; nothing while a pod's upload is under way. It ends within 30 s.

        Raises StoreError if a manifest of the job cannot be read.
        """
        return catalog.collect_garbage(self, namespace, job)

    # --- archives -------------------------------------------------------------------------------------------------
    def export(self, manifest: Manifest, target: BinaryIO, progress: Progress = ignore) -> int:
        """Write a checkpoint as one tar archive; its bytes. Raises CorruptChunkError, StoreError."""
        return archive.write(self, manifest, target, progress)

    def import_(self, source: BinaryIO, namespace: str = "", job: str = "", progress: Progress = ignore) -> Manifest:
        """Import and verify an archive of `export`, under its own job or another. Raises StoreError."""
        return archive.read(self, source, namespace, job, progress)
