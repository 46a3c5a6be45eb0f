"""Takes a rank's pages from CRIU and drops them: a dump that only shows that the rank can be saved.

The pages are passed on by reference, so nothing is copied. CRIU is never killed in the midst of a dump, which would
leave broken ranks: what ends a trial early is the server, which goes away. CRIU's dump then fails in order.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import NamedTuple

from ..errors import DumpError
from . import page_stream


class Nowhere(NamedTuple):
    """:param withdrawn: once there is such a file, the trial gives way
    :param deadline: of the monotonic clock, which all processes of a machine share
    """

    withdrawn: Path
    deadline: float


def drop(peer: socket.socket, trial: Nowhere) -> None:
    """Take everything that CRIU sends. Raises DumpError, OSError; also when the trial has to end."""
    for what in page_stream.read(peer):
        if isinstance(what, page_stream.Opened):
            continue
        content = what[1]
        while content.left:
            check(trial)
            content.skip(min(content.left, page_stream.BLOCK))
    page_stream.accept(peer)


def check(trial: Nowhere) -> None:
    """Raises DumpError: the trial has to end."""
    if trial.withdrawn.exists():
        raise DumpError("the trial gives way to a checkpoint")
    if time.monotonic() > trial.deadline:
        raise DumpError("the trial has taken longer than it may")
