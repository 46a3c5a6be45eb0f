"""Reading the messages of a rank from files whose content the rank controls."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from ...protocol import decode

LONGEST = 256 * 1024
"""Bytes."""


def content(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file and one more, if there are more. Raises FileNotFoundError, OSError.

    Nothing but a regular file is read: a link could lead to another's file, a pipe would never end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most + 1)


def read(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty while there is none that can be read. Raises FileNotFoundError."""
    try:
        found = decode.json_value(content(path, LONGEST), LONGEST, halves=True)
    except FileNotFoundError:
        raise
    except OSError:
        return {}
    return found if isinstance(found, dict) else {}
