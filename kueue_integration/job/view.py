"""A Job as whoever looks at it sees it: its state, and all that stands on it. Pure.

Each part is read when it is asked for first. JobSets and TrainJobs come here seen as Jobs (`kinds.as_job`).

In this package and in `contract` the text of annotations is known, and nowhere else: `records` is the table of those
on a Job. An annotation that cannot be read is a value in its field (`UnreadableAnnotation`). Whoever needs the field
decides what that means: `required` raises, `readable_or` takes something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.messages import CheckpointRef
from singularity_proxy.protocol.outputs import StoredOutputs

from ..contract import annotation_values, attempt_records, branches, job_names, leaves
from ..contract.annotation_values import message, moment, readable, texts, whole
from ..contract.record_types import AttemptRecord, CheckpointMemory, JobRequest, Placement, RequestStatus
from ..kube.resources import Object, annotation
from ..spec import save_interval
from . import exchanges, states
from .part import Part
from .unreadable import UnreadableAnnotation, named, readable_or

ANYWHERE = Placement()
STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue puts its template back as it was."""

M = TypeVar("M")
Count = int | UnreadableAnnotation
History = tuple[AttemptRecord, ...]


def _word(name: str) -> Part[str | None]:
    return Part(lambda raw: annotation(raw, name))


def _count(name: str) -> Part[Count | None]:
    return Part(lambda raw: named(raw, name, whole(raw, name, most=attempt_records.MAX_COUNT)))


def _message(name: str, cls: type[M]) -> Part[M | UnreadableAnnotation | None]:
    return Part(lambda raw: named(raw, name, message(raw, name, cls)))


def _history(raw: Object) -> History | UnreadableAnnotation:
    found = attempt_records.told_history(raw)
    return named(raw, job_names.ANN_HISTORY, tuple(found) if isinstance(found, list) else found)


def _hold_deadline(raw: Object) -> float | UnreadableAnnotation | None:
    return named(raw, job_names.ANN_HOLD_DEADLINE, moment(raw, job_names.ANN_HOLD_DEADLINE))


def _roster(raw: Object) -> attempt_records.Roster | None:
    return readable(message(raw, job_names.ANN_PODS, attempt_records.Roster), None)


def _placement(raw: Object) -> Placement | Unreadable:
    return message(raw, job_names.ANN_PLACEMENT, Placement) or ANYWHERE


def _save_interval(raw: Object) -> save_interval.SaveInterval | None:
    try:
        return save_interval.parse(annotation(raw, job_names.ANN_CHECKPOINT_EVERY))
    except ValueError:
        return None


def _checkpoint_memory(raw: Object) -> CheckpointMemory:
    return readable(message(raw, job_names.ANN_CHECKPOINT_POLICY, CheckpointMemory), None) or CheckpointMemory()


