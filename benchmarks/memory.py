"""What an upload takes: memory (`sidecar_rss_mb`) and processor time (`put_cpu_s_per_gb`, `known_cpu_s_per_gb`).

A process with all that a sidecar has loaded uploads images that neither compress nor repeat, so that every byte goes
through. One upload goes to a folder. Another goes to a server of Google Cloud Storage's protocol that takes 10 MB/s on
each connection. A slow store must slow the reading down instead of filling memory. The same images once more are known
content. A kernel may charge much for any new file: the same bytes written by nobody in particular tell how much.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from localcluster.prepare import prepare
from singularity_proxy.protocol import names

from .harness import FaultyProxy, make_gcs_bucket, running_gcs
from .model import Group, Measured, Options, Say, Spec

MIB = 1 << 20
SIZE = 1024 * MIB
PACK = 8 * MIB
TURNS = 3
SLOW = 10e6
"""Bytes per second and connection."""
CHILD = """
import json, resource, sys, time
import singularity_proxy.sidecar.sidecar
from singularity_proxy.store import Store, keys, memory

memory.load()  # as a sidecar does before its first upload

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))

url, folder = sys.argv[1:]
store = Store(url, keys=keys.from_env())
store.probe("bench", "job")  # as a sidecar does: the job has its data key
before, cpu = peak(), []
for checkpoint in ("new", "known"):
    began = time.process_time()
    put = store.put_ranks("bench", "job", checkpoint, {0: folder})
    cpu.append(time.process_time() - began)
print(json.dumps({"before": before, "peak": peak(), "cpu": cpu[0], "known": cpu[1], "bytes": put.bytes}))
"""


def upload(url: str, folder: Path, server: str = "", keys: str = "") -> dict[str, float]:
    """Peak of the resident memory in MB, processor seconds of both uploads, bytes. Raises CalledProcessError."""
    env = {**os.environ, **({"STORAGE_EMULATOR_HOST": server} if server else {}), names.ENV_STORE_KEYS: keys}
    words = [sys.executable, "-c", CHILD, url, str(folder)]
    done = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=1800)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_plainly(source: Path, folder: Path) -> float:
    """Processor seconds per GB to write a file's bytes as new files of a pack's size."""
    folder.mkdir()
    total, cost = 0, 0.0
    with source.open("rb", buffering=0) as file:
        while data := file.read(PACK):
            began = time.process_time()
            with (folder / str(total)).open("wb", buffering=0) as made:
                made.write(data)
                os.fsync(made.fileno())
            cost += time.process_time() - began
            total += len(data)
    shutil.rmtree(folder)
    return cost / total * 1e9


def encrypted(folder: Path, image: Path, turns: int) -> list[tuple[float, float]]:
    """Processor seconds per GB of an upload of new bytes, in clear and encrypted, in turns."""
    keys = folder / "keys"
    keys.mkdir()
    (keys / "key").write_bytes(os.urandom(32))
    found: list[tuple[float, float]] = []
    for turn in range(turns):
        pair: list[float] = []
        for number, key in enumerate(("", str(keys))):
            store = folder / f"pair-{turn}-{number}"
            run = upload(f"file://{store}", image, keys=key)
            pair.append(run["cpu"] / run["bytes"] * 1e9)
            shutil.rmtree(store)
        found.append((pair[0], pair[1]))
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
        plain = write_plainly(folder / "image-1" / "pages-1.img", folder / "plain")
        say(f"the same bytes as plain new files: {plain:.2f} s/GB")
        pairs = encrypted(folder, folder / "image-2", 2 if options.quick else TURNS)
        proxy = FaultyProxy(urlsplit(server).port or 0)
        proxy.rate = SLOW
        label = f"{size // MIB} MiB to a slow server"
        runs[label] = upload(make_gcs_bucket(server), folder / "image-1", proxy.url)
        proxy.close()
        say(f"{label}: {runs[label]}")
    peak = max(run["peak"] for run in runs.values())
    words = ", ".join(f"{label} {run['peak']:.0f} MB" for label, run in runs.items())
    least = max(run["before"] for run in runs.values())
    costs = [run["cpu"] / run["bytes"] * 1e9 for run in runs.values()]
    known = [run["known"] / run["bytes"] * 1e9 for run in runs.values()]
    text = f"{costs[0]:.2g} and {costs[1]:.2g} to a folder, {costs[2]:.2g} over HTTP; plain new files {plain:.2g}"
    again = f"{known[0]:.2g} and {known[1]:.2g} in a folder, {known[2]:.2g} over HTTP"
    return {
        "sidecar_rss_mb": Measured(peak, [runs], f"{words}; {least:.0f} MB before the upload"),
        "put_cpu_s_per_gb": Measured(costs[1], [*costs, plain], text),
        "known_cpu_s_per_gb": Measured(known[1], known, again),
        "encrypt_cpu_s_per_gb": Measured(
            statistics.median(after - before for before, after in pairs), [pairs],
            ", ".join(f"{after:.2g} instead of {before:.2g}" for before, after in pairs),
        ),
    }  # fmt: skip


GROUP = Group(
    "memory",
    "root, 3 GB of disk, fake-gcs-server in memory (1 GB)",
    [
        Spec("sidecar_rss_mb", "MB", "<= 512", "peak of a sidecar's memory while it uploads 1 GiB of new bytes"),
        Spec("put_cpu_s_per_gb", "s/GB", "<= 1.2", "processor seconds that the upload of new bytes takes"),
        Spec("known_cpu_s_per_gb", "s/GB", "<= 0.5", "processor seconds to upload bytes that the store has"),
        Spec("encrypt_cpu_s_per_gb", "s/GB", "<= 0.4", "processor seconds that encryption adds to an upload, in turns"),
    ],
    measure,
)
