"""The few file operations the store needs, on top of a client (`clients`): atomic durable write, read, list, delete.

Object stores make a PUT visible as a whole. On `file://` the same comes from a temporary name, fsync and a rename;
readers never see half an object. An operation is tried again for `patience_s` if its failure may be temporary (a server
that answers 503, a connection that breaks). The same holds for an operation without an answer for long: connections die
without notice. Every failure is a StoreError that names the URL. Counters say how often operations were tried again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import errno
import math
import os
import random
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from ..errors import StoreAwayError, StoreError
from . import object_client, past_cache
from .clients import Files, FsspecFiles

T = TypeVar("T")
TEMPORARY: Final = ".tmp-"
SCHEMES: Final = ("file", "gs", "s3", "az", "memory")
SHARED: Final = 2
"""Levels of folders below a store that all users need: `jobs`, and the namespaces in it."""
SUPPORTED: Final = "file://, gs://, s3://, az:// or memory://"
PATIENCE_S: Final = 120.0
FIRST_TRY_S: Final = 20.0
"""How long the first try of an operation over the network may take; each further one may take twice as long."""
SLOWEST: Final = 1 << 20
"""Bytes per second: a file that comes slower over the network is sent again."""
_PIECE: Final = 8 << 20
CLIENT: Final = "SINGULARITY_STORE_CLIENT"
"""Variable; `fsspec`: object stores are asked by fsspec's file systems, and not by obstore."""
_LASTING: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EROFS: "the file system is read-only",
    errno.EFBIG: "the file is too large for the file system",
    errno.ENAMETOOLONG: "the path is too long",
}
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
_LASTING_TYPES: Final = (
    FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError, ValueError, TypeError,
    ImportError, NotImplementedError, MemoryError,
)  # fmt: skip
_LASTING_NAMES: Final = frozenset(
    ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError")
)
"""Types from botocore, which is imported only with the first s3:// URL."""


