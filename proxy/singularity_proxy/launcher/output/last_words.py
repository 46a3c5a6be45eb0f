"""The end of a Python program's traceback in one line: its exception, and where that came from.

It goes into the pod's status, for people and for the planner. A program that fails with the same words on two nodes
has an error of its own.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

LAST: Final = 32 << 10
"""Bytes of the log that are looked at; `tail` keeps the last MiB of a log on the disk."""
FRAMES: Final = 3
MOST: Final = 500
"""Characters; the whole termination message may have 4096 bytes."""
_BEGIN: Final = "Traceback (most recent call last):"
_OF_RANK: Final = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""torch puts it before each line, once a process group is there."""
_FRAME: Final = re.compile(r'^\s+File "(?:.*/)?([^"/]+)", line (\d+), in (.+)$')


def of_file(log: Path) -> str:
    """Of what a rank has printed; "" where there is no traceback, or no log."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LAST))
        return of_text(file.read().replace(b"\0", b"").decode(errors="replace"))
    return ""


def of_text(text: str) -> str:
    """`ValueError: bad (train.py:12 in main, data.py:7 in load)`; "" without a traceback. Pure."""
    _, begin, rest = text.rpartition(_BEGIN)
    if not begin:
        return ""
    frames: list[str] = []
    for line in _OF_RANK.sub("", rest).splitlines()[1:]:
        found = _FRAME.match(line)
        if found is not None:
            frames.append(f"{found[1]}:{found[2]} in {found[3]}")
        elif line and not line[0].isspace():
            where = f" ({', '.join(frames[-FRAMES:])})"[: MOST // 2] if frames else ""
            return line.strip()[: MOST // 2] + where
    return ""
