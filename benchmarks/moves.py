"""Barrier, dump and restore of four ranks, and what a checkpoint costs a job that goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping

from localcluster.prepare import prepare

from . import machine
from .model import Group, Measured, Options, Say, Spec
from .pods import RANKS, Job, bytes_of
from .stats import median, spread

WIDTH = 512
WARM = 20


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    rounds = 1 if options.quick else 4
    barriers: list[dict[str, float]] = []
    moves: list[dict[str, float]] = []
    stalls: list[dict[str, float]] = []
    with Job(prepare(say), ["train_wide.py", str(WIDTH), "1"]) as job:
        cost = machine.write_cost(job.folder)
        say(machine.told(cost))
        job.start(RANKS)
        job.wait_step(WARM)
        for number in range(rounds):
            stalls.append(stall(job))
            barriers.append({"s": stalls[-1]["barrier_s"], "steps": stalls[-1]["steps"]})
            say(f"periodic checkpoint {number + 1}: {stalls[-1]}")
            job.forget_images()
            job.wait_step(max(job.counts()) + WARM)
            stop = job.stop()
            barriers.append({"s": stop.barrier_s, "steps": stop.steps})
            at, cpu = max(job.counts()), job.cpu.seconds()
            job.start(RANKS // 2 if number % 2 == 0 else RANKS)
            began = time.monotonic()
            job.restored()
            restored, cpu = time.monotonic() - began, job.cpu.seconds() - cpu
            first = job.wait_step(at + 1) - began
            parts = {"barrier": stop.barrier_s, "dump": stop.dump_s, "restore": restored, "first_step": first}
            moves.append({**parts, "pods": len(job.pods), "dump_cpu": stop.dump_cpu_s, "restore_cpu": cpu})
            say(f"move {number + 1}: {moves[-1]}")
            job.wait_step(at + WARM)
    totals = [m["barrier"] + m["dump"] + m["first_step"] for m in moves]
    per_gb = [s["stall_s"] / s["mapped_gb"] for s in stalls]
    written = median(s["stall_s"] / s["gb"] for s in stalls)
    seconds = [b["s"] for b in barriers]
    steps = [b["steps"] for b in barriers]
    parts_text = ", ".join(f"{key} {median(m[key] for m in moves):.2f}" for key in ("barrier", "dump", "restore"))
    gb = median(s["gb"] for s in stalls)
    cpu_text = ", ".join(f"{key} {median(m[f'{key}_cpu'] for m in moves):.1f} s" for key in ("dump", "restore"))
    note = f"container start and first step included, 4 pods -> 2 -> 4; CPU time: {cpu_text}; {machine.told(cost)}"
    return {
        "barrier_s": Measured(median(seconds), barriers, f"worst {max(seconds):.3g} s of {len(seconds)}"),
        "barrier_steps": Measured(median(steps), barriers, f"worst {max(steps):.0f} of {len(steps)}"),
        "freeze_dump_restore_s": Measured(median(totals), moves, f"paper 19-25 s; {parts_text}; {note}"),
        "periodic_stall_s_per_gb": Measured(
            median(per_gb),
            stalls,
            f"{median(s['mapped_gb'] for s in stalls):.2f} GB mapped by 4 ranks with a worker each; spread "
            f"{spread(per_gb):.2g}; {written:.2g} per GB of the {gb:.2f} GB that are written; CPU time of the dump "
            f"{median(s['dump_cpu_s'] for s in stalls) / gb:.2f} s per GB written; {machine.told(cost)}",
        ),
    }


def stall(job: Job) -> dict[str, float]:
    """A checkpoint that leaves the job running: from the request to the first step that all made after it.

    One step of ordinary training is taken off, as it would have been made anyway.
    """
    start = max(job.counts())
    began = job.wait_step(start)
    usual = (job.wait_step(start + 10) - began) / 10
    asked = time.monotonic()
    stop = job.stop()
    at = max(job.counts())
    gb, mapped = bytes_of(job.images()) / 1e9, machine.mapped_bytes(job.cpu.pids()) / 1e9
    copied = time.monotonic()  # looking at sizes is ours, not the product's
    job.go_on()
    again = job.wait_step(at + 1)
    stopped = stop.barrier_s + stop.dump_s + (again - copied) - usual * (stop.steps + 1)
    assert copied >= asked
    parts = {"stall_s": stopped, "gb": gb, "mapped_gb": mapped, "dump_s": stop.dump_s, "dump_cpu_s": stop.dump_cpu_s}
    parts |= {"barrier_s": stop.barrier_s, "steps": stop.steps}
    return {key: round(value, 4) for key, value in parts.items()}


GROUP = Group(
    "moves",
    "root, training root file system with CRIU",
    [
        Spec("barrier_steps", "steps", "<= 2", "mini-batches from request to barrier, 4 ranks in 4 and in 2 pods"),
        Spec("barrier_s", "s", "<= 1", "seconds from request to barrier"),
        Spec("freeze_dump_restore_s", "s", "<= 5", "barrier + dump + restore without transfer, 4 ranks"),
        Spec("periodic_stall_s_per_gb", "s/GB", "<= 0.5", "interruption by a periodic checkpoint, per GB mapped"),
    ],
    measure,
)
