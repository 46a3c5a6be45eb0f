"""Dump of the pod's ranks, and letting dumped or frozen ranks go on in place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import criu, device, image, scan
from .errors import DumpError, SlotError
from .paths import Paths
from .slot import Slot

POLL_S = 0.01
Slots = Mapping[int, Slot]


def dump(
    slots: Slots,
    paths: Paths,
    tool: criu.Criu,
    generation: int,
    checkpoint_id: str,
    deadline: float,
    devices: device.Backend,
) -> None:
    """Images of all ranks to IMAGE_DIR/<checkpoint_id>; afterwards the ranks are stopped, and can be resumed.

    `deadline`: Unix seconds. Raises DumpError; the ranks are then still there, frozen, and can be resumed.
    """
    frozen = {rank: _wait_frozen(slot, paths, generation, deadline) for rank, slot in slots.items()}
    _check(slots)
    devices.suspend({rank: scan.processes(slot.init) for rank, slot in slots.items()}, deadline)
    with ThreadPoolExecutor(len(slots)) as pool:
        jobs = [
            pool.submit(_dump_rank, slots[rank], paths, tool, checkpoint_id, deadline, frozen[rank], devices)
            for rank in slots
        ]
    problems = [str(error) for job in jobs if (error := job.exception()) is not None]
    if problems:
        raise DumpError("; ".join(problems))


def _wait_frozen(slot: Slot, paths: Paths, generation: int, deadline: float) -> dict[str, Any]:
    path = paths.control(slot.rank) / f"frozen-{generation}.json"
    while True:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads(path.read_text()))
        if slot.poll() is not None:
            raise DumpError(f"rank {slot.rank} has ended, with code {slot.poll()}")
        if time.time() > deadline:
            raise DumpError(f"rank {slot.rank} did not freeze for generation {generation} before the deadline")
        time.sleep(POLL_S)


def _check(slots: Slots) -> None:
    """Refuse what could be dumped but not restored."""
    pids = {rank: scan.processes(slot.init) for rank, slot in slots.items()}
    sockets = [f"rank {rank}: {text}" for rank, group in pids.items() for text in scan.tcp_sockets(group)]
    if sockets:
        raise DumpError(
            f"{len(sockets)} TCP sockets are still open: {'; '.join(sockets[:6])}. Connections that the program opened "
            "itself must be closed at step boundaries"
        )
    projected = [f"rank {rank}: {text}" for rank, group in pids.items() for text in scan.projected_files(group)]
    if projected:
        raise DumpError(
            f"files of projected volumes (ConfigMap, Secret, token) are open: {'; '.join(projected[:6])}. Their paths "
            "differ in every pod: read such files and close them"
        )


def _dump_rank(
    slot: Slot,
    paths: Paths,
    tool: criu.Criu,
    checkpoint_id: str,
    deadline: float,
    frozen: dict[str, Any],
    devices: device.Backend,
) -> None:
    images, logs = paths.image(checkpoint_id, slot.rank), paths.criu_work(checkpoint_id, slot.rank)
    for folder in (images, logs):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    work = paths.work(slot.rank)
    written = scan.written_files(scan.processes(slot.init), work)
    slot.hold(True)
    try:
        problem = criu.run(slot, tool.dump(slot.root, images, logs), deadline - time.time())
    finally:
        slot.hold(False)
    if problem:
        lines = criu.errors(logs / criu.DUMP_LOG)
        raise DumpError(f"rank {slot.rank}: CRIU dump {problem}. {' | '.join(lines)}")
    sizes = [image.WrittenFile(str(path), path.stat().st_size) for path in written if path.exists()]
    log_size = paths.log(slot.rank).stat().st_size
    image.pack(work, images / image.WORK_TAR, without=paths.log(slot.rank).name)  # it was shown
    image.pack(slot.shm, images / image.SHM_TAR)
    record = image.RankRecord(slot.rank, slot.root, int(frozen["step"]), str(frozen["python"]), log_size, sizes)
    on_device = devices.record(scan.processes(slot.init), frozen.get("devices") or [])
    if on_device is not None:
        device.write(images, on_device)
    image.write_record(images, record)


def write_resume(paths: Paths, rank: int, generation: int, address: str, port: int, env: Mapping[str, str]) -> str:
    """Tell a frozen rank to go on. Returns the id that its answer will carry, unique."""
    restore_id = uuid.uuid4().hex
    order = {"restore_id": restore_id, "master_addr": address, "master_port": port, "env": dict(env)}
    path = paths.control(rank) / f"resume-{generation}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(order))
    temporary.replace(path)
    return restore_id


def clear_control(folder: Path) -> None:
    """Remove orders and answers of earlier stops from a rank's control directory."""
    for path in folder.glob("re*-*.json"):
        path.unlink(missing_ok=True)


def resume(
    slots: Slots,
    paths: Paths,
    generation: int,
    address: str,
    port: int,
    env: Mapping[str, str],
    devices: device.Backend,
) -> list[str]:
    """Ranks frozen for `generation`, stopped by a dump or not, go on. One that is not frozen is not disturbed.

    Returns what went wrong: a rank that does not get its device back goes on, and its next device call fails.
    """
    problems = []
    for rank, slot in slots.items():
        (paths.control(rank) / f"frozen-{generation}.json").unlink(missing_ok=True)
        write_resume(paths, rank, generation, address, port, env)
        with contextlib.suppress(SlotError, OSError):
            for path in slot.shm.glob("link_remap.*"):  # CRIU's, of a dump that nobody restored here
                path.unlink(missing_ok=True)
            pids = scan.processes(slot.init)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # ended by one that goes on already
                    os.kill(pid, signal.SIGCONT)
            try:
                devices.resume(pids)
            except DumpError as error:
                problems.append(f"rank {rank}: {error}")
    return problems
