"""Dump of the pod's ranks, and letting dumped or frozen ranks go on in place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...protocol import image_room, names, page
from .. import device, memory, pagewords, refusal
from ..errors import DumpError, SlotError
from ..laps import Laps
from ..paths import Paths
from ..ranks import control_files, halt, mounts, process_scan, user
from ..ranks.rank import Rank
from ..ranks.slot import Slot
from . import (
    container_layer,
    criu,
    image,
    locks,
    mapped_files,
    mending,
    page_nowhere,
    page_server,
    refusals,
    settings,
    sockets,
    unix_sockets,
    volume_files,
    watches,
)
from .page_nowhere import Nowhere

POLL_S = 0.01
SETTLE_S = 5.0
"""A rank that is stopped anywhere may hold a connection that it closes soon: the dump waits this long for that."""
AGAIN_S = 0.2
PASSES_S = 1.0
"""And this long for what it is about to read or to accept."""
Slots = Mapping[int, Slot]


@dataclass(frozen=True)
class Order:
    """:param deadline: of the monotonic clock
    :param anywhere: the ranks do not freeze, they are stopped where they are
    :param job: addresses of all pods of the job
    :param stream: the sidecar takes the pages of the ranks while they are dumped
    :param memory: ... if they are no more than this many bytes; 0: any number
    :param trial: nothing is kept
    """

    generation: int
    checkpoint_id: str
    deadline: float
    anywhere: bool = False
    job: Collection[str] = ()
    stream: bool = False
    memory: int = 0
    trial: Nowhere | None = None


@dataclass(frozen=True)
class Files:
    """:param since: Unix seconds; later changes in the container's file system count as changes by the job
    :param limit: bytes of files that may travel with a rank
    :param room: bytes that the volume of the images may hold; None: as much as the disk has
    """

    since: float
    limit: int
    room: int | None = None


def dump(
    slots: Slots,
    paths: Paths,
    tool: criu.Criu,
    order: Order,
    files: Files,
    devices: device.Backend,
    laps: Laps,
) -> list[str]:
    """Images of all ranks to IMAGE_DIR/<checkpoint_id>; afterwards the ranks are stopped, and can be resumed.

    `laps` get the phases of `SavePhases`.
    Returns what the user may want to know. Raises DumpError; the ranks are then still there, and can be resumed.
    """
    whys = [why for rank in slots if (why := refusal.read(paths, rank, order.generation))]
    if whys:  # ranks that are stopped anywhere are not waited for, and so not asked below
        raise DumpError("; ".join(whys))
    frozen = {} if order.anywhere else {rank: wait_frozen(slot, paths, order) for rank, slot in slots.items()}
    laps.end("freeze")
    # Processes that stand still could not give up their device.
    images = {rank: paths.image(order.checkpoint_id, rank) for rank in slots}
    for folder in images.values():
        shutil.rmtree(folder, ignore_errors=True)
    if order.trial is not None:
        page_nowhere.check(order.trial)
    devices.suspend({rank: process_scan.processes(slot.init) for rank, slot in slots.items()}, order.deadline, images)
    laps.end("device")
    _stand(slots, paths, order)
    order, told = _into_memory(slots, order)
    changed, travelling = _changed(slots, paths, files)
    _check_room(slots, paths, order, files, travelling)
    real = {rank: _real_ids(slot) for rank, slot in slots.items()}
    for ids in real.values():
        tool.ready_for(ids)
    travels = {view: {f"/{path.relative_to(view)}" for path in found} for view, found in changed.items()}
    killed = memory.oom_kills()
    with ThreadPoolExecutor(len(slots)) as pool:
        jobs = [
            pool.submit(
                _dump_rank, slot, paths, tool, order, frozen.get(rank), files, devices, travels[slot.view], real[rank]
            )
            for rank, slot in slots.items()
        ]
    problems = [str(error) for job in jobs if (error := job.exception()) is not None]
    if problems:
        raise DumpError("; ".join([*problems, *filter(None, [memory.kills_since(killed)])]))
    if order.trial is None:
        for view, found in changed.items():
            ranks = [rank for rank, slot in slots.items() if slot.view == view]
            _pack_layer(view, found, [paths.image(order.checkpoint_id, rank) / image.LAYER_TAR for rank in ranks])
    else:
        shutil.rmtree(paths.images(order.checkpoint_id), ignore_errors=True)
    told += [f"rank {rank}: {text}" for rank, job in zip(slots, jobs, strict=True) if (text := job.result())]
    for rank, slot in slots.items():
        pids = process_scan.processes(slot.init)
        sockets.revive(pids, leading_out=True)
        told += [f"rank {rank}: {text}, kept" for text in sockets.kept(pids)]
        told += [f"rank {rank}: {text}, cut if the rank moves" for text in sockets.cut(pids)]
        told += [f"rank {rank}: {text}, lost if the rank moves" for text in watches.unread(pids)]
    laps.end("dump")
    return told


def _stand(slots: Slots, paths: Paths, order: Order) -> None:
    """Stop what has not frozen, and make sure that everything may be dumped."""
    began = time.monotonic()
    patience, settled = began + SETTLE_S if order.anywhere else 0.0, began + PASSES_S
    while True:
        for slot in slots.values():
            _know_asleep(slot)
            if order.anywhere:
                halt.stop(slot.init, order.deadline, slot.asleep or ())
        if order.anywhere:
            joined = [r for r in slots if pagewords.read(paths.run, r, page.R_STATE) not in page.FREE]
            if joined:
                text = f"ranks {joined} met the others, or ended, while they were about to be stopped"
                raise DumpError(text, passes=True)
        problem = refusals.of(slots, order.job)
        now = time.monotonic()
        if not problem and (now >= min(patience, settled) or not _passes(slots)):
            return
        if problem and now >= min(patience, order.deadline):
            raise DumpError(problem)
        for slot in slots.values():  # a download, say, may be over soon
            let_go(slot)
        time.sleep(AGAIN_S)


def _know_asleep(slot: Slot) -> None:
    """Before anything of the slot is stopped by us: later nobody could tell."""
    if slot.asleep is None:
        slot.asleep = halt.asleep(slot.init)


def let_go(slot: Slot) -> None:
    """What we have stopped goes on; nothing, if that is so already."""
    if slot.asleep is not None:
        halt.let_go(slot.init, slot.asleep)
    slot.asleep = None


def _passes(slots: Slots) -> bool:
    """Whether a rank is about to accept a connection, or to read what its watches saw: neither travels well."""
    groups = [process_scan.processes(slot.init) for slot in slots.values()]
    return any(unix_sockets.waiting(pids) or watches.unread(pids) for pids in groups)


def _into_memory(slots: Slots, order: Order) -> tuple[Order, list[str]]:
    """Not what the sidecar has no memory for: the ranks would wait for the store, which is slower than the disk. Also
    what the user wants to know."""
    if not order.stream or not order.memory:
        return order, []
    pids = [pid for slot in slots.values() for pid in process_scan.processes(slot.init)]
    held = process_scan.memory_bytes(pids, enough=order.memory)
    if held <= order.memory:
        return order, []
    sizes = f"the ranks hold {held / 2**20:.0f} MiB, and checkpoint_memory is {order.memory / 2**20:.0f} MiB"
    return replace(order, stream=False), [f"the checkpoint goes to the disk first: {sizes}"]


def _check_room(slots: Slots, paths: Paths, order: Order, files: Files, travelling: int) -> None:
    """Raises DumpError where the images cannot fit. Half a dump would fill a disk that others of the node need. With
    more than its volume may hold, the kubelet evicts the pod."""
    folder = paths.images(order.checkpoint_id)
    folder.mkdir(parents=True, exist_ok=True)
    there = image_room.of(folder.parent, files.room)
    if order.stream or order.trial is not None:  # no page comes to this disk
        left, needed, what = there.left - there.spill, travelling, "files that travel"
    else:
        pids = [pid for slot in slots.values() for pid in process_scan.processes(slot.init)]
        left, what = there.left, "memory and files"
        needed = process_scan.memory_bytes(pids, enough=left - travelling) + travelling
    if needed > left:
        raise DumpError(
            f"No space left on device for the images: the ranks hold {needed / 2**20:.0f} MiB of {what}, and "
            f"{there.words}. {there.fix}"
        )


def _changed(slots: Slots, paths: Paths, files: Files) -> tuple[dict[Path, list[Path]], int]:
    """What travels of each view of the container's own file system, and the bytes of all files that do; raises
    DumpError when that is too much."""
    points = container_layer.mount_points() | {str(paths.root)}
    changed, common = {}, {}
    for view in {slot.view for slot in slots.values()}:
        within = {str(view / point.lstrip("/")) for point in points}
        changed[view] = container_layer.changed(files.since, view, within)
        sizes = container_layer.sizes(changed[view])
        common[view] = {Path("/", path.relative_to(view)): size for path, size in sizes.items()}
    total = sum(size for found in common.values() for size in found.values())
    for rank, slot in slots.items():
        own = container_layer.sizes(paths.work(rank).rglob("*"))
        deleted = process_scan.deleted_files(process_scan.processes(slot.init))
        container_layer.check_size(rank, {**common[slot.view], **own, **deleted}, files.limit)
        kept = container_layer.sizes(slot.shm.rglob("*"))
        total += sum({**own, **deleted, **kept}.values())
    return changed, total


def _pack_layer(view: Path, changed: list[Path], archives: list[Path]) -> None:
    """One archive for all ranks that see it: in any new pod, a rank finds the files of its old pod."""
    container_layer.pack(changed, archives[0], view)
    for other in archives[1:]:
        os.link(archives[0], other)


def wait_frozen(slot: Rank, paths: Paths, order: Order) -> dict[str, Any]:
    """What the rank says once it has frozen. Raises DumpError."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            frozen = control_files.read(paths.control(slot.rank) / names.FROZEN_FILE)
            if frozen.get("generation") == order.generation and type(frozen.get("step")) is int:
                return frozen
        why = refusal.read(paths, slot.rank, order.generation)
        if why:
            raise DumpError(why)
        if slot.poll() is not None:
            raise DumpError(f"rank {slot.rank} has ended, with code {slot.poll()}")
        if time.monotonic() > order.deadline:
            raise DumpError(f"rank {slot.rank} did not freeze for generation {order.generation} before the deadline")
        time.sleep(POLL_S)


