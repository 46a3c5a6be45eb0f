"""Interval timers (timerfd) that had expired and were not read: the kernel arms such a timer anew when it is read.

Until then it says that no time is left, and CRIU would restore a timer that has been switched off. So in its image the
time that is left becomes one interval. What had expired is kept beside it (`ticks`). Fields: `timerfd.proto`.
"""

from __future__ import annotations

from pathlib import Path

from . import files_image
from .protobuf import Field

_FILE_TIMER = 12
"""Field of file_entry."""
_TICKS, _SECONDS, _NANOSECONDS, _EVERY_SECONDS, _EVERY_NANOSECONDS = 5, 7, 8, 9, 10
"""Fields of timerfd_entry."""


def rearm(images: Path) -> None:
    """Let the expired timers of the dumped rank go on.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    files_image.rewrite(images / files_image.FILES, rearmed)


def rearmed(data: bytes) -> bytes:
    """files.img with such timers running. Pure. Raises ValueError."""
    return files_image.mapped(data, _FILE_TIMER, _rearmed)


def _rearmed(entry: list[Field]) -> list[Field]:
    found = {field.number: field.value for field in entry}
    if not found.get(_TICKS) or found.get(_SECONDS) or found.get(_NANOSECONDS):
        return entry
    first = {_SECONDS: found[_EVERY_SECONDS], _NANOSECONDS: found[_EVERY_NANOSECONDS]}
    return [Field(field.number, field.kind, first.get(field.number, field.value)) for field in entry]
