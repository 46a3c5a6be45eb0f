"""What is played, and by whom: data, read by the runner and by the Dag file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Event = Literal["preempt", "kill", "clear", "fail"]

STEPS = 60
PACE_S = 0.5
POD_CPU = "200m"
QUOTA = "300m"
"""Of each of the two flavors of a contender's queue: room for one training and not for two."""
TASK = "train"


@dataclass(frozen=True)
class Contender:
    """:param args: what the operator is given besides the training itself
    :param patience: what it is given so that it waits for a pod; nothing where it waits anyway
    """

    name: str
    title: str
    ours: bool
    args: Mapping[str, Any] = field(default_factory=dict)
    patience: Mapping[str, Any] = field(default_factory=dict)

    @property
    def connection(self) -> str:
        """Id of its Airflow connection. Its namespace, queue and user in the cluster are called `name`."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Scenario:
    """:param asks: what the reader wants to know
    :param event: what happens to the task: `preempt` (a job of high priority takes the flavor it runs on), `kill` (its
        worker process, by SIGKILL, right after it has created the Job), `clear` or `fail` (a user does it in the UI)
    :param at_step: step of the training at which that happens
    :param full_s: the queue has no room at first, and for so long after the task has created its Job
    :param retries: of the task
    :param patient: the operator gets its `patience`: without it the scenario would end before it begins
    """

    name: str
    title: str
    asks: str
    event: Event | None = None
    at_step: int = 20
    full_s: float = 0.0
    retries: int = 0
    patient: bool = True


THEIRS = "KubernetesStartKueueJobOperator"
_WAITS = {"wait_until_job_complete": True}
_PATIENCE = {"discover_pods_retry_number": 1_000_000}
"""The only parameter of it that makes it wait for a pod: a loop of list calls without a pause."""

CONTENDERS = (
    Contender("theirs", THEIRS, False, _WAITS, _PATIENCE),
    Contender("theirs-deferrable", f"{THEIRS}(deferrable=True)", False, {**_WAITS, "deferrable": True}, _PATIENCE),
    Contender("ours", "SingularityTrainOperator", True),
)

SCENARIOS = (
    Scenario("room", "Queue has room", "Does it work at all, and is the log live?"),
    Scenario(
        "full",
        "Queue is full for 20 s",
        "Does the task fail, and is a Job left behind?",
        full_s=20.0,
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
        "killed-worker",
        "Worker killed (SIGKILL) after it created the Job, retries=1",
        "How many Jobs?",
        event="kill",
        retries=1,
    ),
    Scenario("cleared", "Cleared at step 20", "Two Jobs at once?", event="clear"),
    Scenario("marked-failed", "Marked failed at step 20", "Is the Job gone?", event="fail"),
)


def dag_id(scenario: Scenario, contender: Contender) -> str:
    return f"{scenario.name}__{contender.name}"


def operator_args(scenario: Scenario, contender: Contender) -> dict[str, Any]:
    """What the operator is given besides the training itself."""
    return {
        **contender.args,
        **(contender.patience if scenario.patient else {}),
        "retries": scenario.retries,
    }
