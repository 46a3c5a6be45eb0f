"""The barrier page, as far as the launcher speaks for a rank that has no agent or is stopped anywhere."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ..protocol import names, page

_WORD = struct.Struct("=q")


def _at(rank: int, word: int) -> int:
    return page.rank_word(rank, word) * _WORD.size


def read(run: Path, rank: int, word: int) -> int:
    """Word `word` (page.R_COUNT, ...) of a rank; 0 without a page."""
    return header(run, page.rank_word(rank, word))


def header(run: Path, word: int) -> int:
    """Word `word` (page.W_REQUEST, ...) of the page; 0 without one."""
    try:
        with (run / names.PAGE_FILE).open("rb") as file:
            return int(_WORD.unpack(os.pread(file.fileno(), _WORD.size, word * _WORD.size))[0])
    except (FileNotFoundError, struct.error):
        return 0


def write(run: Path, rank: int, count: int, state: int) -> None:
    """Counter and state of a rank that has not been restored yet. Raises OSError."""
    with (run / names.PAGE_FILE).open("r+b") as file:
        os.pwrite(file.fileno(), _WORD.pack(count), _at(rank, page.R_COUNT))
        os.pwrite(file.fileno(), _WORD.pack(state), _at(rank, page.R_STATE))
