"""A new job that begins with a checkpoint of another one: looked up there, then written down on the new job. Pure.

Whoever creates a Job may name any checkpoint. What is restored is decided here. The other job is of the same namespace,
and its own record, which only the controller writes, gives place and digest of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from ..contract import branches, job_names
from ..errors import BadAnnotationError
from ..job import states
from ..kube.resources import Object, label
from ..requests import user_requests
from .actions import BeginFrom, Wait
from .snapshot import Job, UnreadableAnnotation

SourceOf = Callable[[str], "Object | None"]
"""The job of the same namespace that is called so, None if there is none."""


def open_start(job: Job) -> bool:
    """Whether the Job names a checkpoint to begin with that has not been looked up yet."""
    return job.start is not None and job.text(job_names.ANN_ORIGIN) is None and not job.text(job_names.ANN_HISTORY)


def require_known(job: Job) -> None:
    """Raises BadAnnotationError for a Job whose first attempt would not start from what it names."""
    if not open_start(job):
        return
    why = "the job that it names has not been looked at yet"
    if states.delegated(job.raw):
        why = "not possible for a job that MultiKueue runs in another cluster"
    raise BadAnnotationError(job_names.ANN_START_FROM, job.text(job_names.ANN_START_FROM) or "", why)


def due(job: Job, source_of: SourceOf) -> BeginFrom | Wait | None:
    """What the Job begins with, written down; Wait: that is not possible, for this reason. None: nothing is due."""
    wanted = job.start
    if wanted is None or not open_start(job) or not job.managed or job.copied or job.deleting:
        return None
    if isinstance(wanted, UnreadableAnnotation):
        return Wait(message=f"annotation {wanted.name} cannot be read: {wanted.why}; delete the Job")
    source = source_of(wanted.job)
    if source is None or label(source, job_names.LABEL_MANAGED) != "true":
        return Wait(message=f"waits: there is no training job {wanted.job!r} here to begin from; delete the Job")
    ref, problem = user_requests.committed(source, wanted.checkpoint)
    if ref is None:
        assert problem is not None
        return Wait(message=f"waits: {problem[0]} = {problem[1]!r}: {problem[2]}; delete the Job")
    unfit = branches.unfit(job.raw, ref)
    if unfit:
        return Wait(message=f"waits: {unfit}; delete the Job")
    change = branches.begun(wanted.job, source, ref)
    return BeginFrom(change, message=f"begins with checkpoint {ref.id} (step {ref.step}) of job {wanted.job}")