def _real_ids(slot: Slot) -> tuple[int, int]:
    """uid and gid of the rank's processes, which are all the same (`refusals`)."""
    ids = next(iter(user.ids(process_scan.processes(slot.init)).values()), (0,) * 6)
    return ids[0], ids[3]


def _dump_rank(
    slot: Slot,
    paths: Paths,
    tool: criu.Criu,
    order: Order,
    frozen: dict[str, Any] | None,
    files: Files,
    devices: device.Backend,
    travels: set[str],
    real: tuple[int, int],
) -> str:
    """Returns what the user may want to know, "" for nothing. Raises DumpError."""
    images, logs = paths.image(order.checkpoint_id, slot.rank), paths.criu_work(order.checkpoint_id, slot.rank)
    images.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    work = paths.work(slot.rank)
    opened = process_scan.written_files(process_scan.processes(slot.init), work)
    written = [path for path in opened if not path.is_relative_to(mounts.SHM)]  # it travels with the slot
    _forget_links(slot)
    known = mending.known(slot)
    said = _run_criu(slot, tool, order, images, logs, files, real, _drain(paths, slot.rank, order), known)
    mending.mend(images, known)
    volume = volume_files.held(process_scan.processes(slot.init), container_layer.mount_points(), paths.root)
    volume_files.free(images, [file.path for file in volume])
    if order.trial is not None:
        return said
    places = ((path, slot.inside / path.relative_to("/")) for path in written)
    sizes = [image.WrittenFile(str(path), place.stat().st_size) for path, place in places if place.exists()]
    log_size = paths.log(slot.rank).stat().st_size
    image.pack(work, images / image.WORK_TAR, without=paths.log(slot.rank).name)  # it was shown
    image.pack(slot.shm, images / image.SHM_TAR)
    count, state = (pagewords.read(paths.run, slot.rank, word) for word in (page.R_COUNT, page.R_STATE))
    step = int(frozen["step"]) if frozen else count
    held = frozen is None
    pids = process_scan.processes(slot.init)
    taken, cut = [*sockets.occupied(pids), *unix_sockets.abstract(pids)], sockets.cut(pids)
    pod = socket.gethostname()
    only_written = {file.path for file in sizes} - {file.path for file in volume if file.mapped}
    kept = [file for file in volume if file.path not in only_written]
    same = mapped_files.files(pids, {*travels, *(file.path for file in volume)}, paths.root, slot.inside)
    record = image.RankRecord(
        slot.rank, slot.root, step, log_size, sizes, held, state if held else 0, taken, pod, same, cut, *real,
        locks.held(pids), known.watched, kept, [process_scan.inner_pid(pid) for pid in sorted(slot.asleep or ())],
        settings.chosen(pids),
    )  # fmt: skip
    on_device = devices.record(pids, frozen.get("devices") or [] if frozen else None)
    if on_device is not None:
        device.write(images, on_device)
    image.write_record(images, record)
    return said


