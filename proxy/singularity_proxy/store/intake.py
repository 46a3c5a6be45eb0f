"""Launchers that bring pages (`page_frames`), and memory that takes them in.

Ranks that train on after their checkpoint wait only until their pages have left them. So these are first received into
an `Arena`, with nothing else to do, and the upload works on them while the ranks train. The arena keeps its memory from
one checkpoint to the next: new memory would cost a virtual machine more than the copy into it.

What does not fit waits in the socket. The upload takes it from there as soon as it has taken the rest, so an arena that
is too small makes the ranks wait for the store, and fails nothing.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import select
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from ..protocol import page_frames

POLL_S: Final = 0.05
PATIENCE_S: Final = 30.0
"""How long a launcher may stand still in the midst of a frame."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE, of Linux 5.14."""
_STEP: Final = 64 << 20
"""Bytes of memory that are made ready at once."""
log = logging.getLogger(__name__)


class Arena:
    """Memory for the pages of one upload at a time.

    :param size: bytes
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        with contextlib.suppress(OSError, ValueError):  # a kernel without huge pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.room = memoryview(self._map)

    def warm(self) -> None:
        """Have the kernel give all of it now. Takes 0.1 to 0.4 s per GB, not for the event loop."""
        try:
            for at in range(0, self.size, _STEP):
                self._map.madvise(_POPULATE_WRITE, at, min(_STEP, self.size - at))
        except OSError as error:
            log.info("the first checkpoint makes its memory itself: %s", error)


class Peer:
    """One rank's connection.

    :param connection: closed with it
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(PATIENCE_S)
        self.rank = -1
        self.whole = False
        """All of its pages are here, and it knows that."""
        self.broken = False
        self._number = 0
        self._numbers: set[int] = set()
        """Of the files that have begun."""

    def exactly(self, part: memoryview) -> None:
        """Raises OSError, EOFError."""
        while part:
            got = self.connection.recv_into(part, 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError
            part = part[got:]

    def words(self) -> tuple[int, int]:
        """Raises OSError, EOFError."""
        data = bytearray(page_frames.WORDS.size)
        self.exactly(memoryview(data))
        first, second = page_frames.WORDS.unpack(data)
        return first, second

    def begin(self) -> None:
        """Raises OSError, EOFError."""
        magic, self.rank = self.words()
        if magic != page_frames.MAGIC:
            raise OSError("no launcher")

    def frame(self) -> tuple[int, int]:
        """Number of a file and bytes of content that follow; no bytes: the end. Raises OSError, EOFError."""
        number, size = self.words()
        if size > page_frames.LONGEST:
            raise OSError(f"a frame of {size} bytes")
        if size and number != self._number:
            if number in self._numbers:
                raise OSError(f"file {number} goes on after another one")
            self._number = number
            self._numbers.add(number)
        return number, size

    def take(self) -> None:
        """Say that everything was taken. Raises OSError."""
        self.connection.sendall(page_frames.TAKEN)
        self.whole = True


class Frame(NamedTuple):
    """Content of file `number`, received."""

    peer: Peer
    number: int
    content: memoryview


class Intake:
    """Whoever comes to a listener.

    :param room: memory for what comes before the upload looks at it; it is used from its beginning
    """

    def __init__(self, listener: socket.socket, room: memoryview) -> None:
        self._listener = listener
        self._room = room
        self._held = 0
        self._peers: dict[int, Peer] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self.kept: list[Frame] = []
        """In the order in which they came."""

    def receive(self, growing: Callable[[], bool], cancelled: Callable[[], bool]) -> None:
        """Keep what comes, until `growing()` is false or there is no memory left for a frame."""
        while growing() and not cancelled():
            for peer in self.ready():
                if len(self._room) - self._held < page_frames.LONGEST:
                    log.info("%d MiB of pages are in memory, which is full: the rest waits", self._held >> 20)
                    return
                self.attend(peer, self._keep)

    def ready(self) -> list[Peer]:
        """Those that have something to say. Waits for a moment."""
        found: list[Peer] = []
        for descriptor, _ in self._poll.poll(POLL_S * 1000):
            if descriptor == self._listener.fileno():
                connection, _ = self._listener.accept()
                self._peers[connection.fileno()] = Peer(connection)
                self._poll.register(connection, select.POLLIN)
            else:
                found.append(self._peers[descriptor])
        return found

    def attend(self, peer: Peer, frame: Callable[[Peer], bool]) -> None:
        """Let `frame` take one frame of the peer, false: its last one. One that ends in the midst is broken."""
        try:
            if peer.rank < 0:
                peer.begin()
                return
            if frame(peer):
                return
        except (OSError, EOFError) as error:
            peer.broken = True
            log.warning("pages of rank %d end in the midst: %s", peer.rank, error or "the launcher went away")
        descriptor = peer.connection.fileno()
        self._poll.unregister(descriptor)
        self._peers.pop(descriptor).connection.close()

    @property
    def idle(self) -> bool:
        """Nobody brings anything."""
        return not self._peers

    def close(self) -> None:
        """Whoever is in the midst of something hears that it is in vain."""
        for peer in self._peers.values():
            peer.connection.close()

    def _keep(self, peer: Peer) -> bool:
        number, size = peer.frame()
        if not size:
            peer.take()
            return False
        content = self._room[self._held : self._held + size]
        peer.exactly(content)
        self.kept.append(Frame(peer, number, content))
        self._held += size
        return True
