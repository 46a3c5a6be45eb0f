"""How long a preemptor waits: cooperative preemption against Kueue with a grace period, same job, same state."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import JOB, POD
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.follow import running_pods
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for

from .model import Group, Measured, Options, Say, Spec
from .programs import train_wide_source
from .stats import median

CLUSTER = os.environ.get("SINGULARITY_BENCH_CLUSTER", "bench")
PODS = 4
WIDTH = 512
LIMIT_S = 600.0
GRACE_S = 120


@contextmanager
def stage(say: Say, dags: Path | None = None, airflow_env: Mapping[str, str] = MappingProxyType({})) -> Iterator[Stage]:
    """A cluster of our own, gone afterwards; with an Airflow that reads `dags`, if they are given."""
    name = os.environ.get("SINGULARITY_BENCH_CLUSTER", CLUSTER)
    made = Stage(name, say) if dags is None else Stage(name, say, dags, airflow_env)
    try:
        made.up(with_airflow=dags is not None)
        yield made
    finally:
        made.close()


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    waits: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with stage(say) as on:
        for number in range(1 if options.quick else 3):
            for hold in (True, False) if number % 2 == 0 else (False, True):
                waits[hold].append(once(on, f"wait-{number}-{'hold' if hold else 'grace'}", hold, say))
    cooperative, grace = waits[True], waits[False]
    value = median(w["running_s"] for w in cooperative)
    baseline = median(w["running_s"] for w in grace)
    return {
        "preemptor_wait_cooperative_s": Measured(value, cooperative, f"grace period: {baseline:.3g} s, {kept(grace)}"),
        "preemptor_wait_grace_s": Measured(baseline, grace, f"cooperative: {value:.3g} s, {kept(cooperative)}"),
    }


def kept(waits: list[dict[str, float]]) -> str:
    return f"checkpoint kept {sum(w['checkpoint'] for w in waits):.0f} of {len(waits)} times"


def wide(name: str, width: int, pods: int, cpu: str, **more: Any) -> TrainSpec:
    """A job of low priority that trains `train_wide.py`, one rank per pod, without loader workers.

    :param more: further fields of TrainSpec
    """
    return TrainSpec(
        name=name,
        queue=QUEUE,
        command=["python3", "train_wide.py", str(width), "0"],
        files={"train_wide.py": train_wide_source()},
        workers=pods,
        priority_class="low",
        resources={"cpu": cpu},
        **more,
    )


def once(on: Stage, name: str, hold: bool, say: Say) -> dict[str, float]:
    """Seconds from the preemptor's creation to its admission and to the last of its pods running."""
    kube = on.kube
    spec = wide(name, WIDTH, PODS, "250m", hold=hold, grace_period_s=GRACE_S, checkpoint_budget_s=GRACE_S)
    rival = f"rival-{name}"
    lifecycle.submit(kube, spec, on.platform)
    try:
        wait_for(lambda: trains(on, name), f"{name} trains", LIMIT_S)
        say(f"{name} trains; the preemptor arrives")
        began = time.monotonic()
        kube.create(intruder(rival, NAMESPACE, QUEUE, on.platform.train_image, PODS, "250m"))
        wait_for(lambda: not kube.get(JOB, NAMESPACE, rival)["spec"]["suspend"], "its admission", LIMIT_S, 0.1)
        admitted = time.monotonic() - began
        selector = f"job-name={rival}"
        wait_for(lambda: running_pods(kube, NAMESPACE, selector) == PODS, "its pods", LIMIT_S, 0.1)
        running = time.monotonic() - began
        # In the grace period the checkpoint may come after the preemptor has started: the last word is that of the end.
        mine = f"{job_names.LABEL_JOB}={name}"
        wait_for(lambda: not kube.list(POD, NAMESPACE, mine), "the end of the preempted pods", LIMIT_S)
        saved = describe(kube, NAMESPACE, name).attempts[0].checkpoint is not None
    finally:
        remove(kube, NAMESPACE, rival)
        remove(kube, NAMESPACE, name)
    found = {"admitted_s": round(admitted, 3), "running_s": round(running, 3), "checkpoint": float(saved)}
    say(f"{name}: {found}")
    return found


def trains(on: Stage, name: str) -> bool:
    attempts: list[Any] = list(describe(on.kube, NAMESPACE, name).attempts)
    return bool(attempts) and attempts[-1].first_step_at is not None


GROUP = Group(
    "preemption",
    "root, local cluster",
    [
        Spec("preemptor_wait_cooperative_s", "s", "", "preemptor created to its pods running, with the hold"),
        Spec("preemptor_wait_grace_s", "s", "", "the same with the hold off: checkpoint in the pods' grace period"),
    ],
    measure,
)
