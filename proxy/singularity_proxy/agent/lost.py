"""Did this rank end because another one was gone?

A pod that is killed takes the connections of all other ranks with it, and their scripts end with an error that is not
theirs. The rank leaves a note for its launcher, so that the Job does not fail because of it: only the lost pod counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..protocol import names

_GLOO = ("gloo/transport/", "connection closed by peer", "connection reset by peer", "broken pipe")
_STORE = ("distnetworkerror", "diststoreerror")
"""torch's own classes for a rendezvous that broke off; by name, as the agent must not import torch."""


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether `error`, or what it came from, is a connection to another rank that broke."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        kinds = {kind.__name__.lower() for kind in type(error).__mro__}
        if kinds & set(_STORE):
            return True
        # torch raises what gloo says as a plain RuntimeError; a user's own ConnectionError is something else.
        text = str(error).lower()
        if isinstance(error, RuntimeError) and any(words in text for words in _GLOO):
            return True
        error = error.__cause__ or error.__context__
    return False


def note(rank_dir: Path) -> None:
    """At the end of the process: leave the note if an uncaught error shows a lost peer. Never raises."""
    # Set by the interpreter before it prints the traceback, whoever has replaced sys.excepthook.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if is_lost_peer(error):
        try:
            (rank_dir / names.LOST_PEER_FILE).write_text(str(error)[:1000])
        except OSError:
            return
