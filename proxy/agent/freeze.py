"""Between "every rank waits at this boundary" and "go on": no sockets, no shared memory, nothing that names this pod.

Files, all written atomically, all in RUN_DIR/rank-<r>:

    frozen-<generation>.json    agent     {"pid", "step", "sockets", "threads", "devices"}: may be dumped
    resume-<generation>.json    launcher  {"restore_id", "master_addr", "master_port", "env", "devices"}: go on;
                                          `devices`: UUID of a GPU -> of the one that has taken its place
    resumed-<generation>.json   agent     {"restore_id", "seconds"}: communication is rebuilt
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol import names, page
from . import comm, fork, hooks

if TYPE_CHECKING:
    from .boundary import Boundary

POLL_S = 0.01
_moves: list[dict[str, str]] = []
"""What each restore has put in the place of which GPU: torch knows a GPU by the UUID that it saw first."""


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Readers see the whole text or no file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)


def freeze(boundary: Boundary, generation: int) -> None:
    """Give up everything that ties the rank to this pod, wait for the word to go on, take it all up again."""
    torch = sys.modules.get("torch")
    devices: list[str] = []
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        devices = used_devices(torch.cuda)
    comm.drop()
    gc.collect()  # the backends' sockets close when the last reference is gone, and some are in cycles
    fork.forget()
    give_back()
    boundary.close(page.STATE_FROZEN)
    report = {
        "pid": os.getpid(),
        "step": boundary.count,
        "sockets": fork.tcp_sockets(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "devices": devices,
    }
    frozen = boundary.rank_dir / f"frozen-{generation}.json"
    write_json(frozen, report)
    order = _wait_for(boundary.rank_dir / f"resume-{generation}.json")
    _resume(boundary, generation, order)


def give_back() -> None:
    """What the C library's allocator holds and nobody uses goes back to the system instead of into the checkpoint: the
    remains of activations, which differ from replica to replica. Takes milliseconds; glibc only."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # some builds of Python have none

        ctypes.CDLL(None).malloc_trim(0)


def used_devices(cuda: Any) -> list[str]:
    """UUIDs of the GPUs that this process has memory on, or is set to."""
    numbers = {n for n in range(cuda.device_count()) if cuda.memory_reserved(n)} | {cuda.current_device()}
    return [uuid(cuda, n) for n in sorted(numbers)]


def uuid(cuda: Any, number: int) -> str:
    """UUID of the GPU that this process calls `number`, wherever it is by now."""
    found = f"GPU-{cuda.get_device_properties(number).uuid}"
    for moved in _moves:
        found = moved.get(found, found)
    return found


def adopt_address() -> None:
    """Before the first rendezvous: the job may have moved since this process was started, and the others with it."""
    orders = sorted(Path(os.environ[names.ENV_RANK_DIR]).glob("resume-*.json"), key=lambda p: p.stat().st_mtime)
    if orders:
        order = json.loads(orders[-1].read_text())
        os.environ.update(MASTER_ADDR=str(order["master_addr"]), MASTER_PORT=str(order["master_port"]))


def _wait_for(path: Path) -> dict[str, Any]:
    """Poll by path, no descriptor held: the process may wake up in another pod. No deadline: the launcher owns it."""
    while True:
        try:
            order = json.loads(path.read_text())
        except FileNotFoundError:
            time.sleep(POLL_S)
            continue
        path.unlink(missing_ok=True)
        return dict(order)


def _resume(boundary: Boundary, generation: int, order: dict[str, Any]) -> None:
    started = time.monotonic()
    address, port = str(order["master_addr"]), int(order["master_port"])
    os.environ.update({str(k): str(v) for k, v in order.get("env", {}).items()})
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    if order.get("devices"):
        _moves.append({str(k): str(v) for k, v in order["devices"].items()})
    if comm.stores or comm.backends:
        comm.rebuild(generation, boundary.rank, address, port)
    try:
        boundary.open()
    except (OSError, ValueError) as error:
        hooks.report(f"training goes on, but this rank can no longer be checkpointed: {error}")
    done = {"restore_id": order["restore_id"], "seconds": time.monotonic() - started}
    write_json(boundary.rank_dir / f"resumed-{generation}.json", done)
