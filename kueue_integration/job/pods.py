"""The pods of a Job as one look sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from singularity_proxy.protocol import decode, names
from singularity_proxy.protocol.messages import LastWords, to_json

from ..contract import attempt_records, job_names
from ..contract.annotation_values import readable, whole
from ..kube.resources import Object, annotation
from . import states
from .part import Part
from .view import Job

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
"""On a pod until the Job controller has counted it."""


def _node(raw: Object) -> str | None:
    return (raw.get("spec") or {}).get("nodeName")


@dataclass(frozen=True)
class Pod:
    raw: Object
    name = Part(lambda raw: str(raw["metadata"]["name"]))
    short_uid = Part(lambda raw: str(raw["metadata"].get("uid", ""))[:8])
    """The first characters of its UID."""
    phase = Part(states.phase)
    can_write = Part(states.can_write)
    """A process of it may still be alive. A node that is silent leaves its pods in this state on purpose."""
    attempt_word = Part(lambda raw: annotation(raw, job_names.ANN_ATTEMPT))
    """The number of its attempt as it stands there: the fence has written it."""
    index = Part(lambda raw: readable(whole(raw, INDEX_ANNOTATION), None))
    checkpoint = Part(lambda raw: annotation(raw, names.ANN_CHECKPOINT) or "")
    """The checkpoint that it was started to restore, "" for none."""
    node = Part(_node)
    deleting = Part(lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    counted = Part(lambda raw: TRACKING_FINALIZER not in (raw["metadata"].get("finalizers") or ()))
    """The Job controller has counted it."""
    end = Part(states.end_of)
    """How it ended, if nobody had asked it to."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Pod:
        """No part of it raises because of text that a user can write into the pod."""
        return cls(cast(Object, raw))

    @property
    def attempt(self) -> int | None:
        """The number of its attempt, None if it says none."""
        word = self.attempt_word
        return None if word is None else readable(decode.whole(word, most=attempt_records.MAX_COUNT), None)

    @property
    def created(self) -> float:
        """Unix seconds."""
        return states.created(self.raw)

    @property
    def gone_at(self) -> float | None:
        """Unix seconds at which the kubelet kills it. None: it is not being deleted, or it has ended."""
        return states.gone_at(self.raw)


def of_attempt(pods: Iterable[Pod], number: int) -> list[Pod]:
    word = str(number)
    return [pod for pod in pods if pod.attempt_word == word]


def ranks_ended(job: Job, pods: Iterable[Pod]) -> bool:
    """Whether every rank of the Job has ended with 0: before that no pod ends with 0, whatever its attempt.

    Kubernetes never makes the pod of a complete index again, so those that are left cannot train any more. A pod that
    is as old as the Job, or older, may be one of a Job of this name that was deleted.
    """
    if (job.raw.get("status") or {}).get("succeeded"):
        return True
    return any(pod.phase == "Succeeded" and pod.created > job.created for pod in pods)


def ends_of(pods: Iterable[Pod]) -> list[LastWords]:
    """How those of the pods have ended that were not asked to, one killed for memory first."""
    return sorted((pod.end for pod in pods if pod.end), key=lambda end: end.cause != "memory")


def roster_text(pods: Iterable[Pod], number: int, count: int) -> str | None:
    """The annotation for `Job.roster`, None unless each of the `count` indexes of the attempt has exactly one pod."""
    own: Sequence[Pod] = [pod for pod in of_attempt(pods, number) if pod.phase != "Failed"]
    if len(own) != count or len({pod.index for pod in own}) != count:
        return None
    return to_json(attempt_records.Roster(number, [pod.short_uid for pod in own]))
