"""Room in a unix socket. With the standard 208 KiB the two ends of a stream wait for each other all the time."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

BYTES: Final = 4 << 20
_SNDBUFFORCE: Final = 32
"""Beyond the machine's limit; Python has no name for it."""


def widen(sender: socket.socket) -> None:
    """Make room for what it sends, if this process may."""
    with contextlib.suppress(OSError):
        sender.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, BYTES)
