"""The few file operations the store needs, on top of fsspec: atomic write, read, stat, list, delete.

Object stores make a PUT visible as a whole. On `file://` the same comes from a temporary name and a rename; readers
never see half a chunk or half a manifest. Every failure is a StoreError that names the URL.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import timezone
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..errors import StoreError

T = TypeVar("T")
TEMPORARY = ".tmp-"


class Backend:
    """File operations below one URL. Paths are relative, with `/`. All methods may be called from any thread."""

    def __init__(self, url: str) -> None:
        if not url:
            raise StoreError(
                "the store URL is empty: set one, for example file:///mnt/checkpoints or gs://bucket/prefix"
            )
        self.url = url
        try:
            self.fs, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise StoreError(f"store {url!r}: {error}") from error
        self.root: str = root.rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)

    def path(self, relative: str) -> str:
        """Path for fsspec."""
        return f"{self.root}/{relative}"

    def write(self, relative: str, data: bytes) -> None:
        """Write a whole file; it appears at once or not at all. Raises StoreError."""
        if self.local:
            self._guard(f"write {relative}", lambda: self._write_local(Path(self.path(relative)), data))
        else:
            self._guard(f"write {relative}", lambda: self.fs.pipe_file(self.path(relative), data))

    def _write_local(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}{TEMPORARY}{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def read(self, relative: str) -> bytes | None:
        """Content of a file, None if there is none. Raises StoreError."""
        try:
            data: bytes = self.fs.cat_file(self.path(relative))
            return data
        except FileNotFoundError:
            return None
        except Exception as error:
            raise StoreError(f"store {self.url}: cannot read {relative}: {error}") from error

    def size_and_age(self, relative: str) -> tuple[int, float] | None:
        """Size in bytes and seconds since the last write, None if there is no such file. Raises StoreError."""
        try:
            info: dict[str, Any] = self.fs.info(self.path(relative))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise StoreError(f"store {self.url}: cannot look at {relative}: {error}") from error
        return int(info["size"]), max(0.0, time.time() - _modified(info))

    def refresh(self, relative: str) -> bool:
        """Make a file young again without rewriting it, where the file system can. False: it cannot, or it is gone."""
        if not self.local:
            return False
        try:
            os.utime(self.path(relative))
        except OSError:
            return False
        return True

    def find(self, relative: str) -> dict[str, tuple[int, float]]:
        """All files below a folder: relative path -> (size, age in seconds). Empty if there is no folder."""
        top = self.path(relative)
        self.fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = self._guard(f"list {relative}", lambda: self.fs.find(top, detail=True))
        now = time.time()
        start = len(self.fs._strip_protocol(self.root).rstrip("/")) + 1
        return {p[start:]: (int(i["size"]), max(0.0, now - _modified(i))) for p, i in found.items()}

    def delete(self, relative: str) -> None:
        """Delete a file; nothing happens if it is gone. Raises StoreError."""

        def remove() -> None:
            try:
                self.fs.rm_file(self.path(relative))
            except FileNotFoundError:
                return

        self._guard(f"delete {relative}", remove)

    def _guard(self, what: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except StoreError:
            raise
        except Exception as error:  # fsspec's file systems raise whatever their client library raises
            raise StoreError(f"store {self.url}: cannot {what}: {type(error).__name__}: {error}") from error


def _modified(info: dict[str, Any]) -> float:
    """Unix seconds of the last write from an fsspec `info`; the keys differ between file systems."""
    value = info.get("mtime", info.get("updated", info.get("LastModified", info.get("created", 0.0))))
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        from datetime import datetime

        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return float(value.timestamp())
