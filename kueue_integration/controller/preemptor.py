"""The names of a job's preemptor: recorded while the preemptor still exists. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proxy.protocol import decode
from proxy.protocol.decode import Unreadable
from proxy.protocol.messages import AttemptRecord, Preemptor

from ..contract import job_names
from ..kube.resources import KUEUE_JOB_UID_LABEL, Object, label
from . import attempt_history, views
from .actions import Action

Find = Callable[[str], "Preemptor | None"]
"""The Workload with this UID, or the one of the Job with this UID."""


def of(workload: Object) -> Preemptor:
    """What identifies `workload` for people."""
    spec = workload.get("spec") or {}
    owners = workload["metadata"].get("ownerReferences") or ()
    owner = next((o for o in owners if o.get("controller")), owners[0] if owners else {})
    return Preemptor(
        workload=str(workload["metadata"]["name"]),
        namespace=str(workload["metadata"].get("namespace", "")),
        kind=str(owner.get("kind", "")),
        job=str(owner.get("name") or label(workload, KUEUE_JOB_UID_LABEL) or ""),
        queue=str(spec.get("queueName", "")),
        priority=int(spec.get("priority") or 0),
    )


def named(action: Action | None, workload: Object | None, find: Find) -> Action | None:
    """`action` with the preemptor's names in the record that it writes about this eviction."""
    text = action.job_annotations.get(job_names.ANN_HISTORY) if action is not None else None
    if action is None or workload is None or not text:
        return action
    history = decode.messages(AttemptRecord, text)
    if isinstance(history, Unreadable):
        return action
    uids = views.preemptor_uids(workload)
    who = next((found for found in map(find, uids) if found), None)
    if who is None:
        return action
    changed = [
        replace(record, preemptor=who) if record.preempted_by == who.workload and record.preemptor is None else record
        for record in history
    ]
    if changed == history:
        return action
    return replace(action, job_annotations={**action.job_annotations, **attempt_history.stored(changed)})
