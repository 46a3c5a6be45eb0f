"""`sidecar_rss_mb`: how much memory an upload takes, and `put_cpu_s_per_gb`: what it costs in processor time.

A process with all that a sidecar has loaded uploads images that neither compress nor repeat, so that every byte goes
through: to a folder, and to a server of Google Cloud Storage's protocol that takes 10 MB/s on each connection. A slow
store must slow the reading down instead of filling memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from localcluster.prepare import prepare

from .harness import FaultyProxy, make_gcs_bucket, running_gcs
from .model import Group, Measured, Options, Say, Spec

MIB = 1 << 20
SIZE = 1024 * MIB
SLOW = 10e6
"""Bytes per second and connection."""
CHILD = """
import json, resource, sys, time
import proxy.sidecar.sidecar
from proxy.store import Store

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))

url, folder = sys.argv[1:]
store = Store(url)
store.probe()
before, began = peak(), time.process_time()
put = store.put_ranks("bench", "job", "c", {0: folder})
print(json.dumps({"before": before, "peak": peak(), "cpu": time.process_time() - began, "bytes": put.bytes}))
"""


def upload(url: str, folder: Path, server: str = "") -> dict[str, float]:
    """Peak of the resident memory in MB, processor seconds, bytes. Raises CalledProcessError."""
    env = {**os.environ, **({"STORAGE_EMULATOR_HOST": server} if server else {})}
    words = [sys.executable, "-c", CHILD, url, str(folder)]
    done = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=1800)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    program = prepare(say).fake_gcs
    size = SIZE // 10 if options.quick else SIZE
    runs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name, running_gcs(program, Path(name) / "gcs.log") as server:
        folder = Path(name)
        for share in (2, 1):
            image = folder / f"image-{share}"
            image.mkdir()
            with (image / "pages-1.img").open("wb") as file:
                for _ in range(size // share // MIB):
                    file.write(os.urandom(MIB))
            label = f"{size // share // MIB} MiB to a folder"
            runs[label] = upload(f"file://{folder}/store-{share}", image)
            say(f"{label}: {runs[label]}")
        proxy = FaultyProxy(urlsplit(server).port or 0)
        proxy.rate = SLOW
        label = f"{size // MIB} MiB to a slow server"
        runs[label] = upload(make_gcs_bucket(server), folder / "image-1", proxy.url)
        proxy.close()
        say(f"{label}: {runs[label]}")
    peak = max(run["peak"] for run in runs.values())
    words = ", ".join(f"{label} {run['peak']:.0f} MB" for label, run in runs.items())
    before = max(run["before"] for run in runs.values())
    costs = [run["cpu"] / run["bytes"] * 1e9 for run in runs.values()]
    text = f"{costs[0]:.2g} and {costs[1]:.2g} to a folder, {costs[2]:.2g} over HTTP; new bytes only"
    return {
        "sidecar_rss_mb": Measured(peak, [runs], f"{words}; {before:.0f} MB before the upload"),
        "put_cpu_s_per_gb": Measured(costs[1], costs, text),
    }


GROUP = Group(
    "memory",
    "root, 3 GB of disk, fake-gcs-server in memory (1 GB)",
    [
        Spec("sidecar_rss_mb", "MB", "<= 512", "peak of a sidecar's memory while it uploads 1 GiB of new bytes"),
        Spec("put_cpu_s_per_gb", "s/GB", "", "processor seconds that the upload of new bytes takes"),
    ],
    measure,
)
