"""Which process is a rank of the job: it claims the barrier page on its first sign of training, or stands aside.

A slot runs the user's command, and whatever that starts: shells, loader workers, a launcher of the script's own. The
first process that takes a step, or meets other ranks, is the rank. A process that cannot be a rank trains on without
checkpoints, and reports that.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ..protocol import names, page
from . import freeze, gate, guard, lost
from .boundary import NEVER, Boundary, Freeze, NoRank

_UNSAFE = ("torch.distributed.distributed_c10d", "torch.distributed.rendezvous")
"""A nudge that interrupts a frame of these modules, or of ours, is repeated: a group or an operation may be half
made."""
_OURS = __name__.rpartition(".")[0] + "."

_boundary: Boundary | None = None
_off = False
_step: Callable[[], None]
"""What a boundary does now: claims the page at first, then counts. One call per step of the script, no decision."""


def _rank() -> int:
    """A plain command of one rank has no variables of torchrun's."""
    return int(os.environ.get("RANK", "0"))


def claim() -> Boundary | None:
    """Make this process the rank, on its first sign of training. None where it is not (a worker, another process)."""
    global _boundary, _off, _step
    if _boundary is not None or _off:
        return _boundary
    boundary: Boundary | None = None
    try:
        boundary = Boundary(Path(os.environ[names.ENV_RANK_DIR]), _rank(), freeze.freeze)
        if os.environ.get(names.ENV_ALONE):
            boundary.done = NEVER
        boundary.open()
        _listen()
        atexit.register(_finish, boundary, os.getpid())
        os.register_at_fork(after_in_child=_forget)
        gate.watch(boundary)
        guard.watch(boundary)
    except Exception as error:
        _off, _step = True, _nothing
        if not os.environ.get(names.ENV_ALONE):  # there it is one of several that train in one slot
            guard.report(f"process {os.getpid()} takes no part in checkpoints: {error}")
        if not isinstance(error, (NoRank, KeyError)):  # without the variables it is not started by a launcher
            if boundary is not None:
                boundary.close(page.STATE_ABSENT)
            give_up(f"at its first sign of training: {error!r}")
        return None
    _boundary, _step = boundary, boundary.step
    return boundary


def lead_by_loop(count: int, freeze: Freeze) -> None:
    """The boundaries are those of a loop that has made `count` steps, and not the optimizer's any more. Nothing
    in a process that is not the rank."""
    global _step
    boundary = claim()
    if boundary is not None:
        boundary.lead_by_loop(count, freeze)
        _step = _nothing


def after_step(count: int) -> None:
    """A boundary of that loop, after `count` steps. Nothing in a process that is not the rank, as a forked child."""
    if _boundary is not None:
        _boundary.count = count - 1
        _boundary.step()


def give_up(why: str) -> None:
    """The agent is incomplete in this process, which may be a rank. So the process must not stop as a rank does. Never
    raises."""
    global _off, _step
    try:
        if _boundary is None:
            _off, _step = True, _nothing
            rank_dir = Path(os.environ[names.ENV_RANK_DIR])
            guard.write_json(rank_dir / names.REFUSED_FILE, {"message": why[:1000]})
            word = page.rank_word(_rank(), page.R_REFUSED)
            guard.write_word(rank_dir.parent / names.PAGE_FILE, word, page.ALWAYS)
        else:
            _boundary.refuse_always(why)
    except Exception as error:
        guard.report(f"the launcher does not know that this rank cannot be checkpointed: {error!r}")


def broke(error: Exception, doing: str) -> None:
    """`error` came up where this process lost hold of what the script has: it cannot be saved from now on.

    Raises as `guard.took`.
    """
    guard.took(error, doing)
    give_up(f"{doing}: {error!r}")


def stranger(rank: int, world_size: int) -> str:
    """Why a process that is about to meet others as `rank` of `world_size` (-1: as the environment says) is no rank of
    the job. It is a process that such a rank has started. "" if it is a rank of the job.

    In a job of several ranks only: where there is one, whatever it starts is saved with it.
    """
    if _boundary is not None or _off:
        return ""
    folder = Path(os.environ[names.ENV_RANK_DIR])
    own = int(folder.name.rpartition("-")[2])
    with open(folder.parent / names.PAGE_FILE, "rb") as file:
        file.seek(8 * page.W_WORLD)
        world = int.from_bytes(file.read(8), sys.byteorder)
    met = world_size if world_size >= 0 else int(os.environ.get("WORLD_SIZE", world))
    if met != world:
        return f"it meets a world of {met} ranks, the job has {world}"
    processes = sys.modules.get("multiprocessing.process")
    child = processes is not None and processes.parent_process() is not None
    if child and rank >= 0 and rank != own:
        return f"it is rank {rank} of the script's own, started by rank {own} of the job"
    return ""


RANKS = (
    "Give the job as many ranks as the script starts (the launcher starts them as torchrun would), or one rank that "
    "starts them all"
)


def stand_aside(why: str, advice: str = RANKS) -> None:
    """This process takes no part in checkpoints."""
    global _off, _step
    _off, _step = True, _nothing
    guard.report(f"process {os.getpid()} takes no part in checkpoints, and its job cannot be saved: {why}. {advice}")


def _listen() -> None:
    """Be nudged by the launcher, unless the script has its own use of the signal, which does nothing by default."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
        signal.signal(signal.SIGURG, _nudged)
        signal.siginterrupt(signal.SIGURG, False)  # calls of the script's libraries go on by themselves


def _nudged(number: int, frame: FrameType | None) -> None:
    """There is a stop request, and no step boundary comes: is this line a place to stop at?"""
    boundary = _boundary
    try:
        if boundary is None or not boundary.asked():
            return
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(_OURS) or name in _UNSAFE:
                return
            frame = frame.f_back
        boundary.meet()
    except Exception as error:
        guard.took(error, "when the launcher asked for a place to stop")


def _finish(boundary: Boundary, pid: int) -> None:
    if os.getpid() == pid:
        try:
            lost.note(boundary.rank_dir)
        except Exception as error:
            guard.took(error, "at the end of the script")
        try:
            boundary.close(page.STATE_FINISHED)
        except Exception as error:
            guard.took(error, "at the end of the script")


def _forget() -> None:
    """A forked child is not the rank, whatever it trains."""
    global _boundary, _off, _step
    _boundary, _off, _step = None, True, _nothing
    gate.watch(None)
    guard.watch(None)
    gate.renew()


def _nothing() -> None:
    pass


def _first_step() -> None:
    boundary = claim()
    if boundary is not None:
        boundary.step()


_step = _first_step


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    try:
        _step()
    except Exception as error:
        guard.took(error, "after a step of the optimizer")


def install(module: ModuleType) -> None:
    """Count a boundary after each step of any optimizer. `module` is torch.optim.optimizer."""
    module.register_optimizer_step_post_hook(_after_step)
