"""The way back: images of one or more ranks, dumped by whichever pods, become running ranks of this pod."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...protocol import addresses, exit_codes, names
from ...protocol.messages import Plan
from .. import device, memory, pagewords
from ..errors import MeetingError, RestoreError, SlotError
from ..laps import Laps
from ..paths import Paths
from ..ranks import control_files, halt, privileges, process_scan, user
from ..ranks.slot import ROOT, Slot
from ..tools import Tools
from . import (
    container_layer,
    criu,
    filters,
    image,
    locks,
    mapped_files,
    rank_dump,
    retake,
    settings,
    shared_pages,
    sockets,
    standstill,
    views,
    volume_files,
)

RESUME_TIMEOUT_S = 600.0
"""Other pods may still be downloading their images."""
RETAKE_S = 60.0
POLL_S = 0.02
SIGNAL = 128
"""Exit codes above it are those of processes that a signal has ended."""
Say = Callable[[str], None]


def restore(
    plan: Plan, paths: Paths, tool: criu.Criu, env: Mapping[str, str], say: Say, devices: device.Backend, laps: Laps
) -> dict[int, Slot]:
    """Restore all ranks of `plan`, tell them to go on, and wait until they have met the ranks of the other pods.

    :param env: new values for the ranks' environment
    :param laps: gets the phases of `StartPhases`
    Raises RestoreError, MeetingError; nothing of the ranks is left then.
    """
    records = {rank: _record(plan, paths, rank) for rank in plan.ranks}
    mapped_files.check({rank: record.mapped for rank, record in records.items()}, container_layer.mount_points())
    check_addresses(list(records.values()), sockets.in_use())
    for line in volume_files.check({rank: record.volume for rank, record in records.items()}):
        say(line)
    roots = _unpack_layers(plan, paths, records, say)
    for record in records.values():
        _unpack(plan, paths, record, roots[record.rank], say)
    slots: dict[int, Slot] = {}
    try:
        with ThreadPoolExecutor(len(records)) as pool:
            for _ in pool.map(
                lambda record: _open_slot(plan, paths, tool.tools, record, roots, slots), records.values()
            ):
                pass  # raises what went wrong
        laps.end("unpack")
        locks.check({rank: record.locks for rank, record in records.items()}, container_layer.mount_points())
        _restore_all(plan, paths, tool, slots, say)
        for rank, slot in slots.items():
            for line in settings.missing(rank, records[rank].settings):
                say(line)
            stays = {
                pid for pid in process_scan.processes(slot.init) if process_scan.inner_pid(pid) in records[rank].asleep
            }
            halt.let_go(slot.init, stays)
        laps.end("restore")
        moved = _restore_devices(plan, paths, slots, devices)
        laps.end("device")
        at = (plan.generation, plan.master_addr, plan.master_port, env)
        ids = {rank: rank_dump.write_resume(paths, rank, *at, moved.get(rank), plan.ended) for rank in plan.ranks}
        _wait_resumed(plan, paths, slots, {rank: ids[rank] for rank in ids if not records[rank].held})
        laps.end("meet")
    except SlotError as error:
        for slot in slots.values():
            slot.kill()
        if len(slots) < len(records):
            raise  # no slot can be made here, whatever would run in it: nothing of the checkpoint was tried
        raise RestoreError(str(error)) from None
    except BaseException:
        for slot in slots.values():
            slot.kill()
        raise
    return {rank: slots[rank] for rank in plan.ranks}


def check_addresses(records: Sequence[image.RankRecord], in_use: Sequence[str]) -> None:
    """The ranks of a pod share one network. Raises RestoreError where it has no room for all that they listen on.

    :param in_use: what listens in this pod already
    """
    for one, other in itertools.combinations(records, 2):
        for mine, theirs in itertools.product(one.occupied, other.occupied):
            if one.pod != other.pod and addresses.clash(mine, theirs):
                raise RestoreError(
                    f"ranks {one.rank} and {other.rank} cannot share a pod: the one has {mine}, the other {theirs}, in "
                    "pods of their own until now. Run the job on as many pods as it was saved on, or let each rank "
                    "choose a port of its own"
                )
    for record in records:
        for mine, theirs in itertools.product(record.occupied, in_use):
            if addresses.clash(mine, theirs):
                raise RestoreError(f"rank {record.rank} has {mine}, and in this pod {theirs} is in use already")


def log_positions(plan: Plan, paths: Paths) -> dict[int, int]:
    """Where each rank's log goes on: earlier pods have shown the lines before."""
    return {rank: image.read_record(paths.image(plan.checkpoint_id, rank)).log_size for rank in plan.ranks}


