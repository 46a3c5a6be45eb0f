"""How long a small move takes on a cluster, by the job's trace: evicted to quota free, and admitted to the first step.

A job of two ranks with about 1 GB of images gives way to a Job of high priority. It comes back when that one is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kueue_integration.jobs import lifecycle, move_trace
from kueue_integration.jobs.move_trace import Move
from kueue_integration.jobs.status import JobStatus, describe
from kueue_integration.kube.resources import JOB
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for

from .model import Group, Measured, Options, Say, Spec
from .preemption import stage, wide
from .stats import median

PODS, CPU = 2, "500m"
WIDTH = 1024
"""33 MB of trained state beside what a rank with torch maps: about 0.5 GB of images each."""
LIMIT_S = 600.0


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    with stage(say) as on:
        runs = [once(on, wide(f"small-{number}", WIDTH, PODS, CPU), say) for number in range(1 if options.quick else 5)]
    leave, come = median(run["leave_s"] for run in runs), median(run["come_s"] for run in runs)
    size = median(run["gb"] for run in runs)
    text = f"evicted to quota free {leave:.3g} s, admitted to first step {come:.3g} s; {size:.2g} GB of images"
    return {"move_small_s": Measured(max(leave, come), runs, f"{text}; {runs[-1]['longest']}")}


def nothing(status: JobStatus) -> dict[str, Any]:
    return {}


def once(on: Stage, spec: TrainSpec, say: Say, look: Callable[[JobStatus], dict[str, Any]] = nothing) -> dict[str, Any]:
    """One move of a job there and back. Raises ValueError where it did not move with a checkpoint.

    :param look: called when the job trains, before the move and after it; `before` and `after` are what it returns
    """
    kube, name, rival = on.kube, spec.name, f"rival-{spec.name}"
    lifecycle.submit(kube, spec, on.platform)
    try:
        before = look(until_trains(on, name, 1))
        kube.create(intruder(rival, NAMESPACE, QUEUE, on.platform.train_image, PODS, CPU))
        wait_for(lambda: not kube.get(JOB, NAMESPACE, rival)["spec"]["suspend"], "the preemptor's admission", LIMIT_S)
        remove(kube, NAMESPACE, rival)
        after = look(until_trains(on, name, 2))
        found = {**figures(describe(kube, NAMESPACE, name)), "before": before, "after": after}
    finally:
        remove(kube, NAMESPACE, rival)
        remove(kube, NAMESPACE, name)
    say(f"{name}: {found}")
    return found


def until_trains(on: Stage, name: str, attempt: int, steps: int = 0) -> JobStatus:
    """Until the attempt has made its first step, and `steps` more. Raises StoryTimeoutError."""

    def holds() -> JobStatus | None:
        status = describe(on.kube, NAMESPACE, name)
        first = next((record.first_step for record in status.attempts if record.attempt == attempt), None)
        enough = not steps or (first is not None and status.step >= first + steps)
        return status if enough and trains_in(status, attempt) else None

    return wait_for(holds, f"{name} trains in attempt {attempt}, {steps} steps", LIMIT_S)


def trains_in(status: JobStatus, attempt: int) -> bool:
    return any(record.attempt == attempt and record.first_step_at is not None for record in status.attempts)


def figures(status: JobStatus) -> dict[str, Any]:
    """Of the first move. Raises ValueError that says what is missing."""
    left, right = status.attempts[:2]
    (move, *_) = move_trace.moves(status.attempts, status.phases)
    if left.evicted_at is None or left.released_at is None or right.first_step_at is None or not left.checkpoint:
        raise ValueError(f"{status.name} did not move with a checkpoint: {left.note or left.ended_by}")
    saved = next((entry for entry in status.checkpoints if entry["id"] == left.checkpoint), {})
    return {
        "leave_s": round(left.released_at - left.evicted_at, 3),
        "come_s": round(right.first_step_at - right.admitted_at, 3),
        "gb": round((saved.get("bytes") or 0) / 1e9, 3),
        "longest": longest(move),
        "spans": {span.phase: span.seconds for span in move.spans},
    }


def longest(move: Move, count: int = 5) -> str:
    """The longest phases in words, without the queue: nobody can shorten the wait for somebody else's job."""
    spans = sorted((s for s in move.spans if s.phase != "queue"), key=lambda span: -span.seconds)[:count]
    return "longest " + ", ".join(f"{span.phase} {span.seconds:.2g} s" for span in spans)


GROUP = Group(
    "move_small",
    "root, local cluster",
    [Spec("move_small_s", "s", "<= 6", "1 GB of images: the longer of evicted to quota free, admitted to first step")],
    measure,
)
