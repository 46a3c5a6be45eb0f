"""What is played, and by whom: data, read by the runner and by the Dag file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Event = Literal["preempt", "kill", "clear", "fail", "fail-run"]

STEPS = 60
PACE_S = 0.5
POD_CPU = "200m"
QUOTA = "300m"
"""Of each of the two flavors of a contender's queue: room for one training and not for two."""
TASK = "train"
SLOTS = 4
"""Tasks of one Dag that hold a worker slot at a time, at most."""


@dataclass(frozen=True)
class Contender:
    """:param args: what the operator is given besides the training itself
    :param patience: what it is given so that it waits for a pod; nothing where it waits anyway
    :param plays: names of the scenarios that mean something to it; None: all
    """

    name: str
    title: str
    ours: bool
    args: Mapping[str, Any] = field(default_factory=dict)
    patience: Mapping[str, Any] = field(default_factory=dict)
    plays: frozenset[str] | None = None

    @property
    def connection(self) -> str:
        """Id of its Airflow connection. Its namespace, queue and user in the cluster are called `name`."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Scenario:
    """:param asks: what the reader wants to know
    :param event: what happens to the task. `preempt`: a job of high priority takes the flavor on which the task runs.
        `kill`: its worker process gets SIGKILL right after it has created the Job. `clear`, `fail`: a user does it in
        the UI. `fail-run`: a user marks the whole Dag run as failed when all its tasks are deferred, or nothing moves
        any more
    :param at_step: step of the training at which that happens; `fail-run` has none
    :param full_s: the queue has no room at first, and for so long after the task has created its Job; inf: to the end
    :param retries: of the task
    :param patient: the operator gets its `patience`: without it the scenario would end before it begins
    :param blind: theirs does not look for a pod (a subclass). With more waiting tasks than worker slots, its patience
        does not get them deferred either
    :param tasks: of the Dag, each with a Job of its own
    :param chains: the tasks follow each other, whatever becomes of them, in so many chains; 0: nobody waits
    :param args: of the operator, whosever it is
    """

    name: str
    title: str
    asks: str
    event: Event | None = None
    at_step: int = 20
    full_s: float = 0.0
    retries: int = 0
    patient: bool = True
    blind: bool = False
    steps: int = STEPS
    pod_cpu: str = POD_CPU
    tasks: int = 1
    chains: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task_ids(self) -> tuple[str, ...]:
        return (TASK,) if self.tasks == 1 else tuple(f"{TASK}-{n}" for n in range(1, self.tasks + 1))


THEIRS = "KubernetesStartKueueJobOperator"
_WAITS = {"wait_until_job_complete": True}
_PATIENCE = {"discover_pods_retry_number": 1_000_000}
"""The only parameter of it that makes it wait for a pod: a loop of list calls without a pause."""

CONTENDERS = (
    Contender("theirs", THEIRS, False, _WAITS, _PATIENCE),
    Contender("theirs-deferrable", f"{THEIRS}(deferrable=True)", False, {**_WAITS, "deferrable": True}, _PATIENCE),
    Contender(
        "theirs-default",
        f"{THEIRS}, its defaults",
        False,
        plays=frozenset(("room", "full", "preemption")),  # nothing can be done to a task that has ended
    ),
    Contender("ours", "SingularityTrainOperator", True),
)

SCENARIOS = (
    Scenario("room", "Queue has room", "Does it work at all, and is the log live?"),
    Scenario(
        "race",
        "12 Jobs of one step, 3 at a time, the queue has room",
        "Does each task find its pod?",
        patient=False,
        steps=1,
        pod_cpu="10m",
        tasks=12,
        chains=3,
    ),
    Scenario(
        "full",
        "Queue is full for 20 s",
        "Does the task fail, and is a Job left behind?",
        full_s=20.0,
        patient=False,
    ),
    Scenario(
        "full-retried",
        "Queue is full for 40 s, retries=1",
        "Does a retry help, and how many Jobs?",
        full_s=40.0,
        retries=1,
        patient=False,
    ),
    Scenario("waiting", "Waiting for 30 s in a full queue", "What does waiting cost?", full_s=30.0),
    Scenario(
        "preemption",
        "Preempted at step 20, another flavor is free",
        "Right state, logs kept, steps repeated?",
        event="preempt",
    ),
    Scenario(
        "preemption-retried",
        "Preempted at step 20, another flavor is free, retries=1",
        "Is a finished training run again?",
        event="preempt",
        retries=1,
    ),
    Scenario(
        "preemption-no-logs",
        "Preempted at step 20, another flavor is free, get_logs=False",
        "Right state without a log?",
        event="preempt",
        args={"get_logs": False},
    ),
    Scenario(
        "killed-worker",
        "Worker killed (SIGKILL) after it created the Job, retries=1",
        "How many Jobs?",
        event="kill",
        retries=1,
    ),
    Scenario("cleared", "Cleared at step 10 of 180", "Two Jobs at once?", event="clear", at_step=10, steps=180),
    Scenario("marked-failed", "Marked failed at step 20", "Is the Job gone?", event="fail"),
    Scenario(
        "run-failed",
        "Dag run of 50 tasks marked failed, all waiting in a full queue",
        "Are the Jobs gone?",
        event="fail-run",
        full_s=math.inf,
        blind=True,
        tasks=50,
    ),
)


def contenders(scenario: Scenario) -> tuple[Contender, ...]:
    """Who plays it."""
    return tuple(each for each in CONTENDERS if each.plays is None or scenario.name in each.plays)


def dag_id(scenario: Scenario, contender: Contender) -> str:
    return f"{scenario.name}__{contender.name}"


def operator_args(scenario: Scenario, contender: Contender) -> dict[str, Any]:
    """What the operator is given besides the training itself."""
    return {
        **contender.args,
        **(contender.patience if scenario.patient else {}),
        **scenario.args,
        "retries": scenario.retries,
    }