def _record(plan: Plan, paths: Paths, rank: int) -> image.RankRecord:
    folder = paths.image(plan.checkpoint_id, rank)
    record = image.read_record(folder)
    if record.rank != rank:
        raise RestoreError(f"{folder} holds the image of rank {record.rank}, wanted rank {rank}")
    return record


def _unpack_layers(plan: Plan, paths: Paths, records: Mapping[int, image.RankRecord], say: Say) -> dict[int, Path]:
    """Returns the root file system of each rank."""
    archives = {rank: paths.image(plan.checkpoint_id, rank) / image.LAYER_TAR for rank in records}
    there = {rank: path for rank, path in archives.items() if path.exists()}
    roots = views.unpack(there, paths.views, container_layer.mount_points())
    apart = [rank for rank, root in roots.items() if root != ROOT]
    if apart:
        say(f"ranks {apart} come from pods whose files were not the same: each sees those of its own pod")
    return {rank: roots.get(rank, ROOT) for rank in records}


def _unpack(plan: Plan, paths: Paths, record: image.RankRecord, root: Path, say: Say) -> None:
    rank = record.rank
    image.unpack(paths.image(plan.checkpoint_id, rank) / image.WORK_TAR, paths.work(rank))
    with paths.log(rank).open("ab") as log:
        log.truncate(record.log_size)  # of the size that CRIU expects; what was in it was shown by the pod that dumped
    for line in image.differing(record, root, container_layer.mount_points()):
        say(f"rank {rank}: {line}")
    for line in record.cut:
        say(f"rank {rank}: {line}: cut, it was the pod's before this one")
    control = paths.control(rank)
    control.mkdir(parents=True, exist_ok=True)
    rank_dump.clear_control(control)
    user.give(paths, rank, record.uid, record.gid)
    if record.held:
        pagewords.write(paths.run, rank, record.step, record.state)


def _open_slot(
    plan: Plan,
    paths: Paths,
    tools: Tools,
    record: image.RankRecord,
    roots: Mapping[int, Path],
    slots: dict[int, Slot],
) -> None:
    slots[record.rank] = slot = Slot(record.rank, paths, tools, roots[record.rank])
    slot.adopt(record.root)
    image.unpack(paths.image(plan.checkpoint_id, record.rank) / image.SHM_TAR, slot.shm)
    for path in record.watched:
        if not os.path.lexists(f"{slot.inside}{path}"):
            raise RestoreError(
                f"rank {record.rank} watches {path} (inotify), which is not in this pod; the next attempt tries again",
                exit_codes.LOST,
            )


def _restore_all(plan: Plan, paths: Paths, tool: criu.Criu, slots: Mapping[int, Slot], say: Say) -> None:
    """All ranks at once."""
    killed = memory.oom_kills()
    with ThreadPoolExecutor(len(slots)) as pool:
        each = pool.map(lambda slot: _restore_rank(plan, paths, tool, slot, say), slots.values())
        told = [text for text in each if text]
    if told:
        why = memory.kills_since(killed)
        late = all(isinstance(text, criu.Late) for text in told)
        raise RestoreError("; ".join([*told, *filter(None, [why])]), exit_codes.LOST if late else None)