@dataclass(frozen=True)
class Job:
    raw: Object
    """As it was read: for those who write it with its version, or ask what is no matter of this controller."""
    # --- from its labels, spec and status
    managed = Part(states.managed)
    copied = Part(states.copied)
    """MultiKueue has copied it into this cluster."""
    kept = Part(states.kept)
    """Its deletion waits until its records have been read."""
    deleting = Part(lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    suspended = Part(states.suspended)
    never_started = Part(states.never_started)
    end = Part(states.finished)
    """Its Complete or Failed condition once it is True."""
    failing = Part(states.failing)
    """The Job controller has decided that it ends."""
    parallelism = Part(states.parallelism)
    """Pods that run now when none is missing."""
    began = Part(lambda raw: bool((raw.get("status") or {}).get("startTime")))
    """Kubernetes has started it, and Kueue has not put that back yet."""
    # --- from its annotations
    hold_word = _word(job_names.ANN_HOLD)
    """What the hold's annotation says; `hold` knows which of its words means none."""
    hold_deadline = Part(_hold_deadline)
    """Unix seconds."""
    attempt_shown = _count(job_names.ANN_ATTEMPT)
    """What the attempt's annotation says; `attempt` knows more."""
    has_begun = Part(lambda raw: annotation(raw, job_names.ANN_ATTEMPT) is not None)
    """It has had an attempt."""
    history = Part(_history)
    """Oldest first."""
    checkpoint = _message(names.ANN_CHECKPOINT, CheckpointRef)
    """The committed one, None without one, and when `starts_over`."""
    starts_over = Part(lambda raw: annotation(raw, names.ANN_CHECKPOINT) == "")
    """The checkpoint's annotation is empty: somebody wants the next attempt to start from the beginning."""
    checkpoint_copy = _message(job_names.ANN_CHECKPOINT_COPY, CheckpointRef)
    checkpoints = Part(lambda raw: tuple(attempt_records.checkpoints(raw)))
    """The newest that were committed, oldest first; empty if they cannot be read: a new one can still be committed."""
    store = _word(job_names.ANN_STORE)
    engine = Part(lambda raw: annotation(raw, job_names.ANN_ENGINE) or names.ENGINE_PROCESS)
    """What of it is saved."""
    curve = Part(lambda raw: annotation_values.value(raw, job_names.ANN_CURVE))
    """JSON as it stands: [step, loss] pairs, where nobody has spoilt them."""
    outputs = _word(job_names.ANN_OUTPUTS)
    """URL; None or "": it has none."""
    inputs = Part(lambda raw: named(raw, job_names.ANN_INPUTS, texts(raw, job_names.ANN_INPUTS)))
    """Name -> URL; None: it has none."""
    outputs_stored = _message(job_names.ANN_OUTPUTS_STORED, StoredOutputs)
    has_result = Part(lambda raw: annotation(raw, job_names.ANN_RESULT) is not None)
    result = Part(lambda raw: annotation_values.value(raw, job_names.ANN_RESULT))
    """JSON that rank 0's program has left, or why it cannot be read."""
    newer = Part(attempt_records.newer)
    """A newer release has written its records in a format that this one does not know."""
    workers = _count(job_names.ANN_WORKERS)
    min_workers = _count(job_names.ANN_MIN_WORKERS)
    world_size = _count(job_names.ANN_WORLD_SIZE)
    ranks_per_worker = _count(job_names.ANN_RANKS_PER_WORKER)
    """None: the number of ranks is the same in all attempts."""
    budget_s = Part(lambda raw: named(raw, job_names.ANN_BUDGET, attempt_records.budget(raw)))
    placement = Part(lambda raw: named(raw, job_names.ANN_PLACEMENT, _placement(raw)))
    placed = Part(lambda raw: annotation(raw, job_names.ANN_PLACEMENT) is not None)
    """A placement stands in the Job, whether or not it can be read."""
    roster = Part(_roster)
    lost = Part(attempt_records.lost)
    infrastructure_retries = Part(attempt_records.infrastructure_retries)
    checkpoint_every = _word(job_names.ANN_CHECKPOINT_EVERY)
    save_interval = Part(_save_interval)
    """Periodic checkpoints that it asks for; None for none, and for what cannot be read."""
    checkpoint_memory = Part(_checkpoint_memory)
    """What was known when the last of these was asked for."""
    change = Part(lambda raw: exchanges.exchange(raw, exchanges.CHANGE))
    """The last request that changes the Job, and its answer; the other requests are for checkpoints."""
    checkpoint_request = Part(lambda raw: exchanges.exchange(raw, exchanges.CHECKPOINT))
    leave = Part(leaves.of)
    """The last voluntary stop, of whatever attempt; None also for what cannot be read."""
    rewinds = Part(lambda raw: tuple(branches.rewinds(raw)))
    """To older checkpoints, oldest first; empty if they cannot be read."""
    start = Part(lambda raw: named(raw, job_names.ANN_START_FROM, branches.start_from(raw)))
    """The checkpoint of another job that whoever created it wants it to begin with."""
    stopping = Part(lambda raw: annotation(raw, STOPPING) is not None)
    """Kueue puts its template back as it was."""
    tied = Part(lambda raw: annotation(raw, job_names.COMPLETIONS_EQUAL_PARALLELISM) == "true")
    """Its completions follow its parallelism: its size may change."""
    min_parallelism = _word(job_names.MIN_PARALLELISM)
    """The fewest workers as Kueue knows it."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Job:
        """No part of it raises because of text that a user can write into the Job."""
        return cls(cast(Object, raw))

    def text(self, name: str) -> str | None:
        """Annotation `name` as it stands: to show it or to copy it, never to take it apart."""
        return annotation(self.raw, name)

    @property
    def created(self) -> float:
        """Unix seconds."""
        return states.created(self.raw)

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
    def fewest_asked(self) -> Count:
        """As its owner wants it."""
        wanted = self.workers_wanted
        return wanted if self.min_workers is None or isinstance(wanted, UnreadableAnnotation) else self.min_workers

    @property
    def fewest_workers(self) -> Count:
        """... and no fewer than the ranks of its checkpoint have room in, so that Kueue never admits so few."""
        asked, wanted, ref = self.fewest_asked, self.workers_wanted, readable_or(self.checkpoint, None)
        if ref is None or isinstance(asked, UnreadableAnnotation) or isinstance(wanted, UnreadableAnnotation):
            return asked
        return max(asked, min(ref.fewest, wanted))

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

    def leave_of(self, record: AttemptRecord | None) -> leaves.Leave | None:
        """The voluntary stop of that attempt, None if there is none."""
        found = self.leave
        return found if found is not None and record is not None and found.attempt == record.attempt else None

    def exchange(self, slot: exchanges.Slot) -> exchanges.Exchange:
        """The request in `slot` and its answer."""
        return self.change if slot is exchanges.CHANGE else self.checkpoint_request

    @property
    def changing(self) -> tuple[JobRequest, RequestStatus] | None:
        """The request that is being carried out and changes the Job."""
        return self.change.running