class Backend:
    """File operations below one URL. Paths are relative, with `/`. All methods may be called from any thread.

    :param patience_s: seconds during which an operation with a temporary failure is tried again
    :param cancelled: once true, nothing is tried again
    """

    ends = math.inf
    """Time of this process's monotonic clock: no operation begins after it, and every network request ends by then."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S, cancelled: Callable[[], bool] = lambda: False) -> None:
        if not url:
            raise StoreError(
                "the store URL is empty: set one, for example file:///mnt/checkpoints or gs://bucket/prefix"
            )
        scheme, found, _ = url.partition("://")
        if not found or scheme not in SCHEMES or "::" in url:
            # fsspec would also accept http://, a chain of file systems (a::b), and any file system that a library
            # registers.
            raise StoreError(f"store URL = {url!r}: not of a kind that is supported; give {SUPPORTED}")
        self.url = url
        self.patience_s = patience_s
        self.retries = 0
        """Operations that were tried again so far."""
        self.cancelled = cancelled
        try:
            self.files: Files = _client(scheme, url)
        except (ValueError, ImportError) as error:
            raise StoreError(f"store {url!r}: {error}; give {SUPPORTED}") from error
        self.root = self.files.root
        self.local = scheme == "file"

    def until(self, cancelled: Callable[[], bool] = lambda: False, ends: float = math.inf) -> Backend:
        """The same backend with its own count, its own `cancelled`, and an end (see `ends`)."""
        made = copy.copy(self)
        made.retries, made.cancelled, made.ends = 0, cancelled, ends
        return made

    def path(self, relative: str) -> str:
        """Path for the client."""
        return f"{self.root}/{relative}"

    def write(self, relative: str, data: bytes | memoryview, late: bool = True, new: bool = False) -> bool:
        """Write a whole file; it appears at once or not at all, and then survives a crash. Raises StoreError.

        Returns whether nobody reads `data` any more. A request that was given up may still do so, also when this
        raises: the caller then never puts anything else there.

        :param late: it may appear after the cancellation. Otherwise it does so only if an object store had already
            received all of it.
        :param new: never replace different content, which is a StoreError; equal content is no error
        """
        given_up = False

        def check() -> None:
            if not late and self.cancelled():
                raise StoreError(f"store {self.url}: {relative} was not written: it was cancelled")

        def send(limit: float, new: bool) -> None:
            nonlocal given_up
            try:
                self._answer(self.files.put(self.path(relative), data, new), limit)
            except (TimeoutError, asyncio.TimeoutError):
                given_up = True
                raise

        def put(limit: float) -> None:
            if self.local:
                _write_local(Path(self.root), relative, data, check, new)
            else:
                check()
                send(limit, new)

        def create(limit: float) -> None:
            try:
                put(limit)
            except (FileExistsError, NotImplementedError) as error:
                # Without a condition of its own, the store is asked first. What is there is ours, if an earlier try
                # had no answer.
                there = self._answer(self._content(relative), limit)
                if there is None and not self.local:
                    send(limit, new=False)
                elif there != data:
                    raise StoreError(f"store {self.url}: {relative} is there with other content, and stays") from error

        self._guard(f"write {relative}", create if new else put)
        return not given_up

    def write_file(self, relative: str, source: int, size: int) -> None:
        """Write a whole file from a descriptor, as `write` does, without having all of it in memory. Raises StoreError.

        What lies in a folder is for all to read, as umask and ACL let them: it is no part of a checkpoint.
        """

        def put(limit: float) -> None:
            if self.local:
                _copy_local(Path(self.path(relative)), source)
            else:
                self._answer(self.files.put_file(self.path(relative), source, size), limit + size / SLOWEST)

        self._guard(f"write {relative}", put)

    def read(self, relative: str, most: int | None = None) -> bytes | None:
        """Content of a file, or its first `most` bytes; None if there is none. Raises StoreError."""
        found = self.view(relative, None if most is None else 0, most)
        return None if found is None else bytes(found)

    def view(self, relative: str, begin: int | None, end: int | None) -> memoryview | None:
        """Bytes `begin` to `end` of a file, fewer where it ends, without a copy; None if there is none. Raises
        StoreError."""
        found = self._guard(f"read {relative}", lambda limit: self._answer(self._content(relative, begin, end), limit))
        return None if found is None else memoryview(found)

    async def _content(
        self, relative: str, begin: int | None = None, end: int | None = None
    ) -> bytes | memoryview | None:
        try:
            return await self.files.get(self.path(relative), begin, end)
        except FileNotFoundError:
            return None

    def find(self, relative: str) -> dict[str, tuple[int, float]]:
        """All files below a folder: relative path -> (size, Unix seconds of the last write). Empty if there is none."""
        top = self.path(relative)

        def look(limit: float) -> dict[str, tuple[int, float]]:
            try:
                return self._answer(self.files.find(top), limit)
            except FileNotFoundError:  # also a file that was deleted while the folder was read
                if self.local and Path(top).is_dir():
                    raise OSError(errno.EAGAIN, "the folder changed while it was read") from None
                return {}

        found = self._guard(f"list {relative}", look)
        return {path[len(self.root) + 1 :]: about for path, about in found.items()}

    def delete(self, relative: str) -> None:
        """Delete a file; nothing happens if it is gone. Raises StoreError."""

        def remove(limit: float) -> None:
            try:
                self._answer(self.files.delete(self.path(relative)), limit)
            except FileNotFoundError:
                return

        self._guard(f"delete {relative}", remove)

    def _answer(self, request: Coroutine[Any, Any, T], limit: float) -> T:
        """Answer to a request. Over the network, the request is abandoned after `limit` seconds, or when it is
        cancelled.

        The client libraries of fsspec try again by themselves for half a minute, and wait for an answer for five
        minutes.
        """
        if self.files.loop is None:
            try:
                request.send(None)
            except StopIteration as done:
                answer: T = done.value
                return answer
            raise AssertionError("it waits, and has no loop")
        future = asyncio.run_coroutine_threadsafe(request, self.files.loop)
        end = time.monotonic() + limit
        while not concurrent.futures.wait([future], timeout=0.2).done:
            late = time.monotonic() > end
            if late or self.cancelled():
                future.cancel()
                raise TimeoutError(f"no answer within {limit:.0f} s" if late else "it was cancelled")
        return future.result()

    def _guard(self, what: str, action: Callable[[float], T]) -> T:
        """`action`, which gets the seconds that one try may take."""
        deadline = min(time.monotonic() + self.patience_s, self.ends)
        pause, limit, reason = 0.1, FIRST_TRY_S, ""
        while True:
            left = self.ends - time.monotonic()
            if left <= 0:
                said = f"the time for it was over{reason and ' after '}{reason}"
                raise StoreAwayError(f"store {self.url}: did not {what}: {said}")
            try:
                return action(min(limit, left))
            except StoreError:
                raise
            except Exception as error:  # a client raises whatever its library raises
                lasting = _lasting(error)
                reason = lasting or f"{type(error).__name__}: {error}"
                if lasting or time.monotonic() + pause > deadline or self.cancelled():
                    kind = StoreError if lasting else StoreAwayError
                    raise kind(f"store {self.url}: cannot {what}: {reason}") from error
            self.retries += 1
            until = time.monotonic() + pause * random.uniform(0.7, 1.3)  # noqa: S311 - spreads load
            while time.monotonic() < until and not self.cancelled():
                time.sleep(min(0.1, pause))
            pause, limit = min(5.0, pause * 2), limit * 2


def _client(scheme: str, url: str) -> Files:
    if scheme in object_client.SCHEMES and os.environ.get(CLIENT) != "fsspec":
        return object_client.ObjectFiles(url)
    return FsspecFiles(url)


def _lasting(error: Exception) -> str:
    """Why trying again is of no use; "" if it may be."""
    if isinstance(error, OSError) and error.errno in _LASTING:
        return f"{_LASTING[error.errno]} ({error})"
    if isinstance(error, _LASTING_TYPES) or type(error).__name__ in _LASTING_NAMES:
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno is None and str(error).startswith("Forbidden"):
        return str(error)  # gcsfs's way to say 403
    code = getattr(error, "code", getattr(error, "status", None))
    if str(code).isdigit() and 400 <= int(str(code)) < 500 and int(str(code)) not in (408, 425, 429):
        return f"{type(error).__name__}: {error}"
    return ""


def _write_local(root: Path, relative: str, data: bytes | memoryview, check: Callable[[], None], new: bool) -> None:
    """`check` raises when the file must not appear any more. `new`: raises FileExistsError if the file exists."""
    path = root / relative
    _make_folders(root, relative)
    temporary = path.with_name(f"{path.name}{TEMPORARY}{uuid.uuid4().hex}")
    try:
        past_cache.write(temporary, data)
        check()
        if new and _linked(temporary, path):
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _copy_local(path: Path, source: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as target:
            at = 0
            while piece := os.pread(source, _PIECE, at):
                target.write(piece)
                at += len(piece)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_folders(root: Path, relative: str) -> None:
    """Those that a file needs. What jobs have is for their user alone.

    In shared ones others may write as umask and ACL let them, and list nothing.
    """
    root.mkdir(parents=True, exist_ok=True)
    for level, name in enumerate(relative.split("/")[:-1]):
        root /= name
        if not root.is_dir():
            with contextlib.suppress(FileExistsError):
                root.mkdir(mode=0o773 if level < SHARED else 0o700)


def _linked(temporary: Path, path: Path) -> bool:
    """False where the file system has no hard links. Raises FileExistsError, OSError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():  # as good as it gets there
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        return False
    return True
