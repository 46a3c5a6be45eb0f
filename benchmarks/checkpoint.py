"""What the store makes of real images: throughput against `cp`, and bytes stored against bytes dumped."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from localcluster.prepare import Prepared, prepare
from proxy.store import Store

from . import machine
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


def put_part(folder: Path, checkpoint: str, image: Path, rank: int, ranks: int) -> tuple[int, float]:
    """(bytes newly stored, CPU seconds) of one rank's image, as the pod that has this rank alone uploads it."""
    began = time.process_time()
    result = Store(f"file://{folder}").put_ranks("bench", "job", checkpoint, {rank: image}, part=(rank, ranks))
    return result.bytes_stored, time.process_time() - began


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    return {**over_time(made, options, say), **replicas(made, say)}


def over_time(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Checkpoints of one running job, BETWEEN steps apart: into one store, and each into an empty one against `cp`."""
    stored: list[tuple[int, int]] = []
    races: list[dict[str, float]] = []
    with Job(made, ["train_wide.py", str(WIDTH), "1"]) as job, ProcessPoolExecutor(RANKS, spawn) as sidecars:
        list(sidecars.map(put_part_is_there, range(4 * RANKS)))
        cost = machine.write_cost(job.folder)
        say(machine.told(cost))
        job.start(4)
        job.wait_step(WARM)
        for number in range(2 if options.quick else 4):
            stop = job.stop()
            images = job.images()
            raced = race(job.folder, images, sidecars, copy_first=bool(number % 2))
            races.append({"dump": stop.dump_s, "dump_cpu": stop.dump_cpu_s, **raced})
            if number < 2:
                stored.append(put(job.folder / "store", job.checkpoint, images))
            job.forget_images()
            job.go_on()
            say(f"checkpoint {number + 1}: seconds {races[-1]}, bytes dumped and stored {stored[-1]}")
            job.wait_step(max(job.counts()) + BETWEEN)
    whole = median_ratio([(r["cp"], r["dump"] + r["put"]) for r in races])
    upload = median_ratio([(r["cp"], r["put"]) for r in races])
    (first, first_new), (second, second_new) = stored
    gb = f"{first / 1e9:.2f} GB dumped"
    cpu = ", ".join(f"{name} {median(r[f'{name}_cpu'] for r in races):.1f} s" for name in ("cp", "dump", "put"))
    text = (
        f"cp and fsync of the same {gb}; dump and store count, one sidecar per rank; the store alone {upload:.2g}; "
        f"CPU time: {cpu}; {machine.told(cost)}"
    )
    return {
        "dump_vs_cp": Measured(whole, races, text),
        "dedup_first_x": Measured(first / first_new, [stored[0]], f"{gb}, {first_new / 1e9:.2f} stored"),
        "dedup_next_x": Measured(
            second / second_new, [stored[1]], f"{second / 1e9:.2f} GB dumped, {second_new / 1e9:.2f} new; paper 28-81"
        ),
    }


def put_part_is_there(number: int) -> str:
    """Lets a process import what it needs before it is timed."""
    return Store.__name__


def race(folder: Path, images: Sequence[Path], sidecars: Executor, copy_first: bool) -> dict[str, float]:
    """Seconds of `cp` and of a put into an empty store, one after the other, same disk; both are durable then.

    The put is that of as many pods as there are ranks, each with a sidecar of its own, at the same time.
    """
    found: dict[str, float] = {}
    for name in ("cp", "put") if copy_first else ("put", "cp"):
        target = folder / f"race-{name}"
        began, before = time.monotonic(), os.times()
        if name == "cp":
            copy(images, target)
            after = os.times()
            found["cp_cpu"] = sum(after[2:4]) - sum(before[2:4])
        else:
            parts = [sidecars.submit(put_part, target, "c", path, r, len(images)) for r, path in enumerate(images)]
            done = [part.result() for part in parts]
            found["put_cpu"], found["put_stored"] = sum(cpu for _, cpu in done), sum(size for size, _ in done)
        found[name] = time.monotonic() - began
        shutil.rmtree(target)
    return found


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
    return {"dedup_replicas_x": Measured(four / one, runs, text)}


GROUP = Group(
    "checkpoint",
    "root, training root file system with CRIU, 30 GB of disk",
    [
        Spec("dump_vs_cp", "", ">= 0.8", "dump-to-store throughput against cp of the same bytes to the same disk"),
        Spec("dedup_replicas_x", "x", "<= 1.15", "stored bytes of 4 data-parallel replicas against one, model state"),
        Spec("dedup_first_x", "x", ">= 3", "bytes dumped against stored, first checkpoint of 4 ranks with workers"),
        Spec("dedup_next_x", "x", ">= 3", "bytes dumped against newly stored, second checkpoint 30 steps later"),
    ],
    measure,
)
