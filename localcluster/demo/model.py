"""What a run of the story leaves behind: plain data between the driver and the pure functions that judge and draw it.

All times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kueue_integration.contract.record_types import AttemptRecord

from .compare import Comparison


@dataclass(frozen=True)
class Sample:
    """The training job as seen at one moment."""

    at: float
    phase: str
    step: int | None
    pods: int
    """Pods whose training container runs."""


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint. `bytes_stored` is what it added to the store."""

    id: str
    step: int
    bytes: int
    bytes_stored: int


@dataclass(frozen=True)
class TaskSample:
    """The Airflow task instance as seen at one moment through Airflow's own REST API."""

    at: float
    state: str
    """"none" before it was scheduled."""
    try_number: int


@dataclass(frozen=True)
class Expectation:
    """What the story should look like: known before it starts, compared with what happened."""

    steps: int
    ranks: int
    workers: int
    min_workers: int
    flavor: str
    """Where it starts, and where it is back at the end."""
    other_flavor: str
    intruder: str
    """Name of the high-priority Job."""
    elastic: bool = False
    """Whether the ranks follow the workers (state engine), or stay."""
    last_workers: int | None = None
    """Workers that a user asks for once it has grown back; None: it is left alone."""

    def ranks_of(self, pods: int) -> int:
        """Ranks that an attempt of `pods` pods has."""
        return pods * (self.ranks // self.workers) if self.elastic else self.ranks

    @property
    def logs(self) -> int:
        """Ranks that write their losses: all, or the first where the loss is that of all virtual ranks."""
        return 1 if self.elastic else self.ranks


@dataclass(frozen=True)
class StoryRecord:
    """Everything measured in one run."""

    job: str
    started_at: float
    """When the DAG run was triggered (or the job submitted)."""
    attempts: Sequence[AttemptRecord]
    checkpoints: Sequence[Saved]
    """Every committed checkpoint that was seen, oldest first."""
    samples: Sequence[Sample]
    task_samples: Sequence[TaskSample] = ()
    dag_run_state: str = ""


@dataclass(frozen=True)
class Machines:
    """What a flavor's nodes were announced to lack, and what the pods saw."""

    flavor: str
    lacks: Sequence[str]
    """Features of the processor, as node feature discovery names them."""
    seen: Mapping[str, str]
    """Flavor -> digest of the features, from a checkpoint that was made there; "" where that says none."""


@dataclass(frozen=True)
class Outcome:
    """A finished story with its comparison."""

    record: StoryRecord
    comparison: Comparison
    samples: Sequence[str] | None = None
    """Sentences: what is wrong with the samples that were trained on. None: they were not written down."""
    machines: Machines | None = None
    """None: all nodes were alike."""
