"""Between "every rank waits at this boundary" and "go on": no sockets, no shared memory, nothing that names this pod.

Files, all written atomically, all in RUN_DIR/rank-<r>; each names the `generation` that it is about:

    frozen.json     agent     {"generation", "pid", "step", "sockets", "threads", "devices"}: may be dumped
    resume.json     launcher  {"generation", "restore_id", "master_addr", "master_port", "env", "devices"}: go on;
                              `devices`: UUID of a GPU -> of the one that has taken its place; `ended`: ranks that
                              do not come any more
    resumed.json    agent     {"generation", "restore_id", "seconds"}: communication is rebuilt
    refused.json    agent     {"message"}: why the rank cannot be saved (`guard`); the page has the generation

The other ranks drop their communication at the same time, so this one has to drop its own and meet them anew, whatever
goes wrong. An error on the way down makes the rank say that it cannot be saved; the launcher then tells all ranks to go
on. An error while communication is rebuilt cannot be passed over: the script would compute without the others, or wait
for ever. Steps that may not have begun on the other ranks are tried again. After that the process ends at once, like a
process that has lost a peer. The attempt is lost, and the job goes on from its last checkpoint. The script cannot catch
that.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..protocol import names, page
from . import fork, gate, gpu_names, groups, guard, resume_order, store, work
from .boundary import Boundary
from .guard import write_json

POLL_S = 0.01
LET_END_S = 5.0
"""Operations that are under way have this time to end after the command to go on. The command comes early where another
rank has refused the stop. An operation that the ranks have agreed on may not even have left its thread then."""
TRIES = 3
"""Number of tries to rebuild communication, unless an error of torch ends them before."""
_devices: list[str] = []
_seconds = 0.0
"""Duration of the last meeting with the other ranks."""


Step = Callable[[Boundary], None]


def freeze(boundary: Boundary, generation: int) -> None:
    """Release everything that ties the rank to this pod, wait for the order to go on, and set it all up again.

    Raises nothing but what an error between its steps raises; to be called again then.
    """
    _stand(boundary, generation, _DOWN, lambda: _meet(boundary, generation))


def freeze_in_place(boundary: Boundary, generation: int, save: Step) -> None:
    """The same for a rank that saves its state by itself: its communication stays, and it never wakes up elsewhere."""
    _stand(boundary, generation, {"while its state was saved": save, **_SAY}, lambda: None)


def go_on(boundary: Boundary, generation: int, begin: Step) -> None:
    """The rank does not stand: `begin` has copied its state, which is saved while the script goes on."""
    boundary.frozen_for = generation
    if boundary.met_for != generation:
        try:
            begin(boundary)
        except Exception as error:
            guard.took(error, "while its state was copied")
        boundary.met_for = generation
    boundary.unblock()
    boundary.frozen_for = 0


def saved(boundary: Boundary, generation: int, step: int) -> None:
    """Say that the state of stop `generation` is stored where the launcher takes it from. Raises OSError."""
    report = {"generation": generation, "pid": os.getpid(), "step": step}
    write_json(boundary.rank_dir / names.FROZEN_FILE, report)


def freeze_beside(boundary: Boundary, generation: int, save: Step) -> None:
    """`freeze` of a rank that saves its state before, as long as it can talk to the others."""
    down = {"while its state was saved": save, **_DOWN}
    _stand(boundary, generation, down, lambda: _meet(boundary, generation))


def _stand(boundary: Boundary, generation: int, down: Mapping[str, Step], up: Callable[[], None]) -> None:
    boundary.frozen_for = generation
    if boundary.met_for != generation:
        for doing, step in down.items():
            try:
                step(boundary)
            except Exception as error:
                guard.took(error, doing)
        _wait(boundary)
        up()
    boundary.met_for = generation
    _resume(boundary, generation)
    boundary.frozen_for, boundary.order = 0, {}


def _quiet(boundary: Boundary) -> None:
    """Nothing runs on GPUs, and no operation is under way."""
    torch = sys.modules.get("torch")
    _devices.clear()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        _devices.extend(gpu_names.used_devices(torch.cuda))


def _finish(boundary: Boundary) -> None:
    """Issued operations end, because a consistent cut has been agreed on. Other threads leave their operations."""
    error: Exception | None = None
    ordered: float | None = None
    while True:
        error = work.finish() or error
        if gate.idle():
            break
        now = time.monotonic()
        if ordered is None and _order(boundary) is not None:
            ordered = now
        if ordered is not None and now - ordered >= LET_END_S:
            raise RuntimeError("an operation of another thread of the script has not ended")
        time.sleep(POLL_S)
    error = work.finish() or error
    if error is not None:
        raise RuntimeError(f"an operation of the script has failed: {error}")


def _let_go(boundary: Boundary) -> None:
    groups.drop()
    store.drop(boundary.rank, boundary.frozen_for)


def _tidy(boundary: Boundary) -> None:
    gc.collect()  # the backends' sockets close when the last reference is gone, and some are in cycles
    fork.forget()
    give_back()


def _leave_page(boundary: Boundary) -> None:
    boundary.close(page.STATE_FROZEN)


def _say(boundary: Boundary) -> None:
    if boundary.refused >= boundary.frozen_for:
        boundary.say_refused()
        return
    report = {
        "generation": boundary.frozen_for,
        "pid": os.getpid(),
        "step": boundary.count,
        "sockets": fork.tcp_sockets(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "devices": _devices,
    }
    write_json(boundary.rank_dir / names.FROZEN_FILE, report)


_SAY: dict[str, Step] = {
    "before the barrier page was left": _leave_page,
    "before the rank was saved": _say,
}
_DOWN: dict[str, Step] = {
    "before the GPUs stood still": _quiet,
    "while operations were under way": _finish,
    "before communication was dropped": _let_go,
    "after communication was dropped": _tidy,
    **_SAY,
}


def give_back() -> None:
    """Memory that the C library's allocator holds and nobody uses goes back to the system instead of into the
    checkpoint. It is the remains of activations, which differ from replica to replica. Takes milliseconds; glibc
    only."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # some builds of Python have none

        ctypes.CDLL(None).malloc_trim(0)


