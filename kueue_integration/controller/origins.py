"""A new job that begins with a checkpoint of another one: looked up there, then written down on the new job. Pure.

Whoever creates a Job may name any checkpoint. What is restored is decided here. The other job is of the same namespace,
and its own record, which only the controller writes, gives place and digest of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.protocol.decode import Unreadable

from ..contract import branches, job_names
from ..kube.resources import Object, annotation, label
from ..requests import user_requests
from . import views
from .actions import BeginFrom, Wait
from .errors import BadAnnotationError

SourceOf = Callable[[str], "Object | None"]
"""The job of the same namespace that is called so, None if there is none."""


def open_start(job: Object) -> bool:
    """Whether the Job names a checkpoint to begin with that has not been looked up yet."""
    if annotation(job, job_names.ANN_START_FROM) is None or annotation(job, job_names.ANN_ORIGIN) is not None:
        return False
    return not annotation(job, job_names.ANN_HISTORY)


def require_known(job: Object) -> None:
    """Raises BadAnnotationError for a Job whose first attempt would not start from what it names."""
    if not open_start(job):
        return
    why = "the job that it names has not been looked at yet"
    if views.delegated(job):
        why = "not possible for a job that MultiKueue runs in another cluster"
    raise BadAnnotationError(job_names.ANN_START_FROM, annotation(job, job_names.ANN_START_FROM) or "", why)


def due(job: Object, source_of: SourceOf) -> BeginFrom | Wait | None:
    """What the Job begins with, written down; Wait: that is not possible, for this reason. None: nothing is due."""
    if not views.managed(job) or views.copied(job) or not open_start(job) or job["metadata"].get("deletionTimestamp"):
        return None
    wanted = branches.start_from(job)
    if isinstance(wanted, Unreadable) or wanted is None:
        why = wanted.why if isinstance(wanted, Unreadable) else "is empty"
        return Wait(message=f"annotation {job_names.ANN_START_FROM} cannot be read: {why}; delete the Job")
    source = source_of(wanted.job)
    if source is None or label(source, job_names.LABEL_MANAGED) != "true":
        return Wait(message=f"waits: there is no training job {wanted.job!r} here to begin from; delete the Job")
    ref, problem = user_requests.committed(source, wanted.checkpoint)
    if ref is None:
        assert problem is not None
        return Wait(message=f"waits: {problem[0]} = {problem[1]!r}: {problem[2]}; delete the Job")
    unfit = branches.unfit(job, ref)
    if unfit:
        return Wait(message=f"waits: {unfit}; delete the Job")
    change = branches.begun(wanted.job, source, ref)
    return BeginFrom(change, message=f"begins with checkpoint {ref.id} (step {ref.step}) of job {wanted.job}")
