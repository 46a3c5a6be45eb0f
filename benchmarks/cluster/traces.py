"""Reads files of traces that a user gives; the project ships none of them.

Four kinds are known, each a CSV file with a header, plain or gzip (`.gz`):

    file         columns                                          source
    jobs         virtual_cluster, job_type, steps, arrival_s,     Philly (Jeon et al., ATC'19) as Gavel's authors made
                 gpus                                             it (Narayanan et al., OSDI'20, scheduler/traces/msr)
    throughputs  gpu, placement, job_type, gpus, steps_per_s      Gavel, scheduler/simulation_throughputs.json
    nodes        sn, gpu, model                                   Alibaba cluster-trace-gpu-v2023 (Weng et al., ATC'23)
    pods         num_gpu, qos, scheduled_time, deletion_time      the same

Further columns are ignored. Every error names file, line, column and value.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PLACEMENTS = ("consolidated", "unconsolidated")
REFERENCE = "v100"
"""Durations are those on this model."""


@dataclass(frozen=True)
class TraceJob:
    """:param steps: of the whole job
    :param arrival_s: seconds since the beginning of the trace
    :param gpus: asked for, all at once
    """

    tenant: str
    job_type: str
    steps: float
    arrival_s: float
    gpus: int


@dataclass(frozen=True)
class Throughput:
    """Steps per second of all workers together."""

    gpu: str
    placement: str
    job_type: str
    gpus: int
    steps_per_s: float


@dataclass(frozen=True)
class TraceNode:
    name: str
    gpus: int
    model: str


@dataclass(frozen=True)
class TracePod:
    """:param run_s: seconds from scheduled to deleted; None where one of the two is not known"""

    gpus: int
    qos: str
    run_s: float | None


class Row:
    """One line of a file; its cells are read with errors that say where they are."""

    def __init__(self, path: Path, line: int, cells: Mapping[str, str]) -> None:
        self._path, self._line, self._cells = path, line, cells

    def text(self, column: str) -> str:
        return (self._cells[column] or "").strip()

    def number(self, column: str, least: float = 0.0, above: bool = False) -> float:
        """:raises ValueError: no number, not finite, or less than `least`; with `above` also `least` itself"""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            bound = f"more than {least:g}" if above else f"at least {least:g}"
            raise self.bad(column, f"a number of {bound}")
        return value

    def whole(self, column: str, least: int = 0) -> int:
        value = self.number(column, least)
        if value != int(value):
            raise self.bad(column, "a whole number")
        return int(value)

    def choice(self, column: str, known: Sequence[str]) -> str:
        if self.text(column) not in known:
            raise self.bad(column, f"one of {', '.join(known)}")
        return self.text(column)

    def bad(self, column: str, wanted: str) -> ValueError:
        return ValueError(f"{self._path}:{self._line}: {column} = {self.text(column)!r}: write {wanted}")


def read_jobs(path: Path) -> list[TraceJob]:
    """In the order of arrival. Raises ValueError, OSError."""
    columns = ("virtual_cluster", "job_type", "steps", "arrival_s", "gpus")
    return sorted(_read(path, columns, _job), key=lambda job: job.arrival_s)


def read_throughputs(path: Path) -> list[Throughput]:
    """Combinations that were not measured (0 steps per second) are left out. Raises ValueError, OSError."""
    columns = ("gpu", "placement", "job_type", "gpus", "steps_per_s")
    return [one for one in _read(path, columns, _throughput) if one.steps_per_s > 0]


def read_nodes(path: Path) -> list[TraceNode]:
    """Raises ValueError, OSError."""
    return list(
        _read(path, ("sn", "gpu", "model"), lambda row: TraceNode(row.text("sn"), row.whole("gpu"), row.text("model")))
    )


def read_pods(path: Path) -> list[TracePod]:
    """Raises ValueError, OSError."""
    return list(_read(path, ("num_gpu", "qos", "scheduled_time", "deletion_time"), _pod))


def _job(row: Row) -> TraceJob:
    return TraceJob(
        row.text("virtual_cluster"),
        row.text("job_type"),
        row.number("steps", above=True),
        row.number("arrival_s"),
        row.whole("gpus", least=1),
    )


def _throughput(row: Row) -> Throughput:
    return Throughput(
        row.text("gpu"),
        row.choice("placement", PLACEMENTS),
        row.text("job_type"),
        row.whole("gpus", least=1),
        row.number("steps_per_s"),
    )


def _pod(row: Row) -> TracePod:
    run: float | None = None
    if row.text("scheduled_time") and row.text("deletion_time"):
        run = row.number("deletion_time") - row.number("scheduled_time")
    return TracePod(row.whole("num_gpu"), row.text("qos"), run)


def _read(path: Path, columns: Sequence[str], make: Callable[[Row], T]) -> Iterator[T]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        table = csv.DictReader(file)
        try:
            missing = [column for column in columns if column not in (table.fieldnames or ())]
            if missing:
                raise ValueError(
                    f"{path}: no column {', '.join(missing)}; its first line must name {', '.join(columns)}"
                )
            for cells in table:
                if None in cells.values():
                    raise ValueError(f"{path}:{table.line_num}: the line has fewer cells than the header")
                yield make(Row(path, table.line_num, cells))
        except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path}: not a CSV file: {error}") from error
