"""Checkpoints that were not restored: what is written on the Job, and from where its next attempt starts. Pure.

The next attempt tries the same checkpoint, up to RESTORES times. If the store's copy is damaged, or after that, it
starts from the newest checkpoint before it that is not passed over, or from the beginning. Nothing is deleted. The
present attempt gets no other checkpoint: its other pods may have restored this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Damage, to_json

from ..contract import branches, job_names
from ..contract.record_types import AttemptRecord
from . import attempt_history
from .actions import Annotations
from .snapshot import Job, Pod, required


def noted(job: Job, attempt: int, damaged: Sequence[Damage], node: str = "") -> Annotations | None:
    """What to write when a pod of `attempt` has not restored what that was given; None if it is known already.

    :param node: of the pod, "" if that is not known
    Raises BadAnnotationError.
    """
    given = required(job.checkpoint)
    told = {found.id: found for found in damaged}
    history = required(job.history)
    record = attempt_history.last(history)
    if given is None or given.id not in told or given.attempt >= attempt:
        return None
    if record is not None and record.attempt == attempt and record.restored_from not in (None, given.id):
        return None
    past = [ref for ref in job.checkpoints if ref.id != given.id]
    marked = [
        attempt_history.found(ref, told.get(ref.id), attempt, history, node)
        for ref in sorted([*past, given], key=lambda ref: ref.generation)
    ]
    now = next(ref for ref in marked if ref.id == given.id)
    if now == given:
        return None
    branch = branches.branch_of(given, marked, history)
    start = attempt_history.usable_before(branch, given) if now.passed_over else now
    text = "" if start is None else to_json(start)
    listed = attempt_history.listed(marked)
    return {names.ANN_CHECKPOINT: text, job_names.ANN_CHECKPOINT_COPY: text, job_names.ANN_CHECKPOINTS: listed}


def killed(job: Job, record: AttemptRecord, pods: Sequence[Pod]) -> Annotations | None:
    """The same where the kernel has killed a whole container for memory before the attempt ran: nobody is left in it
    who could say so. `pods`: of the attempt. Raises BadAnnotationError."""
    if record.restored_from is None or record.runs_since is not None:
        return None
    for pod in pods:
        if pod.end is not None and pod.end.cause == "memory":
            why = f"killed while it was restored: {pod.end.text}"
            return noted(job, record.attempt, [Damage(record.restored_from, why, tried=True)], str(pod.node or ""))
    return None
