"""Sends pages to the sidecar while CRIU dumps them (`page_frames`), so that no disk has to hold them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...protocol import page_frames
from .. import socket_room
from ..errors import DumpError

DIRECT: Final = 64 << 10
"""Bytes from which content is sent from where it lies. Less is gathered first: each frame costs a call."""
ROOM: Final = 256 << 10
_LEAST_S: Final = 0.01


class PageSink:
    """:param path: socket of the sidecar
    :param deadline: of the monotonic clock; who waits longer than this would leave CRIU in the midst of a dump

    Raises DumpError where the sidecar is gone, does not want the pages any more, or takes too long for them.
    """

    def __init__(self, path: Path, rank: int, deadline: float) -> None:
        self._deadline = deadline
        self._peer = socket.socket(socket.AF_UNIX)
        self._room = memoryview(bytearray(ROOM))
        self._held = self._number = 0
        self._sizes: dict[str, int] = {}
        with self._told():
            socket_room.widen(self._peer)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._peer.connect(f"/proc/self/fd/{folder}/{path.name}")  # an address has at most 107 bytes
            finally:
                os.close(folder)
            self._peer.sendall(page_frames.WORDS.pack(page_frames.MAGIC, rank))

    def open(self, number: int) -> None:
        """There is such a file, maybe an empty one."""
        self._sizes[page_frames.file_name(number)] = 0

    def write(self, number: int, content: memoryview) -> None:
        """Append to file `number`."""
        if number != self._number or self._held + len(content) > ROOM:
            self._flush()
        self._number = number
        self._sizes[page_frames.file_name(number)] += len(content)
        if len(content) >= DIRECT:
            self._flush()
            for at in range(0, len(content), page_frames.LONGEST):
                self._send(content[at : at + page_frames.LONGEST])
        else:
            self._room[self._held : self._held + len(content)] = content
            self._held += len(content)

    def end(self, images: Path) -> None:
        """Wait until the sidecar has taken everything, and say in the folder what was sent. Raises OSError, too: the
        folder cannot be written."""
        self._flush()
        with self._told():
            self._peer.sendall(page_frames.END)
            if self._peer.recv(1) != page_frames.TAKEN:
                raise DumpError("the sidecar has given up: it did not take all pages")
        for name in [name for name, size in self._sizes.items() if not size]:
            (images / name).touch()  # CRIU opens it all the same
        (images / page_frames.LIST).write_text(json.dumps(self._sizes))

    def close(self) -> None:
        self._peer.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, 0
            self._send(self._room[:held])

    def _send(self, content: memoryview) -> None:
        head = page_frames.WORDS.pack(self._number, len(content))
        with self._told():
            sent = self._peer.sendmsg([head, content]) - len(head)
            if sent < 0:
                raise OSError("a header was sent in part")
            self._peer.sendall(content[sent:])

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong with the sidecar, in a sentence."""
        left = self._deadline - time.monotonic()
        self._peer.settimeout(max(left, _LEAST_S))
        try:
            yield
        except TimeoutError:
            raise DumpError("the sidecar did not take the pages before the deadline: is the store slow?") from None
        except OSError as error:
            raise DumpError(f"the sidecar does not take the pages: {error}") from None
