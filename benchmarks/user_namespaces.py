"""What a user namespace costs: seconds of a dump and of a restore of a job with loader workers, against the node's.

Two equal jobs, one in a container with a user namespace of its own, are stopped and moved in turns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from localcluster.prepare import prepare

from . import machine
from .model import Group, Measured, Options, Say, Spec
from .pods import Job, bytes_of
from .stats import median, median_ratio

RANKS, WIDTH, WORKERS = 2, 512, 8
WARM = 10
UIDS = 100_000
"""First uid of this machine that is the container's."""


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    dumps: list[tuple[float, float]] = []
    restores: list[tuple[float, float]] = []
    sizes: list[tuple[float, float]] = []
    program = ["train_wide.py", str(WIDTH), str(WORKERS)]
    with Job(made, program, ranks=RANKS, uids=UIDS) as own, Job(made, program, ranks=RANKS) as node:
        cost = machine.write_cost(own.folder)
        for job in (own, node):
            job.start(1)
            job.wait_step(WARM)
        for number in range(1 if options.quick else 4):
            took = {}
            # The second one finds the page cache as the first has left it: who is first takes turns, too.
            for job in (own, node) if number % 2 else (node, own):
                took[job] = _move(job)
            dumps.append((took[own][0], took[node][0]))
            restores.append((took[own][1], took[node][1]))
            sizes.append((took[own][2], took[node][2]))
            say(f"move {number + 1}: user namespace {took[own]}, node {took[node]} (dump s, restore s, MB)")
    more = f"{WORKERS} workers, {median(b for b, _ in sizes):.0f} MB, {median_ratio(sizes):.3g} times the bytes; "
    more += machine.told(cost)
    return {
        key: Measured(median_ratio(pairs), pairs, f"{_both(pairs)}; {more}")
        for key, pairs in (("userns_dump_ratio", dumps), ("userns_restore_ratio", restores))
    }


def _move(job: Job) -> tuple[float, float, float]:
    """Seconds of the dump, seconds from the new container's start until all is restored, megabytes."""
    stop = job.stop()
    size, at = bytes_of(job.images()) / 1e6, max(job.counts())
    began = time.monotonic()
    job.start(1)
    job.restored()
    restore_s = time.monotonic() - began
    job.wait_step(at + WARM)
    return round(stop.dump_s, 3), round(restore_s, 3), round(size, 1)


def _both(pairs: list[tuple[float, float]]) -> str:
    return f"{median(a for a, _ in pairs):.2g} s in a user namespace, {median(b for _, b in pairs):.2g} s without"


GROUP = Group(
    "user namespaces",
    "root, training root file system with CRIU, Linux 6.3",
    [
        Spec("userns_dump_ratio", "x", "<= 1.2", "dump of a rank with loader workers in a user namespace, and without"),
        Spec("userns_restore_ratio", "x", "<= 1.2", "its restore, with the start of its container"),
    ],
    measure,
)
