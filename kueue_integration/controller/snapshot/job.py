"""A Job as one look sees it. JobSets and TrainJobs come here seen as Jobs (`kinds.as_job`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, CheckpointRef, JobRequest, Origin, Placement, RequestStatus

from ...contract import annotation_values, attempt_records, branches, job_names
from ...contract.annotation_values import readable
from ...contract.branches import Rewind
from ...kube.resources import Object, annotation
from ...manifests.job_manifests import COMPLETIONS_EQUAL_PARALLELISM, MIN_PARALLELISM
from ...requests import periodic_checkpoints, placement, user_requests
from ...spec.save_interval import Every
from .. import views
from .unreadable import UnreadableAnnotation, named, readable_or

STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue puts its template back as it was."""

Count = int | UnreadableAnnotation
History = tuple[AttemptRecord, ...]


@dataclass(frozen=True)
class Job:
    raw: Object
    """As it was read: for those who write it with its version, or ask what is no matter of this controller."""
    # --- from its labels, spec and status
    managed: bool
    copied: bool
    """MultiKueue has copied it into this cluster."""
    kept: bool
    """Its deletion waits until its records have been read."""
    deleting: bool
    suspended: bool
    never_started: bool
    end: Mapping[str, Any] | None
    """Its Complete or Failed condition once it is True."""
    failing: bool
    """The Job controller has decided that it ends."""
    parallelism: int
    """Pods that run now when none is missing."""
    # --- from its annotations
    hold_word: str | None
    """What the hold's annotation says; `hold` knows which of its words means none."""
    hold_deadline: float | UnreadableAnnotation | None
    """Unix seconds."""
    attempt_shown: Count | None
    """What the attempt's annotation says; `attempt` knows more."""
    history: History | UnreadableAnnotation
    """Oldest first."""
    checkpoint: CheckpointRef | UnreadableAnnotation | None
    """The committed one, None without one, and when `starts_over`."""
    starts_over: bool
    """The checkpoint's annotation is empty: somebody wants the next attempt to start from the beginning."""
    checkpoint_copy: CheckpointRef | UnreadableAnnotation | None
    checkpoints: tuple[CheckpointRef, ...]
    """The newest that were committed, oldest first; empty if they cannot be read: a new one can still be committed."""
    store: str | None
    workers: Count | None
    min_workers: Count | None
    world_size: Count | None
    ranks_per_worker: Count | None
    """None: the number of ranks is the same in all attempts."""
    budget_s: Count | None
    placement: Placement | UnreadableAnnotation
    placed: bool
    """A placement stands in the Job, whether or not it can be read."""
    roster: attempt_records.Roster | None
    lost: attempt_records.Lost | None
    infrastructure_retries: int | None
    every: Every | None
    """Periodic checkpoints that it asks for; None for none, and for what cannot be read."""
    change: user_requests.Exchange
    """The last request that changes the Job, and its answer; the other requests are for checkpoints."""
    checkpoint_request: user_requests.Exchange
    rewinds: tuple[Rewind, ...]
    """To older checkpoints, oldest first; empty if they cannot be read."""
    start: Origin | UnreadableAnnotation | None
    """The checkpoint of another job that whoever created it wants it to begin with."""
    began: bool
    """Kubernetes has started it, and Kueue has not put that back yet."""
    stopping: bool
    """Kueue puts its template back as it was."""
    tied: bool
    """Its completions follow its parallelism: its size may change."""
    min_parallelism: str | None
    """The fewest workers as Kueue is told."""

    @classmethod
    def parse(cls, raw: Object) -> Job:
        """Never raises because of text that a user can write into the Job."""
        whole, message = annotation_values.whole, annotation_values.message

        def count(name: str) -> Count | None:
            return named(raw, name, whole(raw, name, most=attempt_records.MAX_COUNT))

        past = annotation_values.messages(raw, job_names.ANN_HISTORY, AttemptRecord)
        return cls(
            raw=raw,
            managed=views.managed(raw),
            copied=views.copied(raw),
            kept=views.kept(raw),
            deleting=bool(raw["metadata"].get("deletionTimestamp")),
            suspended=views.suspended(raw),
            never_started=views.never_started(raw),
            end=views.finished(raw),
            failing=views.failing(raw),
            parallelism=views.parallelism(raw),
            hold_word=annotation(raw, job_names.ANN_HOLD),
            hold_deadline=named(
                raw, job_names.ANN_HOLD_DEADLINE, annotation_values.moment(raw, job_names.ANN_HOLD_DEADLINE)
            ),
            attempt_shown=count(job_names.ANN_ATTEMPT),
            history=named(raw, job_names.ANN_HISTORY, tuple(past) if isinstance(past, list) else past),
            checkpoint=named(raw, names.ANN_CHECKPOINT, message(raw, names.ANN_CHECKPOINT, CheckpointRef)),
            starts_over=annotation(raw, names.ANN_CHECKPOINT) == "",
            checkpoint_copy=named(
                raw, job_names.ANN_CHECKPOINT_COPY, message(raw, job_names.ANN_CHECKPOINT_COPY, CheckpointRef)
            ),
            checkpoints=tuple(attempt_records.checkpoints(raw)),
            store=annotation(raw, job_names.ANN_STORE),
            workers=count(job_names.ANN_WORKERS),
            min_workers=count(job_names.ANN_MIN_WORKERS),
            world_size=count(job_names.ANN_WORLD_SIZE),
            ranks_per_worker=count(job_names.ANN_RANKS_PER_WORKER),
            budget_s=named(raw, job_names.ANN_BUDGET, attempt_records.budget(raw)),
            placement=named(raw, job_names.ANN_PLACEMENT, placement.of(raw)),
            placed=annotation(raw, job_names.ANN_PLACEMENT) is not None,
            roster=readable(message(raw, job_names.ANN_PODS, attempt_records.Roster), None),
            lost=attempt_records.lost(raw),
            infrastructure_retries=attempt_records.infrastructure_retries(raw),
            every=periodic_checkpoints.wish(raw),
            change=user_requests.exchange(raw, user_requests.CHANGE),
            checkpoint_request=user_requests.exchange(raw, user_requests.CHECKPOINT),
            rewinds=tuple(branches.rewinds(raw)),
            start=named(raw, job_names.ANN_START_FROM, branches.start_from(raw)),
            began=bool((raw.get("status") or {}).get("startTime")),
            stopping=annotation(raw, STOPPING) is not None,
            tied=annotation(raw, COMPLETIONS_EQUAL_PARALLELISM) == "true",
            min_parallelism=annotation(raw, MIN_PARALLELISM),
        )

    def text(self, name: str) -> str | None:
        """Annotation `name` as it stands: to show it or to copy it, never to take it apart."""
        return annotation(self.raw, name)

    @property
    def created(self) -> float:
        """Unix seconds."""
        return views.created(self.raw)

    @property
    def going(self) -> bool:
        """It is being deleted and nothing more can be written on it."""
        return self.deleting and not self.kept

    @property
    def hold(self) -> str | None:
        """None: plain Kueue behaviour."""
        return None if self.hold_word == job_names.HOLD_OFF else self.hold_word

    @property
    def armed(self) -> bool:
        """Whether Kueue's suspend is to wait for a checkpoint."""
        return self.hold_word == job_names.HOLD_ARMED

    @property
    def attempt(self) -> Count:
        """Current attempt, 0 before the first admission.

        The history knows it too: no pod is called stale because somebody removed the annotation. Numbers only grow.
        """
        shown = 0 if self.attempt_shown is None else self.attempt_shown
        past = readable_or(self.history, ())
        return max(past[-1].attempt, readable_or(shown, 0)) if past else shown

    @property
    def last(self) -> AttemptRecord | None:
        """The record of the newest attempt, None if there is none, or the history cannot be read."""
        past = readable_or(self.history, ())
        return past[-1] if past else None

    @property
    def workers_wanted(self) -> Count:
        return self.parallelism if self.workers is None else self.workers

    @property
    def fewest_workers(self) -> Count:
        wanted = self.workers_wanted
        return wanted if self.min_workers is None or isinstance(wanted, UnreadableAnnotation) else self.min_workers

    def ranks(self, pods: int) -> Count | None:
        """Its world size in an attempt of so many pods; None: it says none."""
        each = self.ranks_per_worker
        if each is None:
            return self.world_size
        return each if isinstance(each, UnreadableAnnotation) else pods * each

    def budget(self, maximum: float) -> float:
        """Seconds that Kueue may be held back for a checkpoint: what the Job asks for, but not more than `maximum`.

        `maximum` counts for a Job that does not ask, or whose wish cannot be read.
        """
        asked = readable_or(self.budget_s, None)
        return float(maximum if asked is None else min(asked, maximum))

    def of_store(self, ref: CheckpointRef) -> bool:
        """Whether the checkpoint is in the Job's own store: pods read nowhere else, whatever the annotation names."""
        return self.store is None or ref.url.rstrip("/") == self.store.rstrip("/")

    def roster_of(self, attempt: int) -> frozenset[str] | None:
        """UIDs (their first characters) of the pods that `attempt` took its first step with; None: not known."""
        if self.roster is None or self.roster.attempt != attempt:
            return None
        return frozenset(self.roster.uids) or None

    def exchange(self, slot: user_requests.Slot) -> user_requests.Exchange:
        """The request in `slot` and its answer."""
        return self.change if slot is user_requests.CHANGE else self.checkpoint_request

    @property
    def changing(self) -> tuple[JobRequest, RequestStatus] | None:
        """The request that is being carried out and changes the Job."""
        return self.change.running
