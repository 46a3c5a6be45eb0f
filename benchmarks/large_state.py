"""Throughput with GB of state in one rank, beside what a machine does with plain files of the same size.

One of a pod's two ranks has GB of tensors. They go to a server of the gs protocol in memory, and come back into another
pod. In turns with it, the same bytes are uploaded as a plain file. Each turn has a server of its own, as two of them
together would not fit into the memory. Where not even one of them fits beside the rank, a folder is the store.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from localcluster.prepare import Prepared, prepare
from singularity_proxy.protocol.manifest import Manifest, RankImage, Requirements
from singularity_proxy.store import Store

from . import machine
from .harness import make_gcs_bucket, running_gcs
from .leaving import BETWEEN, Left, leave, spawn
from .model import Group, Measured, Options, Say, Spec
from .pods import Job, bytes_of, copy
from .stats import median

PUT_AT_ONCE = 4
PIECE = 8 << 20
GB = 1e9
SPARE_MEMORY, SPARE_DISK = 3 * GB, 1 * GB
SMALLEST_GB = 0.1
LIMIT_S = 1800
GARBAGE_PERCENT = "25"
"""Of the server. By default its heap grows to twice what it holds, for which the memory does not suffice."""

Seconds = dict[str, list[float]]


def large(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    asked = options.size_gb or (2.0 if options.quick else 8.0)
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        there = memory_available(), shutil.disk_usage(folder).free
        store = folder / "store" if needs_folder(asked, *there) else None
        size = asked if store is not None else fitting(asked, *there)
        if store is not None:
            say(f"a server with {asked:g} GB does not fit into the memory beside the rank: the store is a folder")
        if size < asked:
            say(f"{asked:g} GB do not fit into the memory and the disk that are free: {size:g} GB")
        tool, seconds = sequential(folder / "plain", math.ceil(size * GB / (1 << 20)))
        say(f"plain files, by {tool}: {seconds}")
        with Job(made, ["train_held.py", f"{size:g}"], ranks=2) as job:
            cost = machine.write_cost(job.folder)
            left = turns(made, job, folder, store, seconds, say)
            files = job.images()  # they lie there until the sidecar hears that the ranks are restored
            plain = beside(files, folder / "cp", seconds, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    words = speeds(seconds, {"cp": plain, "": left.bytes}, size * GB)
    less = f"; made smaller, from {asked:g} GB, for the memory or the disk that is free" if size < asked else ""
    less += "; to a folder, as a server with it does not fit into the memory" if store is not None else ""
    text = (
        f"{left.bytes / GB:.2f} GB, in GB/s: {words} (sequential: {tool}, fsync, read not in the page cache); "
        f"ranks stand still {left.still_s:.2g} s, CPU {left.cpu_s:.2g} s; {machine.told(cost)}{less}"
    )
    return {"large_state_gb_s": Measured(left.bytes / GB / median(seconds["dump_and_put"]), [seconds], text)}


def speeds(seconds: Seconds, sizes: Mapping[str, int], plain: float) -> str:
    """In GB/s, in words. `sizes`: bytes of what is measured; "" is for the images; `plain`: bytes of the plain file."""
    found = []
    for what, took in seconds.items():
        of = plain if what.startswith(("plain", "sequential")) else sizes.get(what, sizes[""])
        found.append(f"{what.replace('_', ' ')} {of / GB / median(took):.2g}")
    return ", ".join(found)


def fitting(asked: float, memory: float, disk: float) -> float:
    """GB of tensors for which there is room: for the rank and the server in memory, for images and a copy on disk.

    :raises RuntimeError: there is not even room for a small one
    """
    room = min((memory - SPARE_MEMORY) / 2, (disk - SPARE_DISK) / 2.2) / GB
    size = min(asked, math.floor(room * 10) / 10)
    if size < SMALLEST_GB:
        raise RuntimeError(
            f"{memory / GB:.1f} GB of memory, {disk / GB:.1f} GB of disk are free; give {SPARE_MEMORY / GB:g} GB and "
            f"twice the size of the tensors, at least {SMALLEST_GB:g} GB"
        )
    return size


def needs_folder(asked: float, memory: float, disk: float) -> bool:
    """Whether only a store on the disk has room for so many GB: there is memory for the rank and not for a server."""
    fits = memory >= 2 * asked * GB + SPARE_MEMORY
    return not fits and memory >= asked * GB + SPARE_MEMORY and disk >= 2.2 * asked * GB + SPARE_DISK


def memory_available() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:"))


# --- plain files ------------------------------------------------------------------------------------------------------
def sequential(path: Path, mib: int) -> tuple[str, Seconds]:
    """Write a file and read it again, by `fio` or else by `dd`; which one, and the seconds. The file stays."""
    tool = "fio" if shutil.which("fio") else "dd, zeros"
    seconds: Seconds = {}
    for way in ("write", "read"):
        if tool == "fio":
            command = ["fio", f"--name={way}", f"--rw={way}", "--bs=1M", f"--size={mib}M", f"--filename={path}"]
            command += ["--ioengine=psync", "--end_fsync=1", "--invalidate=1"]
        elif way == "write":
            command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=fsync"]
        else:
            command = ["dd", f"if={path}", "of=/dev/null", "bs=1M"]
        if way == "read":
            forget(path)
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        seconds[f"sequential_{way}"] = [time.monotonic() - began]
    return tool, seconds


def forget(path: Path) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def beside(files: Sequence[Path], target: Path, seconds: Seconds, say: Say) -> int:
    """`cp` and fsync of the images, where the disk has room for it; their bytes."""
    size = bytes_of(files)
    if shutil.disk_usage(target.parent).free < size + SPARE_DISK:
        say("no room on the disk for a copy of the images: cp is left out")
        return size
    began = time.monotonic()
    copy(files, target)
    seconds["cp"] = [time.monotonic() - began]
    shutil.rmtree(target)
    return size


# --- the store --------------------------------------------------------------------------------------------------------
@contextmanager
def served(made: Prepared, log: Path, store: Path | None) -> Iterator[tuple[str, ProcessPoolExecutor]]:
    """URL of an empty store, and a process that uploads to it. What it has stored goes with it.

    :param store: a folder to be made; None: a server in memory
    """
    if store is not None:
        try:
            with ProcessPoolExecutor(1, spawn) as sidecars:
                yield f"file://{store}", sidecars
        finally:
            shutil.rmtree(store, ignore_errors=True)
        return
    with (
        environment(
            "GOGC", "25"
        ),  # or the server's heap grows to twice what it holds, and the machine has no memory left
        running_gcs(made.fake_gcs, log) as server,
        environment("STORAGE_EMULATOR_HOST", server),
        ProcessPoolExecutor(1, spawn) as sidecars,
    ):
        yield make_gcs_bucket(server), sidecars


def turns(made: Prepared, job: Job, folder: Path, store: Path | None, seconds: Seconds, say: Say) -> Left:
    """Ours, plain, plain, ours; then back into another pod. The ranks stand still during the plain uploads.

    :param store: see `served`
    """
    log = folder / "gcs.log"
    job.start(1)
    job.wait_step(BETWEEN)
    with served(made, log, store) as (url, sidecars):
        left, _ = leave(job, url, sidecars, streamed=True)
    seconds["dump_and_put"] = [left.whole_s]
    say(f"dumped and stored {left.bytes / GB:.2f} GB: {left}")
    seconds["plain_upload"] = []
    for _ in range(2):
        with served(made, log, store) as (url, sidecars):
            began = time.monotonic()
            sidecars.submit(plain_upload, url, folder / "plain").result(LIMIT_S)
            seconds["plain_upload"].append(time.monotonic() - began)
    (folder / "plain").unlink()
    say(f"uploaded plainly: {seconds['plain_upload']}")
    job.forget_images()
    job.go_on()
    job.wait_step(max(job.counts()) + BETWEEN)
    with served(made, log, store) as (url, sidecars):
        left, images = leave(job, url, sidecars, streamed=True)
        seconds["dump_and_put"].append(left.whole_s)
        say(f"again: {left}")
        back(job, url, images, sidecars, seconds)
    say(f"fetched and restored: {seconds}")
    return left


def back(job: Job, url: str, images: list[RankImage], sidecars: ProcessPoolExecutor, seconds: Seconds) -> None:
    began = time.monotonic()

    def bring(targets: Mapping[int, Path]) -> None:
        nonlocal began
        fetching = time.monotonic()
        sidecars.submit(fetch, url, images, dict(targets)).result(LIMIT_S)
        began = time.monotonic()
        seconds["fetch"] = [began - fetching]

    at = max(job.counts())
    job.start(1, bring)
    job.restored()
    seconds["restore"] = [time.monotonic() - began]
    job.wait_step(at + 1)


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def fetch(url: str, images: list[RankImage], targets: Mapping[int, Path]) -> int:
    """Bytes of the ranks' files, as one pod fetches them."""
    manifest = Manifest(
        id="c", namespace="bench", job="job", attempt=1, generation=1, step=1, world_size=len(images),
        engine="process", created_at=0.0, ranks=images, requirements=Requirements(sys.platform, ""),
    )  # fmt: skip
    return Store(url).fetch_ranks(manifest, targets)


def plain_upload(url: str, path: Path) -> None:
    """What a tool that knows nothing of the content does: pieces of a pack's size, several at a time."""
    backend = Store(url).backend

    def send(at: int) -> None:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            backend.write(f"plain/{path.name}-{at}", file.read(PIECE))

    with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
        for sent in [pool.submit(send, at) for at in range(0, path.stat().st_size, PIECE)]:
            sent.result()


GROUP = Group(
    "large state",
    "root, training root file system with CRIU, fake-gcs-server in memory; of memory and of disk 3 times --size",
    [
        Spec(
            "large_state_gb_s",
            "GB/s",
            "",
            "dump and store of a rank with GB of tensors; plain upload, cp beside it",
        )
    ],
    lambda options, say: large(prepare(say), options, say),
)
