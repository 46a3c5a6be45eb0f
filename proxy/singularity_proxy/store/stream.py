"""Pages that come from the launcher while the ranks are dumped (`page_frames`): cut, named and packed as they arrive.

The bytes that are named are the bytes that are stored: they lie in one buffer, and nobody else can write to it. Nothing
goes to the disk, except what another pod of the job stores first, which waits there (`spill`). Where the disk has no
room for that, it is stored at once: the job pays with bytes of the store, not with its checkpoint.

Where the ranks train on after the dump, all of it is received before anything is cut (`intake`).

Nothing counts before the launcher has said that its dump was good. `Upload.put` then wants every file that the images'
list names, with all of its bytes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ..protocol import page_frames
from . import chunking, memory, segments
from .intake import Arena, Intake, Peer
from .packer import Packer
from .segments import Packed
from .spill import Spill
from .upload import Streamed, Upload

_MOST: Final = 1 << 62
log = logging.getLogger(__name__)


class Socket:
    """Where launchers bring pages. Made before they get the order.

    :param path: of the socket; what is there is replaced. Raises OSError
    :param spill: bytes of the disk that may keep what another pod stores first. What is more is stored at once
    :param arena: takes in everything before the upload begins; None: the upload takes it as it comes
    """

    def __init__(self, path: Path, spill: int = _MOST, arena: Arena | None = None) -> None:
        self.spill = spill
        self._arena = arena
        self._intake: Intake | None = None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # an address has at most 107 bytes
            self.listener.listen(64)
        finally:
            os.close(folder)

    def received(self, growing: Callable[[], bool], cancelled: Callable[[], bool]) -> Intake:
        """Take everything into the arena that comes while `growing()`, if there is an arena."""
        self._intake = Intake(self.listener, self._arena.room if self._arena else memoryview(b""))
        if self._arena is not None:
            self._intake.receive(growing, cancelled)
        return self._intake

    def close(self) -> None:
        """Whoever waits for an answer hears that there will be none."""
        self.listener.close()
        if self._intake is not None:
            self._intake.close()


class _File:
    """A file of pages, as far as it has come."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.size = 0
        self.chunks = Packed()


class _Rank:
    """What has come of one rank."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        self.number = 0
        self.held = 0
        """Bytes in `room`, of file `number`, that are not cut yet."""
        self.room = memory.room(segments.ROOM)


class Stream:
    """Takes pages for one upload whose `put` comes later. One thread.

    Memory: a segment for each rank. :param spill: folder for what waits on the disk
    """

    def __init__(self, upload: Upload, intake: Intake, spill: Path, spill_most: int) -> None:
        self._upload = upload
        self._intake = intake
        self._spill_folder, self._spill_most = spill, spill_most
        self._ranks: dict[Peer, _Rank] = {}
        self._packer = Packer(upload.draft, partial(upload.store, counts=False))
        self._spill: Spill | None = None
        self._waiting: set[bytes] = set()
        """Keys of the spill."""

    @property
    def stored(self) -> int:
        """Bytes handed to the writers."""
        return self._packer.stored

    def follow(self, growing: Callable[[], bool]) -> None:
        """What was received before, then what comes until `growing()` is false. Raises StoreError: the store failed, or
        the upload was cancelled."""
        self._work_off()
        while growing():
            self._upload.check()
            for peer in self._intake.ready():
                self._intake.attend(peer, self._heard)
                if self._intake.idle:
                    self._packer.flush()  # other pods may look for it
        self._packer.flush()
        if self._spill is not None:
            self._spill.flush()
            self._upload.spill = self._spill

    def _work_off(self) -> None:
        for peer, number, content in self._intake.kept:
            self._upload.check()
            if not peer.broken:
                self._frame(peer, number, len(content), partial(_copy, content))
        for peer in [peer for peer in self._ranks if peer.whole]:
            self._end(peer)

    def _heard(self, peer: Peer) -> bool:
        """One frame. False: nothing more is to come. Raises OSError, EOFError, StoreError."""
        number, size = peer.frame()
        if size:
            self._frame(peer, number, size, peer.exactly)
            return True
        self._end(peer)
        peer.take()
        return False

    def _end(self, peer: Peer) -> None:
        """All of this rank has come."""
        rank = self._ranks.pop(peer, None) or _Rank()
        self._cut(rank, final=True)
        for of_file, file in rank.files.items():
            streamed = Streamed(page_frames.file_name(of_file), file.size, file.chunks)
            self._upload.streamed.setdefault(peer.rank, {})[streamed.name] = streamed

    def _frame(self, peer: Peer, number: int, size: int, fill: Callable[[memoryview], None]) -> None:
        """Raises OSError, EOFError, StoreError."""
        rank = self._ranks.get(peer)
        if rank is None:
            rank = self._ranks[peer] = _Rank()
        if number != rank.number:
            self._cut(rank, final=True)
            rank.number = number
            rank.files[number] = _File(self._upload.part[0])
        if rank.held + size > len(rank.room):
            self._cut(rank, final=False)
        fill(rank.room[rank.held : rank.held + size])
        rank.held += size

    def _cut(self, rank: _Rank, final: bool) -> None:
        """Name what has come, and take what is new. What may belong to a longer chunk stays."""
        if not rank.held:
            return
        file, data = rank.files[rank.number], rank.room[: rank.held]
        ends = chunking.ends(data, final)
        chunks = segments.keyed(data, ends)
        wanted, file.group = self._upload.missing(chunks.keys, file.group)
        for index, first in wanted:
            self._take(chunks.keys[index], data[ends[index] - chunks.sizes[index] : ends[index]], first=first)
        at = ends[-1] if ends else 0
        file.chunks.extend(chunks)
        file.size += at
        rest = rank.held - at
        rank.room[:rest] = bytes(data[at:])
        rank.held = rest

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


def _copy(content: memoryview, part: memoryview) -> None:
    part[:] = content
