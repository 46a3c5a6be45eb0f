"""Pages that come from the launcher while the ranks are dumped (`page_frames`): cut, named and packed as they arrive.

The bytes that are named are the bytes that are stored: they lie in one buffer, and nobody else can write to it. Nothing
goes to the disk, except what another pod of the job stores first, which waits there (`spill`). Where the disk has no
room for that, it is stored at once: the job pays with bytes of the store, not with its checkpoint.

Nothing counts before the launcher has said that its dump was good. `Upload.put` then wants every file that the images'
list names, with all of its bytes.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ..protocol import page_frames
from . import chunking, memory, segments
from .packer import Packer
from .segments import Packed
from .spill import Spill
from .upload import Streamed, Upload

POLL_S: Final = 0.05
PATIENCE_S: Final = 30.0
"""How long a launcher may stand still in the midst of a frame."""
_MOST: Final = 1 << 62
log = logging.getLogger(__name__)


class Socket:
    """Where launchers bring pages. Made before they get the order.

    :param path: of the socket; what is there is replaced. Raises OSError
    :param spill: bytes of the disk that may keep what another pod stores first. What is more is stored at once
    """

    def __init__(self, path: Path, spill: int = _MOST) -> None:
        self.spill = spill
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # an address has at most 107 bytes
            self.listener.listen(64)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Whoever waits for an answer hears that there will be none."""
        self.listener.close()


class _File:
    """A file of pages, as far as it has come."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.size = 0
        self.chunks = Packed()


class _Peer:
    """One rank's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(PATIENCE_S)
        self.rank = -1
        self.files: dict[int, _File] = {}
        self.number = 0
        self.held = 0
        """Bytes in `room`, of file `number`, that are not cut yet."""
        self.room = memory.room(segments.ROOM)

    def exactly(self, part: memoryview) -> None:
        """Raises OSError, EOFError."""
        while part:
            got = self.connection.recv_into(part, 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError
            part = part[got:]

    def words(self) -> tuple[int, int]:
        data = bytearray(page_frames.WORDS.size)
        self.exactly(memoryview(data))
        first, second = page_frames.WORDS.unpack(data)
        return first, second


class Stream:
    """Takes pages for one upload whose `put` comes later. One thread.

    Memory: a segment for each rank. :param spill: folder for what waits on the disk
    """

    def __init__(self, upload: Upload, where: Socket, spill: Path) -> None:
        self._upload = upload
        self._listener = where.listener
        self._spill_folder, self._spill_most = spill, where.spill
        self._peers: dict[int, _Peer] = {}
        self._packer = Packer(upload.draft, partial(upload.store, counts=False))
        self._spill: Spill | None = None
        self._waiting: set[bytes] = set()
        """Keys of the spill."""

    @property
    def stored(self) -> int:
        """Bytes handed to the writers."""
        return self._packer.stored

    def follow(self, growing: Callable[[], bool]) -> None:
        """Until `growing()` is false. Raises StoreError: the store failed, or the upload was cancelled."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        try:
            while growing():
                self._upload.check()
                for descriptor, _ in poll.poll(POLL_S * 1000):
                    if descriptor == self._listener.fileno():
                        connection, _ = self._listener.accept()
                        self._peers[connection.fileno()] = _Peer(connection)
                        poll.register(connection, select.POLLIN)
                    elif not self._heard(self._peers[descriptor]):
                        poll.unregister(descriptor)
                        self._peers.pop(descriptor).connection.close()
                        if not self._peers:
                            self._packer.flush()  # other pods may look for it
            self._hand_over()
        finally:
            for peer in self._peers.values():
                peer.connection.close()

    def _heard(self, peer: _Peer) -> bool:
        """One frame. False: nothing more is to come."""
        try:
            if peer.rank < 0:
                magic, peer.rank = peer.words()
                return magic == page_frames.MAGIC
            number, size = peer.words()
            if size:
                self._frame(peer, number, size)
                return True
            self._cut(peer, final=True)
            for of_file, file in peer.files.items():
                streamed = Streamed(page_frames.file_name(of_file), file.size, file.chunks)
                self._upload.streamed.setdefault(peer.rank, {})[streamed.name] = streamed
            peer.connection.sendall(page_frames.TAKEN)
        except (OSError, EOFError) as error:
            log.warning("pages of rank %d end in the midst: %s", peer.rank, error or "the launcher went away")
        return False

    def _frame(self, peer: _Peer, number: int, size: int) -> None:
        """Raises OSError, EOFError, StoreError."""
        if size > page_frames.LONGEST:
            raise OSError(f"a frame of {size} bytes")
        if number != peer.number:
            self._cut(peer, final=True)
            if number in peer.files:
                raise OSError(f"file {number} goes on after another one")
            peer.number = number
            peer.files[number] = _File(self._upload.part[0])
        if peer.held + size > len(peer.room):
            self._cut(peer, final=False)
        peer.exactly(peer.room[peer.held : peer.held + size])
        peer.held += size

    def _cut(self, peer: _Peer, final: bool) -> None:
        """Name what has come, and take what is new. What may belong to a longer chunk stays."""
        if not peer.held:
            return
        file, data = peer.files[peer.number], peer.room[: peer.held]
        ends = chunking.ends(data, final)
        chunks = segments.keyed(data, ends)
        wanted, file.group = self._upload.missing(chunks.keys, file.group)
        for index, first in wanted:
            self._take(chunks.keys[index], data[ends[index] - chunks.sizes[index] : ends[index]], first=first)
        at = ends[-1] if ends else 0
        file.chunks.extend(chunks)
        file.size += at
        rest = peer.held - at
        peer.room[:rest] = bytes(data[at:])
        peer.held = rest

    def _take(self, key: bytes, chunk: memoryview, *, first: bool) -> None:
        if key in self._waiting:
            return
        if not first and not self._spilling().full:
            self._spilling().add(key, chunk)
            self._waiting.add(key)
            return
        room = self._packer.room(key, len(chunk))
        if room is not None:
            room[:] = chunk

    def _spilling(self) -> Spill:
        if self._spill is None:
            self._spill = Spill(self._spill_folder, self._spill_most)
        return self._spill

    def _hand_over(self) -> None:
        self._packer.flush()
        if self._spill is not None:
            self._spill.flush()
            self._upload.spill = self._spill