def _drain(paths: Paths, rank: int, order: Order) -> page_server.Sidecar | Nowhere | None:
    """Where the pages go; None: to the images."""
    if order.trial is not None:
        return order.trial
    return page_server.Sidecar(paths.pages_socket, rank, order.deadline) if order.stream else None


def _run_criu(
    slot: Slot,
    tool: criu.Criu,
    order: Order,
    images: Path,
    logs: Path,
    files: Files,
    real: tuple[int, int],
    drain: page_server.Sidecar | Nowhere | None,
    known: mending.Known,
) -> str:
    """Returns what the page server said. Raises DumpError."""
    pids = process_scan.processes(slot.init)
    # Also for a process without children: CRIU itself would splice its pages into fresh memory of the page cache, which
    # took twice as long as our server's writes past it (`page_disk`).
    server = page_server.PageServer(tool.tools, images, logs, pids, drain)
    problem, told = "was not started", ""
    try:
        argv = tool.dump(slot, images, logs, files.limit, served=True, more=known.words)
        problem = criu.run(slot, argv, order.deadline - time.monotonic(), real, slot.seen(server.socket))
    finally:
        told = server.end(failed=bool(problem))
    if problem or told:
        lines = [*([told] if told else []), *unix_sockets.waiting(pids), *criu.errors(logs / criu.DUMP_LOG)]
        raise DumpError(f"rank {slot.rank}: CRIU dump {problem or 'succeeded'}. {' | '.join(lines)}")
    return server.said