def _order(boundary: Boundary) -> dict[str, Any] | None:
    """The order to go on after the stop that the rank is frozen for; an older one may lie there still."""
    order = resume_order.read(boundary.rank_dir)
    return order if order is not None and order["generation"] >= boundary.frozen_for else None


def _wait(boundary: Boundary) -> None:
    """Poll by path, no descriptor held: the process may wake up in another pod. No deadline: the launcher owns it.

    More waiting repairs every error here.
    """
    told = False
    while not boundary.order:
        try:
            boundary.say_refused()
            boundary.order = _order(boundary) or {}
            if not boundary.order:
                time.sleep(POLL_S)
        except Exception as error:
            if not told:  # once: this may go on as long as the stop does
                told = True
                guard.took(error, "while the rank waited to go on")


def _meet(boundary: Boundary, generation: int) -> None:
    """Set up communication again. Does not return if that is impossible."""
    error = _tried(lambda: _rebuild(boundary, generation), torch_is_final=True)
    if error is not None:
        guard.end_process(boundary.rank, boundary.rank_dir, error)


def _resume(boundary: Boundary, generation: int) -> None:
    """The script can go on; what is missing to the next stop is."""
    started = time.monotonic()
    _tried(lambda: (boundary.rank_dir / names.RESUME_FILE).unlink(missing_ok=True))
    error = _tried(boundary.open)
    if error is not None:
        guard.report(f"training goes on, but this rank can no longer be checkpointed: {error}")
        text = f"after the last stop: {error}"
        _tried(lambda: boundary.refuse_always(text))
    seconds = time.monotonic() - started + _seconds
    done = {"generation": generation, "restore_id": boundary.order["restore_id"], "seconds": seconds}
    _tried(lambda: write_json(boundary.rank_dir / names.RESUMED_FILE, done))


def _tried(step: Callable[[], None], torch_is_final: bool = False) -> Exception | None:
    """Call `step` until it succeeds, at most `TRIES` times. Returns why it did not.

    :param torch_is_final: not again after an error of torch or of the C++ below it: the other ranks have seen us begin
    """
    failed: Exception | None = None
    for _ in range(TRIES):
        try:
            step()
            return None
        except Exception as error:
            failed = error
            if torch_is_final and isinstance(error, RuntimeError):
                return error
    return failed


def _rebuild(boundary: Boundary, generation: int) -> None:
    global _seconds
    started = time.monotonic()
    order = boundary.order
    address, port = str(order["master_addr"]), int(order["master_port"])
    os.environ.update({str(k): str(v) for k, v in order.get("env", {}).items()})
    resume_order.meet_at(address, port)
    if order.get("devices"):
        gpu_names.moved(order.pop("devices"))
    if store.stores or groups.backends:
        if store.dropped_for != generation:  # it failed before
            store.drop(boundary.rank, generation)
        before = fork.seen()
        ended = [int(other) for other in order.get("ended", [])]
        tcp_store = sys.modules["torch._C._distributed_c10d"].TCPStore
        store.rebuild(tcp_store, generation, boundary.rank, address, port, ended)
        fork.communication(before)
        groups.rebuild(generation, boundary.rank, ended)
        guard.report(f"rank {boundary.rank} meets the others at {address}:{port}")
    _seconds = time.monotonic() - started
