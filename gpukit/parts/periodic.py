"""How long a periodic checkpoint stops the training, against the bytes on the GPU; copies of the driver and our own."""

from __future__ import annotations

from singularity_proxy.launcher.device import cycle

from ..job import Job
from ..kit import Kit, Result


def run(kit: Kit, result: Result) -> None:
    steps = kit.pick(1500, 600)
    ways = ("driver",) if kit.fake or not kit.driver().lends() else ("driver", "own")
    for megabytes in kit.pick((256, 2048, 8192), (16,)):
        if megabytes * 1e6 * cycle.HOST_FACTOR > cycle.host_memory():
            result.note(f"{megabytes} MB: not measured: the host has not enough memory")
            continue
        for way in ways:
            env = {"SINGULARITY_DEVICE_COPIES": way}
            with Job(kit, f"{way}-{megabytes}", "ballast.py", (steps, megabytes), [[0]], env) as job:
                job.stop(steps // 3)
                job.go_on()
                job.finish()
                stall, wrong = float(job.result(0, "longest")), job.result(0, "wrong")
            result.check(f"{megabytes} MB, {way}: it goes on with what it had", wrong == "0")
            if not kit.fake:
                result.figure(f"{megabytes} MB, {way}: the training stood still, s", stall)
    result.sentence = f"copies of {' and '.join(ways)}"
