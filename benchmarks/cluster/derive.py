"""Parameters of the generator from a trace of jobs and a table of measured speeds. Pure.

How each is derived:

- `workers`: the share of bursts by devices of each job, each number taken to the nearest power of two.
- `tenants`: the share of jobs by virtual cluster; those below 1 % are left out.
- `burst_size`, `burst_gap`, `gap_s`: a burst is a row of jobs of one tenant and one size, less than 60 s apart. Users
  submit sweeps. `gap_s` is the mean within a burst; `burst_gap` is divided by its own mean.
  Sizes of bursts are by the same classes as durations: wide jobs come alone.
- `durations`: steps divided by the measured steps per second on one type of device, consolidated. Jobs of a combination
  that nobody measured are left out.
- `families`: the type without its batch size. `alpha` is ln(speed of 8 / speed of 1) / ln 8, at most 1: speed grows as
  workers^alpha. `spread` is the geometric mean of unconsolidated over consolidated speed at 2, 4 and 8 workers.
  `speeds` are those of one device relative to the reference. All are medians over batch sizes.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, geometric_mean, median
from typing import TypeVar

from . import distribution
from .distribution import Table
from .traces import PLACEMENTS, REFERENCE, Throughput, TraceJob

BURST_S = 60.0
SIZES = (1, 2, 4, 8, 16, 32)
CLASSES = {"1": (1, 1), "2-4": (2, 4), "8+": (8, 64)}
"""Of durations, by workers. Nobody measured more than 8 workers, so larger jobs take the durations of 8."""
WIDEST = 8


@dataclass(frozen=True)
class Family:
    """:param single: share of it among the jobs of one worker
    :param several: share of it among the others
    :param alpha: speed grows as workers^alpha; 0: was measured with one worker only
    :param spread: speed of workers on several nodes relative to one node
    :param speeds: of one device, by model, relative to the reference
    """

    name: str
    single: float
    several: float
    alpha: float
    spread: float
    speeds: dict[str, float]


@dataclass(frozen=True)
class Parameters:
    """Shares sum to 1; times are seconds; see the module's text for each."""

    workers: dict[int, float]
    tenants: Sequence[float]
    burst_size: dict[str, Table]
    burst_gap: Table
    gap_s: float
    durations: dict[str, Table]
    families: Sequence[Family]


def parameters(jobs: Sequence[TraceJob], speeds: Sequence[Throughput]) -> Parameters:
    """:raises ValueError: no jobs, no speeds, or a class without a measured job"""
    if not jobs or not speeds:
        raise ValueError("derive: give a trace with jobs and a table with speeds")
    bursts = list(all_bursts(jobs))
    gaps = [after[0].arrival_s - before[-1].arrival_s for before, after in pairs(bursts)]
    inside = [b.arrival_s - a.arrival_s for burst in bursts for a, b in pairwise(burst)]
    measured = durations(jobs, speeds)
    missing = [name for name in CLASSES if not measured[name]]
    if missing or not gaps:
        raise ValueError(f"derive: the trace has no measured job of {', '.join(missing) or 'a second burst'}")
    mean_gap = fmean(gaps)
    return Parameters(
        workers=_shares([size_of(burst[0].gpus) for burst in bursts], SIZES),
        tenants=tenant_shares(jobs),
        burst_size={name: distribution.derive(sizes) for name, sizes in burst_sizes(bursts).items()},
        burst_gap=distribution.derive([gap / mean_gap for gap in gaps]),
        gap_s=float(f"{fmean(inside or [0.0]):.3g}"),
        durations={name: distribution.derive(measured[name]) for name in CLASSES},
        families=families(jobs, speeds),
    )


