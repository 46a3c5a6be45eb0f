"""Who carries a store's requests: `Files` is what `backend` asks, and `FsspecFiles` answers it by fsspec.

Where there is a loop, a request is a coroutine of it, which `backend` gives up after a while.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from datetime import datetime, timezone
from typing import Any, Protocol

import fsspec
from fsspec.asyn import AsyncFileSystem

# Read where gcsfs is imported, with the first gs:// URL. Its support for zonal buckets asks Google's control API over
# gRPC before every operation. Without that permission, which few roles have, or with a server that is not Google's,
# each operation costs seconds more. The store needs none of it.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}}
"""s3fs would ask for an object's size first and read it in parts: more requests, and twice the memory."""


class Files(Protocol):
    """Operations on whole files; a path has everything after the scheme of the URL. Each raises what its library
    raises; FileNotFoundError where there is no such file, and FileExistsError as `put` says."""

    root: str
    """Path of the store's folder."""
    loop: AbstractEventLoop | None
    """Where the coroutines have to run; None: they wait for nothing."""

    async def put(self, path: str, data: bytes | memoryview, new: bool) -> None:
        """Write a whole file. `new`: FileExistsError if it exists; NotImplementedError where the store cannot say."""

    async def put_file(self, path: str, source: int, size: int) -> None:
        """Write a whole file from a descriptor that can be read at any place, without having all of it in memory."""

    async def get(self, path: str, begin: int | None, end: int | None) -> bytes | memoryview:
        """Bytes `begin` to `end`, fewer where the file ends."""

    async def find(self, folder: str) -> dict[str, tuple[int, float]]:
        """All files below a folder: path -> (size, Unix seconds of the last write)."""

    async def delete(self, path: str) -> None:
        """Delete a file."""


class FsspecFiles:
    """By a file system of fsspec."""

    def __init__(self, url: str) -> None:
        """Raises ValueError, ImportError."""
        # A listing that another thread began earlier must not answer for one that begins now: see `locks`.
        options = {"use_listings_cache": False, **_OPTIONS.get(url.partition(":")[0], {})}
        self.fs, root = fsspec.core.url_to_fs(url, **options)
        self.root: str = root.rstrip("/")
        self.loop: AbstractEventLoop | None = self.fs.loop if isinstance(self.fs, AsyncFileSystem) else None

    async def put(self, path: str, data: bytes | memoryview, new: bool) -> None:
        """See `Files`."""
        try:
            await self._call("pipe_file", path, bytes(data), **({"mode": "create"} if new else {}))
        except Exception as error:
            if new and _is_there(error):
                raise FileExistsError(path) from error
            if new and "NotImplemented" in f"{type(error)} {error}":
                raise NotImplementedError(str(error)) from error
            raise

    async def put_file(self, path: str, source: int, size: int) -> None:
        """See `Files`."""
        await self._call("put_file", f"/proc/self/fd/{source}", path)

    async def get(self, path: str, begin: int | None, end: int | None) -> bytes:
        """See `Files`."""
        try:
            data: bytes = await self._call("cat_file", path, start=begin, end=end)
            return data
        except Exception as error:
            if begin is not None and _has_no_first_byte(error):
                return b""
            raise

    async def find(self, folder: str) -> dict[str, tuple[int, float]]:
        """See `Files`."""
        found: dict[str, dict[str, Any]] = await self._call("find", folder, detail=True)
        files = {path: info for path, info in found.items() if info.get("type") != "directory"}
        return {self.fs._strip_protocol(path): (int(info["size"]), _modified(info)) for path, info in files.items()}

    async def delete(self, path: str) -> None:
        """See `Files`."""
        await self._call("rm_file", path)

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.loop is None:
            return getattr(self.fs, name)(*args, **options)
        return await getattr(self.fs, f"_{name}")(*args, **options)


def _is_there(error: Exception) -> bool:
    """Whether a file could not be created because it exists already: each client library reports this differently."""
    code = str(getattr(error, "code", getattr(error, "status", "")))
    return isinstance(error, FileExistsError) or code == "412" or "PreconditionFailed" in f"{type(error)} {error}"


def _has_no_first_byte(error: Exception) -> bool:
    """Whether a server says (416) that an empty file has none of the bytes that were asked for."""
    said = getattr(error.__cause__, "response", None)  # of botocore, below s3fs's translation
    code = said.get("Error", {}).get("Code") if isinstance(said, dict) else getattr(error, "code", None)
    return str(code) in ("416", "InvalidRange")


def _modified(info: dict[str, Any]) -> float:
    """Unix seconds of the last write from an fsspec `info`; the keys differ between file systems."""
    value = info.get("mtime", info.get("updated", info.get("LastModified", info.get("created", 0.0))))
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return float(value.timestamp())
