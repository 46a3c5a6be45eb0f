"""What the core can decide to do, as data. The reconciler carries it out, at most one action per look at a Job.

`job_annotations` are written first, in one patch with the Job's resourceVersion as precondition (None deletes). The
change of the Workload follows, with the Workload's resourceVersion. After a crash between the two the same decision is
made again.

Each action declares its `guard`: what keeps it from acting on a state that is over. Our copies of objects may be old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any

from ..contract.record_types import Readmission, RequestStatus

Annotations = Mapping[str, "str | None"]


class Guard(Flag):
    """What an action depends on. The reconciler reads again what is to be fresh, and decides again on it."""

    JOB_VERSION = auto()
    """It writes the Job, with the version that was decided on."""
    WORKLOAD_VERSION = auto()
    """It writes the Workload, with the version that was decided on."""
    FRESH_PODS = auto()
    FRESH_WORKLOAD = auto()
    FRESH_JOB = auto()
    FRESH_READS = FRESH_PODS | FRESH_WORKLOAD | FRESH_JOB

    @property
    def reads(self) -> Guard:
        """What has to be fresh."""
        return self & Guard.FRESH_READS


BOTH = Guard.JOB_VERSION | Guard.WORKLOAD_VERSION


@dataclass(frozen=True)
class Action:
    job_annotations: Annotations = field(default_factory=dict)
    guard: Guard = field(default=BOTH | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class AnswerReady(Action):
    """Fence: the attempt may start. `pod_annotations` go to every podset; empty for a Job that is not managed."""

    attempt: int = 0
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True)
class Wait(Action):
    """Fence: not yet. `message` is shown on the Workload's check."""

    message: str = ""
    guard: Guard = field(default=Guard.WORKLOAD_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class Reject(Action):
    """Fence: never. Kueue deactivates the Workload, whose quota is free again, and shows `message`."""

    message: str = ""
    guard: Guard = field(default=Guard.WORKLOAD_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class Withdraw(Action):
    """Fence: an answer that is not for this reservation is taken back: our check is Pending again."""

    message: str = ""
    guard: Guard = field(default=Guard.WORKLOAD_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class StartCheckpoint(Action):
    """Hold: ask for a checkpoint. The annotations carry the deadline, from which the pods' command is derived."""

    deadline: float = 0.0
    """Unix seconds."""
    reason: str = ""
    preemptor: str | None = None
    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class ReleaseHold(Action):
    """Hold: let Kueue suspend the Job. `why` is one of the words counted in the metrics."""

    why: str = ""
    message: str = ""
    nudge: bool = False
    """Whether a change of the Workload has to make Kueue ask again: an earlier end of the hold had no effect."""
    guard: Guard = field(default=Guard.JOB_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class RecordHistory(Action):
    """Nothing but the history changes."""

    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class KeepRecords(Action):
    """Put our finalizer on a Job that MultiKueue has copied here: it may be deleted at any moment."""

    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class Repair(Action):
    """Restore what somebody deleted or damaged by hand. `what` is a label value of the metrics."""

    what: str = ""
    message: str = ""
    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class RequestReadmission(Action):
    """Set our check to Retry: Kueue evicts the Workload and admits it again, at the earliest after so many seconds."""

    message: str = ""
    requeue_after_s: int = 1
    cause: Readmission = "broken"
    safe: str = ""
    """Why no work is lost with the attempt that it stops (`leave`); "" of one that stops none, or cannot but."""


@dataclass(frozen=True)
class GiveUp(Action):
    """Fail the job for good. A Job gets `annotations` and its end in one patch, so they do not go ahead of it."""

    annotations: Annotations = field(default_factory=dict)
    message: str = ""
    guard: Guard = field(default=Guard.JOB_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class Revive(Action):
    """Complete Kueue's own deactivation or reactivation of the Workload. `status`: a merge patch of its status."""

    status: Mapping[str, Any] = field(default_factory=dict)
    guard: Guard = field(default=Guard.WORKLOAD_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class AnswerRequest(Action):
    """A user's request is taken up, refused, done or failed, as `status` says."""

    status: RequestStatus | None = None
    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class BeginFrom(Action):
    """A new Job begins with a checkpoint of another one. `message` is for the log."""

    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)
    message: str = ""


@dataclass(frozen=True)
class AskCheckpoint(Action):
    """A periodic checkpoint is due: make the request that a user could have made. `message` is for the log."""

    message: str = ""
    guard: Guard = field(default=Guard.JOB_VERSION, kw_only=True, repr=False)


@dataclass(frozen=True)
class Reshape(Action):
    """Give the suspended Job another size or placement: a merge patch."""

    body: Mapping[str, Any] = field(default_factory=dict)
    guard: Guard = field(default=Guard.JOB_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class PatchWorkload(Action):
    """Change the Workload's spec, which is the user's side of it: a merge patch. `why` is a word for the log."""

    body: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    safe: str = ""
    """As in RequestReadmission."""


@dataclass(frozen=True)
class NoteLeave(Action):
    """A voluntary stop: the attempt is saved first, or that has failed, or nobody wants it any more."""

    message: str = ""
    guard: Guard = field(default=Guard.JOB_VERSION | Guard.FRESH_READS, kw_only=True, repr=False)


@dataclass(frozen=True)
class Decision:
    """`action` None: nothing to do. `wake_at`: Unix seconds at which to look again even if nothing changes."""

    action: Action | None = None
    wake_at: float | None = None