def dumped(made: Parameters) -> str:
    """JSON with a table in a line; `loaded` reads it."""
    lines = []
    for key, value in asdict(made).items():
        if isinstance(value, dict) and key != "workers":
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table)}" for name, table in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        elif key == "families":
            inner = ",\n".join(f"  {json.dumps(family)}" for family in value)
            lines.append(f" {json.dumps(key)}: [\n{inner}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loaded(text: str) -> Parameters:
    """:raises ValueError: not what `dumped` has written"""
    try:
        found = json.loads(text)
        return Parameters(
            workers={int(workers): float(share) for workers, share in found["workers"].items()},
            tenants=[float(share) for share in found["tenants"]],
            burst_size={name: _table(rows) for name, rows in found["burst_size"].items()},
            burst_gap=_table(found["burst_gap"]),
            gap_s=float(found["gap_s"]),
            durations={name: _table(rows) for name, rows in found["durations"].items()},
            families=[Family(**family) for family in found["families"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"parameters: {error}: write them with `python -m benchmarks.cluster derive`") from error


def _table(rows: Sequence[Sequence[float]]) -> Table:
    return [(float(point), float(value)) for point, value in rows]


def size_of(gpus: int) -> int:
    return min(SIZES, key=lambda size: (abs(math.log2(size) - math.log2(gpus)), size))


def class_of(workers: int) -> str:
    return next(name for name, (low, high) in CLASSES.items() if low <= workers <= high)


def tenant_shares(jobs: Sequence[TraceJob]) -> list[float]:
    """Largest first."""
    counts = [n for _, n in Counter(job.tenant for job in jobs).most_common() if n >= len(jobs) / 100]
    return [round(n / sum(counts), 4) for n in counts]


def all_bursts(jobs: Sequence[TraceJob]) -> Iterator[list[TraceJob]]:
    """Tenant by tenant, in the order of arrival."""
    by_tenant: dict[str, list[TraceJob]] = defaultdict(list)
    for job in sorted(jobs, key=lambda one: one.arrival_s):
        by_tenant[job.tenant].append(job)
    for _, row in sorted(by_tenant.items()):
        burst = [row[0]]
        for job in row[1:]:
            if job.arrival_s - burst[-1].arrival_s >= BURST_S or size_of(job.gpus) != size_of(burst[-1].gpus):
                yield burst
                burst = []
            burst.append(job)
        yield burst


def burst_sizes(bursts: Sequence[list[TraceJob]]) -> dict[str, list[float]]:
    """Numbers of jobs, by class."""
    found: dict[str, list[float]] = {name: [] for name in CLASSES}
    for burst in bursts:
        found[class_of(size_of(burst[0].gpus))].append(float(len(burst)))
    return found


def pairs(bursts: Sequence[list[TraceJob]]) -> Iterator[tuple[list[TraceJob], list[TraceJob]]]:
    """Neighbouring bursts of one tenant."""
    for before, after in pairwise(bursts):
        if before[0].tenant == after[0].tenant:
            yield before, after


def durations(jobs: Sequence[TraceJob], speeds: Sequence[Throughput]) -> dict[str, list[float]]:
    """Seconds alone, by class; the files of Gavel give steps, and steps per second."""
    known = {(s.job_type, s.gpus): s.steps_per_s for s in speeds if (s.gpu, s.placement) == (REFERENCE, PLACEMENTS[0])}
    found: dict[str, list[float]] = {name: [] for name in CLASSES}
    for job in jobs:
        if (job.job_type, job.gpus) in known:
            found[class_of(job.gpus)].append(job.steps / known[job.job_type, job.gpus])
    return found


def families(jobs: Sequence[TraceJob], speeds: Sequence[Throughput]) -> list[Family]:
    table = {(s.gpu, s.placement, s.job_type, s.gpus): s.steps_per_s for s in speeds}
    types: dict[str, set[str]] = defaultdict(set)
    for gpu, placement, kind, gpus in table:
        if (gpu, placement, gpus) == (REFERENCE, PLACEMENTS[0], 1):
            types[_family(kind)].add(kind)
    scalable = {name for name, kinds in types.items() if any(_wide(table, kind, WIDEST) for kind in kinds)}
    single = _shares([_family(job.job_type) for job in jobs if job.gpus == 1], sorted(types))
    several = _shares([f for job in jobs if job.gpus > 1 and (f := _family(job.job_type)) in scalable], sorted(types))
    models = sorted({gpu for gpu, _, _, _ in table})
    return [
        Family(
            name,
            single[name],
            several[name],
            _median([min(1.0, math.log(w) / math.log(WIDEST)) for k in kinds if (w := _wide(table, k, WIDEST))], 0.0),
            _median([s for k in kinds if (s := _spread(table, k))], 1.0),
            {gpu: _median([s for k in kinds if (s := _alone(table, k, gpu))], 0.0) for gpu in models},
        )
        for name, kinds in ((name, sorted(kinds)) for name, kinds in sorted(types.items()))
    ]


K = TypeVar("K", int, str)
Speeds = dict[tuple[str, str, str, int], float]


def _family(job_type: str) -> str:
    return job_type.split(" (")[0]


def _wide(table: Speeds, kind: str, gpus: int) -> float:
    """Speed of `gpus` workers on one node over that of one worker; 0 where it was not measured."""
    return table.get((REFERENCE, PLACEMENTS[0], kind, gpus), 0.0) / table[REFERENCE, PLACEMENTS[0], kind, 1]


def _spread(table: Speeds, kind: str) -> float:
    near_far = [tuple(table.get((REFERENCE, place, kind, n), 0.0) for place in PLACEMENTS) for n in (2, 4, 8)]
    ratios = [far / near for near, far in near_far if near and far]
    return geometric_mean(ratios) if ratios else 0.0


def _alone(table: Speeds, kind: str, gpu: str) -> float:
    return table.get((gpu, PLACEMENTS[0], kind, 1), 0.0) / table[REFERENCE, PLACEMENTS[0], kind, 1]


def _median(values: Sequence[float], otherwise: float) -> float:
    return round(median(values), 3) if values else otherwise


def _shares(values: Sequence[K], keys: Sequence[K]) -> dict[K, float]:
    counts = Counter(values)
    total = sum(counts[key] for key in keys) or 1
    return {key: round(counts[key] / total, 4) for key in keys}
