"""What data loader workers cost: bytes and seconds of a dump, and memory after moves.

Two jobs of two ranks that differ in their workers alone are dumped in turns. The one with workers moves then, from pod
to pod. Memory is what all of its processes hold, with shared pages counted once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from localcluster.prepare import Prepared, prepare

from . import machine
from .model import Group, Measured, Options, Say, Spec
from .pods import Job, bytes_of
from .stats import median, median_ratio

RANKS, WIDTH, WORKERS = 2, 512, 8
WARM = 20


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    return {**dumps(made, options, say), **moves(made, options, say)}


def dumps(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Dumps of a rank with workers and of one without, in turns; both go on afterwards."""
    seconds: list[tuple[float, float]] = []
    sizes: list[tuple[float, float]] = []
    cpu: list[float] = []
    with (
        Job(made, ["train_wide.py", str(WIDTH), str(WORKERS)], ranks=RANKS) as many,
        Job(made, ["train_wide.py", str(WIDTH), "0"], ranks=RANKS) as none,
    ):
        cost = machine.write_cost(many.folder)
        for job in (many, none):
            job.start(1)
            job.wait_step(WARM)
        for number in range(1 if options.quick else 5):
            pair = []
            for job in (many, none):
                stop = job.stop()
                pair.append((stop.dump_s, bytes_of(job.images()) / 1e6, stop.dump_cpu_s))
                job.forget_images()
                job.go_on()
                job.wait_step(max(job.counts()) + WARM)
            seconds.append((pair[0][0], pair[1][0]))
            sizes.append((pair[0][1], pair[1][1]))
            cpu.append(pair[0][2])
            say(f"dump {number + 1}: {WORKERS} workers {pair[0]}, none {pair[1]} (s, MB, CPU s)")
    by_time, by_size = median_ratio(seconds), median_ratio(sizes)
    text = (
        f"{by_time:.2g} times the seconds ({median(a for a, _ in seconds):.2g} s), {by_size:.2g} times the bytes "
        f"({median(a for a, _ in sizes):.0f} MB) of the same rank without workers; CPU time {median(cpu):.2g} s; "
        f"{machine.told(cost)}"
    )
    runs = [{"seconds": s, "mb": b} for s, b in zip(seconds, sizes, strict=True)]
    return {"loader_workers_dump_x": Measured(max(by_time, by_size), runs, text)}


def moves(made: Prepared, options: Options, say: Say) -> Mapping[str, Measured]:
    """Memory after the last of several moves against that before the first."""
    runs: list[dict[str, float]] = []
    with Job(made, ["train_wide.py", str(WIDTH), str(WORKERS)], ranks=RANKS) as job:
        job.start(1)
        job.wait_step(WARM)
        before = job.pods[0].ranks_mib() * 1.048576
        for number in range(2 if options.quick else 10):
            job.stop()
            at = max(job.counts())
            began = time.monotonic()
            job.start(1)
            job.restored()
            took = time.monotonic() - began
            job.wait_step(at + WARM)
            runs.append({"mb": job.pods[0].ranks_mib() * 1.048576, "restore_s": round(took, 3)})
            say(f"move {number + 1}: {runs[-1]} (before the first {before:.0f} MB)")
    after = runs[-1]["mb"]
    text = f"{after:.0f} MB after {len(runs)} moves, {before:.0f} MB before; a rank with {WORKERS} workers"
    return {"restore_rss_x": Measured(after / before, runs, text)}


GROUP = Group(
    "workers",
    "root, training root file system with CRIU",
    [
        Spec("loader_workers_dump_x", "x", "<= 2", "bytes or seconds, the worse, of a dump with 8 loader workers"),
        Spec("restore_rss_x", "x", "<= 1.1", "memory of a rank with 8 loader workers after ten moves"),
    ],
    measure,
)
