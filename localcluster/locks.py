"""Lock files that leave nothing behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LocalClusterError


@contextmanager
def locked(path: Path, *, timeout: float, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the file is removed at the end.

    :param timeout: seconds
    :param on_wait: called once when somebody else holds the lock
    :raises LocalClusterError: not acquired in time
    """
    deadline = time.monotonic() + timeout
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the holder before us has removed the empty folder, too
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"another process has held {path} for {timeout:.0f} s; wait for it or end it (fuser {path})"
                ) from None
            if not told and on_wait is not None:
                on_wait()
                told = True
            time.sleep(0.1)
            continue
        # The holder before us removes the file: what we locked may be a file that nobody else can see any more.
        try:
            current = path.stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            current = False
        if current:
            break
        os.close(descriptor)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
