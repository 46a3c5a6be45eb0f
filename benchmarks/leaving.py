"""A checkpoint of a job that leaves: what its pod's disk takes. And how long ranks that train on stand still.

Pages go to the upload over a socket, in a process of its own for each pod, as the sidecar is. Beside it, in turns,
today's way of a periodic checkpoint: files on the disk, uploaded after the dump. The ranks stand still until a stream
has ended, and until files are written. So the pairs show which way is better for ranks that go on.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from localcluster.prepare import Prepared, prepare
from singularity_proxy.protocol import names
from singularity_proxy.protocol.manifest import RankImage
from singularity_proxy.store import Arena, PagesSocket, PutResult, Store

from .model import Group, Measured, Options, Say, Spec
from .pods import Job
from .stats import median

WIDTH, WORKERS, BETWEEN = 512, 4, 20
VOLUME = "8g"
STILL_WIDTH, STILL_MEMORY = 4096, 3 << 30
SAMPLE_S = 0.02
spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Left:
    """One checkpoint: seconds that the ranks stood still, seconds until all was stored, CPU seconds of dump and put."""

    still_s: float
    whole_s: float
    cpu_s: float
    bytes: int
    new: int


def put(
    url: str, checkpoint: str, images: Mapping[int, Path], part: tuple[int, int], dumping: Path, pages: Path | None,
    memory: int = 0,
) -> tuple[PutResult, float]:
    """One pod's upload, and its CPU seconds.

    :param pages: where its socket is to be; None: the images are complete
    :param memory: bytes that take in the pages first
    """
    arena = _arena(memory) if memory else None
    began = time.process_time()
    socket = PagesSocket(pages, arena=arena) if pages is not None else None
    result = Store(url).put_ranks(
        "bench", "job", checkpoint, images, part=part, growing=lambda: socket is not None and dumping.exists(),
        pages=socket,
    )  # fmt: skip
    return result, time.process_time() - began


@cache
def _arena(memory: int) -> Arena:
    """Of this process: a sidecar makes its memory once."""
    made = Arena(memory)
    made.warm()
    return made


def leave(
    job: Job, url: str, sidecars: ProcessPoolExecutor, *, streamed: bool, memory: int = 0, goes_on: bool = False
) -> tuple[Left, list[RankImage]]:
    """Barrier, dump and put of all pods. The ranks stand still afterwards.

    :param memory: bytes that take in a stream first
    :param goes_on: the ranks train on once they are dumped
    """
    dumping, parts = job.folder / "dumping", len(job.pods)
    puts: list[Future[tuple[PutResult, float]]] = []

    def begin(images: Sequence[Path]) -> None:
        share = len(images) // parts
        for index, pod in enumerate(job.pods):
            pages = pod.volumes / "run" / names.PAGES_FILE if streamed else None
            if pages is not None:
                pages.unlink(missing_ok=True)
            mine = {rank: images[rank] for rank in range(index * share, (index + 1) * share)}
            for folder in mine.values():
                folder.mkdir(parents=True, exist_ok=True)
            puts.append(sidecars.submit(put, url, job.checkpoint, mine, (index, parts), dumping, pages, memory))
            while pages is not None and not pages.exists():
                if puts[-1].done():
                    puts[-1].result()
                time.sleep(SAMPLE_S)

    dumping.touch()
    stop = job.stop(before=begin if streamed else None)
    dumped = time.monotonic()
    dumping.unlink()
    if goes_on:
        job.go_on()
    if not streamed:
        begin(job.images())
    made = [each.result(1800) for each in puts]
    whole = stop.dump_s + time.monotonic() - dumped
    left = Left(
        stop.dump_s, whole, stop.dump_cpu_s + sum(cpu for _, cpu in made), sum(each.bytes for each, _ in made),
        sum(each.bytes_stored for each, _ in made),
    )  # fmt: skip
    return left, [image for each, _ in made for image in each.images]


# --- the disk ---------------------------------------------------------------------------------------------------------
@contextmanager
def volumes(pods: Sequence[Path]) -> Iterator[Callable[[], int]]:
    """File systems of their own for these folders; what they hold together, files without a name too."""
    for path in pods:
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", path], check=True)
    try:
        yield lambda: sum((d.f_blocks - d.f_bfree) * d.f_frsize for d in map(os.statvfs, pods))
    finally:
        for path in pods:
            subprocess.run(["umount", "-l", path], check=True)


@contextmanager
def peak(used: Callable[[], int]) -> Iterator[list[int]]:
    """The most that was used within the context, once it has ended."""
    found: list[int] = [used()]
    over = threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_S):
            found[0] = max(found[0], used())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(look)
        try:
            yield found
        finally:
            over.set()


def disk(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Two replicas in a pod each, with loader workers. Streamed and over files in turns, into one store."""
    runs: list[dict[str, float | bool]] = []
    with ProcessPoolExecutor(2, spawn) as sidecars, Job(made, ["train_wide.py", str(WIDTH), str(WORKERS)], 2) as job:
        folders = [job.folder / f"attempt-1-{index}/singularity/images" for index in range(2)]
        with volumes(folders) as used:
            job.start(2)
            for number in range(4 if options.quick else 10):
                job.wait_step(max(job.counts()) + BETWEEN)
                before, streamed = used(), number % 2 == 0
                with peak(used) as most:
                    left, _ = leave(job, f"file://{job.folder}/store-{streamed}", sidecars, streamed=streamed)
                runs.append({**vars(left), "disk": most[0] - before, "streamed": streamed})
                say(f"checkpoint {number + 1}: {runs[-1]}")
                job.forget_images()
                job.go_on()
    ways = {way: [run for run in runs if run["streamed"] is way] for way in (True, False)}
    ratio = {way: max(run["disk"] / run["new"] for run in found) for way, found in ways.items()}
    words = []
    for name, found in (("streamed", ways[True]), ("over files", ways[False])):
        still, whole, cpu = (median(run[key] for run in found) for key in ("still_s", "whole_s", "cpu_s"))
        of = ratio[found is ways[True]]
        words.append(f"{name} {of:.2g} x, ranks stand still {still:.2g} s, stored after {whole:.2g} s, CPU {cpu:.2g} s")
    text = f"{'; '.join(words)}; {median(run['bytes'] for run in runs) / 1e6:.0f} MB of images"
    return {"peak_disk_x": Measured(ratio[True], runs, text)}


