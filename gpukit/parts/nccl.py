"""An NCCL world of one rank whose communicators are dropped and made again under the script: in place, and in a
move."""

from __future__ import annotations

from ..compare import outcome, same, undisturbed
from ..job import Job
from ..kit import Kit, Result


def run(kit: Kit, result: Result) -> None:
    steps = 600
    for kind in kit.pick(("ddp", "fsdp"), ("ddp",)):
        arguments = (steps, kit.pick(1024, 16), kind)
        wanted = undisturbed(kit, f"{kind}-alone", "world.py", arguments, [[0]])
        with Job(kit, f"{kind}-moved", "world.py", arguments, [[0]]) as job:
            job.stop(steps // 3)
            job.go_on()
            result.note(f"{kind}: stopped at boundary {job.step}, and went on in place")
            job.stop(2 * steps // 3)
            job.move([[0]])
            job.finish()
            same(result, f"{kind}: stopped in place, then moved", wanted, outcome(job))
    result.sentence = "communicators dropped and made anew"
