"""What a list of all jobs costs who asks for it: `singularityctl status -A` on a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kueue_integration.cli.status import list_jobs
from kueue_integration.errors import KubeError
from kueue_integration.kube.api import Kube
from localcluster.api_server import ADMIN, api_server
from localcluster.prepare import prepare

from .large_cluster import PODS, Large
from .model import Group, Measured, Options, Say, Spec
from .stats import median

JOBS = 2000
RUNS = 5
LIMIT_S = 120.0
PROGRAM = [sys.executable, "-c", "from kueue_integration.cli import main; main()"]


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    jobs = JOBS // 10 if options.quick else JOBS
    made = prepare(say)
    with tempfile.TemporaryDirectory(prefix="status-list-") as name:
        folder = Path(name)
        with api_server(folder, str(made.apiserver), str(made.etcd)) as server:
            cluster = Large(server)
            cluster.reach(jobs * 2 // 3 + 1, 0)
            _until_served(cluster.kube)
            env = {**os.environ, "KUBECONFIG": str(server.kubeconfig(ADMIN))}
            idle, runs = seconds(env, "version", "--client")[0], []
            for _ in range(RUNS):
                took, lines = seconds(env, "status", "-A")
                if lines < jobs:
                    raise RuntimeError(f"{lines} lines for {jobs} jobs")
                runs.append(took)
    total = cluster.full + cluster.queued
    about = (
        f"{cluster.full} running jobs of {PODS} pods and 20 attempts, {cluster.queued} that wait; "
        f"worst {max(runs):.2f} s; the program alone {idle:.2f} s"
    )
    say(f"{total} jobs: {median(runs):.2f} s; {about}")
    return {"status_list_s": Measured(median(runs), runs, about)}


def seconds(env: Mapping[str, str], *words: str) -> tuple[float, int]:
    """How long a call of singularityctl takes, the start of its process included, and how many lines it prints."""
    began = time.monotonic()
    done = subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"singularityctl {' '.join(words)}: exit {done.returncode}: {done.stderr}")
    return time.monotonic() - began, len(done.stdout.splitlines())


def _until_served(kube: Kube) -> None:
    """An API server that has a new kind answers 429 until it has looked for its objects."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            list_jobs(kube, None)
            return
        except KubeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


GROUP = Group(
    "status list",
    "an API server",
    (Spec("status_list_s", "s", "<= 2", "`singularityctl status -A` with 2,000 jobs, as a process"),),
    measure,
)
