"""What rank 0's program leaves behind when it ends well: from its working directory to where the sidecar takes it.

Not through the log: who prints after it, and how much, must not matter. Until the rank has ended, the file is part of
its working directory and travels with it.
"""

from __future__ import annotations

from pathlib import Path

from ...protocol import decode, messages
from ..ranks import control_files


def hand_over(left: Path, to: Path) -> str:
    """Copy the JSON object that the rank has `left`, if there is one. Returns why that was not possible, or ""."""
    try:
        text = control_files.content(left, messages.RESULT_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{left}: {error.strerror}"
    found = decode.json_value(text, messages.RESULT_BYTES)
    if isinstance(found, decode.Unreadable):
        return f"{left} is {found.why}"
    if not isinstance(found, dict):
        return f"{left} has no JSON object"
    new = to.with_suffix(".new")
    try:
        new.write_bytes(text)
        new.replace(to)
    except OSError as error:
        return f"{to}: {error.strerror}"
    return ""
