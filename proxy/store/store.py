"""`Store`: put image directories, write and read manifests, fetch a rank's images back, every byte verified."""

from __future__ import annotations

import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import CheckpointNotFoundError, CorruptChunkError, StoreError
from ..protocol import manifest as mf
from ..protocol.manifest import Chunk, ImageFile, Manifest
from ..protocol.messages import MessageError
from . import catalog, layout
from .backend import Backend
from .chunker import cuts, digest_of, zero_digest

REUSE_AGE_S: Final = 6 * 3600.0
"""A chunk that is found in the store and older than this is made young before it is relied on, so that garbage
collection (which only takes chunks much older) never removes one between its reuse and the manifest that names it."""
THREADS: Final = 8


@dataclass(frozen=True)
class PutResult:
    """`bytes`: all bytes of the files; `bytes_stored`: bytes of chunks that this call had to write."""

    files: list[ImageFile]
    bytes: int
    bytes_stored: int


class Store:
    """A checkpoint store. Thread-safe; needs about THREADS * CHUNK_SIZE bytes of memory while it moves data.

    :param url: any fsspec URL, for example `file:///mnt/checkpoints`
    :raises StoreError: unknown scheme, or the client library for it is missing
    """

    def __init__(self, url: str, threads: int = THREADS) -> None:
        self.url = url
        self.backend = Backend(url)
        self._threads = threads

    # --- writing --------------------------------------------------------------------------------------------------
    def put_image_dir(self, path: str | Path, cancelled: Callable[[], bool] = lambda: False) -> PutResult:
        """Store every file below `path`. Chunks that exist already are not written again.

        Raises StoreError: not a directory, a file that is neither regular nor a directory, a failed write, or
        `cancelled()` turned true.
        """
        root = Path(path)
        files = list(_walk(root))
        jobs = [(i, offset, length) for i, (_, size) in enumerate(files) for offset, length in cuts(size)]
        writer = _Writer(self.backend, cancelled)

        def work(job: tuple[int, int, int]) -> Chunk:
            index, offset, length = job
            return writer.put(_pread(root / files[index][0], offset, length))

        with ThreadPoolExecutor(self._threads, thread_name_prefix="store-put") as pool:
            try:
                chunks = list(pool.map(work, jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        per_file: list[list[Chunk]] = [[] for _ in files]
        for (index, _, _), chunk in zip(jobs, chunks, strict=True):
            per_file[index].append(chunk)
        images = [ImageFile(name, size, per_file[i]) for i, (name, size) in enumerate(files)]
        return PutResult(images, sum(size for _, size in files), writer.stored)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, atomically: from here on the checkpoint exists. Raises StoreError."""
        text = mf.dumps(manifest)
        mf.loads(text)  # never write what no reader would accept
        self.backend.write(layout.manifest_path(manifest.namespace, manifest.job, manifest.id), text.encode())

    def probe(self) -> None:
        """Write, read back and delete a small file. Raises StoreError that says what to do."""
        name, data = f"probe-{uuid.uuid4().hex}", os.urandom(16)
        try:
            self.backend.write(name, data)
            back = self.backend.read(name)
            self.backend.delete(name)
        except StoreError as error:
            raise StoreError(f"{error}. Give a store that the pods can write, with its volume or key") from error
        if back != data:
            raise StoreError(f"store {self.url}: a file just written reads back differently: not a usable store")

    # --- reading --------------------------------------------------------------------------------------------------
    def read_manifest(self, namespace: str, job: str, checkpoint_id: str) -> Manifest:
        """Read and check a manifest. Raises CheckpointNotFoundError, or StoreError for one that is not valid."""
        path = layout.manifest_path(namespace, job, checkpoint_id)
        data = self.backend.read(path)
        if data is None:
            raise CheckpointNotFoundError(f"store {self.url}: no checkpoint {checkpoint_id!r} of job {namespace}/{job}")
        try:
            manifest = mf.loads(data)
        except MessageError as error:
            raise StoreError(f"store {self.url}: {path} is not a valid manifest: {error}") from error
        if (manifest.id, manifest.namespace, manifest.job) != (checkpoint_id, namespace, job):
            raise StoreError(
                f"store {self.url}: {path} is the manifest of {manifest.namespace}/{manifest.job} {manifest.id!r}: "
                "it was copied or renamed"
            )
        return manifest

    def fetch_rank(
        self, manifest: Manifest, rank: int, target_dir: str | Path, cancelled: Callable[[], bool] = lambda: False
    ) -> int:
        """Write the images of `rank` below `target_dir` and return their bytes. Every chunk is verified.

        Raises CorruptChunkError for a chunk that is missing or altered, StoreError for anything else.
        """
        image = next((r for r in manifest.ranks if r.rank == rank), None)
        if image is None:
            raise StoreError(f"checkpoint {manifest.id} has no rank {rank}, only 0..{manifest.world_size - 1}")
        target = Path(target_dir)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="store-get") as pool:
            try:
                for file in image.files:
                    self._fetch_file(pool, manifest.id, rank, file, target, cancelled)
            except OSError as error:
                raise StoreError(f"cannot write images of rank {rank} to {target}: {error}") from error
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return sum(f.size for f in image.files)

    def _fetch_file(
        self,
        pool: ThreadPoolExecutor,
        checkpoint: str,
        rank: int,
        file: ImageFile,
        target: Path,
        cancelled: Callable[[], bool],
    ) -> None:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, file.size)
            offset = 0
            jobs: list[tuple[int, Chunk]] = []
            for chunk in file.chunks:
                if chunk.size and chunk.sha256 != zero_digest(chunk.size):
                    jobs.append((offset, chunk))
                offset += chunk.size

            def work(job: tuple[int, Chunk]) -> None:
                if cancelled():
                    raise StoreError(f"download of checkpoint {checkpoint} was cancelled")
                where = f"checkpoint {checkpoint}, rank {rank}, file {file.path} at byte {job[0]}"
                data = self.read_chunk(job[1], where)
                os.pwrite(fd, data, job[0])

            futures = [pool.submit(work, job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            finally:
                # After a failure others may still run: they must not write into a descriptor that is somebody else's.
                for future in futures:
                    future.cancel()
                wait(futures)
        finally:
            os.close(fd)

    def read_chunk(self, chunk: Chunk, where: str) -> bytes:
        """Content of a chunk. Raises CorruptChunkError that names the chunk and `where` it was wanted."""
        data = self.backend.read(layout.chunk_path(chunk.sha256))
        if data is None:
            raise CorruptChunkError(chunk.sha256, where, "is missing")
        if len(data) != chunk.size:
            raise CorruptChunkError(chunk.sha256, where, f"has {len(data)} bytes instead of {chunk.size}")
        if digest_of(data) != chunk.sha256:
            raise CorruptChunkError(chunk.sha256, where, "does not match its digest")
        return data

    # --- catalog --------------------------------------------------------------------------------------------------
    def list_checkpoints(self, namespace: str, job: str) -> list[catalog.Listing]:
        """Every manifest of a job, newest first; unreadable ones last, with the reason. Raises StoreError."""
        return catalog.list_checkpoints(self, namespace, job)

    def latest_valid(self, namespace: str, job: str) -> tuple[Manifest | None, list[catalog.Listing]]:
        """The newest manifest whose chunks all exist, and those passed over, each with the reason."""
        return catalog.latest_valid(self, namespace, job)

    def prune(self, namespace: str, job: str, keep: int, pinned: frozenset[str] = frozenset()) -> list[str]:
        """Delete all but the newest `keep` manifests of a job, never a pinned one. Returns the deleted ids."""
        return catalog.prune(self, namespace, job, keep, pinned)

    def collect_garbage(self, grace_s: float = 86400.0) -> int:
        """Delete chunks that no manifest names and that are older than `grace_s`. Returns the bytes freed."""
        return catalog.collect_garbage(self, grace_s)


class _Writer:
    """Writes the chunks of one upload; a chunk that occurs several times is written and counted once."""

    def __init__(self, backend: Backend, cancelled: Callable[[], bool]) -> None:
        self._backend = backend
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self.stored = 0

    def put(self, data: bytes) -> Chunk:
        if self._cancelled():
            raise StoreError("the upload was cancelled")
        chunk = Chunk(digest_of(data), len(data))
        with self._lock:
            if chunk.sha256 in self._taken:
                return chunk
            self._taken.add(chunk.sha256)
        path = layout.chunk_path(chunk.sha256)
        if not self._reusable(path, chunk.size):
            self._backend.write(path, data)
            with self._lock:
                self.stored += chunk.size
        return chunk

    def _reusable(self, path: str, size: int) -> bool:
        found = self._backend.size_and_age(path)
        if found is None or found[0] != size:
            return False
        return found[1] < REUSE_AGE_S or self._backend.refresh(path)


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """(relative path, size) of every file below `root`, sorted. Raises StoreError."""
    if not root.is_dir():
        raise StoreError(f"{root} is not a directory: there is no image to store")
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path} is not a regular file: an image directory holds files only")
        yield path.relative_to(root).as_posix(), path.stat().st_size


def _pread(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise StoreError(f"cannot read image file {path}: {error}") from error
    if len(data) != length:
        raise StoreError(f"image file {path} changed while it was stored: {len(data)} of {length} bytes at {offset}")
    return data
