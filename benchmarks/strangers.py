"""What somebody without a token does to the reports of pods: connections that say nothing, and scrapes without end.

A real API server with running jobs, and the controller as a process of its own. Another process has one address and
holds thousands of places, each of which comes again when it is ended. The report of one pod is timed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, quantiles

from localcluster.api_server import api_server
from localcluster.prepare import prepare

from .controllers import started
from .model import Group, Measured, Options, Say, Spec
from .running_jobs import Cluster, Serving, Sidecar, connected, leads, more_files, serving, until

JOBS, CONNECTIONS, SCRAPES = 300, 10_000, 4_000
REPORTS, EVERY_S = 200, 0.05
CROWD = """
import asyncio, random, sys
port, count, words = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])

async def one():
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(words)
            begun[0] += 1
            while await reader.read(65536):
                pass
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(random.uniform(2.5, 7.5))

async def main():
    tasks = [asyncio.create_task(one()) for _ in range(count)]
    while begun[0] < count:
        await asyncio.sleep(0.1)
    print("all were there", flush=True)
    await asyncio.gather(*tasks)

begun = [0]
asyncio.run(main())
"""
HELLO = bytes.fromhex("16030102000100" "01fc0303")
"""The begin of a TLS handshake."""
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.contextmanager
def crowd(folder: Path, port: int, count: int, words: bytes) -> Iterator[None]:
    """So many callers of one address that say `words` and wait, while the block runs."""
    log = folder / f"crowd-{port}-{time.monotonic_ns()}.log"
    with started([sys.executable, "-c", CROWD, str(port), str(count), words.hex()], log):
        end = time.monotonic() + 120
        while "all were there" not in log.read_text():
            if time.monotonic() > end:
                raise RuntimeError(f"the crowd did not come within 120 s: {log.read_text()}")
            time.sleep(0.1)
        yield


async def reports(sidecar: Sidecar) -> list[float]:
    """Seconds of one pod's reports, one after the other."""
    took = []
    for _ in range(REPORTS):
        began = time.monotonic()
        await sidecar.progress(sidecar.note())
        took.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    return took


async def play(cluster: Cluster, controller: Serving, folder: Path, size: int, say: Say) -> dict[str, list[float]]:
    """Reports without anybody and beside each crowd, in turns."""
    found: dict[str, list[float]] = {"alone": [], "idle": [], "scrapes": []}
    crowds = {
        "idle": (controller.api, CONNECTIONS // size, HELLO),
        "scrapes": (controller.health, SCRAPES // size, SCRAPE),
    }  # fmt: skip
    await until(lambda: leads(controller), "the controller leads")
    async with connected(cluster, controller, folder) as sidecars:
        tasks = [asyncio.ensure_future(each.listen()) for each in sidecars]
        tasks += [asyncio.ensure_future(each.report()) for each in sidecars[1:]]
        try:
            await until(lambda: min(each.notes for each in sidecars[1:]) >= 1, "each job was heard")
            for turn in ("alone", "idle", "scrapes", "scrapes", "idle", "alone"):
                with contextlib.ExitStack() as stack:
                    if turn in crowds:
                        await asyncio.to_thread(stack.enter_context, crowd(folder, *crowds[turn]))
                    took = await reports(sidecars[0])
                found[turn] += took
                say(f"{turn}: p95 {p95(took):.4f} s, median {median(took):.4f} s, {controller.rss_mb():.0f} MB,"
                    f" load {os.getloadavg()[0]:.0f}")  # fmt: skip
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return found


def p95(took: list[float]) -> float:
    return quantiles(took, n=20)[-1]


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    size = 10 if options.quick else 1
    more_files(20_000)
    ready = prepare(say)
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        folder = Path(name)
        (folder / "api").mkdir()
        with api_server(folder / "api", str(ready.apiserver), str(ready.etcd)) as server:
            cluster = Cluster(server)
            cluster.grow(JOBS // size)
            with serving(server, folder, 19_743, 18_380) as controller:
                found = asyncio.run(play(cluster, controller, folder, size, say))
                memory = controller.rss_mb()
    alone, idle, scrapes = (p95(found[turn]) for turn in ("alone", "idle", "scrapes"))
    runs = [[round(each, 4) for each in took] for took in found.values()]
    beside = f"{alone:.3f} s without; {JOBS // size} jobs report; load {os.getloadavg()[0]:.0f}"
    about = f"median {median(found['idle']):.4f} s; {memory:.0f} MB afterwards; {beside}"
    return {
        "idle_connections": Measured(idle, runs, about),
        "scrape_flood": Measured(scrapes / alone, runs, f"{scrapes:.3f} s beside {SCRAPES // size} scrapes; {beside}"),
    }


GROUP = Group(
    "strangers",
    "root, an API server",
    (
        Spec("idle_connections", "s", "<= 0.1", "p95 of a pod's report beside 10,000 unfinished TLS connections"),
        Spec("scrape_flood", "x", "<= 1.2", "p95 of a pod's report beside 4,000 open scrapes, by without"),
    ),
    measure,
)
