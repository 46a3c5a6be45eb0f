"""What a dead worker cluster costs the jobs of the others under MultiKueue.

Jobs are let into one cluster while another one is well, and while it is dead: its API server is stopped (SIGSTOP), so
connections are taken and nothing is ever answered. Meanwhile as many jobs wait for its word.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.prepare import prepare

from .federation import Federation, federation, kubeconfig, until
from .model import Group, Measured, Options, Say, Spec
from .stats import median

JOBS = 30


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    count = JOBS // 10 if options.quick else JOBS
    made = prepare(say)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        federation(Path(folder), str(made.apiserver), str(made.etcd), ["good", "bad"]) as land,
    ):
        well, dead = both(land, count)
    text = ", all clusters well ".join(f"{median(runs):.3f} s (worst {max(runs):.3f})" for runs in (dead, well))
    say(text)
    about = f"from quota to the fence's answer, {count} jobs, while as many wait for the dead cluster: {text}"
    return {"mk_dead_cluster_s": Measured(median(dead) - median(well), [well, dead], about)}


def both(land: Federation, count: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return the seconds of `count` admissions while all clusters are well, and while one is dead."""
    for name, server in land.workers.items():
        land.by_secret(name, kubeconfig(server))
    land.start()
    until(lambda: land.fresh("good", "bad"), "both clusters are known")
    waiting = [f"waits-{n}" for n in range(count)]
    for name in waiting:
        land.admitted("bad", name)
    well = [land.admitted("good", f"well-{n}") for n in range(count)]
    os.kill(land.workers["bad"].pid, signal.SIGSTOP)
    try:
        for name in waiting:
            land.reserve("good", name)
        return well, [land.admitted("good", f"dead-{n}") for n in range(count)]
    finally:
        os.kill(land.workers["bad"].pid, signal.SIGCONT)


GROUP = Group(
    "dead_cluster",
    "kube-apiserver and etcd, three times",
    (Spec("mk_dead_cluster_s", "s", "<= 0.05", "what a dead worker cluster adds to an admission in another one"),),
    measure,
)
