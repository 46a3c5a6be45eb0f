"""The one place where the agent's own errors end: they fail checkpoints, never the script.

The script, torch and the interpreter call functions of the agent. Every such function catches its errors, gives them to
`took`, and does for the script what would have happened without us. `took` tells the launcher, through the barrier page
and a file, that the rank cannot be saved and why (`Boundary.refuse`). This holds for the requested stop. Without a
request it holds from now on, because the agent may have lost count of what it has seen. The launcher fails the
checkpoint at once.

Errors of the script's own operations do not come here. They surface where the script waits for the operation. An error
after communication was dropped cannot be passed over: see `freeze` and `end_process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from ..protocol import names

END_CODE = 1
"""Of a process that cannot go on with the others; with the file `names.LOST_PEER_FILE` the launcher knows why."""
MOST_REPORTS = 20
"""Lines on the rank's stderr, however often something goes wrong."""
_WORD = struct.Struct("=q")
_reports = 0
_rank: Any = None
"""The `Boundary` of this process, once it is a rank."""


def watch(rank: Any) -> None:
    """`rank`, a `Boundary` or None, is the rank that an error concerns from now on."""
    global _rank
    _rank = rank


def report(message: str) -> None:
    """One line on the rank's stderr. Never raises: the script may have closed it."""
    try:
        if sys.stderr is not None:  # print would take stdout
            print(f"singularity: {message}", file=sys.stderr, flush=True)
    except Exception:
        return


def took(error: Exception, doing: str) -> None:
    """`error` came up in the agent while it was `doing` something.

    Raises nothing but `error` itself, and that only if a signal handler of the script's raised it.
    """
    if from_a_handler(error):
        raise error
    with contextlib.suppress(Exception):
        _take(error, doing)


def _take(error: Exception, doing: str) -> None:
    global _reports
    _reports += 1
    text = f"{doing}: {type(error).__name__}: {error}"
    if _reports <= MOST_REPORTS:
        where = traceback.extract_tb(error.__traceback__)
        at = f" ({Path(where[-1].filename).name}:{where[-1].lineno})" if where else ""
        report(f"an error of the checkpoint agent, the script goes on: {text}{at}")
    if _rank is not None:
        _rank.refuse(text)


def from_a_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised `error`: it runs wherever the main thread is, also in us."""
    try:
        handlers = (signal.getsignal(number) for number in signal.valid_signals())
        codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        return any(code in codes and not code.co_filename.startswith(_FOLDER) for code in frames)
    except Exception:
        return False


_FOLDER = str(Path(__file__).parent) + os.sep


def end_process(rank: int, rank_dir: Path, error: BaseException) -> NoReturn:
    """This rank cannot go on with the others: the process ends, so that the attempt is lost and not the job."""
    text = f"rank {rank} cannot meet the others again: {type(error).__name__}: {error}"
    report(f"{text}. The process ends: the job goes on from its last checkpoint")
    try:
        (rank_dir / names.LOST_PEER_FILE).write_text(text[:1000])
    except BaseException:
        os.kill(os.getpid(), signal.SIGKILL)  # an exit code that the job is not failed for
    os._exit(END_CODE)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Readers see the whole text or no file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)


def write_word(path: Path, word: int, value: int) -> None:
    """Into a barrier page that is not mapped. Raises OSError, but none for a full volume: the page has its room."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, _WORD.pack(value), word * _WORD.size)
    finally:
        os.close(descriptor)