def _forget_links(slot: Slot) -> None:
    """CRIU's, of a dump that nobody restored here: the next one would fail at them."""
    for path in slot.shm.glob("link_remap.*"):
        path.unlink(missing_ok=True)


def write_resume(
    paths: Paths,
    rank: int,
    generation: int,
    address: str,
    port: int,
    env: Mapping[str, str],
    devices: Mapping[str, str] | None = None,
    ended: Sequence[int] = (),
) -> str:
    """Tell a frozen rank to go on. Returns the id that its answer will carry, unique.

    An order for a later stop stays: the rank may not have read it yet.

    :param devices: UUID of a GPU that it had -> of the one that has taken its place
    :param ended: ranks that it does not meet any more
    """
    restore_id = uuid.uuid4().hex
    order = {"generation": generation, "restore_id": restore_id, "master_addr": address, "master_port": port}
    order |= {"env": dict(env), "devices": dict(devices or {}), "ended": [*ended]}
    path = paths.control(rank) / names.RESUME_FILE
    with contextlib.suppress(FileNotFoundError):
        newer = control_files.read(path).get("generation")
        if type(newer) is int and newer > generation:
            return restore_id
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with temporary.open("x") as file:  # never through a link: the folder is the rank's user's
        file.write(json.dumps(order))
    temporary.replace(path)
    return restore_id


def clear_control(folder: Path) -> None:
    """Remove orders and answers of earlier stops from a rank's control directory."""
    for name in (names.FROZEN_FILE, names.RESUME_FILE, names.RESUMED_FILE):
        (folder / name).unlink(missing_ok=True)


def resume(
    slots: Slots,
    paths: Paths,
    generation: int,
    address: str,
    port: int,
    env: Mapping[str, str],
    devices: device.Backend,
    ended: Sequence[int] = (),
) -> list[str]:
    """Ranks frozen for `generation` or stopped anywhere, dumped or not, go on. Others are not disturbed.

    A restarted sidecar repeats this call, maybe when a rank has frozen for the next stop already. The messages of that
    rank stay.

    Returns what went wrong: a rank without its device goes on, and its next device call fails.
    """
    problems = []
    for rank, slot in slots.items():
        write_resume(paths, rank, generation, address, port, env, ended=ended)
        with contextlib.suppress(SlotError, OSError):
            _forget_links(slot)
            pids = process_scan.processes(slot.init)
            sockets.revive(pids)
            let_go(slot)
            try:
                devices.resume(pids)
            except DumpError as error:
                problems.append(f"rank {rank}: {error}")
    return problems
