"""Whose each annotation is. The reserved ones are the controller's: it believes what stands there.

`CONTROLLER`: nobody else may write it. `CREATION`: whoever creates the object chooses it, afterwards it is the
controller's. `USER`: whoever may edit the object may change it at any time; the controller reads it as untrusted text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from singularity_proxy.protocol import names

from ..contract import job_names

CONTROLLER = "controller"
CREATION = "creation"
USER = "user"
REMOVED = None
"""Among `free` values: anybody may remove it."""


@dataclass(frozen=True)
class Annotation:
    """:param whose: CONTROLLER, CREATION or USER
    :param instead: what a user does instead of writing it, the end of the sentence that refuses it
    :param free: what anybody may write although it is the controller's
    :param values: of a user's: all that it may be; empty: any text
    """

    name: str
    whose: str
    instead: str = ""
    free: Sequence[str | None] = ()
    values: Sequence[str] = ()


_STATUS = "read it with `singularityctl status`"
_CHECKPOINTS = "see `singularityctl checkpoints ls`"
_RESIZE = "ask for another size with `singularityctl resize`"

TABLE: Sequence[Annotation] = (
    Annotation(job_names.ANN_ATTEMPT, CONTROLLER, _STATUS),
    Annotation(
        names.ANN_CHECKPOINT, CONTROLLER, "set it to the empty text to start the next attempt from the beginning", [""]
    ),
    Annotation(job_names.ANN_CHECKPOINT_COPY, CONTROLLER, _CHECKPOINTS),
    Annotation(job_names.ANN_CHECKPOINTS, CONTROLLER, _CHECKPOINTS),
    Annotation(job_names.ANN_ORIGIN, CONTROLLER, f"{job_names.ANN_START_FROM} is what a new Job may have"),
    Annotation(job_names.ANN_REWINDS, CONTROLLER, "use `singularityctl rewind`"),
    Annotation(job_names.ANN_HISTORY, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_SCHEMA, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_HISTORY_ASIDE, CONTROLLER, "remove it", [REMOVED]),
    Annotation(job_names.ANN_PHASES, CONTROLLER, "read it with `singularityctl trace`"),
    Annotation(job_names.ANN_SAVEABLE, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_PROGRESS, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_CURVE, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_PODS, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_RESULT, CONTROLLER, "the program of rank 0 leaves it in the file SINGULARITY_RESULT_FILE"),
    Annotation(job_names.ANN_OUTPUTS_STORED, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_BROKEN, CONTROLLER, f"the budget is {job_names.ANN_INFRASTRUCTURE_RETRIES}"),
    Annotation(
        job_names.ANN_HOLD_DEADLINE,
        CONTROLLER,
        f"set {job_names.ANN_HOLD}={job_names.HOLD_RELEASED} to let a preemption through now",
        [REMOVED],
    ),
    Annotation(job_names.ANN_PLACEMENT, CONTROLLER, "use `singularityctl migrate`, or remove it", [REMOVED]),
    Annotation(job_names.ANN_SHAPE_BEFORE, CONTROLLER, _RESIZE),
    Annotation(job_names.ANN_LEAVE, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_REQUEST_STATUS, CONTROLLER, f"{job_names.ANN_REQUEST} is what you may write"),
    Annotation(
        job_names.ANN_CHECKPOINT_STATUS, CONTROLLER, f"{job_names.ANN_CHECKPOINT_REQUEST} is what you may write"
    ),
    Annotation(job_names.ANN_CHECKPOINT_POLICY, CONTROLLER, f"{job_names.ANN_CHECKPOINT_EVERY} is what you may write"),
    Annotation(job_names.ANN_PRIORITY, CONTROLLER, "it is on Workloads, and goes with the planner's policy"),
    Annotation(job_names.ANN_RESHAPE, CONTROLLER, _RESIZE),
    Annotation(job_names.ANN_PAUSED, CONTROLLER, "use `singularityctl pause` and `resume`"),
    Annotation(job_names.ANN_OVERDUE, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_FLAVOR, CONTROLLER, _STATUS),
    Annotation(job_names.ANN_WORKERS, CREATION, _RESIZE),
    Annotation(job_names.ANN_MIN_WORKERS, CREATION, _RESIZE),
    Annotation(job_names.ANN_WORLD_SIZE, CREATION, "the number of ranks stays; submit another job"),
    Annotation(job_names.ANN_ENGINE, CREATION, "its pods have that engine; submit another job"),
    Annotation(job_names.ANN_RANKS_PER_WORKER, CREATION, "the ranks of a pod stay; submit another job"),
    Annotation(job_names.ANN_START_FROM, CREATION, "use `singularityctl rewind` or `fork`"),
    Annotation(job_names.ANN_STORE, CREATION, "its checkpoints stay where they are; submit another job"),
    Annotation(job_names.ANN_INPUTS, CREATION, "its pods were made for them; submit another job"),
    Annotation(job_names.ANN_OUTPUTS, CREATION, "its pods were made for it; submit another job"),
    Annotation(job_names.ANN_PRIVILEGES, CREATION, "its pods stay as they are; submit another job"),
    Annotation(job_names.ANN_PRIVILEGES_WHY, CREATION, _STATUS),
    Annotation(job_names.ANN_HOLD, USER, values=(job_names.HOLD_ARMED, job_names.HOLD_RELEASED, job_names.HOLD_OFF)),
    Annotation(job_names.ANN_BUDGET, USER),
    Annotation(job_names.ANN_CHECKPOINT_EVERY, USER),
    Annotation(job_names.ANN_INFRASTRUCTURE_RETRIES, USER),
    Annotation(job_names.ANN_REQUEST, USER),
    Annotation(job_names.ANN_CHECKPOINT_REQUEST, USER),
)
LABELS = (job_names.LABEL_JOB, job_names.LABEL_IDENTITY)
"""Labels that stay as they were when the object was created."""


def reserved(*whose: str) -> list[Annotation]:
    return [entry for entry in TABLE if entry.whose in whose]