def still(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Two pods whose ranks train on: pages to the disk, and to memory, in turns."""
    runs: list[dict[str, float | str]] = []
    with ProcessPoolExecutor(2, spawn) as sidecars, Job(made, ["train_wide.py", str(STILL_WIDTH), "0"], 2) as job:
        job.start(2)
        for number in range(4 if options.quick else 12):
            job.wait_step(max(job.counts()) + BETWEEN)
            way = ("disk", "memory", "memory", "disk")[number % 4]
            memory = STILL_MEMORY if way == "memory" else 0
            url = f"file://{job.folder}/store-{way}"
            left, _ = leave(job, url, sidecars, streamed=bool(memory), memory=memory, goes_on=True)
            runs.append({**vars(left), "way": way, "s_per_gb": left.still_s / left.bytes * 1e9})
            say(f"checkpoint {number + 1}: {runs[-1]}")
            job.forget_images()
    first = {way: next(run for run in runs if run["way"] == way) for way in ("disk", "memory")}
    later = [run for run in runs if run is not first[str(run["way"])]]
    of, words = {}, []
    for way in first:
        mine = [run for run in later if run["way"] == way]
        of[way] = median(float(run["s_per_gb"]) for run in mine)
        cpu = median(float(run["cpu_s"]) / float(run["bytes"]) * 1e9 for run in mine)
        words.append(f"{way} {of[way]:.2f} s per GB, CPU {cpu:.1f} s per GB")
    text = f"{', '.join(words)}; {median(float(run['bytes']) for run in runs) / 1e9:.2f} GB of images"
    return {"memory_stall_s_per_gb": Measured(of["memory"], runs, text)}


GROUP = Group(
    "leaving",
    "root, training root file system with CRIU, 4 GB of memory",
    [
        Spec("peak_disk_x", "x", "<= 1.2", "the pods' disk that a checkpoint takes, against what it adds to the store"),
        Spec("memory_stall_s_per_gb", "s/GB", "<= 0.4", "stop for a checkpoint that goes to memory, per GB written"),
    ],
    lambda options, say: {**disk(prepare(say), options, say), **still(prepare(say), options, say)},
)
