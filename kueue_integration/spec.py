"""`TrainSpec`: everything a user says about a training job. Plain data; `validate` checks it without any I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrainSpec:
    """One training job.

    :param name: name of the Job, a DNS label of at most 52 characters (pod names get an index and a suffix)
    :param queue: Kueue LocalQueue in `namespace`
    :param command: argv of the user's program, as given to `torchrun` without the launcher: one process per rank
    :param workers: pods wanted
    :param min_workers: fewest pods the job accepts (partial admission); None: `workers`
    :param world_size: ranks, constant over the life of the job; None: `workers`. A multiple of `workers`
    :param image: training image; None: the platform's default
    :param resources: per pod, `{"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}`: requests, and limits for GPUs and memory
    :param files: relative path -> text, shipped in a ConfigMap (at most 900 kB) and copied into each rank's working
        directory at a fresh start
    :param workdir: directory in the image to start in; None: the per-rank directory that travels with the checkpoint
    :param store: fsspec URL of the checkpoint store; None: the platform's default
    :param checkpoint_budget_s: how long Kueue's preemption may be held for a checkpoint, seconds
    :param grace_period_s: terminationGracePeriodSeconds: time for a checkpoint when the hold is off or bypassed
    :param hold: cooperative preemption; False: plain Kueue, checkpoint within the grace period
    :param identity: owner's identity (label value); submit adopts a live Job with the same one
    """

    name: str
    queue: str
    command: Sequence[str]
    workers: int = 1
    min_workers: int | None = None
    world_size: int | None = None
    namespace: str = "default"
    image: str | None = None
    priority_class: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    store: str | None = None
    engine: str = "auto"
    checkpoint_budget_s: int = 120
    grace_period_s: int = 90
    hold: bool = True
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    identity: str | None = None
