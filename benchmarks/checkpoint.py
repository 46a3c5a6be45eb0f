"""What the store makes of real images: throughput against `cp`, and bytes stored against bytes dumped."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

from localcluster.prepare import Prepared, prepare
from singularity_proxy.protocol import names
from singularity_proxy.store import Store

from . import machine
from .leaving import leave
from .model import Group, Measured, Options, Say, Spec
from .pods import RANKS, Job, copy
from .stats import median, median_ratio

WIDTH = 1024
WIDE, NARROW = 2048, 64
"""32 * width^2 bytes of parameters, gradients and Adam moments per rank: 134 MB, and next to nothing."""
WARM, BETWEEN = 20, 30
spawn = multiprocessing.get_context("spawn")


def put(folder: Path, checkpoint: str, images: Sequence[Path]) -> tuple[int, int]:
    """(bytes dumped, bytes newly stored) of the ranks' images, as one pod would upload them."""
    result = Store(f"file://{folder}").put_ranks("bench", "job", checkpoint, dict(enumerate(images)))
    return result.bytes, result.bytes_stored


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    return {**over_time(made, options, say), **replicas(made, say)}


def over_time(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Checkpoints of one running job, BETWEEN steps apart: into one store, and each into an empty one against `cp`.

    Stored as a stream, as when a job has to leave, and from the disk after the dump, as when it goes on, in turns.
    """
    stored: list[tuple[int, int]] = []
    races: list[dict[str, float]] = []
    with (
        closing(machine.WithoutRequest("bench-sidecars")) as request,
        Job(made, ["train_wide.py", str(WIDTH), "1"]) as job,
        ProcessPoolExecutor(RANKS, spawn) as sidecars,
    ):
        for pid in {*sidecars.map(imported, range(4 * RANKS))}:
            request.add(pid)
        cost = machine.write_cost(job.folder)
        say(machine.told(cost))
        job.start(4)
        job.wait_step(WARM)
        for number in range(2 if options.quick else 6):
            races.append(race(job, sidecars))
            if number < 2:
                stored.append(put(job.folder / "store", job.checkpoint, job.images()))
            job.forget_images()
            job.go_on()
            say(f"checkpoint {number + 1}: seconds {races[-1]}, bytes dumped and stored {stored[-1]}")
            job.wait_step(max(job.counts()) + BETWEEN)
    whole, after, upload = (median_ratio([(r["cp"], r[way]) for r in races]) for way in ("streamed", "filed", "put"))
    (first, first_new), (second, second_new) = stored
    gb = f"{first / 1e9:.2f} GB dumped"
    cpu = ", ".join(f"{name} {median(r[f'{name}_cpu'] for r in races):.1f} s" for name in ("cp", "streamed", "filed"))
    text = (
        f"cp and fsync of the same {gb}; dump and store count, one sidecar per rank, pages go to the store; "
        f"{after:.2g} with uploads from the disk, the store alone {upload:.2g}; CPU time: {cpu}; {machine.told(cost)}"
    )
    return {
        "dump_vs_cp": Measured(whole, races, text),
        "dedup_first_x": Measured(first / first_new, [stored[0]], f"{gb}, {first_new / 1e9:.2f} stored"),
        "dedup_next_x": Measured(
            second / second_new, [stored[1]], f"{second / 1e9:.2f} GB dumped, {second_new / 1e9:.2f} new; paper 28-81"
        ),
    }


def imported(number: int) -> int:
    """PID of a process that has imported this module, and so all that it needs, before it is timed."""
    return os.getpid()


def race(job: Job, sidecars: ProcessPoolExecutor) -> dict[str, float]:
    """Seconds of a dump and a put into an empty store, streamed and over files, then of `cp` of the files; all durable
    then.

    The put is that of as many pods as there are ranks, each with a sidecar of its own, at the same time.
    """
    target = job.folder / "race"
    streamed, _ = leave(job, f"file://{target}", sidecars, streamed=True)
    shutil.rmtree(target)
    job.forget_images()
    job.go_on()
    job.wait_step(max(job.counts()) + BETWEEN)
    filed, _ = leave(job, f"file://{target}", sidecars, streamed=False)
    shutil.rmtree(target)
    began, before = time.monotonic(), os.times()
    copy(job.images(), target)
    cp_s, after = time.monotonic() - began, os.times()
    shutil.rmtree(target)
    return {
        "streamed": streamed.whole_s, "streamed_cpu": streamed.cpu_s, "filed": filed.whole_s, "filed_cpu": filed.cpu_s,
        "dump": filed.still_s, "put": filed.whole_s - filed.still_s, "cp": cp_s,
        "cp_cpu": sum(after[2:4]) - sum(before[2:4]),
    }  # fmt: skip


def replicas(made: Prepared, say: Say) -> Mapping[str, Measured]:
    """Bytes that four replicas take in the store against one, of what a wide model has more than a narrow one.

    The difference is the trained state: the interpreter, torch and their heaps are in both.
    """
    stored: dict[int, tuple[int, int]] = {}
    for width in (WIDE, NARROW):
        with Job(made, ["train_wide.py", str(width), "0"]) as job:
            job.start(4)
            job.wait_step(WARM)
            job.stop()
            one = put(job.folder / "one", "c", job.images()[:1])[1]
            four = put(job.folder / "four", "c", job.images())[1]
        stored[width] = (one, four)
        say(f"width {width}: one replica stores {one / 1e6:.0f} MB, four {four / 1e6:.0f} MB")
    one, four = (wide - narrow for wide, narrow in zip(stored[WIDE], stored[NARROW], strict=True))
    text = f"one replica's state: {one / 1e6:.0f} MB stored, four replicas' {four / 1e6:.0f} MB; paper 1.01 on GPUs"
    runs = [{"width": width, "one": pair[0], "four": pair[1]} for width, pair in stored.items()]
    return {"dedup_replicas_x": Measured(four / one, runs, text), **layouts(made, say)}


def layouts(made: Prepared, say: Say) -> Mapping[str, Measured]:
    """Bytes that a second rank adds to those of the first, with `reproducible_layout` and without."""
    added: dict[bool, float] = {}
    for reproducible in (False, True):
        env = {names.ENV_REPRODUCIBLE_LAYOUT: "1"} if reproducible else {}
        with Job(made, ["train_wide.py", str(NARROW), "0"], ranks=2, env=env) as job:
            job.start(2)
            job.wait_step(WARM)
            job.stop()
            put(job.folder / "store", "one", job.images()[:1])
            added[reproducible] = put(job.folder / "store", "two", job.images()[1:])[1] / 1e6
        say(f"reproducible_layout {reproducible}: a second rank adds {added[reproducible]:.0f} MB")
    text = f"a rank of DDP with next to no parameters; {added[False]:.0f} MB with random addresses and hashes"
    return {"replica_layout_mb": Measured(added[True], [{"random": added[False], "same": added[True]}], text)}


GROUP = Group(
    "checkpoint",
    "root, training root file system with CRIU, 30 GB of disk",
    [
        Spec("dump_vs_cp", "", ">= 1.5", "dump-to-store throughput against cp of the same bytes to the same disk"),
        Spec("dedup_replicas_x", "x", "<= 1.15", "stored bytes of 4 data-parallel replicas against one, model state"),
        Spec("replica_layout_mb", "MB", "", "new bytes of a second rank's interpreter with reproducible_layout"),
        Spec("dedup_first_x", "x", ">= 3", "bytes dumped against stored, first checkpoint of 4 ranks with workers"),
        Spec("dedup_next_x", "x", ">= 3", "bytes dumped against newly stored, second checkpoint 30 steps later"),
    ],
    measure,
)
