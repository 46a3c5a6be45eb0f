"""Content of files that another upload of the job stores first: it is read again once that has had its time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice

from ..errors import StoreError
from .beneath import Beneath
from .images import File, open_listed

_AT_ONCE = 1024


class Later:
    """New chunks of a rank's files. About 200 bytes of memory for each."""

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int, int]] = {}

    def add(self, key: bytes, file: int, offset: int, size: int) -> bool:
        """Note a chunk of file number `file`. False: there is one with this key."""
        return self._places.setdefault(key, (file, offset, size)) == (file, offset, size)

    def parts(self, part: int, parts: int) -> Iterator[dict[bytes, tuple[int, int, int]]]:
        """Some at a time: key -> file, offset, size. Replicas have the same: each begins with another part of it."""
        begin = len(self._places) * part // parts
        for first, end in ((begin, len(self._places)), (0, begin)):
            rest = islice(self._places.items(), first, end)
            while some := dict(islice(rest, _AT_ONCE)):
                yield some


class Reader:
    """Reads pieces of a rank's files, one file at a time. Raises StoreError."""

    def __init__(self, files: Sequence[File], beneath: Beneath) -> None:
        self._files, self._beneath = files, beneath
        self._opened = self._source = -1

    def read(self, file: int, offset: int, room: memoryview) -> None:
        """Fill `room`."""
        path = self._files[file].path
        try:
            if file != self._opened:
                self.close()
                self._opened, self._source = file, open_listed(self._beneath, self._files[file])
            if os.preadv(self._source, [room], offset) != len(room):
                raise StoreError(f"image file {path} changed while it was stored")
        except OSError as error:
            raise StoreError(f"cannot read image file {path}: {error}") from error

    def close(self) -> None:
        """Nothing is open any more."""
        if self._source >= 0:
            os.close(self._source)
        self._opened = self._source = -1