def _restore_devices(
    plan: Plan, paths: Paths, slots: Mapping[int, Slot], devices: device.Backend
) -> dict[int, dict[str, str]]:
    """Before the ranks go on: they wait for that without touching a device. Rank -> old to new UUID."""
    moved = {}
    for place, rank in enumerate(plan.ranks):
        images = paths.image(plan.checkpoint_id, rank)
        record = device.read(images)
        if record is not None:
            try:
                moved[rank] = devices.restore(
                    device.by_inner(process_scan.processes(slots[rank].init)), record, place, images
                )
            except RestoreError as error:
                raise RestoreError(f"rank {rank}: {error}") from None
    return moved


def _restore_rank(plan: Plan, paths: Paths, tool: criu.Criu, slot: Slot, say: Say) -> str:
    logs = paths.criu_work(plan.checkpoint_id, slot.rank)
    logs.mkdir(parents=True, exist_ok=True)
    images = paths.image(plan.checkpoint_id, slot.rank)
    filters.check_image(slot.rank, images)
    shared_pages.prepare(images)
    argv = tool.restore(slot, images, logs)
    still = standstill.Standstill(lambda: standstill.activity(process_scan.processes(slot.init)), standstill.STILL_S)
    try:
        problem = criu.run(slot, argv, standstill.limit_s(images), still=still)
    except SlotError as error:  # the rank's first process has ended while it was restored
        problem = f"was cut short: {error}"
    if problem:
        text = f"rank {slot.rank}: CRIU restore {problem}. {' | '.join(criu.errors(logs / criu.RESTORE_LOG))}"
        return criu.Late(text) if isinstance(problem, criu.Late) else text
    privileges.check(slot.rank, slot.proc)
    filters.check(slot.rank, process_scan.processes(slot.init))
    _adopt_oom_score(slot)
    return _retake(tool.tools, slot, images, say)


def _retake(tools: Tools, slot: Slot, images: Path, say: Say) -> str:
    """Locks and settings. What went wrong with the locks, "" for nothing."""
    try:
        if not retake.posix(images) and not image.read_record(images).settings:
            return ""
    except (OSError, ValueError) as error:
        return f"rank {slot.rank}: {retake.FILE} cannot be read: {error}"
    ended = slot.run(tools.python("snapshot.retake", slot.seen(images)), RETAKE_S)
    if ended is None or ended.code:
        return (
            f"rank {slot.rank}: its locks were not restored: {ended.said if ended else f'not within {RETAKE_S:.0f} s'}"
        )
    for line in ended.said.splitlines():
        say(f"rank {slot.rank}: a setting is not as it was: {line}")
    return ""


def _adopt_oom_score(slot: Slot) -> None:
    """CRIU restores the old pod's oom_score_adj; the kubelet gave this pod one of its own."""
    ours = Path("/proc/self/oom_score_adj").read_text()
    for pid in process_scan.processes(slot.init):
        # Lowering needs SYS_RESOURCE on most nodes; a score that is too high is no reason to fail.
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/oom_score_adj").write_text(ours)


def _wait_resumed(plan: Plan, paths: Paths, slots: Mapping[int, Slot], ids: Mapping[int, str]) -> None:
    deadline, kills = time.monotonic() + RESUME_TIMEOUT_S, memory.oom_kills()
    waiting = dict(ids)
    while waiting:
        for rank in list(waiting):
            code = slots[rank].poll()  # before its answer is looked for: it may answer and come to its end at once
            with contextlib.suppress(FileNotFoundError):
                answer = control_files.read(paths.control(rank) / names.RESUMED_FILE)
                if answer.get("restore_id") == waiting[rank]:
                    del waiting[rank]
                    continue
            if code is not None and code > SIGNAL:
                text = f"rank {rank} ended with code {code} ({signal.strsignal(code - SIGNAL)}) as soon as it went on"
                raise RestoreError("; ".join([text, memory.kills_since(kills) or "see its log"]))
            if code is not None:
                raise MeetingError(f"rank {rank} ended with code {code} while it met the other ranks; see its log")
        if waiting and time.monotonic() > deadline:
            raise MeetingError(
                f"ranks {sorted(waiting)} did not meet the others at {plan.master_addr}:{plan.master_port} within "
                f"{RESUME_TIMEOUT_S:.0f} s"
            )
        time.sleep(POLL_S)
