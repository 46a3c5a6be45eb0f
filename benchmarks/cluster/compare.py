"""How far generated workloads are from the trace that their parameters come from. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from . import generator
from .derive import CLASSES, Parameters, all_bursts, class_of, durations, size_of
from .distribution import distance
from .model import Job
from .traces import Throughput, TraceJob

UNCUT = generator.Mix(longest_s=1e12)
SEEDS = range(1, 6)


def report(jobs: Sequence[TraceJob], speeds: Sequence[Throughput], made: Parameters) -> str:
    """Distances as a markdown table, each over `SEEDS`.

    The demand and the window are those of the trace. Distances are Kolmogorov's and Smirnov's; for shares they are half
    the sum of the differences (total variation).
    """
    known = durations(jobs, speeds)
    mean = {name: _mean(values) for name, values in known.items()}
    sizes = [size_of(job.gpus) for job in jobs]
    demand = sum(size * mean[class_of(size)] for size in sizes)
    window = max(job.arrival_s for job in jobs) - min(job.arrival_s for job in jobs)
    drawn = [generator.workload(seed, demand, window, [], UNCUT, made) for seed in SEEDS]
    rows: list[tuple[str, list[float]]] = [
        (f"duration, {name} workers", [distance(known[name], _durations(one, name)) for one in drawn])
        for name in CLASSES
    ]
    rows.append(("jobs by workers", [_variation(_sizes(jobs), Counter(j.workers for j in one)) for one in drawn]))
    own = [float(len(burst)) for burst in all_bursts(jobs)]
    again = [[float(len(burst)) for burst in all_bursts(_as_trace(one))] for one in drawn]
    rows.append(("jobs of a burst", [distance(own, other) for other in again]))
    rows.append(("seconds between jobs of a tenant", [distance(_gaps(jobs), _gaps(_as_trace(one))) for one in drawn]))
    rows.append(("number of jobs, relative", [abs(len(one) / len(jobs) - 1) for one in drawn]))
    lines = ["| | least | mean | largest |", "| --- | --- | --- | --- |"]
    lines += [f"| {name} | {min(all_):.3f} | {_mean(all_):.3f} | {max(all_):.3f} |" for name, all_ in rows]
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _durations(jobs: Sequence[Job], name: str) -> list[float]:
    return [job.work_s for job in jobs if class_of(job.workers) == name]


def _sizes(jobs: Sequence[TraceJob]) -> Counter[int]:
    return Counter(size_of(job.gpus) for job in jobs)


def _variation(first: Counter[int], second: Counter[int]) -> float:
    one, two = first.total(), second.total()
    return sum(abs(first[key] / one - second[key] / two) for key in first | second) / 2


def _as_trace(jobs: Sequence[Job]) -> list[TraceJob]:
    return [TraceJob(str(job.tenant), job.family, job.work_s, job.arrival_s, job.workers) for job in jobs]


def _gaps(jobs: Sequence[TraceJob]) -> list[float]:
    """Between neighbouring jobs of one tenant."""
    last: dict[str, float] = {}
    found = []
    for job in sorted(jobs, key=lambda one: one.arrival_s):
        if job.tenant in last:
            found.append(job.arrival_s - last[job.tenant])
        last[job.tenant] = job.arrival_s
    return found
